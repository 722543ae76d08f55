"""New versions of adapters on their way: probes, trials, and what ends them, on an engine that speaks HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from tests.support.controlled import HASTY, controlled
from tests.support.past import over
from tests.support.records import MemoryRecords
from tuneplex.control.catalog import Catalog
from tuneplex.control.decide import Situation
from tuneplex.control.probes import logprobs
from tuneplex.control.registry import Records
from tuneplex.control.rollouts import Rollouts
from tuneplex.control.scoring import Asked, score
from tuneplex.control.seen import LoadFailure, Seen
from tuneplex.control.versions import added, promoted, rolled_back, tried
from tuneplex.engines.server import EngineModel, EngineServer
from tuneplex.errors import EngineError, StoreDown
from tuneplex.journal import Finished
from tuneplex.launchers.external import ExternalLauncher
from tuneplex.launchers.launcher import Launched
from tuneplex.policy.sequential import Moments
from tuneplex.releases import AdapterEvent, AdapterRecord, Probing, Rollout, Scorer
from tuneplex.testing import FakeEngine, Script
from tuneplex.testing.adapters import Content
from tuneplex.types import AdapterVersion, Base, FleetSpec, PoolSpec

T = TypeVar("T")
replace = msgspec.structs.replace
POOL = PoolSpec("default", launcher="external")
OLD, NEW = (AdapterVersion("one", digest * 64, f"/adapters/{digest}", 8, "default") for digest in "ab")
PROBES = (
    Probing(prompt="The quick brown fox jumps over the lazy dog."),
    Probing(messages=({"role": "user", "content": "hello there"}, {"role": "assistant", "content": "good day"})),
    Probing(messages=({"role": "user", "content": "hello there"},)),
)


class Told:
    """A fleet that is told."""

    def __init__(self, spec: FleetSpec) -> None:
        self.spec = spec

    def apply(self, spec: FleetSpec) -> None:
        """Be that."""
        self.spec = spec

    follow_versions = apply


class Reads:
    """Asks the store.

    Attributes:
        failed: How often it has not answered.
    """

    def __init__(self, store: MemoryRecords) -> None:
        self._store = store
        self.failed = 0

    async def read(self, work: Callable[[Records], T]) -> T:
        """Ask it, after others had their turn."""
        await asyncio.sleep(0)
        try:
            return work(self._store)
        except StoreDown:
            self.failed += 1
            raise


class Plant:
    """One engine, what is seen of it, and the rollouts.

    Attributes:
        failures: What it did not load.
        dead: It has ended.
        acted: What tuneplex has done by itself.
        past: What the store has of requests.
        gate: While this is not set, the store does not answer what it has of them.
        down: How often it does not answer at all.
    """

    def __init__(self, engine: FakeEngine, directory: Path) -> None:
        self.engine = engine
        self.memory = MemoryRecords()
        self.fleet = Told(FleetSpec("fleet", Base("base", "/models/base"), pools=(POOL,)))
        self.acted: list[AdapterEvent] = []
        self.reads = Reads(self.memory)
        self.catalog = Catalog(self.fleet, self.reads, directory / "versions", self._note)
        self.catalog.open()
        self.failures: dict[str, LoadFailure] = {}
        self.dead = False
        self.past: list[Finished] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.down = 0
        self.rollouts = Rollouts(self.catalog, self, self._kept, look_s=0.005)

    async def _note(self, event: AdapterEvent) -> None:
        await asyncio.sleep(0.02)  # as it takes a while to write it down
        self.acted.append(event)

    async def _kept(self, since: float) -> Sequence[Finished]:
        await self.gate.wait()
        if self.down:
            self.down -= 1
            raise StoreDown("the store (memory) does not answer: it was told to be down")
        return [one for one in self.past if one.closed >= since]

    def situation(self) -> Situation:
        """What is seen."""
        models = (EngineModel("base"), *(EngineModel(one.name, "base") for one in self.engine.adapters))
        ended = time.time() if self.dead else None
        record = Launched("default-0", "default", "external", "vllm", "", self.engine.endpoint, ended=ended)
        seen = Seen(record, answered=True, models=models, failures=self.failures)
        return Situation(self.fleet.spec, (seen,), now=time.time())

    def load(self, *versions: AdapterVersion, weights: str | None = None) -> None:
        """Let the engine have these; with other weights than its own each speaks otherwise, with "" as the base."""
        for version in versions:
            content = Content(version.digest if weights is None else weights)
            self.engine.adapters.show(self.engine.adapters.make(version.id, content, version.path))

    @property
    def record(self) -> AdapterRecord | None:
        """What is known of the adapter."""
        return self.catalog.records.get("one")

    @property
    def words(self) -> str:
        """Where its rollout stands."""
        return self.rollouts.words("one")

    def file(self, version: AdapterVersion = OLD) -> None:
        """Promote a version by a fleet file, and load it."""
        self.catalog.apply(replace(self.fleet.spec, adapters=(version,)))
        self.load(version)

    async def add(self, **wish: object) -> None:
        """Roll the new version out."""
        rollout = replace(Rollout(NEW.digest, int(time.time()), "local", probes=PROBES), **wish)
        await self.catalog.change("one", lambda record: added(record, NEW, rollout))

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(90):
            while not condition():  # noqa: ASYNC110 - nobody is told of these
                await asyncio.sleep(0.005)

    async def history(self) -> list[tuple[str, str, str]]:
        """What tuneplex has done by itself."""
        events = await self.catalog.events("one")
        return [(event.action, event.version, event.why) for event in events if event.who == "tuneplex"]

    async def over(self) -> tuple[str, str]:
        """Wait for the end of the rollout; how it has ended, and why."""
        await self.until(lambda: self.record is None or self.record.rollout is None)
        action, version, why = (await self.history())[-1]
        assert version == NEW.id
        return action, why

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look after rollouts while the block runs."""
        task = asyncio.create_task(self.rollouts.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.fixture
async def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Plant]:
    """A plant with nothing in it."""
    monkeypatch.setattr("tuneplex.control.rollouts._PAUSE_S", 0.01)
    async with FakeEngine("base", max_loras=4) as engine:
        yield Plant(engine, tmp_path)


