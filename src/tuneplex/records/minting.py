"""New keys: what clients send, and what is kept of it."""

from __future__ import annotations

import hashlib
import secrets
import string

from tuneplex.identity import ANY, Key, Limits, Scope

__all__ = ["digest", "mint"]

_PREFIX = "tpx"
_NO_LIMITS = Limits()
_ID_ALPHABET = string.ascii_lowercase + string.digits
_ID_LENGTH = 12  # 62 bits: with a million keys, two are the same with a chance of one in ten million
_SECRET_ALPHABET = string.ascii_letters + string.digits
_SECRET_LENGTH = 43  # 256 bits


def mint(
    tenant: str,
    now: int,
    *,
    label: str = "",
    scopes: tuple[Scope, ...] = (Scope.USE,),
    adapters: tuple[str, ...] = ANY,
    base: bool = True,
    expires: int | None = None,
    replaces: str | None = None,
    limits: Limits = _NO_LIMITS,
) -> tuple[Key, str]:
    """A new key and what clients send: `tpx-ID-SECRET`. The latter is kept nowhere; see `Key` for the arguments."""
    key_id = _random(_ID_ALPHABET, _ID_LENGTH)
    token = f"{_PREFIX}-{key_id}-{_random(_SECRET_ALPHABET, _SECRET_LENGTH)}"
    key = Key(
        id=key_id,
        tenant=tenant,
        sha256=digest(token),
        label=label,
        scopes=scopes,
        adapters=adapters,
        base=base,
        created=now,
        expires=expires,
        replaces=replaces,
        limits=limits,
    )
    return key, token


def digest(token: str) -> str:
    """What is kept of what clients send.

    A plain SHA-256 is enough, and quick enough for every request: nobody can try out 256 random bits.
    """
    return hashlib.sha256(token.encode()).hexdigest()


def _random(alphabet: str, length: int) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(length))
