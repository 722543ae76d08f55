"""The metrics page of a whole fleet."""

from __future__ import annotations

from tests.support.fleets import Fleet, MakeFleet
from tests.support.monitoring import Shown, documented, shown
from tuneplex.types import AdapterVersion


def page(fleet: Fleet) -> Shown:
    """As Prometheus gets it from the gateway."""
    with fleet.client() as client:
        return shown(client.get(str(client.base_url).replace("/v1/", "/metrics")).text)


def test_a_running_fleet_shows_what_is_documented(make_fleet: MakeFleet, adapters: dict[str, AdapterVersion]) -> None:
    """After a whole reply and a stream the page has every documented metric and no other, with its type and labels."""
    fleet = make_fleet(adapters["ada"])
    fleet.ready()
    fleet.ask("ada")
    with fleet.stream("ada") as chunks:
        assert list(chunks)[-1] == {"done": True}
    known = documented()
    replicas = {name for name in known if name.startswith("tuneplex_replica_")}
    requests = {name for name, kind in known.items() if {"route", "model"} <= kind.labels}
    fleet.wait_for(lambda: replicas | requests <= page(fleet).labels.keys())
    found = page(fleet)
    assert found.types == {name: kind.type for name, kind in known.items()}
    assert found.labels == {name: known[name].labels for name in found.labels}