def requests(version: AdapterVersion, count: int, *, first: int = 0, **values: object) -> list[Finished]:
    """So many that came a moment after now."""
    at = time.time() + 1
    given = {"version": version.id, "arrived": at, "closed": at + 1, "completion": 20, "first_token_s": 0.2}
    return [over(first + n, **{"id": f"{version.id}/{first + n}", **given, **values}) for n in range(count)]


async def is_tried(plant: Plant, **wish: object) -> None:
    """A trial of the new version beside the old one."""
    plant.file()
    plant.load(NEW)
    await plant.add(**wish)
    await plant.until(lambda: plant.record and plant.record.rollout and plant.record.rollout.tried_since)


# --- probes


async def test_the_first_version_is_promoted_once_its_probes_are_right(plant: Plant) -> None:
    """It is loaded as a candidate, read by the engine that has it, and promoted, with the figures for people."""
    async with plant.running():
        await plant.add()
        await plant.until(lambda: "it is being loaded" in plant.words)
        assert [one.version for one in plant.fleet.spec.candidates] == [NEW]
        assert not plant.fleet.spec.adapters
        plant.load(NEW)
        action, why = await plant.over()
        assert (action, plant.fleet.spec.loaded) == ("promoted", (NEW,))
        assert [one.version for one in plant.fleet.spec.candidates] == []
        assert why.startswith("The adapter is applied: ")
        await plant.until(lambda: [event.action for event in plant.acted] == ["promoted"])
    assert {request.model for request in plant.engine.requests} == {"base", NEW.id}


