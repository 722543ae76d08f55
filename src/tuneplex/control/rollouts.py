"""Brings new versions of adapters to those who ask for them: probes, a trial, and what `policy` decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import msgspec

from tuneplex.control.catalog import Catalog
from tuneplex.control.comparing import Comparing
from tuneplex.control.decide import Situation
from tuneplex.control.probes import USUAL, answer, logprobs
from tuneplex.control.scoring import Asked, score
from tuneplex.control.seen import Seen, adapter_of
from tuneplex.control.versions import ITSELF, ended, named, promoted, tried
from tuneplex.engines.driver import EngineServer
from tuneplex.errors import EngineError, StoreError, TuneplexError
from tuneplex.journal import Finished
from tuneplex.log import get_logger
from tuneplex.policy.probing import Probe, Probed, judge_probes
from tuneplex.policy.rollout import Evidence, Terms, Verdict, at_the_end, judge
from tuneplex.policy.sequential import Moments
from tuneplex.releases import AdapterChange, AdapterEvent, AdapterRecord, Probing, Rollout
from tuneplex.types import AdapterVersion, ReplicaState

__all__ = ["Observed", "Rollouts"]

_log = get_logger(__name__)
_LOOK_S = 1.0
_AT_ONCE = 8  # texts that one engine reads side by side
_PAUSE_S = 5.0  # after something has failed that may be better the next time


class Observed(Protocol):
    """Knows the replicas; the `Controller`."""

    def situation(self) -> Situation:
        """All that is known now."""


Kept = Callable[[float], Awaitable[Sequence[Finished]]]
"""The requests in the store that were over since a time."""


class Rollouts:
    """Looks after each version that is being rolled out, one task for each.

    Args:
        catalog: Knows them, and keeps what becomes of them.
        observed: Knows where they are loaded.
        kept: For a control that starts in the middle of a trial.
        terms: What "not worse" means.
        look_s: Between two looks.
    """

    def __init__(
        self,
        catalog: Catalog,
        observed: Observed,
        kept: Kept,
        *,
        terms: Terms | None = None,
        look_s: float = _LOOK_S,
    ) -> None:
        self._catalog = catalog
        self._observed = observed
        self._kept = kept
        self._terms = terms or Terms()
        self._look_s = look_s
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._comparing: dict[str, Comparing] = {}
        self._words: dict[str, str] = {}
        self._loaded: set[str] = set()

    def words(self, name: str) -> str:
        """How far the rollout of an adapter is, in words for people; empty without one."""
        record = self._catalog.records.get(name)
        return self._words.get(name, "it begins") if record is not None and record.rollout is not None else ""

    def evidence(self, name: str) -> Evidence | None:
        """What the trial of an adapter's new version stands on so far."""
        record, comparing = self._catalog.records.get(name), self._comparing.get(name)
        if record is None or record.rollout is None or comparing is None:
            return None
        # Scores that somebody has asked for are waited for, so none is not the same as not asked for.
        score = record.rollout.score or (None if record.rollout.scorer is None else Moments())
        return Evidence(comparing.old, comparing.new, score)

    def heard(self, finished: Sequence[Finished]) -> None:
        """Requests are over."""
        for comparing in self._comparing.values():
            comparing.heard(finished)

    async def probe(self, version: AdapterVersion, probes: Sequence[Probing]) -> tuple[Probing, ...]:
        """The same texts, with the log-probabilities of their tokens by a version that is loaded.

        Raises:
            EngineError: None has it loaded, or it does not say.
        """
        replica = self._replica(version)
        if replica is None:
            raise EngineError(f"no replica that is ready has {version.id} loaded")
        told = await _told(replica, [(version.id, probe) for probe in probes])
        return tuple(
            msgspec.structs.replace(probe, logprobs=values) for probe, values in zip(probes, told, strict=True)
        )

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(self._look_s)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _look(self) -> None:
        await self._note_gone()
        going = {
            (record.name, record.rollout.digest)
            for record in self._catalog.records.values()
            if record.rollout is not None
        }
        for key in [key for key, task in self._tasks.items() if key not in going or task.done()]:
            self._tasks.pop(key).cancel()
            self._comparing.pop(key[0], None)
            self._words.pop(key[0], None)
        for key in going - self._tasks.keys():
            self._tasks[key] = asyncio.create_task(self._follow(*key))

    async def _note_gone(self) -> None:
        """Write down which versions that nobody should get are gone: no engine lists them, and none holds them."""
        situation = self._observed.situation()
        loaded = {name for one in situation.seen if one.alive for name in _names(one)}
        wanted = {version.id for version in situation.spec.loaded}
        missed: set[str] = set()
        for version in self._loaded - loaded - wanted:
            name = adapter_of(version)
            if name is not None:
                event = AdapterEvent(int(time.time()), name, ITSELF, "unloaded", version, "no engine has it any more")
                try:
                    await self._catalog.change(name, partial(_with_event, event=event))
                except StoreError:
                    missed.add(version)  # it is written down once the store answers
        self._loaded = loaded | missed

    async def _follow(self, name: str, digest: str) -> None:
        """One rollout to its end."""
        while (record := self._record(name, digest)) is not None:
            pause_s = self._look_s
            try:
                await self._step(record)
            except (EngineError, StoreError) as error:
                pause_s = max(_PAUSE_S, self._look_s) if isinstance(error, StoreError) else self._look_s
                self._words[name] = f"it is tried again: {error}"
            except TuneplexError as error:
                _log.warning("a rollout waits", version=named(record, digest), why=error)
                self._words[name] = str(error)
                pause_s = max(_PAUSE_S, self._look_s)
            await asyncio.sleep(pause_s)

    def _record(self, name: str, digest: str) -> AdapterRecord | None:
        record = self._catalog.records.get(name)
        return record if record is not None and record.rollout is not None and record.rollout.digest == digest else None

    async def _step(self, record: AdapterRecord) -> None:
        rollout, version = _of(record)
        if rollout.tried_since is not None:
            await self._try(record, rollout, version)
            return
        replica = self._replica(version)
        if replica is None:
            await self._wait(record, rollout, version)
            return
        self._words[record.name] = "it is probed"
        verdict = await _probed(replica, version, rollout.probes or USUAL)
        if not verdict.passed:
            await self._change(record, lambda one: ended(one, time.time(), ITSELF, "refused", verdict.why))
        elif not record.promoted or rollout.share >= 1:
            await self._promote(record, verdict.why)
        else:
            await self._change(record, lambda one: tried(one, time.time(), verdict.why))

    def _replica(self, version: AdapterVersion) -> Seen | None:
        """One that answers with it."""
        situation = self._observed.situation()
        ready = (one for one in situation.seen if situation.state(one) is ReplicaState.READY)
        return next((one for one in ready if version.id in one.listed), None)

    async def _wait(self, record: AdapterRecord, rollout: Rollout, version: AdapterVersion) -> None:
        """It is loaded nowhere yet; an engine that does not take it, or a long time, ends that."""
        situation = self._observed.situation()
        mine = [one for one in situation.seen if situation.state(one) is ReplicaState.READY]
        failures = [one.failures[version.id] for one in mine if version.id in one.failures]
        hopeless = [one for one in failures if one.count >= situation.limits.hopeless_loads]
        waits = "it is being loaded" if mine else "no replica is ready that could load it"
        self._words[record.name] = f"{waits}: {failures[0].words}" if failures else waits
        if hopeless:
            why = f"The engine does not load it: {hopeless[0].words}"
            await self._change(record, lambda one: ended(one, time.time(), ITSELF, "refused", why))
        elif time.time() - rollout.since > rollout.within_s:
            why = f"It was not loaded in time: {self._words[record.name]}."
            await self._change(record, lambda one: ended(one, time.time(), ITSELF, "refused", why))

    # --- the trial

    async def _try(self, record: AdapterRecord, rollout: Rollout, version: AdapterVersion) -> None:
        since = rollout.tried_since or 0.0
        trial = named(record, record.promoted), version.id, since
        comparing = self._comparing.get(record.name)
        if comparing is None or comparing.trial != trial:
            comparing = Comparing(*trial)
            self._comparing[record.name] = comparing  # before the store is asked: what comes meanwhile is heard, too
        if not comparing.complete:
            comparing.heard(await self._kept(since))
            comparing.complete = True
        trouble = await self._scored(record, rollout, version)
        evidence = self.evidence(record.name)
        if evidence is None:
            return  # somebody has ended it meanwhile
        over = time.time() - since > rollout.within_s
        verdict = (at_the_end if over else judge)(evidence, self._terms)
        if trouble and verdict.decision != "roll back":  # nothing is promoted that was to be scored and is not
            self._words[record.name] = f"it is tried again: {trouble}"
            return
        self._words[record.name] = verdict.why
        await self._decide(record, verdict)

    async def _decide(self, record: AdapterRecord, verdict: Verdict) -> None:
        if verdict.decision == "promote":
            await self._promote(record, verdict.why)
        elif verdict.decision == "roll back":
            await self._change(record, lambda one: ended(one, time.time(), ITSELF, "rolled back", verdict.why))

    async def _scored(self, record: AdapterRecord, rollout: Rollout, version: AdapterVersion) -> str:
        """Why there are no scores, if that is so."""
        try:
            await self._score(record, rollout, version)
        except EngineError as error:
            return str(error)
        return ""

    async def _score(self, record: AdapterRecord, rollout: Rollout, version: AdapterVersion) -> None:
        """Let both versions answer the next probe, and hold what the scorer says against each other."""
        scorer, before = rollout.scorer, rollout.score or Moments()
        new, old = self._replica(version), record.version(record.promoted)
        theirs = self._replica(old) if old is not None else None
        if scorer is None or new is None or old is None or theirs is None:
            return
        probes = rollout.probes or USUAL
        probe = probes[before.count % len(probes)]

        async def scored(replica: Seen, one: AdapterVersion) -> float:
            async with _server(replica) as server:
                said = await answer(server, one.id, probe, seed=before.count, tokens=scorer.tokens)
            return await score(scorer, Asked(record.name, one.id, probe.prompt, probe.messages, said))

        less, more = await asyncio.gather(scored(theirs, old), scored(new, version))
        moments = _with(before, more - less)
        await self._change(record, lambda one: (_with_score(one, moments), ()))

    # --- what becomes of it

    async def _promote(self, record: AdapterRecord, why: str) -> None:
        digest = _of(record)[0].digest
        await self._change(record, lambda one: promoted(one, digest, time.time(), ITSELF, why))

    async def _change(self, record: AdapterRecord, change: Callable[[AdapterRecord], AdapterChange]) -> None:
        """Change it, unless somebody else has ended this rollout meanwhile.

        What is begun is done to its end: this rollout is over, and its task cancelled, once its last change is known.
        """
        digest = _of(record)[0].digest

        def unless_over(now: AdapterRecord | None) -> AdapterChange:
            if now is None or now.rollout is None or now.rollout.digest != digest:
                return now, ()
            return change(now)

        await asyncio.shield(self._catalog.change(record.name, unless_over))


