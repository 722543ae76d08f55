"""The versions of adapters, and what was done with them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False)


def upgrade() -> None:
    """No versions were kept before: fleets begin with those of their files."""
    op.create_table(
        "adapters",
        *map(_text, ("fleet", "name", "record")),
        sa.PrimaryKeyConstraint("fleet", "name", name=op.f("pk_adapters")),
    )
    op.create_table(
        "adapter_events",
        _text("fleet"),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        *map(_text, ("adapter", "who", "action", "version", "why")),
        sa.PrimaryKeyConstraint("fleet", "number", name=op.f("pk_adapter_events")),
    )
