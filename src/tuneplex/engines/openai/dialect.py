"""Any server that speaks OpenAI's API."""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from tuneplex.engines.rename import Renamer
from tuneplex.engines.wire import engine_error, stream_error, with_fields
from tuneplex.errors import ApiError
from tuneplex.types import Route

__all__ = ["OpenAIDialect"]

# Generated text contains neither: it is in a JSON string, whose quotes and line ends are escaped.
_ERROR = re.compile(rb'^data: ?\{\s*"(?:error"\s*:\s*(?!null)|object"\s*:\s*"error")', re.MULTILINE)
_DONE = re.compile(rb"^data: ?\[DONE\][ \t]*\r?\n\r?\n", re.MULTILINE)
_LAST_EVENTS = (b'"response.completed"', b'"response.incomplete"', b'"response.failed"', b'"type":"error"')

# A fleet has few names, and making a renamer costs more than using it.
_renamer = lru_cache(maxsize=4096)(Renamer)


class OpenAIDialect:
    """See `tuneplex.engines.Dialect`."""

    usual = b'data: {"id"'
    error_mark = b'"error"'
    end_mark = b"[DONE]"
    # OpenAI's own API can; some others refuse the field. Then the request is sent again without.
    takes_options: bool | None = None
    tells_always = False
    continues = False

    def path(self, route: Route) -> str:
        """`/v1/…`, as OpenAI names it."""
        return f"/v1/{route.value}"

    def encode(self, fields: dict[str, msgspec.Raw], *, name: str, salt: str) -> bytes:  # noqa: ARG002 - only vLLM has salts
        """The client's own fields with another `model`. OpenAI's API has no salt, and servers refuse strange fields."""
        return with_fields(fields, model=name)

    def renamer(self, *, name: str, shown: str) -> Renamer:
        """Exchanges the values of `model` fields."""
        return _renamer(name, shown)

    def error(self, status: int, body: bytes, *, name: str, shown: str) -> ApiError:
        """Understands OpenAI's shape, the flat one, FastAPI's `detail`; hides everything else."""
        return engine_error(status, body, name=name, shown=shown)

    def error_at(self, events: bytes) -> int:
        """OpenAI's shape, and the flat one of older vLLMs."""
        found = _ERROR.search(events)
        return -1 if found is None else found.start()

    def end_of_stream(self, events: bytes) -> int:
        """Behind `[DONE]`."""
        found = _DONE.search(events)
        return 0 if found is None else found.end()

    def stream_error(self, event: bytes, *, name: str, shown: str) -> ApiError:
        """Understands the same shapes as `error`."""
        return stream_error(event, name=name, shown=shown)

    def ended(self, route: Route, last: bytes) -> bool:
        """`[DONE]`, or for responses the event that closes them."""
        if _DONE.search(last) is not None:
            return True
        return route is Route.RESPONSES and any(event in last for event in _LAST_EVENTS)
