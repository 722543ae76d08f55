"""How the gateway speaks with one kind of engine: pure functions over bytes."""

from __future__ import annotations

from typing import Protocol

import msgspec

from tuneplex.engines.rename import Renamer
from tuneplex.errors import ApiError
from tuneplex.policy import End
from tuneplex.types import Route

__all__ = ["Dialect"]


class Dialect(Protocol):
    """The differences between engines, as the gateway meets them.

    Attributes:
        usual: How an event begins that is neither an error nor the end. Most do, and are not looked at closely.
        error_mark: Bytes that every event contains which reports an error; `error_at` tells whether one does.
        end_mark: The same for `[DONE]`; `end_of_stream` tells.
        takes_options: Whether the engine can be asked for a stream's usage; None if it has to be tried.
        tells_always: Whether it can be asked to tell this in every event (`continuous_usage_stats`).
        continues: Whether its streams can go on elsewhere: it tells token ids, and takes them as a prompt.
    """

    usual: bytes
    error_mark: bytes
    end_mark: bytes
    takes_options: bool | None
    tells_always: bool
    continues: bool

    def path(self, route: Route) -> str:
        """The request path of a route."""

    def encode(self, fields: dict[str, msgspec.Raw], *, name: str, salt: str) -> bytes:
        """The request body as the engine wants it.

        Args:
            fields: As the client sent them.
            name: The engine's own name for what is to answer.
            salt: Keeps the prompt apart from other tenants' in the engine's prefix cache, if it can do that; empty
                when there is nothing to keep apart.

        Raises:
            BadRequest: One of the fields that have to be read is wrong.
        """

    def renamer(self, *, name: str, shown: str) -> Renamer:
        """What turns the engine's name into the client's in a reply."""

    def error(self, status: int, body: bytes, *, name: str, shown: str) -> ApiError:
        """What the client is told when the engine answered with an error.

        Args:
            status: The engine's HTTP status.
            body: Its reply, perhaps cut off.
            name: The engine's own name for the model.
            shown: The client's name for it.
        """

    def error_end(self, status: int, body: bytes) -> End:
        """How a try ended that was answered with an error. The arguments are those of `error`."""

    def error_at(self, events: bytes) -> int:
        """Where the first event that reports an error begins, with its `data:`; -1 when none does."""

    def end_of_stream(self, events: bytes) -> int:
        """Where the event is over after which nothing more is for the client (`[DONE]`); 0 when it is not here."""

    def stream_error(self, event: bytes, *, name: str, shown: str) -> ApiError:
        """What the client is told when the engine reports an error inside of a stream.

        Args:
            event: From `error_at` on.
            name: The engine's own name for the model.
            shown: The client's name for it.
        """

    def stream_end(self, event: bytes) -> End:
        """How a try ended that had an error in its stream. The argument is that of `stream_error`."""

    def ended(self, route: Route, last: bytes) -> bool:
        """Whether a stream has come to its proper end with the events `last`."""
