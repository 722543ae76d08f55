"""How a running fleet comes to another description."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import httpx2
import msgspec
import pytest

from tests.support.fleets import Fleet, MakeFleet, one_pool
from tuneplex.types import AdapterVersion, FleetSpec, Listen

Adapters = dict[str, AdapterVersion]
replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory, fake_python: str) -> Iterator[Fleet]:
    """A fleet for the tests that change nothing about it."""
    fleet = Fleet(tmp_path_factory.mktemp("quiet"), one_pool(fake_python))
    fleet.start()
    fleet.ready()
    yield fleet
    fleet.end()


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


def test_what_needs_a_restart_is_refused_as_a_whole(quiet: Fleet, adapters: Adapters) -> None:
    """Another port cannot come live, so nothing of that description does, and the answer says why."""
    wish = replace(quiet.spec, listen=Listen(port=1), adapters=(adapters["ada"],))
    with pytest.raises(httpx2.HTTPStatusError) as caught:
        quiet.apply(wish)
    assert caught.value.response.status_code == 409
    message = caught.value.response.json()["error"]["message"]
    assert "listen (port 0 -> 1)" in message
    assert "nothing was changed" in message
    assert quiet.state.read_spec() == quiet.spec
    assert not has(quiet, "ada")()


def test_a_dry_run_changes_nothing(quiet: Fleet, adapters: Adapters) -> None:
    """A dry run tells what would change, a restart included, and leaves everything as it is."""
    wish = replace(quiet.spec, listen=Listen(port=1), adapters=(adapters["ada"],))
    assert {change.how for change in quiet.apply(wish, dry_run=True)} == {"live", "restart"}
    assert quiet.state.read_spec() == quiet.spec


def test_gateway_settings_come_live(quiet: Fleet) -> None:
    """A key that the fleet file asks for from now on is asked for, while everything runs."""
    before = quiet.spec
    digest = hashlib.sha256(b"sk-test").hexdigest()
    (change,) = quiet.apply(replace(before, gateway=replace(before.gateway, key_sha256=digest)))
    assert change.how == "live"
    with quiet.client() as client:
        quiet.wait_for(lambda: client.get("/models").status_code == 401)
        assert client.get("/models", headers={"authorization": "Bearer sk-test"}).status_code == 200
        quiet.apply(before)
        quiet.wait_for(lambda: client.get("/models").status_code == 200)


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


def test_the_admin_api_answers_mistakes_in_one_shape(quiet: Fleet) -> None:
    """What is not a fleet, not a route or not its method is an error in OpenAI's shape."""
    with quiet.admin() as admin:
        replies = [admin.post("/apply", content=b"{}"), admin.get("/nothing"), admin.get("/apply")]
    assert [reply.status_code for reply in replies] == [400, 404, 405]
    assert all(set(reply.json()["error"]) == {"message", "type", "param", "code"} for reply in replies)


def test_the_metrics_outlive_a_gateway(quiet: Fleet) -> None:
    """The fleet's totals do not fall when a gateway is killed and its successor begins at zero."""
    for _request in range(3):
        quiet.ask()
    quiet.wait_for(lambda: requests(quiet) >= 3)
    gateway = quiet.pid("gateway_process")
    quiet.kill(gateway)
    quiet.gone(gateway)
    quiet.ask()
    quiet.wait_for(lambda: requests(quiet) >= 4)


def requests(fleet: Fleet) -> float:
    """How many completions the fleet has answered, by its own count."""
    lines = (line for line in metrics(fleet).splitlines() if line.startswith("tuneplex_requests_total{"))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if 'route="completions"' in line and "2xx" in line)
