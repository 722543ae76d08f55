"""What a key may apply, and what only a person on the machine."""

from __future__ import annotations

import msgspec
import pytest

from tuneplex.control.admin import _refuse_programs
from tuneplex.errors import Forbidden
from tuneplex.types import Base, FleetSpec, PoolSpec

POOL = PoolSpec("default", python="/engines/bin/python", engine_args=("--dtype", "float32"))
FLEET = FleetSpec("support", Base("base", "/models/base"), pools=(POOL,))


def with_pools(*pools: PoolSpec) -> FleetSpec:
    """The fleet with other pools."""
    return msgspec.structs.replace(FLEET, pools=pools)


@pytest.mark.parametrize(
    "change",
    [
        {"python": "/bin/other"},
        {"engine_args": ("--middleware", "x")},
        {"env": {"A": "b"}},
        {"urls": ("http://127.0.0.1:1",)},
        {"name": "more"},
    ],
)
def test_a_key_cannot_change_what_runs(change: dict[str, object]) -> None:
    """Another interpreter, other arguments, another environment, other addresses or one more pool are refused."""
    with pytest.raises(Forbidden) as refused:
        _refuse_programs(FLEET, with_pools(msgspec.structs.replace(POOL, **change)))
    assert refused.value.code == "only_on_the_machine"


def test_a_key_can_change_the_rest() -> None:
    """How many engines run, who they are for, and that a pool goes are an administrator's business."""
    more = msgspec.structs.replace(POOL, replicas=4, tenants=("acme",), max_loras=8)
    _refuse_programs(FLEET, with_pools(more))
    _refuse_programs(FLEET, with_pools())
