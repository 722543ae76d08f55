"""HTTP to one engine on control's behalf: health, metrics, adapters. Never the data path."""

from __future__ import annotations

import ssl
from types import TracebackType
from typing import Any, Self

import httpx2
import msgspec

from tuneplex.engines.reaching import refused, unreachable
from tuneplex.errors import EngineError, EngineTimeout
from tuneplex.http import Endpoint

__all__ = ["EngineMetrics", "EngineModel", "EngineServer", "Reply"]


class EngineModel(msgspec.Struct, frozen=True):
    """One entry of an engine's `/v1/models`.

    Attributes:
        id: The engine's own name for it.
        parent: The base's name for an adapter, None for a base.
        max_model_len: Tokens that a request for it can have, prompt and answer together, where the engine tells.
    """

    id: str
    parent: str | None = None
    max_model_len: object = None  # vLLM's addition to OpenAI's list: of another server it may be anything

    @property
    def context(self) -> int | None:
        """`max_model_len`, if it is a number of tokens."""
        told = self.max_model_len
        return told if isinstance(told, int) and told > 0 else None


class EngineMetrics(msgspec.Struct, frozen=True):
    """The figures that control reads from an engine.

    Attributes:
        running: Requests the engine works on.
        waiting: Requests that wait in it.
        kv_use: Share of the KV cache in use, 0 to 1.
        prompt_tokens: Read since the engine started.
        generation_tokens: Written since the engine started.
        preemptions: Requests that lost their place in the KV cache, since the engine started.
        kv_tokens: Tokens that the KV cache can hold; None where the engine does not tell.
        timed: Requests that have ended, whose times the next three add up.
        queue_s: How long they waited in the engine, in seconds.
        prefill_s: From their turn to their first token, in seconds.
        decode_s: From their first token to their last, in seconds.
    """

    running: int = 0
    waiting: int = 0
    kv_use: float = 0.0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    kv_tokens: int | None = None
    timed: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Reply(msgspec.Struct, frozen=True):
    """What the engine answered."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        """Whether the engine did what it was asked."""
        return 200 <= self.status < 300  # noqa: PLR2004 - the range that HTTP gives to success

    @property
    def words(self) -> str:
        """What the engine says about an error, in its own words."""
        try:
            return _message(msgspec.json.decode(self.body)) or self._text()
        except msgspec.DecodeError:
            return self._text()

    @property
    def code(self) -> str:
        """The reason of an error as one word for programs, where the engine gives one."""
        try:
            return msgspec.json.decode(self.body, type=_Failure).error.code
        except msgspec.MsgspecError:  # none, or a number as in vLLM's own errors
            return ""

    def _text(self) -> str:
        return f"HTTP {self.status} {self.body[:200].decode(errors='replace')}".strip()


class EngineServer:
    """One engine's HTTP server. Close it, or use it as a context manager.

    Args:
        endpoint: As in `Replica.endpoint`.
        secret: The bearer token it wants, or empty.
        timeout_s: For a question that asks for nothing hard.
    """

    def __init__(self, endpoint: str, secret: str = "", *, timeout_s: float = 5.0) -> None:
        self._where = where = Endpoint.parse(endpoint)
        # The same certificates as the gateways trust, `SSL_CERT_FILE` among them.
        trusted = ssl.create_default_context() if where.tls else False
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        self._client = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(uds=where.path or None, verify=trusted),
            base_url="http://engine" if where.path else endpoint,
            headers=headers,
            timeout=timeout_s,
            trust_env=False,  # no proxy, and no credentials from somebody's .netrc
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def get(self, path: str, *, timeout_s: float | None = None) -> Reply:
        """GET.

        Raises:
            EngineError: The engine does not answer; EngineTimeout, if it was reached.
        """
        return await self._ask("GET", path, None, timeout_s)

    async def post(self, path: str, body: object, *, timeout_s: float) -> Reply:
        """POST a value as JSON.

        Raises:
            EngineError: The engine does not answer.
        """
        return await self._ask("POST", path, msgspec.json.encode(body), timeout_s)

    async def models(self, *, timeout_s: float | None = None) -> tuple[EngineModel, ...]:
        """What the engine says it serves; OpenAI's route, so every engine has it.

        Raises:
            EngineError: The engine does not answer, or with something else.
        """
        reply = await self.get("/v1/models", timeout_s=timeout_s)
        if not reply.ok:
            raise EngineError(refused(reply.status, reply.words, "/v1/models"))
        try:
            return msgspec.json.decode(reply.body, type=_ModelList).data
        except msgspec.MsgspecError as error:
            raise EngineError(f"/v1/models is not a list of models: {error}") from error

    async def _ask(self, method: str, path: str, content: bytes | None, timeout_s: float | None) -> Reply:
        headers = {"content-type": "application/json"} if content is not None else None
        usual = self._client.timeout
        timeout = usual if timeout_s is None else httpx2.Timeout(timeout_s, connect=usual.connect)
        try:
            reply = await self._client.request(method, path, content=content, headers=headers, timeout=timeout)
        except (httpx2.ReadTimeout, httpx2.WriteTimeout, httpx2.PoolTimeout) as error:
            raise EngineTimeout(f"no answer to {method} {path} in time") from error
        except httpx2.HTTPError as error:
            raise EngineError(f"no answer to {method} {path}: {unreachable(error, self._where)}") from error
        return Reply(reply.status_code, reply.content)


class _Error(msgspec.Struct):
    code: str


class _Failure(msgspec.Struct):
    error: _Error


class _ModelList(msgspec.Struct):
    data: tuple[EngineModel, ...]


def _message(body: Any) -> str:  # noqa: ANN401 - any JSON that an engine may answer
    """Find the sentence in OpenAI's shape, in vLLM's older flat one, or in FastAPI's `detail`."""
    if not isinstance(body, dict):
        return ""
    error = body.get("error", body)
    if isinstance(error, str):
        return error
    found = error.get("message") or error.get("detail") or "" if isinstance(error, dict) else ""
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()
