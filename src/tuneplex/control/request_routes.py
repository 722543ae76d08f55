"""The admin API's operation on requests that are over."""

from __future__ import annotations

from collections.abc import Callable

from tuneplex.control.operations import Call, Operation, Query
from tuneplex.control.usage_routes import Asks
from tuneplex.errors import BadRequest
from tuneplex.journal import Finished

__all__ = ["request_operations"]


def request_operations(asks: Asks, fleet: Callable[[], str]) -> tuple[Operation, ...]:
    """All operations on requests that are over.

    Args:
        asks: The store.
        fleet: The fleet's name.
    """

    async def found(call: Call) -> tuple[Finished, ...]:
        request_id, name = call.query.get("request_id", ""), fleet()
        if not request_id:
            raise BadRequest("`request_id` is needed", param="request_id")
        return tuple(await asks.read(lambda store: store.requests(name, request_id)))

    queries = (Query("request_id", "As in `x-request-id`; clients may choose it, so several can have the same."),)
    return (
        Operation("GET", "/requests", "findRequests", "The requests with an id that are over, oldest first: the last "
                  "hundred, and none if it is not known.", found, answer=tuple[Finished, ...], errors=(400, 503),
                  query=queries),
    )  # fmt: skip
