"""A process of its own: an engine that reads large prompts and answers at once, and the clients that send them.

On standard input come `go` and `stop`; each `stop` is answered with a line of JSON, `Done`.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import uvloop

from tuneplex.testing import FakeEngine, Script

__all__ = ["Done", "Order", "main"]

_ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "large@0",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Read."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101},
}
_WORDS = 4000


class Order(msgspec.Struct, frozen=True):
    """What the process is to do.

    Attributes:
        socket: Where its engine listens.
        port: Of the gateway.
        key: For it.
        clients: Side by side.
        size: Of each prompt, bytes.
    """

    socket: str
    port: int
    key: str
    clients: int
    size: int


class Done(msgspec.Struct, frozen=True):
    """What came of it since `go`.

    Attributes:
        requests: That were answered as they must be.
        seconds: That these took, all together.
        wrong: The first reply that was not.
    """

    requests: int
    seconds: float
    wrong: str = ""


class _Crowd:
    def __init__(self, order: Order, engine: FakeEngine) -> None:
        self._order = order
        self._engine = engine
        self._bodies = [_request(order, seed) for seed in range(order.clients)]
        self._going = False
        self._requests = 0
        self._seconds = 0.0
        self._wrong = ""
        self._clients: list[asyncio.Task[None]] = []

    def go(self) -> None:
        self._going, self._requests, self._seconds, self._wrong = True, 0, 0.0, ""
        self._clients = [asyncio.create_task(self._client(request)) for request in self._bodies]

    async def stop(self) -> Done:
        self._going = False
        await asyncio.gather(*self._clients)
        return Done(self._requests, self._seconds, self._wrong)

    async def _client(self, request: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._order.port)
        try:
            while self._going:
                began = time.perf_counter()
                writer.write(request)
                reply = await _reply(reader)
                self._engine.requests.clear()  # each holds its body
                if not reply.startswith(b"HTTP/1.1 200 ") or b"x-ratelimit-limit-tokens" not in reply:
                    self._wrong = self._wrong or reply[:500].decode(errors="replace")
                    return
                self._requests += 1
                self._seconds += time.perf_counter() - began
        finally:
            writer.close()


def _request(order: Order, seed: int) -> bytes:
    chance = random.Random(seed)  # noqa: S311 - a prompt is no secret
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(_WORDS)]
    text = " ".join(chance.choice(words) for _ in range(order.size // 5))[: order.size]
    messages = [{"role": "user", "content": text}]
    body = json.dumps({"model": "large", "messages": messages, "max_tokens": 1}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {order.key}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def _reply(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head + await reader.readexactly(length)


async def _serve(order: Order) -> None:
    script = Script(status=200, body=json.dumps(_ANSWER))
    async with FakeEngine("base", uds=order.socket, default=script) as engine:
        crowd = _Crowd(order, engine)
        commands = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
        print("ready", flush=True)
        while command := (await commands.readline()).strip():
            if command == b"go":
                crowd.go()
            else:
                print(msgspec.json.encode(await crowd.stop()).decode(), flush=True)


def main() -> None:
    """Do what the order on the command line says, until standard input ends."""
    uvloop.run(_serve(msgspec.json.decode(sys.argv[1], type=Order)))


if __name__ == "__main__":
    main()
