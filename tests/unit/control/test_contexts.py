"""How many tokens a request can have at a replica, as control learns it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.control.conftest import view_of
from tuneplex.control.seen import Seen
from tuneplex.engines.server import EngineMetrics, EngineModel
from tuneplex.types import FleetSpec, PoolSpec

MakeSpec = Callable[..., FleetSpec]
MakeSeen = Callable[..., Seen]

POOL = PoolSpec("default")
LISTED = (EngineModel("base", max_model_len=8192), EngineModel("ada@1", "base"))


@pytest.mark.parametrize(
    "models, kv_tokens, context",
    [
        (LISTED, None, 8192),
        (LISTED, 100_000, 8192),
        (LISTED, 4096, 4096),
        ((EngineModel("base"),), 4096, 4096),
        ((EngineModel("base"),), None, None),
        ((EngineModel("base", max_model_len="8192"),), None, None),
        ((EngineModel("base", max_model_len=0),), None, None),
        ((EngineModel("base", max_model_len=2048), EngineModel("other", max_model_len=8192)), None, 2048),
        ((), None, None),
    ],
)
def test_the_context_is_the_smaller_of_what_the_engine_tells(
    make_spec: MakeSpec,
    make_seen: MakeSeen,
    models: tuple[EngineModel, ...],
    kv_tokens: int | None,
    context: int | None,
) -> None:
    """A request can have no more tokens than the model takes and the KV cache holds; nothing told is nothing known."""
    seen = make_seen("default-0", POOL, models=models, metrics=EngineMetrics(kv_tokens=kv_tokens))
    view = view_of(make_spec(pools=(POOL,)), seen)
    assert view.replicas[0].context == context