async def test_the_usual_texts_are_read_where_there_are_no_probes(plant: Plant) -> None:
    """And a share of everything asks for no trial."""
    plant.file()
    plant.load(NEW)
    async with plant.running():
        await plant.add(probes=(), share=1.0)
        action, why = await plant.over()
    assert (action, plant.fleet.spec.adapters) == ("promoted", (NEW,))
    assert why.endswith("no reference was recorded.")


async def test_an_adapter_without_effect_is_refused(plant: Plant) -> None:
    """Requests go on getting the old version, and nothing is left of the new one but its history."""
    plant.file()
    plant.load(NEW, weights="")
    async with plant.running():
        await plant.add()
        action, why = await plant.over()
    assert action == "refused"
    assert why.startswith("The adapter seems not to be applied: ")
    assert plant.record is not None
    assert (plant.record.promoted, plant.record.version(NEW.digest)) == (OLD.digest, None)
    assert (plant.fleet.spec.adapters, plant.fleet.spec.candidates) == ((OLD,), ())


@pytest.mark.parametrize("off, action", [(0.0, "promoted"), (1.0, "refused")])
async def test_references_decide(plant: Plant, off: float, action: str) -> None:
    """What somebody has recorded of this very version must come again."""
    plant.load(NEW)
    probes = []
    async with EngineServer(plant.engine.endpoint) as server:
        for probe in PROBES:
            values = await logprobs(server, NEW.id, probe)
            assert len(values) > 5
            probes.append(replace(probe, logprobs=tuple(value - off for value in values)))
    async with plant.running():
        await plant.add(probes=tuple(probes))
        done, why = await plant.over()
    assert done == action
    assert ("3 of 3 probes have references" in why) is (off == 0.0)
    assert ("differs from its reference by 1 nats a token" in why) is (off == 1.0)


async def test_an_engine_that_does_not_load_it_has_its_say(plant: Plant) -> None:
    """Once or twice it is tried again; then the version is refused with the engine's own words."""
    async with plant.running():
        await plant.add()
        plant.failures = {NEW.id: LoadFailure(2, time.time(), "no such module")}
        await plant.until(lambda: plant.words == "it is being loaded: no such module")
        plant.failures = {NEW.id: LoadFailure(3, time.time(), "no such module")}
        assert await plant.over() == ("refused", "The engine does not load it: no such module")
    assert plant.record is None


async def test_what_is_not_loaded_in_time_is_refused(plant: Plant) -> None:
    """Nobody waits for ever for a replica that does not come."""
    plant.dead = True
    async with plant.running():
        await plant.add(since=int(time.time()) - 10, within_s=5.0)
        action, why = await plant.over()
    assert (action, why) == ("refused", "It was not loaded in time: no replica is ready that could load it.")


async def test_an_engine_that_fails_at_a_probe_is_asked_again(plant: Plant) -> None:
    """It says why it waits, and nothing is decided by what was not answered."""
    plant.load(NEW)
    plant.engine.default = Script(status=503, body="warming up")
    async with plant.running():
        await plant.add()
        await plant.until(lambda: "it is tried again: /v1/completions answers 503" in plant.words)
        plant.engine.default = Script()
        assert (await plant.over())[0] == "promoted"


async def test_who_rolls_back_while_it_is_probed_has_the_last_word(plant: Plant) -> None:
    """The probes end after that, and change nothing any more."""
    plant.file()
    plant.load(NEW)
    plant.engine.default = Script(before_headers_s=0.05)
    async with plant.running():
        await plant.add()
        await plant.until(lambda: plant.engine.requests)
        await plant.catalog.change("one", lambda record: rolled_back(record or AdapterRecord("one"), 9, "local"))
        await plant.until(lambda: all(request.ended_at is not None for request in plant.engine.requests))
        asked = len(plant.engine.requests)
        await plant.add()  # another one begins anew
        await plant.until(lambda: len(plant.engine.requests) > asked)
    assert await plant.history() == []
    assert (plant.fleet.spec.adapters, plant.words) == ((OLD,), "it is probed")


