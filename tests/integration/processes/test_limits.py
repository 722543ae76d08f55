"""Limits in a whole fleet: shared among gateways, live when changed, and kept over restarts."""

from __future__ import annotations

import http.client
import json
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tests.support.fleets import Fleet, MakeFleet
from tuneplex.identity import Limits
from tuneplex.types import AdapterVersion, Price

Adapters = dict[str, AdapterVersion]
QUESTION = {"model": "base", "prompt": "hello", "max_tokens": 8, "ignore_eos": True}
PASSED, REFUSED = 200, 429
replace = msgspec.structs.replace


def url(fleet: Fleet) -> str:
    """Where the gateways listen."""
    info = fleet.state.supervisor()
    assert info is not None
    return info.url


class Line:
    """A connection to one gateway that stays open."""

    def __init__(self, fleet: Fleet) -> None:
        parts = urlsplit(url(fleet))
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)

    def ask(self, model: str = "base") -> tuple[int, http.client.HTTPResponse]:
        """The status of the answer to a question, and the answer without its body."""
        headers = {"content-type": "application/json"}
        self._connection.request("POST", "/v1/completions", json.dumps({**QUESTION, "model": model}), headers)
        reply = self._connection.getresponse()
        reply.read()
        return reply.status, reply

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def asked(fleet: Fleet, model: str = "base") -> int:
    """The status of the answer to a question on a connection of its own."""
    line = Line(fleet)
    try:
        return line.ask(model)[0]
    finally:
        line.close()


def limit(fleet: Fleet, **limits: object) -> None:
    """Limit the tenant that keyless callers are."""
    with fleet.admin() as admin:
        reply = admin.patch("/tenants/default", json={"limits": limits})
    assert reply.status_code == 200, reply.text


def use(fleet: Fleet, subject: str = "tenant default") -> dict[str, Any]:
    """What is used of a subject's limits, as people are told; nothing while nobody knows."""
    with fleet.admin() as admin:
        return next((one for one in admin.get("/limits").json() if one["subject"] == subject), {})


def count_until(ask: Callable[[], int], wanted: int, patience_s: float = 20.0) -> int:
    """How many questions pass until so many have, or for so long."""
    end, passed = time.monotonic() + patience_s, 0
    while passed < wanted and time.monotonic() < end:
        status = ask()
        assert status in {PASSED, REFUSED}
        passed += status == PASSED
        time.sleep(0.1)
    return passed


def started(make_fleet: MakeFleet, *versions: AdapterVersion, gateways: int) -> Fleet:
    """A fleet that answers, all of whose gateways are known to control."""
    fleet = make_fleet(*versions, gateways=gateways)
    fleet.ready()
    fleet.until(lambda status: all(gateway.connected for gateway in status.gateways))
    return fleet


def test_gateways_share_a_limit(make_fleet: MakeFleet) -> None:
    """Of many questions at two gateways exactly as many pass as the limit says, whoever gets them."""
    fleet = started(make_fleet, gateways=2)
    limit(fleet, requests_per_minute=10)
    fleet.wait_for(lambda: use(fleet))
    time.sleep(1.5)  # so that both gateways know of it
    begun = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        first = list(pool.map(lambda _at: asked(fleet), range(40)))
    assert set(first) <= {PASSED, REFUSED}
    passed = first.count(PASSED)
    assert 0 < passed <= 10
    passed += count_until(lambda: asked(fleet), 10 - passed)
    assert passed == 10
    assert count_until(lambda: asked(fleet), 1, patience_s=4) == 0
    assert time.monotonic() - begun < 55, "the first ones are over: this test says nothing"
    fleet.wait_for(lambda: use(fleet)["requests"] == 10 and use(fleet)["refused"] >= 30)


def test_a_share_moves_to_the_gateway_that_is_asked(make_fleet: MakeFleet) -> None:
    """A gateway that gets everything has most of a limit within seconds, and never what the other one keeps."""
    fleet = started(make_fleet, gateways=2)
    limit(fleet, requests_per_minute=20)
    fleet.wait_for(lambda: use(fleet))
    line = Line(fleet)
    passed = count_until(lambda: line.ask()[0], 15, patience_s=30)
    assert passed == 15
    assert count_until(lambda: line.ask()[0], 1, patience_s=4) == 0
    status, reply = line.ask()
    line.close()
    assert status == REFUSED
    assert int(reply.headers["retry-after"]) >= 1
    assert reply.headers["x-ratelimit-limit-requests"] == "20"
    assert reply.headers["x-ratelimit-remaining-requests"] == "0"


