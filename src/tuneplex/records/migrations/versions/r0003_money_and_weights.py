"""Tenants' weights, and beside the tokens of each day the money of each month."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """All tenants weigh the same, the tokens of days stay counted, and no money was."""
    op.add_column("tenants", sa.Column("weight", sa.Integer(), server_default="1", nullable=False))
    spending = op.create_table(
        "spending",
        sa.Column("fleet", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("period", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("process", sa.Text(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("fleet", "kind", "period", "subject", "process", name=op.f("pk_spending")),
    )
    days = sa.table("usage_days", *map(sa.column, ("fleet", "day", "subject", "process", "tokens")))
    kept = sa.select(
        days.c.fleet, sa.literal("tokens_per_day"), days.c.day, days.c.subject, days.c.process, days.c.tokens
    )
    columns = ["fleet", "kind", "period", "subject", "process", "amount"]
    op.execute(spending.insert().from_select(columns, kept))
    op.drop_table("usage_days")
