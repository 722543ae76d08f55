"""Limits of tenants and keys, and the tokens of each day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Whoever was there before has no limits, and nothing was counted."""
    for table in ("tenants", "keys"):
        op.add_column(table, sa.Column("limits", sa.Text(), server_default="{}", nullable=False))
    op.create_table(
        "usage_days",
        sa.Column("fleet", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("process", sa.Text(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("fleet", "subject", "day", "process", name=op.f("pk_usage_days")),
    )
