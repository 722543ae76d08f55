"""Tenants and keys through the admin API."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx2
import msgspec
import pytest

from tests.support.desk import Desk
from tests.support.openapi import read
from tuneplex.control.admin import admin_operations
from tuneplex.control.operations import routes
from tuneplex.identity import Limits, Scope
from tuneplex.records import Store, digest
from tuneplex.types import Price


def problem(reply: httpx2.Response, status: int) -> tuple[str | None, str | None, str]:
    """The field at fault, the code and the message of an error with this status."""
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error["param"], error["code"], error["message"]


async def test_tenants_are_made_changed_and_removed(desk: Desk) -> None:
    """Each change answers with the tenant as it is then, and is published before the answer."""
    made = await desk.client.post("/tenants", json={"name": "acme", "adapters": ["a-*"]})
    assert made.status_code == 201
    assert {tenant.name for tenant in desk.published[-1].tenants} == {"default", "acme"}
    assert (await desk.client.get("/tenants/acme")).json() == made.json()
    changed = await desk.client.patch("/tenants/acme", json={"disabled": True})
    assert changed.json() == {**made.json(), "disabled": True}
    assert desk.published[-1].tenants[0].disabled
    assert [tenant["name"] for tenant in (await desk.client.get("/tenants")).json()] == ["acme", "default"]
    removed = await desk.client.delete("/tenants/acme")
    assert (removed.status_code, removed.content) == (204, b"")
    assert [tenant.name for tenant in desk.published[-1].tenants] == ["default"]


async def test_a_key_and_its_secret(desk: Desk) -> None:
    """The secret is told once and its digest never; gateways know the key before the answer."""
    reply = await desk.make_key(label="laptop", scopes=["use", "admin"])
    assert reply.status_code == 201
    key, secret = reply.json()["key"], reply.json()["secret"]
    (known,) = desk.published[-1].keys
    assert (known.id, known.sha256, known.scopes) == (key["id"], digest(secret), (Scope.USE, Scope.ADMIN))
    assert desk.published[-1].required
    shown = [reply, *[await desk.client.get(path) for path in (f"/keys/{key['id']}", "/keys", "/keys?all=1")]]
    assert all(known.sha256 not in one.text for one in shown)
    assert [one.text.count(secret) for one in shown] == [1, 0, 0, 0]
    assert shown[1].json() == key


async def test_rotation(desk: Desk) -> None:
    """The new key works beside the old one until the grace is over, which never is later than the old one's end."""
    old = (await desk.make_key(expires_in_s=100)).json()["key"]
    new = (await desk.client.post(f"/keys/{old['id']}/rotate", json={"grace_s": 1000})).json()["key"]
    assert (new["replaces"], new["expires"]) == (old["id"], None)
    assert desk.ids == {old["id"], new["id"]}
    assert (await desk.client.get(f"/keys/{old['id']}")).json()["expires"] == old["expires"]
    newest = (await desk.client.post(f"/keys/{new['id']}/rotate", json={"grace_s": 0})).json()["key"]
    assert desk.ids == {old["id"], newest["id"]}
    problem(await desk.client.post(f"/keys/{new['id']}/rotate"), 409)


async def test_revocation(desk: Desk) -> None:
    """A revoked key is gone from the gateways at once, is listed only with all, and can be revoked again."""
    key = (await desk.make_key()).json()["key"]
    revoked = await desk.client.post(f"/keys/{key['id']}/revoke")
    assert revoked.json()["state"] == "revoked"
    assert desk.ids == set()
    assert desk.published[-1].required
    assert (await desk.client.get("/keys")).json() == []
    assert (await desk.client.get("/keys", params={"all": "1"})).json() == [revoked.json()]
    assert (await desk.client.post(f"/keys/{key['id']}/revoke")).json() == revoked.json()
    problem(await desk.client.post(f"/keys/{key['id']}/rotate"), 409)


async def test_a_tenant_with_keys_is_removed_only_on_purpose(desk: Desk) -> None:
    """A tenant with active keys stays, unless its keys shall be revoked; the default one keeps its keys in any case."""
    await desk.client.post("/tenants", json={"name": "acme"})
    own = (await desk.make_key()).json()["key"]["id"]
    await desk.make_key(tenant="acme")
    problem(await desk.client.delete("/tenants/acme"), 409)
    assert (await desk.client.delete("/tenants/acme?revoke=1")).status_code == 204
    problem(await desk.client.delete("/tenants/default?revoke=1"), 409)
    assert desk.ids == {own}


