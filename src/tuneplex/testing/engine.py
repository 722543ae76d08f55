"""FakeEngine: vLLM's API over known token ids, told by code what goes wrong and when."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

import msgspec

from tuneplex.testing.adapters import Adapters
from tuneplex.testing.generation import Reply, steps
from tuneplex.testing.metrics import Meters
from tuneplex.testing.plugin import Plugin
from tuneplex.testing.protocol import Ask, Refusal
from tuneplex.testing.routes import GENERATING, Options, Routes, respond
from tuneplex.testing.scheduler import Scheduler
from tuneplex.testing.script import Record, Script
from tuneplex.testing.serving import Server
from tuneplex.testing.stream import DEAD, BrokenOff, Core, misbehave
from tuneplex.testing.tiers import Tiers
from tuneplex.testing.tokens import Tokenizer
from tuneplex.testing.wire import Exchange, Wire, bind

__all__ = ["FakeEngine"]


class FakeEngine:
    """A server with vLLM's API, to be used as an async context manager.

    Replies come from known token ids and depend on the prompt, the adapter and, unless the temperature is 0, on the
    seed. Whatever is sent to it is remembered in `requests`; `script` makes it misbehave. A request can also ask for
    its own `Script`, as JSON in the header `x-fake-fault` or, through a gateway, in the body's field `fake_fault`.

    Args:
        model: The base's name.
        adapters: Names of adapters that are loaded from the start; the values make them speak differently.
        host: Where it listens.
        port: 0 takes a free one.
        uds: Listens on this Unix socket instead.
        sock: Listens on this socket, which has its address already.
        api_key: Guards what vLLM guards with `--api-key`.
        max_loras: Adapters that are worked on at the same time; requests for others wait.
        max_cpu_loras: Adapters that stay in host memory; by default as many as `max_loras`.
        max_lora_rank: The largest rank that can be loaded.
        max_num_seqs: Sequences that are worked on at the same time.
        max_model_len: Context length, tokens.
        kv_tokens: Size of the KV cache, tokens.
        lora: Whether adapters can be loaded (`--enable-lora`).
        plugin: Whether it has the routes of the plugin tuneplex-vllm.
        tool_parser: Behaves as with `--tool-call-parser`: chat tokens without text make no event of their own.
        root: The base's path, as `/v1/models` shows it.
        keep_alive_s: How long an idle connection is kept; vLLM keeps it 5 s.
        default: How every request is answered for which nothing else is scripted.
        on_death: Called when a script lets the engine die.

    Attributes:
        requests: Every request so far, in the order they came.
        adapters: What is loaded.
        tokenizer: Turns ids into text and back.
        scheduler: What runs and what waits.
        default: See there; it may be replaced at any time.
    """

    def __init__(
        self,
        model: str = "base",
        *,
        adapters: Iterable[str] | Mapping[str, str] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        uds: str | None = None,
        sock: socket.socket | None = None,
        api_key: str | None = None,
        max_loras: int = 4,
        max_cpu_loras: int | None = None,
        max_lora_rank: int = 64,
        max_num_seqs: int = 256,
        max_model_len: int = 8192,
        kv_tokens: int = 1_000_000,
        lora: bool = True,
        plugin: bool = True,
        tool_parser: bool = False,
        root: str = "/fake/base",
        keep_alive_s: float = 5.0,
        default: Script | None = None,
        on_death: Callable[[], None] | None = None,
    ) -> None:
        self.model = model
        self.requests: list[Record] = []
        self.tokenizer = Tokenizer()
        tiers = Tiers(max_loras, max_cpu_loras or max_loras)
        self.adapters = Adapters((model,), max_lora_rank)
        for name in adapters:
            weights = adapters[name] if isinstance(adapters, Mapping) else name
            tiers.to_device(self.adapters.put(name, weights), ())
        self.scheduler = Scheduler(max_num_seqs=max_num_seqs, max_loras=max_loras, kv_tokens=kv_tokens)
        options = Options(
            model=model, root=root, api_key=api_key, max_model_len=max_model_len, lora=lora, tool_parser=tool_parser
        )
        self._core = Core(self.die)
        self._routes = self._wired(options, tiers, plugin=plugin)
        self._host, self._port, self._uds, self._sock = host, port, uds, sock
        self.default = default or Script()
        self._on_death = on_death
        self._scripts: dict[str | None, deque[Script]] = {}
        self._wire = Wire(self._handle, keep_alive_s=keep_alive_s)
        self._arrived = asyncio.Event()

    def _wired(self, options: Options, tiers: Tiers, *, plugin: bool) -> Routes:
        meters = Meters(options.model, self.scheduler)
        return Routes(
            options,
            adapters=self.adapters,
            tokenizer=self.tokenizer,
            meters=meters,
            server=Server(self.tokenizer, self.scheduler, tiers, meters, self._core),
            plugin=Plugin(self.adapters, tiers, self.scheduler, meters) if plugin else None,
            records=self.requests,
        )

    async def __aenter__(self) -> Self:
        sock = self._sock or bind(self._host, self._port, self._uds)
        if self._uds is None:
            self._port = int(sock.getsockname()[1])
        await self._wire.listen(sock)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._wire.close()

    @property
    def url(self) -> str:
        """The base URL without a path; over a Unix socket a client has to bring its own connection."""
        return "http://localhost" if self._uds else f"http://{self._host}:{self._port}"

    @property
    def endpoint(self) -> str:
        """As fleets write it: `unix:/path` or `http://host:port`."""
        return f"unix:{self._uds}" if self._uds else self.url

    def script(self, *scripts: Script, path: str | None = None) -> None:
        """Answer the next requests as these say, one each, in this order.

        Args:
            scripts: One for each coming request.
            path: Only requests to this path count; by default those that generate.
        """
        self._scripts.setdefault(path, deque()).extend(scripts)

    def share_scripts(self, other: FakeEngine) -> None:
        """Take the next script from the same row as `other`, whichever of the two the request reaches."""
        self._scripts = other._scripts

    async def arrived(self, count: int = 1) -> Record:
        """Wait until so many requests have come; the last of them."""
        while len(self.requests) < count:
            self._arrived.clear()
            await self._arrived.wait()
        return self.requests[count - 1]

    def die(self) -> None:
        """Run out of memory: nobody listens any more, and every connection is reset."""
        if self._on_death is not None:
            self._on_death()
        self._wire.die()

    def lose_core(self) -> None:
        """Nothing is generated any more, and the server still answers, with vLLM's words for that, until it dies."""
        self._core.lost = True

    def hang(self) -> None:
        """Say nothing more, and still accept connections and requests."""
        self._wire.awake.clear()

    def go_on(self) -> None:
        """Do what was not done while it hung."""
        self._wire.awake.set()

    def reset(self, chance: Callable[[], bool] = lambda: True) -> None:
        """Reset the connections that have a request under way.

        Args:
            chance: Called for each of them: whether it is reset.
        """
        for connection in tuple(self._wire.connections):
            if connection.busy and chance():
                connection.reset()

    def reply(self, ids: list[int], *, model: str | None = None, room: int = 16, ignore_eos: bool = False) -> Reply:
        """What this engine answers to a prompt of these ids at temperature 0: the truth to compare with."""
        ask = Ask(model=model or self.model, prompts=[ids], room=room, ignore_eos=ignore_eos, greedy=True)
        reply = Reply(token_ids=[])
        for step in steps(self.tokenizer, ask, 0, self._routes.weights(ask.model)):
            reply.add(step)
        return reply

    async def _handle(self, exchange: Exchange) -> None:
        record = Record(exchange.method, exchange.target, exchange.headers, exchange.body)
        self.requests.append(record)
        self._arrived.set()
        try:
            await self._answer(exchange, record)
        except asyncio.CancelledError:
            record.note_left()
            raise
        finally:
            record.note_ended()

    async def _answer(self, exchange: Exchange, record: Record) -> None:
        try:
            record.script = self._script_for(exchange)
            if not await misbehave(exchange, record, record.script, self.die):
                self._check_core(exchange)
                await self._routes(exchange, record)
        except Refusal as refusal:
            respond(exchange, record, refusal.status, refusal.body)
        except BrokenOff:
            if exchange.gone.is_set():
                record.note_left()

    def _check_core(self, exchange: Exchange) -> None:
        if self._core.lost and exchange.path in GENERATING:
            raise Refusal(DEAD, status=500, kind="InternalServerError")
        if self._core.lost and exchange.path == "/health":
            raise Refusal(DEAD, status=503, kind="ServiceUnavailableError")

    def _script_for(self, exchange: Exchange) -> Script:
        for path in (exchange.path, None):
            scripts = self._scripts.get(path)
            if scripts and (path or exchange.path in GENERATING):
                return scripts.popleft()
        asked = _asked_for(exchange)
        if asked is None:
            return self.default
        try:
            return Script.parse(asked)
        except ValueError as error:
            raise Refusal(f"Not a script for FakeEngine: {error}") from None


def _asked_for(exchange: Exchange) -> str | bytes | None:
    sent = exchange.headers.get("x-fake-fault")
    if sent is None and b'"fake_fault"' in exchange.body:
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):  # it is somewhere else, or no JSON
            return bytes(msgspec.json.decode(exchange.body, type=_WithFault).fake_fault)
    return sent


class _WithFault(msgspec.Struct):
    fake_fault: msgspec.Raw