def _of(record: AdapterRecord) -> tuple[Rollout, AdapterVersion]:
    rollout = record.rollout
    version = record.version(rollout.digest) if rollout is not None else None
    if rollout is None or version is None:
        raise TuneplexError(f"{record.name}: what is rolled out is not known any more")
    return rollout, version


def _names(replica: Seen) -> Iterator[str]:
    """All that an engine has of versions: what it lists, and what it holds all the same."""
    yield from replica.listed
    if replica.residency is not None:
        yield from (one.name for one in replica.residency.adapters)


def _with_event(record: AdapterRecord | None, event: AdapterEvent) -> AdapterChange:
    return record, (event,)


def _server(replica: Seen) -> EngineServer:
    return EngineServer(replica.launched.endpoint, replica.launched.secret)


async def _probed(replica: Seen, version: AdapterVersion, probes: Iterable[Probing]) -> Probed:
    """What the probes say; all of them are read by the same engine, the base's twice."""
    base = next((model.id for model in replica.models if model.parent is None), "")
    asked = [(name, probe) for probe in probes for name in (base, base, version.id)]
    told = iter(await _told(replica, asked))
    threes = zip(told, told, told, strict=True)
    named_ones = zip(asked[::3], threes, strict=True)
    return judge_probes(
        [Probe(str(number), *three, one[1].logprobs) for number, (one, three) in enumerate(named_ones, 1)]
    )


async def _told(replica: Seen, asked: Sequence[tuple[str, Probing]]) -> list[tuple[float, ...]]:
    """The log-probabilities of each text by the model beside it; an engine reads several side by side, but not all."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str, probe: Probing) -> tuple[float, ...]:
        async with places:
            return await logprobs(server, name, probe)

    async with _server(replica) as server:
        return list(await asyncio.gather(*(one(*pair) for pair in asked)))


def _with_score(record: AdapterRecord, moments: Moments) -> AdapterRecord:
    if record.rollout is None:
        return record
    return msgspec.structs.replace(record, rollout=msgspec.structs.replace(record.rollout, score=moments))


def _with(moments: Moments, value: float) -> Moments:
    """One value more."""
    count, off = moments.count + 1, value - moments.mean
    mean = moments.mean + off / count
    return Moments(count, mean, moments.m2 + off * (value - mean))
