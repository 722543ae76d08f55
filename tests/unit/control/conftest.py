"""Short ways to say what a fleet should be and what was seen of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from tuneplex.control.decide import Situation
from tuneplex.control.seen import Seen
from tuneplex.control.view import Outlook, fleet_view
from tuneplex.control.wanted import wanted
from tuneplex.engines.server import EngineModel
from tuneplex.launchers.launcher import Launched
from tuneplex.types import AdapterVersion, Base, FleetSpec, FleetView, PoolSpec

BASE = Base("base", "/models/base")
NOW = 1_000_000.0

MakeSpec = Callable[..., FleetSpec]
MakeSeen = Callable[..., Seen]
MakeSituation = Callable[..., Situation]


def version(name: str, digest: str = "a", pool: str = "default") -> AdapterVersion:
    """An adapter version whose digest is one letter, repeated."""
    return AdapterVersion(name, digest * 64, f"/adapters/{name}-{digest}", 8, pool)


def view_of(spec: FleetSpec, *seen: Seen, outlook: Outlook | None = None, **situation: Any) -> FleetView:  # noqa: ANN401 - Situation's
    """What gateways are told of it."""
    return fleet_view(Situation(spec, seen, **{"now": NOW, **situation}), outlook or Outlook(), generation=1)


@pytest.fixture
def make_spec() -> MakeSpec:
    """Make a fleet of one pool, unless other pools are given."""

    def make(*adapters: AdapterVersion, pools: Sequence[PoolSpec] = (), **pool: Any) -> FleetSpec:  # noqa: ANN401 - PoolSpec's
        return FleetSpec("fleet", BASE, adapters, pools=tuple(pools) or (PoolSpec("default", **pool),))

    return make


@pytest.fixture
def make_seen() -> MakeSeen:
    """Make a replica of a pool: ready, with the base and these adapters loaded, unless said otherwise."""

    def make(name: str, pool: PoolSpec, *adapters: str, ended: float | None = None, **fields: Any) -> Seen:  # noqa: ANN401 - Seen's
        models = (EngineModel("base"), *(EngineModel(adapter, "base") for adapter in adapters))
        record = Launched(
            replica=name,
            pool=pool.name,
            launcher=pool.launcher,
            engine=pool.engine,
            settings=wanted(msgspec.structs.replace(pool, replicas=1), BASE)[0].settings,
            endpoint=f"unix:/run/{name}",
            started=NOW - 100,
            ended=ended,
            failures=fields.pop("past", ()),
        )
        return msgspec.structs.replace(Seen(record, answered=True, models=models), **fields)

    return make


@pytest.fixture
def make_situation() -> MakeSituation:
    """Make a situation at a fixed time."""

    def make(spec: FleetSpec, *seen: Seen, **fields: Any) -> Situation:  # noqa: ANN401 - Situation's
        return Situation(spec, seen, **{"now": NOW, **fields})

    return make