async def test_limits(desk: Desk) -> None:
    """Limits are set, changed and removed, gateways know them at once, and a key's go to its successor."""
    wish = {"name": "acme", "limits": {"requests_per_minute": 5, "concurrent": 2}}
    assert (await desk.client.post("/tenants", json=wish)).json()["limits"] == wish["limits"]
    change = {"limits": {"requests_per_minute": 7, "concurrent": None}}
    assert (await desk.client.patch("/tenants/acme", json=change)).json()["limits"] == {"requests_per_minute": 7}
    key = (await desk.make_key(tenant="acme", limits={"tokens_per_day": 9})).json()["key"]
    changed = await desk.client.patch(f"/keys/{key['id']}", json={"label": "new", "limits": {"concurrent": 1}})
    assert changed.json() == {**key, "label": "new", "limits": {"tokens_per_day": 9, "concurrent": 1}}
    assert desk.published[-1].tenants[0].limits == Limits(requests_per_minute=7)
    assert desk.published[-1].keys[0].limits == Limits(tokens_per_day=9, concurrent=1)
    new = (await desk.client.post(f"/keys/{key['id']}/rotate")).json()["key"]
    assert new["limits"] == changed.json()["limits"]
    nothing: dict[str, object] = {"requests": 0, "tokens": 0, "day_tokens": 0, "concurrent": 0, "refused": 0}
    nothing |= {"month_money": "0.00", "currency": ""}
    found = {one["subject"]: one for one in (await desk.client.get("/limits")).json()}
    assert sorted(found) == sorted([f"key {key['id']}", f"key {new['id']}", "tenant acme"])
    assert found["tenant acme"] == {"subject": "tenant acme", "limits": {"requests_per_minute": 7}, **nothing}


async def test_limits_that_make_no_sense(desk: Desk) -> None:
    """A limit of nothing is refused with its field, as is one that is unknown, or of a key that is over."""
    key = (await desk.make_key()).json()["key"]["id"]
    for limits, param in (
        ({"concurrent": 0}, "limits.concurrent"),
        ({"tokens_per_day": -1}, "limits.tokens_per_day"),
        ({"requests_per_minute": 1.5}, "limits.requests_per_minute"),
        ({"requests_per_hour": 5}, "limits.requests_per_hour"),
        (5, "limits"),
    ):
        for path in (f"/keys/{key}", "/tenants/default"):
            assert problem(await desk.client.patch(path, json={"limits": limits}), 400)[0] == param
    problem(await desk.client.patch(f"/keys/{key}", json={}), 400)
    problem(await desk.client.patch(f"/keys/{key}", json={"scopes": ["admin"]}), 400)
    problem(await desk.client.patch("/keys/nothing", json={"label": "x"}), 404)
    await desk.client.post(f"/keys/{key}/revoke")
    problem(await desk.client.patch(f"/keys/{key}", json={"label": "x"}), 409)
    spec = msgspec.structs.replace(desk.controller.spec, limits={"base": Limits(concurrent=0)})
    reply = await desk.client.post("/apply", content=msgspec.json.encode(spec))
    assert problem(reply, 400)[0] == "limits.base"


def price(desk: Desk, currency: str = "EUR") -> None:
    """Give the base a price."""
    replace, spec = msgspec.structs.replace, desk.controller.spec
    desk.controller.spec = replace(
        spec, prices={"base": Price(1, 2, 1)}, gateway=replace(spec.gateway, currency=currency)
    )


async def test_limits_in_money(desk: Desk) -> None:
    """An amount is taken and told as an exact decimal with its currency, and a key's goes to its successor."""
    price(desk)
    wish = {"money_per_month": "25.000000000001 EUR", "cut_streams": True}
    told = {"money_per_month": "25.000000000001", "currency": "EUR", "cut_streams": True}
    made = (await desk.client.post("/tenants", json={"name": "acme", "limits": wish})).json()
    assert made["limits"] == told
    assert desk.published[-1].tenants[0].limits == Limits(money_per_month=25 * 10**12 + 1, cut_streams=True)
    key = (await desk.make_key(tenant="acme", limits={"money_per_month": "0.5"})).json()["key"]
    assert key["limits"] == {"money_per_month": "0.50", "currency": "EUR"}
    new = (await desk.client.post(f"/keys/{key['id']}/rotate")).json()["key"]
    assert new["limits"] == key["limits"]
    (tenant, *_) = [one for one in (await desk.client.get("/limits")).json() if one["subject"] == "tenant acme"]
    assert (tenant["limits"], tenant["month_money"], tenant["currency"]) == (told, "0.00", "EUR")
    changed = await desk.client.patch("/tenants/acme", json={"limits": {"money_per_month": None}})
    assert changed.json()["limits"] == {}  # and nothing is left that could cut a stream


