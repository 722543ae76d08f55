"""What people are told of external engines that are not reached, or are not what they should be."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.controlled import HASTY, controlled, fleet, only, until
from tuneplex.cli import checks, externals, render
from tuneplex.engines.driver import driver_for
from tuneplex.engines.server import EngineServer
from tuneplex.errors import EngineError
from tuneplex.fleetfile import load
from tuneplex.launchers.external import ExternalLauncher
from tuneplex.testing import FakeEngine, Script
from tuneplex.types import PoolSpec, ReplicaState

MODELS = b'{"data": [{"id": "base"}]}'


@contextlib.asynccontextmanager
async def server(answer: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that always answers the same; its port."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as listening:
        yield listening.sockets[0].getsockname()[1]
        for writer in writers:  # a client that was told nothing may have left without a word
            writer.transport.abort()
        await asyncio.sleep(0.05)  # for the transports' own ends


def http(status: int, body: bytes = MODELS) -> bytes:
    """A whole response."""
    return b"HTTP/1.1 %d X\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


async def told(url: str, kind: str = "openai") -> str:
    """What is said of an engine at a URL; nothing if it is all right."""
    async with EngineServer(url, timeout_s=2.0) as engine:
        try:
            await driver_for(kind).check(engine, 2.0)
        except EngineError as error:
            return str(error)
    return ""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs the certificates of this module."""
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize(
    "host, days, words",
    [
        ("localhost", -1, "the certificate of localhost has expired"),
        ("other.example", 2, "the certificate is not for localhost: use the name in the URL"),
        ("localhost", 2, ""),
    ],
)
async def test_certificates(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, host: str, days: int, words: str
) -> None:
    """Which of them is wrong is said, and an authority of one's own is trusted when SSL_CERT_FILE names it."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    async with server(http(200), authority.server(host, days=days)) as port:
        found = await told(f"https://localhost:{port}")
    assert found.removeprefix("no answer to GET /v1/models: ").startswith(words)
    assert bool(found) is bool(words)


async def test_an_authority_that_nobody_knows(authority: Authority) -> None:
    """What to do about it is said."""
    async with server(http(200), authority.server()) as port:
        found = await told(f"https://localhost:{port}")
    assert "nobody whom this machine trusts has signed the certificate of localhost: add its authority" in found


@pytest.mark.parametrize(
    "answer, words",
    [
        (b"", "broke off without an answer that is HTTP; if it speaks TLS its URL begins with https://"),
        (b"SSH-2.0-x\r\n", "broke off without an answer that is HTTP"),
        (http(401, b'{"error": {"message": "bad key"}}'), "by 401 (bad key): it wants another key, which is `key`"),
        (http(403, b"{}"), "it wants another key"),
        (http(404, b'{"detail": "Not Found"}'), "by 404 (Not Found): the pool's URL should be what stands before /v1"),
        (http(500, b"oh"), "was answered by 500: HTTP 500 oh"),
        (http(200, b"<html>"), "/v1/models is not a list of models"),
    ],
)
async def test_answers_that_are_none(answer: bytes, words: str) -> None:
    """What is wrong with an answer, and what to do about it."""
    async with server(answer) as port:
        assert words in await told(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize(
    "url, words",
    [
        ("http://nosuch.invalid:8000", "the name nosuch.invalid is not found"),
        ("http://127.0.0.1:1", "nothing listens at 127.0.0.1:1: check the URL, and whether the engine runs"),
        ("unix:/tmp/nosuch.sock", "nothing listens at /tmp/nosuch.sock"),
    ],
)
async def test_nobody_is_there(url: str, words: str) -> None:
    """A name that does not exist and a port that nobody listens at are told apart."""
    assert words in await told(url)


async def test_a_plain_server_behind_https() -> None:
    """Who takes http for https is told so."""
    async with server(http(400)) as port:
        assert re.search("TLS.*perhaps its URL begins with http://", await told(f"https://127.0.0.1:{port}"))


async def test_another_server_in_the_place_of_vllm() -> None:
    """A server without vLLM's health check is told from one that is not well."""
    async with server(http(404)) as port:
        assert "`engine: openai`" in await told(f"http://127.0.0.1:{port}", "vllm")
    async with server(http(503)) as port:
        assert "GET /health was answered by 503" in await told(f"http://127.0.0.1:{port}", "vllm")


async def test_status_and_log_say_what_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    """The reason stands in the status from the first look on, and in the log once, however often it is met."""
    pool = PoolSpec("far", engine="openai", launcher="external", urls=("http://127.0.0.1:1",))
    with caplog.at_level(logging.INFO):
        async with controlled(fleet(pool=pool), {"external": ExternalLauncher()}) as controller:
            status = await until(controller, lambda status: status.replicas and status.replicas[0].detail)
            assert "nothing listens at 127.0.0.1:1" in render.note(only(status))
            await asyncio.sleep(1.2)  # two more looks
    lines = [line for line in (record.getMessage() for record in caplog.records) if "nothing listens" in line]
    assert len(lines) == 1
    assert lines[0].startswith('does not answer replica=far-0 why="no answer to GET /v1/models: ')


async def test_doctor_asks_external_engines(tmp_path: Path) -> None:
    """Each URL of the fleet file is tried with its key, and the finding says what is wrong."""
    async with FakeEngine("base", api_key="sk-engine") as engine:
        path = tmp_path / "fleet.yaml"
        path.write_text(
            "base: {name: base}\npools:\n"
            f"  near: {{launcher: external, url: '{engine.url}', key_env: ENGINE_KEY}}\n"
            f"  far: {{launcher: external, engine: openai, urls: ['{engine.url}', 'http://127.0.0.1:1'], key: wrong}}\n"
        )
        env = {"ENGINE_KEY": "sk-engine"}
        answers = await asyncio.to_thread(externals.ask, load(path), env)
    assert [(one.pool, one.models, bool(one.trouble)) for one in answers] == [
        ("near", 1, False), ("far", 0, True), ("far", 0, True),
    ]  # fmt: skip
    assert "it wants another key" in answers[1].trouble
    assert "nothing listens" in answers[2].trouble
    assert all("sk-engine" not in str(one) and "wrong" not in str(one) for one in answers)
    levels = [finding.level for finding in checks._externals(_machine(answers))]
    assert levels == ["ok", "fail", "fail"]


def _machine(answers: tuple[externals.EngineAnswer, ...]) -> checks.Machine:
    """This machine, with these engines."""
    here = Path()
    return checks.look(tuneplex="0", engine_python="", cache_dir=here, state_dir=here, port=0, externals=answers)


@pytest.mark.parametrize("kind", ["vllm", "openai"])
async def test_an_external_engine_that_is_slow_stays_in_use(kind: str) -> None:
    """One that answers its health check late is shown as slow, and goes on getting requests."""
    path = "/health" if kind == "vllm" else "/v1/models"
    limits = HASTY.__class__(unreachable_s=0.1, slow_s=0.1, silent_s=20.0)
    async with FakeEngine("base") as engine:
        pool = PoolSpec("far", engine=kind, launcher="external", urls=(engine.url,))
        async with controlled(fleet(pool=pool), {"external": ExternalLauncher()}, limits) as controller:
            await until(controller, lambda status: status.replicas and status.replicas[0].state is ReplicaState.READY)
            engine.script(Script(before_headers_s=1.0), path=path)
            status = await until(controller, lambda status: status.replicas[0].detail)
            assert only(status).detail == "no answer to a health check within 0.1s yet"
            await asyncio.sleep(0.4)
            assert only(controller.status()).state is ReplicaState.READY
            await until(controller, lambda status: not status.replicas[0].detail)