async def test_a_verdict_that_comes_too_late_is_none(plant: Plant) -> None:
    """Also on a version that was in use once, and so is known still: nobody has asked for it any more."""
    for content in (NEW, OLD):
        plant.file(content)
        await plant.catalog.change("one", lambda record: (record, ()))
    plant.engine.default = Script(before_headers_s=0.05)
    await plant.add(share=1.0)
    following = asyncio.create_task(plant.rollouts._follow("one", NEW.digest))
    await plant.until(lambda: plant.engine.requests)
    await plant.catalog.change("one", lambda record: rolled_back(record or AdapterRecord("one"), 9, "local"))
    await following
    assert await plant.history() == []
    assert plant.record is not None
    assert (plant.record.promoted, plant.record.version(NEW.digest)) == (OLD.digest, NEW)


# --- trials


async def test_a_good_version_is_promoted_by_its_figures(plant: Plant) -> None:
    """First it gets its share, then the requests that are over decide, and then it gets all."""
    async with plant.running():
        await is_tried(plant, share=0.25)
        (candidate,) = plant.fleet.spec.candidates
        assert candidate.trial is not None
        assert (candidate.trial.share, candidate.trial.version, candidate.trial.by) == (0.25, NEW.id, "user")
        await plant.until(lambda: plant.rollouts.evidence("one"))
        plant.rollouts.heard([*requests(OLD, 30), *requests(NEW, 20)])
        await plant.until(lambda: "20 of at least 100 requests went to the new version" in plant.words)
        plant.rollouts.heard([*requests(OLD, 2000), *requests(NEW, 2000)])
        action, why = await plant.over()
        assert action == "promoted"
        assert why.startswith("The new version is not worse: errors 0 % of 2000 requests against 0 % of 2000")
        assert plant.fleet.spec.adapters == (NEW,)
        await plant.until(lambda: [event.action for event in plant.acted] == ["trial", "promoted"])
        assert plant.rollouts.evidence("one") is None


async def test_a_bad_version_is_rolled_back_by_its_figures(plant: Plant) -> None:
    """As soon as its errors are too many, however few requests there were."""
    async with plant.running():
        await is_tried(plant)
        await plant.until(lambda: plant.rollouts.evidence("one"))
        plant.rollouts.heard([*requests(OLD, 90), *requests(NEW, 40, outcome="engine_error", status=502)])
        action, why = await plant.over()
    assert action == "rolled back"
    assert why.startswith("The new version is worse: errors 100 % of 40 requests")
    assert (plant.fleet.spec.adapters, plant.fleet.spec.candidates) == ((OLD,), ())


async def test_a_trial_ends_in_time(plant: Plant) -> None:
    """Where nobody has sent anything, nothing speaks against the new version."""
    async with plant.running():
        await is_tried(plant, within_s=0.01)
        action, why = await plant.over()
    assert action == "promoted"
    assert "no request went to the new version" in why


async def test_a_control_that_starts_in_a_trial_counts_what_was_before(plant: Plant) -> None:
    """Each request once: those in the store, those that are heard of while it answers, and those that are in both."""
    plant.file()
    plant.load(NEW)
    await plant.add()
    await plant.catalog.change("one", lambda record: tried(record or AdapterRecord("one"), time.time() - 5, ""))
    plant.past = [*requests(NEW, 30), *requests(OLD, 20)]
    plant.gate.clear()
    plant.down = 2
    async with plant.running():
        await plant.until(lambda: plant.rollouts.evidence("one"))
        plant.rollouts.heard([*requests(NEW, 20, first=20), *requests(OLD, 5)])
        plant.gate.set()
        await plant.until(lambda: not plant.down)
        await plant.until(lambda: "at least" in plant.words or plant.words.startswith("it is tried again"))
        evidence = plant.rollouts.evidence("one")
        assert evidence is not None
        assert (evidence.new.requests, evidence.old.requests) >= (20, 5)
        await plant.until(lambda: "Not decided yet: 20 of at least 100 requests went to the old version" in plant.words)
        evidence = plant.rollouts.evidence("one")
        assert evidence is not None
        assert (evidence.new.requests, evidence.old.requests) == (40, 20)
    assert not [request for request in plant.engine.requests if request.path.startswith("/v1/c")]


