"""Heads of the audit log in a bucket with Object Lock: an object for each, which nobody can delete before its time.

Each is called by what it says, below the id of the key that signs the log: `KEY_ID/N-CHAIN.json`. So a list is all that
is read later, versions that somebody has hidden by deleting them included, and other logs do not come in between.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec

from tuneplex.errors import AuditError, ObjectStoreError
from tuneplex.objects import Place
from tuneplex.records.audit.chain import Head
from tuneplex.records.audit.marks import SignedHead
from tuneplex.types import ObjectStore

__all__ = ["kept_heads", "lock_head"]

_NAME = re.compile(r"([0-9]{18})-([0-9a-f]{64})\.json")
_HINT = "make another bucket: Object Lock is a choice that is made when a bucket is made"


class _Body(msgspec.Struct, frozen=True):
    head: str
    n: int
    at: float
    key_id: str


def lock_head(place: Place, store: ObjectStore, signed: SignedHead, until: float) -> None:
    """Store a head so that nobody can change or delete it before then, not even an administrator.

    Args:
        place: Where heads are kept.
        store: Which object store.
        signed: The head.
        until: Unix time, seconds.

    Raises:
        AuditError: It was not stored, or not locked.
    """
    from tuneplex.objects.client import Objects  # noqa: PLC0415 - takes 0.3 s to import

    body = msgspec.json.encode(_Body(str(signed.head), signed.n, signed.at, signed.key_id))
    try:
        objects = Objects(_of(place, signed.key_id), store, connections=1)
        if not objects.is_lockable():
            raise AuditError(f"s3://{place.bucket} has no Object Lock, so a head there could be deleted", hint=_HINT)
        objects.put_locked(f"{signed.n:018d}-{signed.chain}.json", body, datetime.fromtimestamp(until, UTC))
    except ObjectStoreError as error:
        raise AuditError(str(error), hint=error.hint) from error


def kept_heads(place: Place, store: ObjectStore, key_id: str) -> list[Head]:
    """All heads that were ever kept there of the log with this key, the oldest first.

    Raises:
        AuditError: There are none, or they cannot be read.
    """
    from tuneplex.objects.client import Objects  # noqa: PLC0415 - takes 0.3 s to import

    try:
        names = Objects(_of(place, key_id), store, connections=1).ever()
    except ObjectStoreError as error:
        raise AuditError(str(error), hint=error.hint) from error
    found = [match for match in map(_NAME.fullmatch, names) if match is not None]
    if not found:
        raise AuditError(f"{place}: no head of a log with the key {key_id} was ever kept there")
    return [Head(int(match[1]), bytes.fromhex(match[2])) for match in found]


def _of(place: Place, key_id: str) -> Place:
    return Place(place.bucket, place.key(key_id))
