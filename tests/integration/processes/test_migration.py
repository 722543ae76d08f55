"""Processes of engines are killed while clients listen: the streams go on at another replica."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import write_base
from tests.support.fleets import MakeFleet
from tests.support.listeners import CHAT, COMPLETIONS, Ask, Listener
from tuneplex.testing import FakeEngine
from tuneplex.types import AdapterVersion

USAGE = {"stream_options": {"include_usage": True}}
SAY = {"messages": [{"role": "user", "content": "hello"}]}
LONG = {"temperature": 0, "ignore_eos": True, "max_tokens": 60}
ASKS = (
    Ask(CHAT, {"model": "ada", **SAY, **LONG, **USAGE}),
    Ask(CHAT, {"model": "base", **SAY, **LONG}).by_client(),
    Ask(COMPLETIONS, {"model": "ada", "prompt": "hello", **LONG, **USAGE}),
    Ask(COMPLETIONS, {"model": "base", "prompt": "hello", **LONG}),
)


@pytest.fixture
def base(tmp_path: Path) -> str:
    """A base with the fakes' tokenizer."""
    directory = write_base(tmp_path / "base")
    (directory / "tokenizer.json").write_text(FakeEngine().tokenizer.as_json())
    return str(directory)


@pytest.mark.parametrize("gateways", [1, 2])
def test_a_replica_that_is_killed(
    make_fleet: MakeFleet, adapters: dict[str, AdapterVersion], base: str, gateways: int
) -> None:
    """Its streams end at the other one, with the same text and the same usage as ever, whichever gateway they go by."""
    env = {"TUNEPLEX_FAKE_SCRIPT": '{"between_chunks_s": 0.05}'}
    fleet = make_fleet(adapters["ada"], base=base, gateways=gateways, replicas=2, env=env)
    pid = fleet.ready().replicas[0].pid
    assert pid is not None
    whole = [one.done() for one in [Listener(fleet, ask) for ask in ASKS]]
    listeners = [Listener(fleet, ask) for ask in ASKS]
    fleet.wait_for(lambda: all(len(one.events) > 3 for one in listeners))
    fleet.kill(pid)
    for one, true in zip(listeners, whole, strict=True):
        one.done().is_whole()
        assert (one.text, one.ends, one.usages) == (true.text, true.ends, true.usages)
    fleet.wait_for(lambda: fleet.counted("tuneplex_migrations"))
    fleet.ready(restarts=1)


def test_a_replica_that_is_drained_at_once(
    make_fleet: MakeFleet, adapters: dict[str, AdapterVersion], base: str
) -> None:
    """Its streams go on at the other one, its engine is left with nothing to do, and nobody notices."""
    env = {"TUNEPLEX_FAKE_SCRIPT": '{"between_chunks_s": 0.05}'}
    fleet = make_fleet(adapters["ada"], base=base, replicas=2, env=env)
    fleet.ready()
    whole = [one.done() for one in [Listener(fleet, ask) for ask in ASKS]]
    listeners = [Listener(fleet, ask) for ask in ASKS]
    fleet.wait_for(lambda: all(len(one.events) > 3 for one in listeners))
    with fleet.admin() as admin:
        assert admin.post("/replicas/default-0/drain", params={"now": 1}).status_code == 200
    fleet.until(lambda status: status.replicas[0].drained and status.replicas[0].outstanding == 0)
    for one, true in zip(listeners, whole, strict=True):
        one.done().is_whole()
        assert (one.text, one.ends, one.usages) == (true.text, true.ends, true.usages)
    assert fleet.counted("tuneplex_migrations")
