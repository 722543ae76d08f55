"""The page about FakeEngine says what is true."""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tuneplex.testing import Script
from tuneplex.testing.flags import Behaviour, parse_flags

PAGE = (Path(__file__).parents[3] / "docs" / "testing-with-fakeengine.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("source", BLOCKS)
async def test_examples_run(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example is code that runs; where it is a test, it passes."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(source, "testing-with-fakeengine.md", "exec"), names)  # noqa: S102 - our own page
    for name, value in names.items():
        if name.startswith("test_"):
            await value()


def test_the_page_names_every_way_of_going_wrong() -> None:
    """Each field of `Script` and each variable is on the page."""
    fields = {field.name for field in msgspec.structs.fields(Script)}
    assert {name for name in fields if f"`{name}`" not in PAGE} == set()
    variables = {f"TUNEPLEX_FAKE_{field.name.upper()}" for field in msgspec.structs.fields(Behaviour)}
    assert {name for name in variables if f"`{name}`" not in PAGE} == set()


async def test_the_command_runs() -> None:
    """The command of the page starts an engine, here on a free port."""
    command = re.findall(r"\$ python (.*)", PAGE)[0].split()
    arguments = ["0" if word == "8001" else word for word in command]
    assert parse_flags(command[2:]).name == "base"
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=PIPE, stderr=STDOUT)
    assert process.stdout is not None
    async for line in process.stdout:
        if b"startup complete" in line:
            process.terminate()
    assert await process.wait() == 0
