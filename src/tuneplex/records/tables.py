"""The tables of the store. `migrations` makes them; a test holds the two together."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
)

from tuneplex.identity import Limits

__all__ = ["REVISION_TABLE", "JsonText", "keys", "meta", "metadata", "spending", "tenants"]

# Not Alembic's own name for it, which another program may use in the same database.
REVISION_TABLE = "tuneplex_revision"

# Constraints have the same names everywhere, so that a later migration can find them in any database.
metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class JsonText(TypeDecorator[Any]):
    """A value kept as a JSON text: the same in every database, and in a backup.

    Args:
        kind: The value's type.
    """

    impl = Text
    cache_ok = True

    def __init__(self, kind: Any) -> None:  # noqa: ANN401 - a type, also one with parameters
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any | None, dialect: Dialect) -> Any:  # noqa: ANN401 - inherited
        """On its way into the database."""
        del dialect
        return None if value is None else msgspec.json.encode(value).decode()

    def process_result_value(self, value: Any | None, dialect: Dialect) -> Any:  # noqa: ANN401 - inherited
        """On its way out of the database."""
        del dialect
        return None if value is None else msgspec.json.decode(value, type=self.kind)


_Texts = tuple[str, ...]

# One row.
meta = Table(
    "meta",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("generation", BigInteger, nullable=False),
    Column("keys_ever", Boolean, nullable=False),
    Column("salt", Text, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
)

tenants = Table(
    "tenants",
    metadata,
    Column("name", Text, primary_key=True),
    Column("adapters", JsonText(_Texts), nullable=False),
    Column("base", Boolean, nullable=False),
    Column("isolated", Boolean, nullable=False),
    Column("cache_group", Text, nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("limits", JsonText(Limits), nullable=False, server_default="{}"),
    Column("weight", Integer, nullable=False, server_default="1"),
)

keys = Table(
    "keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, ForeignKey("tenants.name"), nullable=False),
    Column("sha256", Text, nullable=False, unique=True),
    Column("label", Text, nullable=False),
    Column("scopes", JsonText(_Texts), nullable=False),
    Column("adapters", JsonText(_Texts), nullable=False),
    Column("base", Boolean, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger),
    Column("revoked", BigInteger),
    Column("replaces", Text),
    Column("limits", JsonText(Limits), nullable=False, server_default="{}"),
    Index(None, "tenant"),
)

# What was let in of limits that are for a period of the calendar: by fleet (several can have the same store), field of
# `identity.Limits`, period (days or months of UTC, since 1970) and subject (see `identity.Subject`). Tokens, or picos.
# Each gateway process has rows of its own, which hold what it has counted so far: written again, they are not counted
# again.
spending = Table(
    "spending",
    metadata,
    Column("fleet", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("period", Integer, primary_key=True, autoincrement=False),
    Column("subject", Text, primary_key=True),
    Column("process", Text, primary_key=True),
    Column("amount", BigInteger, nullable=False),
)
