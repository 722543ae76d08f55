"""Requests that are over, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

from tuneplex.journal import Finished

__all__ = ["over"]


def over(number: int, **values: Any) -> Finished:  # noqa: ANN401 - of any field
    """A request that was answered, a second after `number` seconds of Unix time, unless something else is said."""
    given = {
        "id": f"g/{number}",
        "request_id": f"req-{number}",
        "arrived": float(number),
        "closed": number + 1.0,
        "tenant": "acme",
        "key_id": "k1",
        "model": "contacts",
        "version": "contacts@1f0c",
        "route": "chat/completions",
        "outcome": "complete",
        "status": 200,
    }
    return Finished(**{**given, **values})