async def test_money_that_makes_no_sense(desk: Desk) -> None:
    """It is refused with its field and with what to do, and a fleet without prices takes none at all."""
    path = "/tenants/default"
    param, code, message = problem(await desk.client.patch(path, json={"limits": {"money_per_month": "5"}}), 400)
    assert (param, code) == ("limits.money_per_month", "no_prices")
    assert "add `prices` to the fleet file" in message
    price(desk)
    for limits, field in (
        ({"money_per_month": "5 USD"}, "money_per_month"),
        ({"money_per_month": "0.00"}, "money_per_month"),
        ({"money_per_month": "4000000.01"}, "money_per_month"),
        ({"money_per_month": "-5"}, "money_per_month"),
        ({"money_per_month": 5}, "money_per_month"),
        ({"money_per_month": 0.5}, "money_per_month"),
        ({"cut_streams": True}, "cut_streams"),
        ({"cut_streams": True, "money_per_month": None}, "cut_streams"),
        ({"cut_streams": None}, "cut_streams"),
    ):
        assert problem(await desk.client.patch(path, json={"limits": limits}), 400)[0] == f"limits.{field}"
    assert desk.published[-1].tenants[0].limits == Limits()


async def test_records_that_are_required(desk: Desk) -> None:
    """A tenant's records are as good as can be until they are required, and gateways hear of it at once."""
    made = (await desk.client.post("/tenants", json={"name": "acme"})).json()
    assert made["recorded"] is False
    assert (await desk.client.patch("/tenants/acme", json={"recorded": True})).json() == {**made, "recorded": True}
    assert desk.published[-1].tenants[0].recorded
    assert problem(await desk.client.patch("/tenants/acme", json={"recorded": "yes"}), 400)[0] == "recorded"
    strict = await desk.client.post("/tenants", json={"name": "strict", "recorded": True})
    assert strict.json()["recorded"] is True


async def test_weights(desk: Desk) -> None:
    """A tenant weighs 1 until it is told otherwise; a weight of nothing, or of too much, is refused."""
    made = (await desk.client.post("/tenants", json={"name": "acme"})).json()
    assert made["weight"] == 1
    assert (await desk.client.patch("/tenants/acme", json={"weight": 1000})).json() == {**made, "weight": 1000}
    assert desk.published[-1].tenants[0].weight == 1000
    for wrong in (0, 1001, 1.5, None, "2"):
        assert problem(await desk.client.patch("/tenants/acme", json={"weight": wrong}), 400)[0] == "weight"
    heavy = await desk.client.post("/tenants", json={"name": "heavy", "weight": 5})
    assert heavy.json()["weight"] == 5


async def test_money_does_not_change_its_meaning(desk: Desk) -> None:
    """While tenants have limits in money, the fleet cannot go over to another currency, or to no prices at all."""
    price(desk)
    await desk.client.patch("/tenants/default", json={"limits": {"money_per_month": "5"}})
    replace, spec = msgspec.structs.replace, desk.controller.spec
    for other in (
        replace(spec, prices={}, gateway=replace(spec.gateway, currency="")),
        replace(spec, gateway=replace(spec.gateway, currency="USD")),
    ):
        reply = await desk.client.post("/apply?dry_run=1", content=msgspec.json.encode(other))
        assert "take them away first: tenant default" in problem(reply, 409)[2]
    dearer = replace(spec, prices={"base": Price(3, 3, 3)})
    assert (await desk.client.post("/apply", content=msgspec.json.encode(dearer))).status_code == 200
    free = replace(spec, limits={"other": Limits(money_per_month=5)})
    assert problem(await desk.client.post("/apply", content=msgspec.json.encode(free)), 400)[:2] == (
        "limits.other",
        "no_prices",
    )
    below = replace(spec, prices={"base": Price(-1, 0, 0)})
    assert problem(await desk.client.post("/apply", content=msgspec.json.encode(below)), 400)[0] == "prices.base"


async def test_the_keys_of_one_tenant(desk: Desk) -> None:
    """Keys are listed for one tenant, and a tenant that does not exist is not one without keys."""
    await desk.client.post("/tenants", json={"name": "acme"})
    await desk.make_key()
    key = (await desk.make_key(tenant="acme")).json()["key"]
    assert (await desk.client.get("/keys", params={"tenant": "acme"})).json() == [key]
    problem(await desk.client.get("/keys", params={"tenant": "nobody"}), 404)


