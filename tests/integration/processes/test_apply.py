"""How a running fleet comes to another description."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import httpx2
import msgspec
import pytest

from tests.support.fleets import Fleet, MakeFleet
from tuneplex.types import AdapterVersion, FleetSpec, Listen

Adapters = dict[str, AdapterVersion]
replace = msgspec.structs.replace


def with_pool(spec: FleetSpec, **fields: Any) -> FleetSpec:  # noqa: ANN401 - PoolSpec's
    """The same fleet with other settings of its pool."""
    return replace(spec, pools=(replace(spec.pools[0], **fields),))


def has(fleet: Fleet, name: str) -> Callable[[], bool]:
    """Whether clients see a model."""

    def listed() -> bool:
        with fleet.client() as client:
            return name in {model["id"] for model in client.get("/models").json()["data"]}

    return listed


def test_adapters_come_and_go(make_fleet: MakeFleet, adapters: Adapters) -> None:
    """Adapters are added and removed while the engine runs, and the engine really has no more than it should."""
    fleet = make_fleet(adapters["ada"])
    before = fleet.ready()
    found = fleet.apply(replace(fleet.spec, adapters=(adapters["bob"],)))
    assert {(change.what, change.kind, change.how) for change in found} == {
        ("adapter ada", "remove", "live"),
        ("adapter bob", "add", "live"),
    }
    after = fleet.ready()
    assert fleet.ask("bob")
    assert not has(fleet, "ada")()
    assert after.replicas[0].pid == before.replicas[0].pid
    fleet.wait_for(lambda: loaded(fleet) == 1)


def metrics(fleet: Fleet) -> str:
    """The fleet's Prometheus page, by way of the gateway."""
    info = fleet.state.supervisor()
    assert info is not None
    return httpx2.get(info.url.removesuffix("/v1") + "/metrics").text


def loaded(fleet: Fleet) -> float:
    """How many adapters the first replica has."""
    lines = (line for line in metrics(fleet).splitlines() if line.startswith("tuneplex_replica_adapters{"))
    return float(next(lines).rsplit(" ", 1)[1])


def test_a_new_content_replaces_the_old_one(make_fleet: MakeFleet, adapters: Adapters) -> None:
    """A changed adapter answers differently under its name, with no moment without an answer."""
    fleet = make_fleet(adapters["ada"])
    fleet.ready()
    old = fleet.ask("ada")
    fleet.apply(replace(fleet.spec, adapters=(adapters["newer"],)))
    fleet.wait_for(lambda: fleet.ask("ada") != old)
    fleet.ready()
    assert fleet.ask("ada") != old


def test_a_bad_adapter_is_reported_and_blocks_nobody(make_fleet: MakeFleet, adapters: Adapters) -> None:
    """The engine's own words are in the status, the other adapters answer, and a corrected fleet recovers."""
    fleet = make_fleet(adapters["bad"], adapters["ada"])
    status = fleet.until(lambda status: status.adapters[0].detail and status.adapters[1].replicas)
    assert "No adapter found" in status.adapters[0].detail
    assert "default-0" in status.adapters[0].detail
    assert fleet.ask("ada")
    fleet.apply(replace(fleet.spec, adapters=(adapters["ada"],)))
    fleet.ready()


def test_more_and_fewer_replicas(make_fleet: MakeFleet, adapters: Adapters) -> None:
    """Replicas are added with all adapters, and taken away without touching the one that stays."""
    fleet = make_fleet(adapters["ada"])
    before = fleet.ready()
    fleet.apply(with_pool(fleet.spec, replicas=2))
    status = fleet.ready()
    assert len({replica.pid for replica in status.replicas}) == 2
    fleet.apply(with_pool(fleet.spec, replicas=1))
    assert [replica.pid for replica in fleet.ready().replicas] == [before.replicas[0].pid]


