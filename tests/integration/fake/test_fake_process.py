"""FakeEngine as a process that stands in for vLLM's."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx2
import psutil
import pytest

from tuneplex.engines.vllm.plugins import installed
from tuneplex.testing import write_fake_python

Start = Callable[..., Awaitable[Process]]
VLLM = ("-m", "vllm.entrypoints.openai.api_server")


@pytest.fixture
async def start(tmp_path: Path, socket_path: Path) -> AsyncIterator[Start]:
    """Starts the fake as a driver would start vLLM, on a Unix socket; ends what is left at the end."""
    python = write_fake_python(tmp_path / "python")
    begun: list[Process] = []

    async def run(*flags: str, **env: str) -> Process:
        arguments = (*VLLM, "--model", "/m", "--served-model-name", "smol", "--uds", str(socket_path), *flags)
        process = await asyncio.create_subprocess_exec(
            python, *arguments, stdout=PIPE, stderr=STDOUT, start_new_session=True, env={**os.environ, **env}
        )
        begun.append(process)
        return process

    yield run
    for process in begun:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        finally:
            await process.communicate()


async def log_until(process: Process, words: str) -> str:
    """The log up to and with the line that has these words."""
    assert process.stdout is not None
    lines: list[str] = []
    async for line in process.stdout:
        lines.append(line.decode())
        if words in lines[-1]:
            return "".join(lines)
    raise AssertionError("".join(lines))


def client_of(socket_path: Path, key: str = "") -> httpx2.AsyncClient:
    """A client of the engine behind a Unix socket."""
    transport = httpx2.AsyncHTTPTransport(uds=str(socket_path))
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx2.AsyncClient(base_url="http://engine", transport=transport, headers=headers)


def family(process: Process) -> dict[str, psutil.Process]:
    """The engine's processes by name."""
    parent = psutil.Process(process.pid)
    return {"api": parent} | {child.name(): child for child in parent.children(recursive=True)}


async def gone(*processes: psutil.Process) -> None:
    """Wait until none of these runs any more."""
    while any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes):  # noqa: ASYNC110 - other people's children raise no event
        await asyncio.sleep(0.01)


def adapter(directory: Path, rank: int) -> str:
    """A directory that looks like an adapter of that rank."""
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps({"r": rank}))
    return str(directory)


async def test_it_starts_like_vllm(start: Start, socket_path: Path) -> None:
    """It logs vLLM's phases, listens where it was told, under the name and the key it was given."""
    process = await start("--max-model-len", "512", "--kv-cache-dtype", "auto", VLLM_API_KEY="k")
    log = await log_until(process, "Application startup complete")
    for words in ("non-default args", "Initializing a V1 LLM engine", "Loading weights took", "init engine"):
        assert words in log
    async with client_of(socket_path, "k") as client:
        card = (await client.get("/v1/models")).json()["data"][0]
        assert (card["id"], card["root"], card["max_model_len"]) == ("smol", "/m", 512)
        assert (await client.get("/v1/models", headers={"authorization": "Bearer no"})).status_code == 401
    process.terminate()
    assert await process.wait() == 0


async def test_it_loads_adapters_as_vllm_does(start: Start, socket_path: Path, tmp_path: Path) -> None:
    """Adapters are loaded from directories, up to the rank it was started with."""
    small, large = adapter(tmp_path / "small", 8), adapter(tmp_path / "large", 32)
    process = await start("--enable-lora", "--max-lora-rank", "16", VLLM_ALLOW_RUNTIME_LORA_UPDATING="True")
    await log_until(process, "Application startup complete")
    async with client_of(socket_path) as client:
        for path, status in ((small, 200), (large, 500), (str(tmp_path / "none"), 404)):
            body = {"lora_name": Path(path).name, "lora_path": path}
            assert (await client.post("/v1/load_lora_adapter", json=body)).status_code == status
        assert [card["id"] for card in (await client.get("/v1/models")).json()["data"]] == ["smol", "small"]
        seen = (await client.get("/fake/requests")).json()
        assert [one["path"] for one in seen].count("/v1/load_lora_adapter") == 3


async def test_without_leave_nothing_is_loaded(start: Start, socket_path: Path) -> None:
    """Without VLLM_ALLOW_RUNTIME_LORA_UPDATING the routes do not exist."""
    process = await start("--enable-lora", VLLM_ALLOW_RUNTIME_LORA_UPDATING="False")
    await log_until(process, "Application startup complete")
    async with client_of(socket_path) as client:
        assert (await client.post("/v1/load_lora_adapter", json={})).status_code == 404