async def test_mistakes_are_named(desk: Desk) -> None:
    """What makes no sense is 400 with the field at fault, what does not exist 404, what exists already 409."""
    client = desk.client
    assert problem(await client.post("/tenants", json={"name": 1}), 400)[0] == "name"
    assert problem(await client.post("/keys", json={"tenant": "nobody"}), 400)[:2] == ("tenant", "unknown_tenant")
    assert problem(await client.post("/keys", json={"tenant": "default", "scopes": ["a"]}), 400)[0] == "scopes[0]"
    assert problem(await client.get("/keys", params={"al": "1"}), 400)[0] == "al"
    assert problem(await client.get("/keys", params={"all": "yes"}), 400)[0] == "all"
    problem(await client.post("/tenants", content=b"{"), 400)
    problem(await client.patch("/tenants/default", json={}), 400)
    problem(await client.patch("/tenants/nobody", json={"disabled": True}), 404)
    problem(await client.get("/keys/nothing"), 404)
    problem(await client.post("/keys/nothing/rotate"), 404)
    problem(await client.delete("/tenants/nobody"), 404)
    problem(await client.post("/tenants", json={"name": "default"}), 409)
    assert problem(await client.put("/tenants"), 405)[2] == "not PUT /tenants"
    assert {*(await client.put("/tenants")).headers["allow"].split(", ")} == {"GET", "HEAD", "POST"}
    problem(await client.get("/tenants/a/b"), 404)


async def test_a_failure_of_control_itself(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even what nobody has foreseen is answered in the shape of all errors, and tells nothing of the inside."""

    def fail() -> bytes:
        raise KeyError("inside")

    monkeypatch.setattr(desk.controller, "metrics", fail)
    transport = httpx2.ASGITransport(desk.app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://control") as client:
        assert "inside" not in problem(await client.get("/metrics"), 500)[2]


async def test_the_log_tells_who_did_what(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """Each change is one line with its actor, who cannot add a line; no secret and no digest is in the log."""
    caplog.set_level(logging.INFO)
    headers = {b"x-tuneplex-actor": b"k1\x85forged"}
    made = (await desk.client.post("/keys", json={"tenant": "default"}, headers=headers)).json()
    await desk.client.post(f"/keys/{made['key']['id']}/revoke")
    await desk.client.patch("/tenants/default", json={"base": False})
    lines = [record.getMessage() for record in caplog.records if record.name == "tuneplex.control.identity_routes"]
    assert lines == [
        f"made key {made['key']['id']} of tenant default for use actor=k1forged",
        f"revoked key {made['key']['id']} of tenant default actor=local",
        'changed tenant default {"base":false} actor=local',
    ]
    assert made["secret"] not in caplog.text
    assert digest(made["secret"]) not in caplog.text


async def test_the_document_is_the_api(desk: Desk) -> None:
    """Every route is in the document and every operation of the document is a route, and the document is valid."""
    document = read((await desk.client.get("/openapi.json")).content)
    told = {(path, method) for path, item in document.paths.items() for method in item.operations()}
    operations = admin_operations(
        desk.controller, desk.registry, desk.leasing, desk.saved.append, deploying=desk.deploying
    )
    served = {(route.path, method) for route in routes(operations) for method in route.methods or ()}
    assert {(path, method) for path, method in served if method != "HEAD"} == told
    assert {route.path for route in desk.app.routes if hasattr(route, "path")} == set(document.paths)
    assert {("/adapters", "GET"), ("/adapters", "POST"), ("/adapters/{name}/rollback", "POST")} <= told
    assert [server.url for server in document.servers] == ["/admin"]
    rotate = document.paths["/keys/{id}/rotate"].post
    assert rotate is not None
    assert set(rotate.responses) == {"201", "400", "401", "403", "404", "409", "503", "default"}
    assert "sha256" not in msgspec.json.encode(document.components.schemas["KeyInfo"]).decode()
    tenant = document.components.schemas["TenantInfo"]
    assert tenant["properties"]["name"]["description"] == "Unique in the fleet."
    assert "Attributes" not in str(document.components.schemas)


async def test_all_of_it_on_sqlite(tmp_path: Path) -> None:
    """The same on the real store: a key is made, rotated and revoked, and a tenant comes and goes."""
    desk = Desk(Store(f"sqlite:///{tmp_path / 'store.db'}"), tmp_path, tmp_path / "store.db")
    async with desk.running():
        await desk.client.post("/tenants", json={"name": "acme", "cache_group": "shared"})
        old = (await desk.make_key(tenant="acme", adapters=["a-*"])).json()["key"]["id"]
        new = (await desk.client.post(f"/keys/{old}/rotate", json={"grace_s": 0})).json()["key"]
        assert desk.ids == {new["id"]}
        assert new["adapters"] == ["a-*"]
        await desk.client.post(f"/keys/{new['id']}/revoke")
        assert desk.ids == set()
        assert (await desk.client.delete("/tenants/acme")).status_code == 204
        assert [access.generation for access in desk.published] == sorted({one.generation for one in desk.published})


async def test_wrong_paths_lead_nowhere_else(desk: Desk) -> None:
    """A slash too many is not found: behind a gateway nobody could follow a redirection to control's own address."""
    problem(await desk.client.get("/tenants/"), 404)
