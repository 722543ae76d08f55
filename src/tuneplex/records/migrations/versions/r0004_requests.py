"""Requests that are over, the days that were added up of them, and what engines have counted themselves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False)


def _big(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def upgrade() -> None:
    """No requests were kept before, and no tenant requires it."""
    op.add_column("tenants", sa.Column("recorded", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.create_table(
        "requests",
        *map(_text, ("id", "fleet", "request_id")),
        *map(_big, ("arrived", "closed")),
        sa.Column("day", sa.Integer(), nullable=False),
        *map(_text, ("tenant", "key_id", "model", "version", "route", "pool", "replica", "outcome", "code")),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("estimated", sa.Boolean(), nullable=False),
        *map(_big, ("prompt", "cached", "completion", "waited_ms")),
        sa.Column("first_token_ms", sa.BigInteger(), nullable=True),
        *map(_text, ("session", "trace")),
        sa.Column("count", sa.Integer(), nullable=False),
        _text("attempts"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_requests")),
    )
    op.create_index(op.f("ix_requests_request_id"), "requests", ["request_id"])
    op.create_index(op.f("ix_requests_day"), "requests", ["day", "fleet"])
    op.create_table(
        "usage_days",
        *map(_text, ("fleet",)),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        *map(_text, ("tenant", "key_id", "model", "version", "pool", "outcome")),
        sa.Column("estimated", sa.Boolean(), nullable=False),
        *map(_big, ("requests", "prompt", "cached", "completion")),
        sa.PrimaryKeyConstraint(
            "fleet",
            "day",
            "tenant",
            "key_id",
            "model",
            "version",
            "pool",
            "outcome",
            "estimated",
            name=op.f("pk_usage_days"),
        ),
    )
    op.create_table(
        "engine_counters",
        *map(_text, ("fleet", "engine", "replica", "pool")),
        *map(_big, ("since", "at", "first_prompt", "first_completion", "prompt", "completion")),
        sa.PrimaryKeyConstraint("fleet", "engine", name=op.f("pk_engine_counters")),
    )
    _add_days()


def _add_days() -> None:
    """Up to which day requests were added up."""
    op.create_table(
        "added_up",
        _text("fleet"),
        sa.Column("before_day", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("fleet", name=op.f("pk_added_up")),
    )
