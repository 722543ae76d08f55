"""Which of vLLM's plugins an engine is told to load."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from tuneplex.engines.command import Place
from tuneplex.engines.vllm.driver import VllmDriver
from tuneplex.types import Base, PoolSpec

GENERAL, ROUTES = "vllm.general_plugins", "vllm.endpoint_plugins"


async def told(env: dict[str, str] | None = None, python: str = sys.executable, **inherited: str) -> str | None:
    """`VLLM_PLUGINS` of an engine whose pool has this environment."""
    pool = PoolSpec("p", python=python, env=env or {})
    made = await VllmDriver().command(pool, Base("base", "/b"), Place(socket="/s", secret="x"), inherited)
    return made.env.get("VLLM_PLUGINS")


def install(site: Path, package: str, **groups: str) -> dict[str, str]:
    """Put a package with entry points where a Python finds it; the environment that leads there."""
    info = site / f"{package}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    lines = (f"[{group.replace('__', '.')}]\n{name} = {package}:run\n" for group, name in groups.items())
    (info / "entry_points.txt").write_text("\n".join(lines))
    return {"PYTHONPATH": str(site)}


@pytest.mark.parametrize(
    "given, wanted",
    [
        ("mine", "mine,tuneplex"),
        ("mine,tuneplex,other", "mine,tuneplex,other"),
        ("", "tuneplex"),
        ("lora_hf_hub_resolver", "lora_hf_hub_resolver,tuneplex"),
    ],
)
async def test_what_the_user_listed_is_kept(given: str, wanted: str) -> None:
    """Ours is added to the user's list, once, whether it comes from the environment or from the pool."""
    assert await told(VLLM_PLUGINS=given) == wanted
    assert await told({"VLLM_PLUGINS": given}, VLLM_PLUGINS="something-else") == wanted


async def test_without_a_list_the_engine_loads_what_it_would_have_loaded(tmp_path: Path) -> None:
    """A list is a limit, so it names everything that vLLM loads by itself, and nothing that it does not."""
    install(tmp_path, "ours", vllm__general_plugins="tuneplex", vllm__endpoint_plugins="tuneplex")
    install(tmp_path, "theirs", vllm__general_plugins="theirs", vllm__stat_logger_plugins="counter")
    install(tmp_path, "chip", vllm__platform_plugins="chip", vllm__io_processor_plugins="reader")
    install(tmp_path, "open", vllm__endpoint_plugins="routes")
    env = install(tmp_path, "vllm", vllm__general_plugins="lora_hf_hub_resolver")
    assert await told(env) == "chip,counter,reader,theirs,tuneplex"


async def test_an_engine_without_the_plugin_stays_as_it_is(tmp_path: Path) -> None:
    """Where ours is not installed, no list is made, and every other plugin loads as ever."""
    assert await told(install(tmp_path, "theirs", vllm__general_plugins="theirs")) is None


@pytest.mark.parametrize("script", [None, "#!/bin/sh\necho 'no such thing' >&2\nexit 3\n"])
async def test_a_python_that_does_not_say(tmp_path: Path, caplog: pytest.LogCaptureFixture, script: str | None) -> None:
    """A Python that is missing or fails switches nobody's plugins off, and the log says why ours is not on."""
    python = tmp_path / "python"
    if script is not None:
        python.write_text(script)
        python.chmod(0o755)
    with caplog.at_level(logging.WARNING):
        assert await told(python=str(python)) is None
    assert ("no such thing" if script else "No such file") in caplog.text
