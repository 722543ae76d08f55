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
    false,
)

from tuneplex.identity import Limits
from tuneplex.journal import Tried

__all__ = [
    "REVISION_TABLE",
    "JsonText",
    "adapter_events",
    "adapters",
    "added_up",
    "engine_counters",
    "keys",
    "meta",
    "metadata",
    "requests",
    "spending",
    "tenants",
    "usage_days",
]

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
    Column("recorded", Boolean, nullable=False, server_default=false()),
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


def _text(name: str, *, key: bool = False) -> Column[str]:
    return Column(name, Text, primary_key=key, nullable=False)


def _number(name: str, kind: type[BigInteger | Integer] = BigInteger, *, key: bool = False) -> Column[int]:
    return Column(name, kind, primary_key=key, nullable=False, autoincrement=False)


# Requests that are over, see `journal.Finished`; times in milliseconds of Unix time, `day` is of UTC, by `closed`.
requests = Table(
    "requests",
    metadata,
    _text("id", key=True),
    _text("fleet"),
    _text("request_id"),
    _number("arrived"),
    _number("closed"),
    _number("day", Integer),
    _text("tenant"),
    _text("key_id"),
    _text("model"),
    _text("version"),
    _text("route"),
    _text("pool"),
    _text("replica"),
    _text("outcome"),
    _text("code"),
    _number("status", Integer),
    Column("stream", Boolean, nullable=False),
    Column("estimated", Boolean, nullable=False),
    _number("prompt"),
    _number("cached"),
    _number("completion"),
    _number("waited_ms"),
    Column("first_token_ms", BigInteger),
    _text("session"),
    _text("trace"),
    _number("count", Integer),
    Column("attempts", JsonText(list[Tried]), nullable=False),
    Index(None, "request_id"),
    Index(None, "day", "fleet"),
)

# Days whose requests are not kept any more, added up.
usage_days = Table(
    "usage_days",
    metadata,
    _text("fleet", key=True),
    _number("day", Integer, key=True),
    _text("tenant", key=True),
    _text("key_id", key=True),
    _text("model", key=True),
    _text("version", key=True),
    _text("pool", key=True),
    _text("outcome", key=True),
    Column("estimated", Boolean, primary_key=True, nullable=False),
    _number("requests"),
    _number("prompt"),
    _number("cached"),
    _number("completion"),
)

# Up to which day requests were added up, not included: one of an earlier day that comes again was counted already.
added_up = Table(
    "added_up",
    metadata,
    _text("fleet", key=True),
    _number("before_day", Integer),
)

# What each start of an engine says that it has read and written, in tokens: when it was seen first, and last.
engine_counters = Table(
    "engine_counters",
    metadata,
    _text("fleet", key=True),
    _text("engine", key=True),
    _text("replica"),
    _text("pool"),
    _number("since"),
    _number("at"),
    _number("first_prompt"),
    _number("first_completion"),
    _number("prompt"),
    _number("completion"),
)

# The versions of adapters, see `releases.AdapterRecord`: one row for each adapter of each fleet.
adapters = Table(
    "adapters",
    metadata,
    _text("fleet", key=True),
    _text("name", key=True),
    Column("record", JsonText(Any), nullable=False),
)

# What was done with adapters, numbered by fleet.
adapter_events = Table(
    "adapter_events",
    metadata,
    _text("fleet", key=True),
    _number("number", key=True),
    _number("at"),
    _text("adapter"),
    _text("who"),
    _text("action"),
    _text("version"),
    _text("why"),
)
