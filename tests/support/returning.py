"""A gateway whose engines fail, and what became of its requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.support.front import Front, Response, open_front, view_of
from tuneplex.testing import FakeEngine
from tuneplex.types import GatewaySettings, Timeouts, Waiting

__all__ = ["fronting", "tries", "whole"]

SHORT = GatewaySettings(timeouts=Timeouts(first_byte_s=0.5, between_chunks_s=0.5), waiting=Waiting(longest_s=3))


@asynccontextmanager
async def fronting(engines: list[FakeEngine], tokenizer: str, **settings: Any) -> AsyncIterator[Front]:  # noqa: ANN401 - of the gateway
    """A gateway before them."""
    tries, journal = settings.pop("tries", 3), settings.pop("journal", None)
    view = view_of(engines, msgspec.structs.replace(SHORT, **settings), tries=tries, tokenizer=tokenizer)
    if "retries" in settings:
        whole = msgspec.structs.replace(view.settings, retries=settings["retries"])
        view = msgspec.structs.replace(view, settings=whole)
    async with open_front(view, journal=journal) as front:
        await front.gateway.counter.loaded()
        yield front


def tries(engines: list[FakeEngine]) -> list[int]:
    """How many requests for an answer each has got."""
    return [sum("completions" in record.path for record in engine.requests) for engine in engines]


def whole(reply: Response) -> bool:
    """Whether it came to its proper end."""
    return reply.complete and reply.status == 200 and reply.body.endswith(b"data: [DONE]\n\n")
