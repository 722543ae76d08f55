"""Tenants, their keys, and what holds for the whole store."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the first tables, with the tenant that is always there."""
    meta, tenants = _meta(), _tenants()
    _keys()
    op.bulk_insert(meta, [{"id": 1, "generation": 1, "keys_ever": False, "salt": secrets.token_urlsafe(32)}])
    everything = {"adapters": '["*"]', "base": True, "isolated": False, "cache_group": "", "disabled": False}
    op.bulk_insert(tenants, [{"name": "default", **everything, "created": 0}])


def _meta() -> sa.Table:
    return op.create_table(
        "meta",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("keys_ever", sa.Boolean(), nullable=False),
        sa.Column("salt", sa.Text(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_meta_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_meta")),
    )


def _tenants() -> sa.Table:
    return op.create_table(
        "tenants",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("adapters", sa.Text(), nullable=False),
        sa.Column("base", sa.Boolean(), nullable=False),
        sa.Column("isolated", sa.Boolean(), nullable=False),
        sa.Column("cache_group", sa.Text(), nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_tenants")),
    )


def _keys() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("adapters", sa.Text(), nullable=False),
        sa.Column("base", sa.Boolean(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=True),
        sa.Column("revoked", sa.BigInteger(), nullable=True),
        sa.Column("replaces", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name=op.f("fk_keys_tenant_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
        sa.UniqueConstraint("sha256", name=op.f("uq_keys_sha256")),
    )
    op.create_index(op.f("ix_keys_tenant"), "keys", ["tenant"])
