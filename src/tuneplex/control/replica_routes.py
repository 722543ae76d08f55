"""The admin API's operations on replicas: drain one, let it take requests again, start it again."""

from __future__ import annotations

from tuneplex.control.controller import Controller
from tuneplex.control.decide import Situation
from tuneplex.control.operations import Call, Conflict, Operation, Query, not_kept
from tuneplex.control.seen import Hold, Seen
from tuneplex.errors import NotFound
from tuneplex.log import get_logger
from tuneplex.types import ReplicaState, ReplicaStatus

__all__ = ["replica_operations"]

_ERRORS = (400, 404, 409, 503)


def replica_operations(controller: Controller) -> tuple[Operation, ...]:
    """All operations on replicas."""
    replicas = _Replicas(controller)
    now = Query(
        "now", "1: what it works on goes elsewhere at once, and not only when its time to drain is over.", flag=True
    )
    force = Query("force", "1: even if no other replica of its pool is ready.", flag=True)
    return (
        Operation("POST", "/replicas/{name}/drain", "drainReplica", "From now on a replica gets no new requests, until "
                  "it is resumed.", replicas.drain, answer=ReplicaStatus, errors=_ERRORS, query=(now, force)),
        Operation("POST", "/replicas/{name}/resume", "resumeReplica", "A replica that was drained gets requests again.",
                  replicas.resume, answer=ReplicaStatus, errors=_ERRORS),
        Operation("POST", "/replicas/{name}/restart", "restartReplica", "Drain a replica, end its engine and start it "
                  "again; then it gets requests again.", replicas.restart, answer=ReplicaStatus, errors=_ERRORS,
                  query=(now, force)),
    )  # fmt: skip


class _Replicas:
    """The operations."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def drain(self, call: Call) -> ReplicaStatus:
        situation, replica = self._found(call)
        _refuse_last(situation, replica, call)
        return self._hold(call, replica, "drained", self._wish(call, replica, restarts=False))

    async def restart(self, call: Call) -> ReplicaStatus:
        situation, replica = self._found(call)
        if replica.launched.launcher == "external":
            words = "runs on its own, and is not tuneplex's to restart: drain it, restart it yourself, resume it"
            raise Conflict(f"{replica.name} {words}", code="external_engine")
        if replica.draining_since is not None:
            raise Conflict(f"{replica.name} goes away and does not come back", code="replica_leaves")
        _refuse_last(situation, replica, call)
        return self._hold(call, replica, "restarts", self._wish(call, replica, restarts=True))

    async def resume(self, call: Call) -> ReplicaStatus:
        _situation, replica = self._found(call)
        if replica.draining_since is not None:
            raise Conflict(f"{replica.name} goes away, as the fleet file says", code="replica_leaves")
        if replica.stopping and replica.alive:
            raise Conflict(f"{replica.name} is being stopped, and starts again then", code="replica_stops")
        return self._hold(call, replica, "resumed", None)

    def _found(self, call: Call) -> tuple[Situation, Seen]:
        situation, name = self._controller.situation(), call.path["name"]
        for replica in situation.seen:
            if replica.name == name:
                return situation, replica
        known = ", ".join(sorted(replica.name for replica in situation.seen)) or "none yet"
        raise NotFound(f"there is no replica {name!r}; there are: {known}")

    def _wish(self, call: Call, replica: Seen, *, restarts: bool) -> Hold:
        """What was wished before stays as it was: doing it again gives nobody more time."""
        old, moves = replica.hold, call.flag("now")
        if old is None or old.restarts is not restarts:
            return Hold(self._controller.now(), moves=moves, restarts=restarts)
        return Hold(old.since, moves=moves or old.moves, restarts=restarts)

    def _hold(self, call: Call, replica: Seen, done: str, hold: Hold | None) -> ReplicaStatus:
        try:
            self._controller.hold(replica.launched, hold)
        except OSError as error:
            raise not_kept(error) from error
        if hold != replica.hold:
            get_logger(__name__).info(f"{done} a replica", actor=call.actor, replica=replica.name)
        return next(one for one in self._controller.status().replicas if one.name == replica.name)


def _refuse_last(situation: Situation, replica: Seen, call: Call) -> None:
    """Whoever takes a pool's last ready replica away should have said that this is meant."""
    if call.flag("force") or situation.state(replica) is not ReplicaState.READY:
        return
    pool = replica.launched.pool
    mine = [other for other in situation.seen if other.launched.pool == pool and other is not replica]
    if not any(situation.state(other) is ReplicaState.READY for other in mine):
        words = f"{replica.name} is the only replica of pool {pool} that is ready: nobody would answer in its place"
        raise Conflict(words, code="last_ready_replica")