def test_a_changed_limit_is_live_at_once(make_fleet: MakeFleet) -> None:
    """A limit that is set, raised or taken away holds within a second or two."""
    fleet = started(make_fleet, gateways=1)
    for change, status in ((1, REFUSED), (1000, PASSED), (2, REFUSED), (None, PASSED)):
        limit(fleet, requests_per_minute=change)
        begun = time.monotonic()
        while asked(fleet) != status:
            assert time.monotonic() - begun < 5
    fleet.wait_for(lambda: not use(fleet))


def test_a_models_limit_comes_by_apply(make_fleet: MakeFleet, adapters: Adapters) -> None:
    """Nothing restarts for it; while one request is under way the next one waits outside, and then comes in."""
    fleet = started(make_fleet, adapters["ada"], gateways=1)
    before = fleet.pid("keeper")
    changes = fleet.apply(replace(fleet.spec, limits={"ada": Limits(concurrent=1)}))
    assert [(change.what, change.how) for change in changes] == [("limits of ada", "live")]
    fleet.wait_for(lambda: use(fleet, "model ada"))
    time.sleep(1)
    with fleet.stream("ada", max_tokens=400) as chunks:
        next(chunks)
        assert asked(fleet, "ada") == REFUSED
        assert asked(fleet, "base") == PASSED
    fleet.wait_for(lambda: asked(fleet, "ada") == PASSED)
    assert fleet.pid("keeper") == before


def test_the_tokens_of_a_day_survive_restarts(make_fleet: MakeFleet, tmp_path: Path) -> None:
    """What was used today counts after control died, after a gateway ended, and after the fleet was down."""
    fleet = started(make_fleet, gateways=1)
    limit(fleet, tokens_per_day=60)
    fleet.wait_for(lambda: use(fleet))
    time.sleep(1)
    assert 4 <= count_until(lambda: asked(fleet), 100, patience_s=4) <= 7
    spent = settled(fleet)
    assert 40 <= spent <= 60
    time.sleep(4)  # control has written it
    for role in ("control_process", "gateway_process"):
        fleet.kill(fleet.pid(role))
        fleet.wait_for(lambda: use(fleet).get("day_tokens") == spent if fleet.status() else None)
        fleet.ready()
        fleet.wait_for(lambda: asked(fleet) == REFUSED)
    assert fleet.process is not None
    fleet.process.send_signal(signal.SIGTERM)
    assert fleet.wait() == 0
    again = Fleet(tmp_path / "fleet-0", fleet.spec)
    again.start()
    try:
        again.ready()
        assert asked(again) == REFUSED
        assert use(again)["day_tokens"] == spent
    finally:
        again.end()


def test_the_money_of_a_month_survives_restarts(make_fleet: MakeFleet) -> None:
    """Prices come live, and what was spent counts after control died, and after a gateway ended."""
    fleet = started(make_fleet, gateways=1)
    priced = replace(
        fleet.spec,
        prices={"base": Price(prompt=0, completion=10**9, cached=0)},
        gateway=replace(fleet.spec.gateway, currency="EUR"),
    )
    assert {change.how for change in fleet.apply(priced)} == {"live"}
    limit(fleet, money_per_month="0.05")  # of which each answer takes 0.008
    fleet.wait_for(lambda: use(fleet))
    time.sleep(1.5)  # so that the gateway knows of it
    assert count_until(lambda: asked(fleet), 100, patience_s=12) == 6
    settled(fleet)
    assert use(fleet)["month_money"] == "0.048"
    time.sleep(4)  # control has written it
    for role in ("control_process", "gateway_process"):
        fleet.kill(fleet.pid(role))
        fleet.wait_for(lambda: use(fleet).get("month_money") == "0.048" if fleet.status() else None)
        fleet.ready()
        fleet.wait_for(lambda: asked(fleet) == REFUSED)
    assert (use(fleet)["limits"], use(fleet)["currency"]) == ({"money_per_month": "0.05", "currency": "EUR"}, "EUR")


def settled(fleet: Fleet) -> int:
    """The tokens of the day, once nothing is under way and gateways have said so."""

    def quiet() -> int | None:
        first = use(fleet)
        time.sleep(1.2)
        second = use(fleet)
        same = all(first.get(name) == second.get(name) for name in ("day_tokens", "month_money"))
        return int(second["day_tokens"]) if same and not second["concurrent"] else None

    return fleet.wait_for(quiet)
