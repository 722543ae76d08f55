"""The ways to the replicas: a pool of connections for each endpoint, and a prepared request head for each route."""

from __future__ import annotations

from collections.abc import Iterable

from tuneplex.engines import Dialect, dialect_for
from tuneplex.engines.usage import Telling
from tuneplex.http import Endpoint, Pool
from tuneplex.types import Replica, ReplicaState, Route, incarnation

__all__ = ["Upstream", "Upstreams"]


class Upstream:
    """The way to one replica.

    Attributes:
        replica: Which.
        pool: Its connections.
        dialect: How it is spoken to.
        secrets: What must not appear in a message for a client.
        telling: How it tells what a stream has used.
        engine: Which start of the replica it is, in words for the journal.
    """

    __slots__ = ("_heads", "dialect", "engine", "pool", "replica", "secrets", "telling")

    def __init__(self, replica: Replica, pool: Pool, telling: Telling | None = None) -> None:
        self.replica = replica
        self.pool = pool
        self.dialect: Dialect = dialect_for(replica.engine)
        self.telling = telling or Telling(self.dialect.takes_options)
        self.secrets = pool.endpoint.secrets
        self.engine = incarnation(replica.name, replica.started)
        self._heads = {route: self._head(route) for route in replica.routes}

    def request(self, route: Route, request_id: bytes, body: bytes, lines: bytes = b"") -> bytes:
        """The whole request, head and body, with more lines in its head."""
        return b"%bx-request-id: %b\r\n%bcontent-length: %d\r\n\r\n%b" % (
            self._heads[route],
            request_id,
            lines,
            len(body),
            body,
        )

    def question(self) -> bytes:
        """A whole request that only asks whether the engine is well."""
        return self._lines("GET", "/health") + b"\r\n"

    def _head(self, route: Route) -> bytes:
        return self._lines("POST", self.dialect.path(route)) + b"content-type: application/json\r\n"

    def _lines(self, method: str, path: str) -> bytes:
        endpoint = self.pool.endpoint
        # People give an OpenAI base URL with /v1 at its end; the dialect's path has it too.
        whole = endpoint.prefix.removesuffix("/v1") + path
        lines = [f"{method} {whole} HTTP/1.1", f"host: {endpoint.authority}"]
        if self.replica.secret:
            lines.append(f"authorization: Bearer {self.replica.secret}")
        return "".join(f"{line}\r\n" for line in lines).encode()


class Upstreams:
    """The ways to all replicas of the current view that take requests."""

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}
        self._upstreams: dict[str, Upstream] = {}

    def __getitem__(self, replica: Replica) -> Upstream:
        """The way to a replica of the current view that is ready."""
        return self._upstreams[replica.name]

    def find(self, replica: Replica) -> Upstream | None:
        """The way to a replica, if the current view still has it where it was."""
        known = self._upstreams.get(replica.name)
        return known if known is not None and known.replica.endpoint == replica.endpoint else None

    def update(self, replicas: Iterable[Replica]) -> None:
        """Follow a new view: keep the pools of endpoints that remain, close the others."""
        old, known = self._pools, self._upstreams
        self._pools = {}
        self._upstreams = {}
        for replica in replicas:
            if replica.state is not ReplicaState.READY:  # one that does not live yet has no endpoint, either
                continue
            pool = old.get(replica.endpoint) or self._pools.get(replica.endpoint)
            self._pools[replica.endpoint] = pool or Pool(Endpoint.parse(replica.endpoint))
            self._upstreams[replica.name] = Upstream(
                replica, self._pools[replica.endpoint], _same(known.get(replica.name), replica)
            )
        for endpoint, pool in old.items():
            if endpoint not in self._pools:
                pool.close()

    def close(self) -> None:
        """Close all pools."""
        self.update(())


def _same(known: Upstream | None, replica: Replica) -> Telling | None:
    """What was learned of this engine under the view before."""
    if known is None or (known.replica.endpoint, known.replica.engine) != (replica.endpoint, replica.engine):
        return None
    return known.telling
