"""Keys in a whole fleet: from the admin API to the gateways, and without the database."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
import psutil
import pytest

from tests.support.fleets import Fleet, one_pool
from tests.support.openapi import read
from tests.support.postgres import Postgres
from tuneplex.types import AdapterVersion, FleetSpec

Adapters = dict[str, AdapterVersion]
SOON_S = 10.0  # far more than it takes, so that a busy machine is no failure; what it took is in the log
NUMBERS = itertools.count(1)
replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, fake_python: str, adapters: Adapters) -> Iterator[Fleet]:
    """A fleet of two gateways and two adapters, in which keys are asked for from the start."""
    spec = one_pool(fake_python, adapters["ada"], adapters["bob"], gateways=2)
    spec = replace(spec, gateway=replace(spec.gateway, require_key=True))
    fleet = Fleet(tmp_path_factory.mktemp("pair"), spec)
    fleet.start()
    fleet.ready()
    fleet.until(lambda status: all(gateway.connected for gateway in status.gateways))
    yield fleet
    fleet.end()


class Line:
    """A connection to one gateway that stays open.

    Args:
        url: Where the gateways listen.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        self._connection.connect()
        self.port: int = self._connection.sock.getsockname()[1]

    def models(self, secret: str) -> set[str] | None:
        """The models that a key may call, None if it opens nothing."""
        self._connection.request("GET", "/v1/models", headers={"authorization": f"Bearer {secret}"})
        reply = self._connection.getresponse()
        body = json.loads(reply.read())
        assert reply.status in {200, 401}, body
        return {model["id"] for model in body["data"]} if reply.status == 200 else None

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


@pytest.fixture
def lines(pair: Fleet) -> Iterator[list[Line]]:
    """A connection to each of the two gateways."""
    pids = sorted(pid for pid, command in pair.processes().items() if "gateway_process" in command)
    made = []
    for pid in pids:
        others = [other for other in pids if other != pid]
        with stopped(*others):  # so that none but this one can take the connection
            made.append(Line(url(pair)))
            assert made[-1].models("nothing") is None
            peers = [one.raddr for one in psutil.Process(pid).net_connections()]
            assert made[-1].port in {getattr(peer, "port", None) for peer in peers}
    assert len(made) == 2
    yield made
    for line in made:
        line.close()


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """These processes do nothing for as long as the block runs."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def url(fleet: Fleet) -> str:
    """Where the gateways listen."""
    info = fleet.state.supervisor()
    assert info is not None
    return info.url.removesuffix("/v1")


def admin(fleet: Fleet, method: str, path: str, body: dict[str, Any] | None = None) -> httpx2.Response:
    """A call on the admin socket."""
    with fleet.admin() as client:
        return client.request(method, path, json=body)


def make_key(fleet: Fleet, **wish: Any) -> tuple[str, str]:  # noqa: ANN401 - KeyWish's
    """A new key's id and secret."""
    reply = admin(fleet, "POST", "/keys", {"tenant": "default", **wish})
    assert reply.status_code == 201, reply.text
    return reply.json()["key"]["id"], reply.json()["secret"]


def call(
    fleet: Fleet,
    secret: str | None,
    method: str = "GET",
    path: str = "/v1/models",
    **how: Any,  # noqa: ANN401 - httpx2's
) -> httpx2.Response:
    """A call at the gateway."""
    headers = {"authorization": f"Bearer {secret}"} if secret else {}
    with httpx2.Client(base_url=url(fleet), timeout=30, verify=False) as client:
        return client.request(method, path, headers={**headers, **how.pop("headers", {})}, **how)


def soon(lines: list[Line], secret: str, models: set[str] | None) -> None:
    """Every gateway lets a key see these models, and no more, within a moment; the log tells how long it took."""
    begun = time.monotonic()
    while any(line.models(secret) != models for line in lines):
        assert time.monotonic() - begun < SOON_S
        time.sleep(0.002)
    logging.getLogger(__name__).info("both gateways know after %.3f s", time.monotonic() - begun)


def test_a_change_reaches_both_gateways(pair: Fleet, lines: list[Line]) -> None:
    """A key opens both gateways once it is made, what it may call follows its tenant, and it ends when revoked."""
    tenant = f"tenant-{next(NUMBERS)}"
    admin(pair, "POST", "/tenants", {"name": tenant})
    key, secret = make_key(pair, tenant=tenant)
    soon(lines, secret, {"base", "ada", "bob"})
    admin(pair, "PATCH", f"/tenants/{tenant}", {"adapters": ["b*"], "base": False})
    soon(lines, secret, {"bob"})
    admin(pair, "PATCH", f"/tenants/{tenant}", {"disabled": True})
    soon(lines, secret, None)
    admin(pair, "PATCH", f"/tenants/{tenant}", {"disabled": False})
    soon(lines, secret, {"bob"})
    admin(pair, "POST", f"/keys/{key}/revoke")
    soon(lines, secret, None)


def test_a_rotation_reaches_both_gateways(pair: Fleet, lines: list[Line]) -> None:
    """Both keys open for as long as the grace lasts; without a grace the old one ends with the answer."""
    key, secret = make_key(pair, adapters=["ada"])
    soon(lines, secret, {"base", "ada"})
    second = admin(pair, "POST", f"/keys/{key}/rotate", {"grace_s": 600}).json()
    soon(lines, second["secret"], {"base", "ada"})
    soon(lines, secret, {"base", "ada"})
    third = admin(pair, "POST", f"/keys/{second['key']['id']}/rotate", {"grace_s": 0}).json()
    soon(lines, third["secret"], {"base", "ada"})
    soon(lines, second["secret"], None)