async def test_another_version_to_be_held_against_begins_anew(plant: Plant) -> None:
    """When something else is promoted in a trial, what the version before has done counts no more."""
    other = replace(OLD, digest="c" * 64)
    async with plant.running():
        await is_tried(plant)
        await plant.until(lambda: plant.rollouts.evidence("one"))
        plant.rollouts.heard(requests(OLD, 50))
        plant.file(other)
        await plant.until(lambda: (found := plant.rollouts.evidence("one")) and not found.old.requests)
        plant.rollouts.heard(requests(other, 7))
        await plant.until(lambda: (found := plant.rollouts.evidence("one")) and found.old.requests == 7)


async def test_a_promotion_by_hand_ends_a_trial(plant: Plant) -> None:
    """The fleet has it at once, and nothing is decided afterwards."""
    async with plant.running():
        await is_tried(plant)
        await plant.until(lambda: plant.rollouts.evidence("one"))
        await plant.catalog.change(
            "one", lambda record: promoted(record or AdapterRecord("one"), NEW.digest, 9, "local", "")
        )
        assert plant.fleet.spec.adapters == (NEW,)
        plant.rollouts.heard(requests(NEW, 50, outcome="engine_error"))
        await plant.until(lambda: not plant.rollouts._tasks)
    assert [action for action, _version, _why in await plant.history()] == ["trial"]


async def test_what_no_engine_has_any_more_is_told(plant: Plant) -> None:
    """Once, when the last of a version is gone that nobody should get; one that an engine has lost comes again."""
    async with plant.running():
        await is_tried(plant)
        await plant.until(lambda: NEW.id in plant.rollouts._loaded)
        plant.engine.adapters.hide(OLD.id)
        await plant.until(lambda: OLD.id not in plant.rollouts._loaded)
        await plant.catalog.change("one", lambda record: rolled_back(record or AdapterRecord("one"), 9, "local"))
        await plant.until(lambda: not plant.rollouts._tasks)
        plant.memory.down = True
        plant.engine.adapters.hide(NEW.id)
        await plant.until(lambda: plant.reads.failed)
        plant.memory.down = False
        await plant.until(lambda: "unloaded" in [event.action for event in plant.acted])
    assert (await plant.history())[1:] == [("unloaded", NEW.id, "no engine has it any more")]


async def test_a_fleet_brings_a_version_all_the_way(plant: Plant, tmp_path: Path) -> None:
    """Control loads it from its files, the probes are read, requests get it, and the version before is unloaded."""
    versions = []
    for content in (OLD, NEW):
        directory = tmp_path / content.digest[:4]
        directory.mkdir()
        (directory / "adapter_config.json").write_text('{"r": 8}')
        (directory / "words").write_text(content.digest)
        versions.append(replace(content, path=str(directory)))
    old, new = versions
    pool = replace(POOL, urls=(plant.engine.url,))
    spec = replace(plant.fleet.spec, adapters=(old,), pools=(pool,))
    async with controlled(spec, {"external": ExternalLauncher()}, replace(HASTY, unload_s=0.01)) as controller:
        catalog = Catalog(controller, Reads(plant.memory), tmp_path / "other", plant._note)
        catalog.open()
        task = asyncio.create_task(Rollouts(catalog, controller, plant._kept, look_s=0.01).run())
        await plant.until(lambda: old.id in controller.view.versions)
        rollout = Rollout(new.digest, int(time.time()), "local", share=1.0, probes=PROBES)
        await catalog.change("one", lambda record: added(record, new, rollout))
        await plant.until(lambda: controller.view.models["one"].version == new.id)
        await plant.until(lambda: [event.action for event in plant.acted] == ["promoted", "unloaded"])
        assert [one.name for one in plant.engine.adapters] == [new.id]
        assert controller.view.versions == {new.id: "one"}
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# --- scorers

