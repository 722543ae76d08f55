"""What a key may apply, and what only a person on the machine."""

from __future__ import annotations

import msgspec
import pytest

from tuneplex.control.admin import _check, _refuse_programs
from tuneplex.errors import BadRequest, Forbidden
from tuneplex.types import Base, FleetSpec, GatewaySettings, Keeping, Objective, PoolSpec, Telemetry

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


def test_a_key_cannot_send_traces_elsewhere() -> None:
    """Who asks what is told to nobody that a person on the machine has not named; to stop it is allowed."""
    told = msgspec.structs.replace(FLEET, telemetry=Telemetry("http://collector:4318"))
    with pytest.raises(Forbidden) as refused:
        _refuse_programs(FLEET, told)
    assert (refused.value.code, refused.value.param) == ("only_on_the_machine", "telemetry.traces")
    _refuse_programs(told, msgspec.structs.replace(told, telemetry=Telemetry("http://collector:4318", 0.5)))
    _refuse_programs(told, FLEET)


@pytest.mark.parametrize(
    "change, param",
    [
        ({"records": Keeping(86399.0)}, "records.keep_s"),
        ({"gateway": GatewaySettings(journal=0)}, "gateway.journal"),
        ({"objective": Objective(100.0)}, "objective"),
        ({"objectives": {"legal": Objective(0.0)}}, "objectives.legal"),
        ({"telemetry": Telemetry("http://c:4318", 1.5)}, "telemetry.sample"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, object], param: str) -> None:
    """What a fleet file could not say cannot be applied over HTTP either."""
    _check(FLEET, ("local", "external"))
    with pytest.raises(BadRequest) as refused:
        _check(msgspec.structs.replace(FLEET, **change), ("local", "external"))
    assert refused.value.param == param
