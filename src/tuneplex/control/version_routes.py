"""The admin API's operations on adapters and their versions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import msgspec

from tuneplex.control.bodies import Name
from tuneplex.control.catalog import Catalog
from tuneplex.control.controller import Controller
from tuneplex.control.operations import LOCAL_ACTOR, Call, Conflict, Operation
from tuneplex.control.rollouts import Rollouts
from tuneplex.control.version_bodies import AdapterInfo, ProbeWish, RolloutInfo, RolloutWish, VersionInfo, VersionWish
from tuneplex.control.versions import added, named, pool_for, promoted, removed, rolled_back
from tuneplex.errors import BadRequest, EngineError, Forbidden, NotFound, Unavailable
from tuneplex.releases import AdapterChange, AdapterEvent, AdapterRecord, Probing, Rollout
from tuneplex.types import AdapterVersion

__all__ = ["version_operations"]

_ERRORS = (400, 403, 404, 409, 503)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LEAST_PREFIX = 4
_MOST_TOKENS = 4096


def version_operations(controller: Controller, catalog: Catalog, rollouts: Rollouts) -> tuple[Operation, ...]:
    """All operations on adapters."""
    versions = _Versions(controller, catalog, rollouts)
    return (
        Operation("GET", "/adapters", "listAdapters", "All adapters with their versions.", versions.every,
                  answer=tuple[AdapterInfo, ...], errors=(400,)),
        Operation("POST", "/adapters", "addAdapter", "Roll out a version that is on this machine: it is probed, tried "
                  "with a share of the requests, and promoted or rolled back. Not for keys.", versions.add,
                  body=RolloutWish, answer=AdapterInfo, status=202, errors=_ERRORS, tells=_tells_add),
        Operation("GET", "/adapters/{name}", "getAdapter", "One adapter with its versions.", versions.one,
                  answer=AdapterInfo, errors=(400, 404)),
        Operation("DELETE", "/adapters/{name}", "removeAdapter", "Nobody gets an adapter any more. One that the fleet "
                  "file names is removed there.", versions.remove, status=204, errors=_ERRORS),
        Operation("GET", "/adapters/{name}/history", "getAdapterHistory", "What was done with an adapter, oldest "
                  "first.", versions.history, answer=tuple[AdapterEvent, ...], errors=(400, 503)),
        Operation("POST", "/adapters/{name}/promote", "promoteAdapter", "From now on requests get this version, as "
                  "soon as it is loaded.", versions.promote, body=VersionWish, answer=AdapterInfo, errors=_ERRORS,
                  tells=_tells_version),
        Operation("POST", "/adapters/{name}/probe", "probeAdapter", "Texts with the log-probabilities of their tokens, "
                  "by a version that is loaded.", versions.probe, body=ProbeWish, answer=tuple[Probing, ...],
                  errors=_ERRORS),
        Operation("POST", "/adapters/{name}/rollback", "rollBackAdapter", "Give up the version that is being rolled "
                  "out; without one, go back to the version that was promoted before.", versions.roll_back,
                  answer=AdapterInfo, errors=_ERRORS),
    )  # fmt: skip


def _tells_add(call: Call, _answer: object) -> dict[str, str]:
    wish: RolloutWish = call.body
    return {"adapter": wish.version.name, "version": wish.version.id, "share": f"{wish.share:g}"}


def _tells_version(call: Call, answer: object) -> dict[str, str]:
    wish: VersionWish = call.body
    return {"version": (answer.promoted or "") if isinstance(answer, AdapterInfo) else wish.version}


class _Versions:
    """The operations."""

    def __init__(self, controller: Controller, catalog: Catalog, rollouts: Rollouts) -> None:
        self._controller = controller
        self._catalog = catalog
        self._rollouts = rollouts

    async def every(self, _call: Call) -> tuple[AdapterInfo, ...]:
        return tuple(self._info(record) for _name, record in sorted(self._catalog.records.items()))

    async def one(self, call: Call) -> AdapterInfo:
        return self._info(self._found(call.path["name"]))

    async def history(self, call: Call) -> tuple[AdapterEvent, ...]:
        return await self._catalog.events(call.path["name"])

    async def add(self, call: Call) -> AdapterInfo:
        wish: RolloutWish = call.body
        if call.actor != LOCAL_ACTOR:
            words = "which files are served can only be said on the machine itself"
            raise Forbidden(words, code="only_on_the_machine")
        version = self._checked(wish)
        rollout = Rollout(
            version.digest,
            int(time.time()),
            call.actor,
            share=wish.share,
            divided_by=wish.divided_by,
            within_s=wish.within_s,
            probes=wish.probes,
            scorer=wish.scorer,
        )
        record = await self._catalog.change(version.name, lambda one: added(one, version, rollout))
        return self._info(_kept(record, version.name))

    async def promote(self, call: Call) -> AdapterInfo:
        digest = _digest(self._found(call.path["name"]), call.body.version)
        return await self._changed(
            call, lambda one: promoted(one, digest, time.time(), call.actor, "somebody wished so")
        )

    async def roll_back(self, call: Call) -> AdapterInfo:
        return await self._changed(call, lambda one: rolled_back(one, time.time(), call.actor))

    async def probe(self, call: Call) -> tuple[Probing, ...]:
        wish, record = call.body, self._found(call.path["name"])
        version = record.version(_digest(record, wish.version))
        if version is None:
            raise NotFound(f"{record.name} has no version {wish.version!r}")
        try:
            return await self._rollouts.probe(version, wish.probes)
        except EngineError as error:
            raise Unavailable(str(error), code="not_probed") from error

    async def remove(self, call: Call) -> None:
        record = self._found(call.path["name"])
        if record.filed:
            words = f"{record.name} is in the fleet file: remove it there, and apply the file"
            raise Conflict(words, code="in_the_fleet_file")
        await self._catalog.change(record.name, lambda one: removed(_kept(one, record.name), time.time(), call.actor))

    async def _changed(self, call: Call, change: Callable[[AdapterRecord], AdapterChange]) -> AdapterInfo:
        name = call.path["name"]
        record = await self._catalog.change(name, lambda one: change(_kept(one, name)))
        # What was never promoted is gone when it is rolled back.
        return self._info(record or AdapterRecord(name))

    def _checked(self, wish: RolloutWish) -> AdapterVersion:
        """The version in its pool.

        Raises:
            BadRequest: It cannot be served like this.
        """
        version, spec = wish.version, self._controller.spec
        try:
            msgspec.convert(version.name, Name)
        except msgspec.ValidationError as error:
            raise BadRequest(f"{version.name!r} cannot be an adapter's name", param="version.name") from error
        if version.name == spec.base.name or version.name in spec.aliases:
            raise BadRequest(f"{version.name!r} is the name of something else in this fleet", param="version.name")
        if _DIGEST.fullmatch(version.digest) is None:
            raise BadRequest("a digest has 64 hex digits", param="version.digest")
        if wish.divided_by not in {"user", "key", "request"}:
            raise BadRequest("requests are divided by user, key or request", param="divided_by")
        _check_questions(wish)
        filed = next((one.pool for one in spec.adapters if one.name == version.name), version.pool)
        pool = pool_for(spec.pools, version.rank, filed) or pool_for(spec.pools, version.rank)
        if pool is None:
            largest = max((one.max_lora_rank for one in spec.pools if one.engine != "openai"), default=0)
            words = f"{version.name} has rank {version.rank}, and the pools of this fleet take {largest} at most"
            raise BadRequest(words, param="version.rank", code="no_pool")
        return msgspec.structs.replace(version, pool=pool)

    def _found(self, name: str) -> AdapterRecord:
        record = self._catalog.records.get(name)
        if record is None:
            known = ", ".join(sorted(self._catalog.records)) or "none"
            raise NotFound(f"there is no adapter {name!r}; there are: {known}")
        return record

    def _info(self, record: AdapterRecord) -> AdapterInfo:
        seen = self._controller.situation().seen
        loaded = {one.name: one.listed for one in seen if one.alive}
        versions = tuple(
            VersionInfo(
                known.version.id,
                known.version,
                known.added,
                known.by,
                _state(record, known.version),
                tuple(name for name, listed in loaded.items() if known.version.id in listed),
            )
            for known in record.versions
        )
        shown = named(record, record.promoted) if record.promoted else None
        return AdapterInfo(record.name, shown, bool(record.filed), versions, self._rollout(record))

    def _rollout(self, record: AdapterRecord) -> RolloutInfo | None:
        rollout, evidence = record.rollout, self._rollouts.evidence(record.name)
        if rollout is None:
            return None
        return RolloutInfo(
            named(record, rollout.digest),
            rollout.since,
            rollout.share,
            rollout.divided_by,
            rollout.within_s,
            rollout.tried_since,
            self._rollouts.words(record.name),
            None if evidence is None else evidence.old,
            None if evidence is None else evidence.new,
            rollout.score,
        )


def _check_questions(wish: RolloutWish) -> None:
    for at, probe in enumerate(wish.probes):
        if bool(probe.prompt) is bool(probe.messages):
            raise BadRequest("a probe has either a `prompt` or `messages`", param=f"probes[{at}]")
    if wish.scorer is not None and not 1 <= wish.scorer.tokens <= _MOST_TOKENS:
        raise BadRequest(f"an answer that is scored has 1 to {_MOST_TOKENS} tokens", param="scorer.tokens")
    if wish.scorer is not None and bool(wish.scorer.url) is bool(wish.scorer.command):
        raise BadRequest("a scorer has either a `url` or a `command`", param="scorer")


def _kept(record: AdapterRecord | None, name: str) -> AdapterRecord:
    if record is None:
        raise NotFound(f"there is no adapter {name!r} any more")
    return record


def _state(record: AdapterRecord, version: AdapterVersion) -> str:
    if version.digest == record.promoted:
        return "promoted"
    if record.rollout is None or version.digest != record.rollout.digest:
        return "known"
    return "probed" if record.rollout.tried_since is None else "tried"


def _digest(record: AdapterRecord, wished: str) -> str:
    """The digest of the version that is meant.

    Raises:
        NotFound: There is none, or more than one.
    """
    prefix = wished.removeprefix(f"{record.name}@").lower()
    digests = [known.version.digest for known in record.versions]
    found = [digest for digest in digests if digest.startswith(prefix)] if len(prefix) >= _LEAST_PREFIX else []
    if len(found) != 1:
        known = ", ".join(named(record, digest) for digest in digests) or "none"
        what = "several versions begin so" if found else f"{record.name} has no version {wished!r}"
        raise NotFound(f"{what}; there are: {known}")
    return found[0]