JUDGE = """#!/bin/sh
case "$(cat)" in
  *one@bbbbbbbbbbbb*) echo '{"score": 0.25, "why": "worse"}' ;;
  *) echo '{"score": 1}' ;;
esac
"""


@pytest.fixture
def judge(tmp_path: Path) -> Scorer:
    """A command that likes the old version better."""
    script = tmp_path / "judge"
    script.write_text(JUDGE)
    return Scorer(command=("/bin/sh", str(script)))


@contextlib.asynccontextmanager
async def listening(answer: bytes, status: int = 200) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A scorer that always says the same over HTTP: its URL, and what it was asked."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        asked.append(await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0])))
        writer.write(
            b"HTTP/1.1 %d X\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (status, len(answer)) + answer
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/score", asked


async def test_a_command_compares_answers(plant: Plant, judge: Scorer) -> None:
    """Both versions answer the same probe, and the difference is kept for the next control."""
    async with plant.running():
        await is_tried(plant, scorer=judge)
        await plant.until(lambda: (found := plant.rollouts.evidence("one")) and found.score and found.score.count >= 2)
    (record,) = plant.memory.adapters("fleet")
    assert record.rollout is not None
    assert record.rollout.score is not None
    assert (record.rollout.score.mean, record.rollout.score.m2) == (-0.75, 0.0)
    answers = [request for request in plant.engine.requests if request.json.get("seed") == 0]
    assert {request.model for request in answers} == {OLD.id, NEW.id}
    assert len({tuple(request.prompt_ids) for request in answers}) == 1


async def test_scores_can_roll_a_version_back(plant: Plant, judge: Scorer) -> None:
    """However well the version does in all that can be counted."""
    async with plant.running():
        await is_tried(plant, scorer=judge, score=Moments(200, -0.75, 1.0))
        await plant.until(lambda: plant.rollouts.evidence("one"))
        plant.rollouts.heard([*requests(OLD, 2000), *requests(NEW, 2000)])
        action, why = await plant.over()
    assert action == "rolled back"
    assert "score -0.75 in " in why


async def test_a_scorer_is_asked_over_http(plant: Plant) -> None:
    """With the adapter, the version, what was asked and what was answered, as JSON."""
    async with listening(b'{"score": 3}') as (url, asked), plant.running():
        await is_tried(plant, scorer=Scorer(url=url))
        await plant.until(lambda: len(asked) >= 6)
    found = [msgspec.json.decode(body, type=Asked) for body in asked[:6]]
    pairs = [{one.version for one in found[at : at + 2]} for at in (0, 2, 4)]  # both are asked side by side
    assert pairs == [{OLD.id, NEW.id}] * 3
    assert [one.prompt for one in found[:2]] == [PROBES[0].prompt] * 2
    assert found[2].messages == PROBES[1].messages
    assert all(one.answer and one.adapter == "one" for one in found)


async def test_a_broken_scorer_holds_a_promotion_up_but_no_rollback(plant: Plant) -> None:
    """Somebody wanted scores, so nothing is promoted without; a version that is broken is rolled back all the same."""
    async with listening(b"oh no", 500) as (url, _asked), plant.running():
        await is_tried(plant, scorer=Scorer(url=url), within_s=0.01)
        await plant.until(lambda: plant.words == f"it is tried again: the scorer at {url} answers 500")
        plant.rollouts.heard([*requests(OLD, 2000), *requests(NEW, 2000)])
        await plant.until(lambda: (found := plant.rollouts.evidence("one")) and found.new.requests == 2000)
        assert plant.words == f"it is tried again: the scorer at {url} answers 500"
        plant.rollouts.heard(requests(NEW, 1500, first=5000, outcome="broken", status=502))
        action, why = await plant.over()
    assert (action, why[:40]) == ("rolled back", "The new version is worse: errors 42.9 % ")


@pytest.mark.full  # it races with the scores that were under way, and is lost now and then on a busy machine
async def test_without_the_old_version_there_is_nothing_to_score(plant: Plant, judge: Scorer) -> None:
    """Requests alone do not promote what was to be scored; once the old version is there again, it goes on."""
    async with plant.running():
        await is_tried(plant, scorer=judge)
        plant.engine.adapters.hide(OLD.id)
        await plant.until(lambda: plant.rollouts.evidence("one"))
        plant.rollouts.heard([*requests(OLD, 2000), *requests(NEW, 2000)])
        await plant.until(lambda: "Not decided yet: score " in plant.words)
        assert plant.record is not None
        assert plant.record.promoted == OLD.digest


ASKED = Asked("one", NEW.id, "hi", (), "there")


@pytest.mark.parametrize(
    "script, words",
    [
        ("echo 5", "the scorer did not answer with"),
        ("echo", "the scorer did not answer with"),
        ("""echo '{"score": "high"}'""", "the scorer did not answer with"),
        ("""echo '{"score": 1e999}'""", "the scorer"),
        ("echo no >&2; echo 'no model' >&2; exit 3", "the scorer /bin/sh ended with 3: no model"),
    ],
)
async def test_a_command_that_says_no_number_is_said(script: str, words: str) -> None:
    """With its exit code and its last words."""
    with pytest.raises(EngineError) as caught:
        await score(Scorer(command=("/bin/sh", "-c", script)), ASKED)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    "scorer, words",
    [
        (Scorer(command=("/no/such/program",)), "the scorer /no/such/program cannot be run: No such file or directory"),
        (Scorer(url="http://127.0.0.1:1/"), "the scorer at http://127.0.0.1:1/ does not answer: ConnectError"),
        (Scorer(url="http://127.0.0.1:x/"), "the scorer at http://127.0.0.1:x/ does not answer: InvalidURL"),
    ],
)
async def test_a_scorer_that_is_not_there_is_said(scorer: Scorer, words: str) -> None:
    """Whatever it was meant to be."""
    with pytest.raises(EngineError) as caught:
        await score(scorer, ASKED)
    assert str(caught.value) == words


