"""What differs between engines: `Dialect` on the wire (pure), `Driver` for processes and adapters (see `driver`)."""

from __future__ import annotations

from tuneplex.engines.dialect import Dialect
from tuneplex.engines.openai.dialect import OpenAIDialect
from tuneplex.engines.vllm.dialect import VllmDialect

__all__ = ["Dialect", "dialect_for"]


def dialect_for(kind: str) -> Dialect:
    """The dialect of a kind of engine, as `Replica.engine` names it.

    Raises:
        ValueError: There is no such kind.
    """
    match kind:
        case "vllm":
            return VllmDialect()
        case "openai":
            return OpenAIDialect()
    raise ValueError(f"there is no engine of the kind {kind!r}; known are vllm and openai")