@pytest.mark.parametrize(
    "env, status",
    [
        ({"VLLM_PLUGINS": "other,tuneplex"}, 200),
        ({"VLLM_PLUGINS": "other"}, 404),
        ({}, 404),
        ({"VLLM_PLUGINS": "tuneplex", "TUNEPLEX_FAKE_PLUGIN": "false"}, 404),
    ],
)
async def test_the_plugins_routes_are_there_where_it_is_named(
    start: Start, socket_path: Path, env: dict[str, str], status: int
) -> None:
    """As in vLLM, a plugin has routes only if it is installed and VLLM_PLUGINS names it."""
    process = await start(**env)
    await log_until(process, "Application startup complete")
    async with client_of(socket_path) as client:
        assert (await client.get("/v1/tuneplex/adapters")).status_code == status


async def test_its_children_outlive_it(start: Start) -> None:
    """EngineCore and Worker survive when only the API server is killed."""
    process = await start()
    await log_until(process, "Application startup complete")
    members = family(process)
    assert set(members) == {"api", "VLLM::EngineCor", "VLLM::Worker"}
    process.kill()
    await gone(members["api"])
    assert all(members[name].is_running() for name in ("VLLM::EngineCor", "VLLM::Worker"))
    os.killpg(process.pid, signal.SIGTERM)
    await gone(*members.values())


@pytest.mark.parametrize("victim", ["VLLM::EngineCor", "VLLM::Worker"])
async def test_it_ends_with_its_children(start: Start, victim: str) -> None:
    """When EngineCore or Worker dies, the others end too, with an error."""
    process = await start()
    await log_until(process, "Application startup complete")
    members = family(process)
    members[victim].kill()
    assert await process.wait() == 1
    await gone(*members.values())


async def test_it_dies_on_request(start: Start, socket_path: Path) -> None:
    """A request with a deadly script ends every process at once."""
    process = await start()
    await log_until(process, "Application startup complete")
    members = family(process)
    async with client_of(socket_path) as client:
        with pytest.raises(httpx2.TransportError):
            await client.post("/v1/completions", json={"prompt": "x"}, headers={"x-fake-fault": '{"die": true}'})
    assert await process.wait() == -signal.SIGKILL
    await gone(*members.values())


@pytest.mark.parametrize(
    "env, code, words",
    [
        ({"TUNEPLEX_FAKE_FAIL_START": "No room for the model"}, 1, "RuntimeError: No room for the model"),
        ({"TUNEPLEX_FAKE_DIE_AFTER_S": "0.01"}, -signal.SIGKILL, "Application startup complete"),
    ],
)
async def test_it_fails_on_request(start: Start, env: dict[str, str], code: int, words: str) -> None:
    """Variables let it fail while it starts, or die some time after."""
    process = await start(**env)
    await log_until(process, words)
    assert await process.wait() == code


async def test_a_slow_start_can_be_ended(start: Start) -> None:
    """SIGTERM ends it in the middle of its start."""
    process = await start(TUNEPLEX_FAKE_START_DELAY_S="60")
    await log_until(process, "Resolved architecture")
    process.terminate()
    assert await process.wait() == 0


async def test_it_can_refuse_to_end(start: Start) -> None:
    """Told so, it does not react to SIGTERM, and neither do its children."""
    process = await start(TUNEPLEX_FAKE_HANG_ON_TERM="true")
    await log_until(process, "Application startup complete")
    members = family(process)
    os.killpg(process.pid, signal.SIGTERM)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.wait(), 0.2)
    assert all(one.is_running() for one in members.values())


@pytest.fixture
def taken_path(socket_path: Path) -> Path:
    """The socket's path, taken already."""
    socket_path.touch()
    return socket_path


@pytest.mark.usefixtures("taken_path")
async def test_a_stale_socket_is_in_the_way(start: Start) -> None:
    """A path that exists already, as after a crash, prevents the start."""
    process = await start()
    await log_until(process, "Address already in use")
    assert await process.wait() == 1


async def test_an_unknown_variable_is_refused(start: Start) -> None:
    """A misspelt variable is an error, so that a test does not pass for the wrong reason."""
    process = await start(TUNEPLEX_FAKE_START_DELAI="1")
    await log_until(process, "start_delai")
    assert await process.wait() != 0


async def test_anything_else_goes_to_a_real_python(tmp_path: Path) -> None:
    """The stand-in runs other code as Python does."""
    python = write_fake_python(tmp_path / "python")
    process = await asyncio.create_subprocess_exec(python, "-c", "print(6 * 7)", stdout=PIPE)
    assert (await process.communicate())[0] == b"42\n"


async def test_it_says_which_plugins_it_has(tmp_path: Path) -> None:
    """Asked as a driver asks an engine's Python, it has ours."""
    python = write_fake_python(tmp_path / "python")
    assert await installed(str(python), os.environ) == {"tuneplex"}