async def test_a_command_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After its time it is killed, and that is said."""
    monkeypatch.setattr("tuneplex.control.scoring._TIMEOUT_S", 0.2)
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(EngineError, match="has not answered within"):
        await score(Scorer(command=("/bin/sh", "-c", f"exec sleep 600 >{fifo}")), ASKED)
    assert os.read(reader, 1) == b""  # nobody has the other end open
    os.close(reader)


# --- engines that answer otherwise


@pytest.mark.parametrize(
    "answer",
    [
        b"[]",
        b"nothing",
        b"{}",
        b'{"choices": []}',
        b'{"choices": {}}',
        b'{"choices": [null]}',
        b'{"choices": [{"prompt_logprobs": null, "prompt_token_ids": [1]}]}',
        b'{"choices": [{"prompt_logprobs": [null, {}], "prompt_token_ids": [1]}]}',
    ],
)
async def test_an_engine_that_tells_no_log_probabilities_is_said(answer: bytes) -> None:
    """Whatever it answers instead, it is the engine's failure and none of ours."""
    said = Script(status=200, content_type="application/json", body=answer.decode())
    async with FakeEngine("base", default=said) as engine, EngineServer(engine.endpoint) as server:
        with pytest.raises(EngineError):
            await logprobs(server, "base", Probing(prompt="hi"))
