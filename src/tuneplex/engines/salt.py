"""Salts of the engines' prefix caches: each is derived from a secret one, so nobody can guess or choose another's."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode

__all__ = ["derive"]


def derive(salt: str, what: str) -> str:
    """The salt that belongs to `what` below `salt`: 43 characters, all of which engines accept."""
    digest = hmac.digest(salt.encode(), what.encode(), "sha256")
    return urlsafe_b64encode(digest).rstrip(b"=").decode()