def test_changed_settings_roll(make_fleet: MakeFleet, adapters: Adapters) -> None:
    """A new engine takes over before the old one ends; a stream that is under way on the old one is not cut."""
    fleet = make_fleet(adapters["ada"], env={"TUNEPLEX_FAKE_SCRIPT": '{"between_chunks_s": 0.03}'})
    before = fleet.ready()
    assert before.replicas[0].pid is not None
    with fleet.stream("ada", max_tokens=150) as chunks:
        list(islice(chunks, 3))
        (change,) = fleet.apply(with_pool(fleet.spec, max_loras=2))
        assert change.how == "rolling"
        fleet.until(lambda status: "draining" in {replica.state for replica in status.replicas})
        assert fleet.ask("ada")
        rest = list(chunks)
    assert rest[-1] == {"done": True}
    fleet.gone(before.replicas[0].pid)
    assert [replica.name for replica in fleet.ready().replicas] == ["default-1"]


def test_what_needs_a_restart_is_refused_as_a_whole(make_fleet: MakeFleet, adapters: Adapters) -> None:
    """Another port cannot come live, so nothing of that description does, and the answer says why."""
    fleet = make_fleet()
    fleet.ready()
    wish = replace(fleet.spec, listen=Listen(port=1), adapters=(adapters["ada"],))
    with pytest.raises(httpx2.HTTPStatusError) as caught:
        fleet.apply(wish)
    assert caught.value.response.status_code == 409
    message = caught.value.response.json()["error"]["message"]
    assert "listen (port 0 -> 1)" in message
    assert "nothing was changed" in message
    assert fleet.state.read_spec() == fleet.spec
    assert not has(fleet, "ada")()


def test_a_dry_run_changes_nothing(make_fleet: MakeFleet, adapters: Adapters) -> None:
    """A dry run tells what would change, a restart included, and leaves everything as it is."""
    fleet = make_fleet()
    fleet.ready()
    wish = replace(fleet.spec, listen=Listen(port=1), adapters=(adapters["ada"],))
    assert {change.how for change in fleet.apply(wish, dry_run=True)} == {"live", "restart"}
    assert fleet.state.read_spec() == fleet.spec


def test_what_was_applied_outlives_control(make_fleet: MakeFleet, adapters: Adapters) -> None:
    """A control that takes over goes on with the last description that was applied."""
    fleet = make_fleet()
    fleet.ready()
    fleet.apply(replace(fleet.spec, adapters=(adapters["ada"],)))
    fleet.ready()
    control = fleet.pid("control_process")
    fleet.kill(control)
    fleet.gone(control)
    assert [adapter.version.name for adapter in fleet.ready().adapters] == ["ada"]


def test_the_admin_api_answers_mistakes_in_one_shape(make_fleet: MakeFleet) -> None:
    """What is not a fleet, not a route or not its method is an error in OpenAI's shape."""
    fleet = make_fleet()
    fleet.ready()
    with fleet.admin() as admin:
        replies = [admin.post("/apply", content=b"{}"), admin.get("/nothing"), admin.get("/apply")]
    assert [reply.status_code for reply in replies] == [400, 404, 405]
    assert all(set(reply.json()["error"]) == {"message", "type", "param", "code"} for reply in replies)


def test_the_metrics_outlive_a_gateway(make_fleet: MakeFleet) -> None:
    """The fleet's totals do not fall when a gateway is killed and its successor begins at zero."""
    fleet = make_fleet()
    fleet.ready()
    for _request in range(3):
        fleet.ask()
    fleet.wait_for(lambda: requests(fleet) >= 3)
    gateway = fleet.pid("gateway_process")
    fleet.kill(gateway)
    fleet.gone(gateway)
    fleet.ask()
    fleet.wait_for(lambda: requests(fleet) >= 4)


def requests(fleet: Fleet) -> float:
    """How many completions the fleet has answered, by its own count."""
    lines = (line for line in metrics(fleet).splitlines() if line.startswith("tuneplex_requests_total{"))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if 'route="completions"' in line and "2xx" in line)
