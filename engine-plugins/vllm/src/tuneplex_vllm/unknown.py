"""What the routes can do beside a vLLM whose insides are not known: tell the names.

Pins are refused, too: stock vLLM ends when a request finds every slot pinned, and only our own managers prevent that.
"""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from typing import Any, NoReturn

from tuneplex_vllm import __version__
from tuneplex_vllm.bodies import Known, RefusedError, entry, totals

__all__ = ["PublicService"]


class PublicService:
    """Lists names; everything else is refused with 501.

    Args:
        models: vLLM's list of served models.
        version: vLLM's.
        tested: The versions beside which there is more.
    """

    def __init__(self, models: Any, version: str, tested: Collection[str]) -> None:  # noqa: ANN401 - vLLM's own
        self._models = models
        self._version = version
        self._tested = ", ".join(sorted(tested))

    async def listing(self) -> dict[str, Any]:
        """Names, ids and paths; where adapters are is not known."""
        return {
            "plugin": __version__,
            "vllm": self._version,
            **totals(None, 0.0),
            "kv": {"tokens": None, "use": None},
            "requests": {"running": None, "waiting": None},
            "tokens": {"prompt": None, "generation": None},
            "adapters": [self._entry(request) for request in self._models.lora_requests.values()],
        }

    async def move(self, wish: str, _name: str) -> NoReturn:
        """Not here."""
        self._refuse(wish)

    async def load(self, *_arguments: object, **_options: object) -> NoReturn:
        """Not here."""
        self._refuse("load")

    async def unload(self, *_arguments: object) -> NoReturn:
        """Not here."""
        self._refuse("unload")

    async def sleep(self, _level: int) -> NoReturn:
        """Not here."""
        self._refuse("sleep")

    async def wake(self) -> NoReturn:
        """Not here."""
        self._refuse("wake")

    async def drain(self, _timeout_s: float) -> NoReturn:
        """Not here."""
        self._refuse("drain")

    async def resume(self) -> NoReturn:
        """Not here."""
        self._refuse("resume")

    def _entry(self, request: Any) -> dict[str, Any]:  # noqa: ANN401 - vLLM's own
        known = Known(request.lora_name, request.lora_int_id, request.lora_path)
        return entry(known, None, None, (None, None), told=False) | {"pinned": None}

    def _refuse(self, what: str) -> NoReturn:
        words = f"tuneplex-vllm cannot {what} beside vLLM {self._version}; it was tested with {self._tested}."
        raise RefusedError(HTTPStatus.NOT_IMPLEMENTED, "not_supported", words)