def test_a_key_expires_by_itself(pair: Fleet, lines: list[Line]) -> None:
    """A key that lasts for two seconds opens nothing after them."""
    _key, secret = make_key(pair, expires_in_s=2)
    soon(lines, secret, {"base", "ada", "bob"})
    soon(lines, secret, None)


def test_keys_answer_questions(pair: Fleet) -> None:
    """A question with a key is answered by the engine, one without is refused, and the secret is in no log."""
    _key, secret = make_key(pair)
    question = {"model": "ada", "prompt": "hello", "max_tokens": 8}
    pair.wait_for(lambda: call(pair, secret, "POST", "/v1/completions", json=question).status_code == 200)
    assert call(pair, None, "POST", "/v1/completions", json=question).status_code == 401
    logs = "".join(log.read_text() for log in pair.state.logs.glob("*.log"))
    assert secret not in logs
    assert secret.encode() not in pair.state.access_file.read_bytes()


def test_the_admin_api_over_http(pair: Fleet) -> None:
    """A key for it reaches the whole admin API at the gateway, under its own name whatever the client claims."""
    key, secret = make_key(pair, scopes=["admin"])
    _other, plain = make_key(pair)
    pair.wait_for(lambda: call(pair, secret, path="/admin/status").status_code == 200)
    pair.wait_for(lambda: call(pair, plain).status_code == 200)
    name = f"tenant-{next(NUMBERS)}"
    forged = {"x-tuneplex-actor": "somebody-else"}
    made = call(pair, secret, "POST", "/admin/tenants", json={"name": name}, headers=forged)
    assert (made.status_code, made.json()["name"]) == (201, name)
    assert call(pair, secret, path=f"/admin/keys?tenant={name}").json() == []
    assert call(pair, secret, "DELETE", f"/admin/tenants/{name}").status_code == 204
    assert call(pair, secret, path=f"/admin/tenants/{name}").status_code == 404
    assert read(call(pair, secret, path="/admin/openapi.json").content).servers[0].url == "/admin"
    assert call(pair, plain, path="/admin/tenants").status_code == 403
    assert call(pair, None, path="/admin/tenants").status_code == 401
    log = (pair.state.logs / "control.log").read_text()
    assert f"made tenant {name} actor={key}" in log
    assert "somebody-else" not in log


def test_the_first_key_closes_an_open_fleet(tmp_path: Path, fake_python: str) -> None:
    """Once there has been a key it is asked for, also when that key is gone and after a restart."""
    with running(tmp_path / "open", one_pool(fake_python)) as fleet:
        fleet.ready()
        assert call(fleet, None).status_code == 200
        assert call(fleet, None, path="/admin/tenants").status_code in {401, 403}
        key, secret = make_key(fleet)
        fleet.wait_for(lambda: call(fleet, None).status_code == 401)
        assert call(fleet, secret).status_code == 200
        admin(fleet, "POST", f"/keys/{key}/revoke")
        fleet.wait_for(lambda: call(fleet, secret).status_code == 401)
        restart(fleet)
        assert call(fleet, None).status_code == 401


def restart(fleet: Fleet) -> None:
    """Kill control and a gateway, and wait for their successors."""
    before = [fleet.pid("control_process"), fleet.pid("gateway_process")]
    for pid in before:
        fleet.kill(pid)
    fleet.gone(*before)
    fleet.ready()


@contextlib.contextmanager
def running(directory: Path, spec: FleetSpec) -> Iterator[Fleet]:
    """A fleet for as long as the block runs."""
    fleet = Fleet(directory, spec)
    fleet.start()
    try:
        yield fleet
    finally:
        fleet.end()


@contextlib.contextmanager
def away(postgres: Postgres) -> Iterator[None]:
    """The database is down for as long as the block runs."""
    postgres.stop()
    try:
        yield
    finally:
        postgres.start()


def test_without_the_database(tmp_path: Path, fake_python: str, postgres: Postgres) -> None:
    """Valid keys go on, also when all processes but the engine start anew; changes wait until it is back."""
    with running(tmp_path / "down", replace(one_pool(fake_python), store=postgres.database())) as fleet:
        fleet.ready()
        key, secret = make_key(fleet)
        fleet.wait_for(lambda: call(fleet, secret).status_code == 200)
        with away(postgres):
            refused = admin(fleet, "POST", f"/keys/{key}/revoke")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_down")
            restart(fleet)
            assert call(fleet, secret).status_code == 200
            assert call(fleet, None).status_code == 401
            assert "changes are refused" in fleet.until(lambda status: status.store).store
            assert admin(fleet, "POST", "/keys", {"tenant": "default"}).status_code == 503
        fleet.until(lambda status: not status.store)
        assert admin(fleet, "POST", f"/keys/{key}/revoke").status_code == 200
        fleet.wait_for(lambda: call(fleet, secret).status_code == 401)


def test_with_neither_database_nor_snapshot(tmp_path: Path, fake_python: str, postgres: Postgres) -> None:
    """Whoever cannot know the keys says so with 503, and never that a key is wrong, until the database is there."""
    with running(tmp_path / "nothing", replace(one_pool(fake_python), store=postgres.url("later"))) as fleet:
        fleet.until(lambda status: status.store and any(gateway.connected for gateway in status.gateways))
        for _again in range(3):
            reply = call(fleet, "tpx-some-key")
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "starting")
        postgres.sql("postgres", "CREATE DATABASE later")
        fleet.until(lambda status: not status.store)
        fleet.wait_for(lambda: call(fleet, None).status_code == 200)
