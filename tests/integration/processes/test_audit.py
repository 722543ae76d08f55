"""The audit log of a running fleet: who reached what, who changed what, through crashes."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from tests.support.fleets import Fleet, MakeFleet
from tuneplex.records.audit import PUBLIC_FILE, Head, PublicKey, Report, has_log, newest_head, verify
from tuneplex.types import AdapterVersion, Keeping


def verified(fleet: Fleet) -> Report:
    """What a check of the log finds."""
    return verify(fleet.state.audit, PublicKey.read(fleet.state.audit / PUBLIC_FILE))


def events(fleet: Fleet) -> list[dict[str, Any]]:
    """What the log says, without its own marks."""
    if not has_log(fleet.state.audit):
        return []
    paths = sorted(fleet.state.audit.glob("*.jsonl"))
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [line for line in lines if "source" in line]


def after(fleet: Fleet, count: int, event: str = "completed") -> list[dict[str, Any]]:
    """Wait until the log has so many of these events."""

    def found() -> list[dict[str, Any]] | None:
        wanted = [one for one in events(fleet) if one["event"] == event]
        return wanted if len(wanted) >= count else None

    return fleet.wait_for(found)


def test_requests_are_in_the_log(make_fleet: MakeFleet, adapters: dict[str, AdapterVersion]) -> None:
    """A request is in the log as it is let in and as it is over, with the version that has answered, and no prompt."""
    fleet = make_fleet(adapters["ada"])
    fleet.ready()
    fleet.ask("ada")
    (over,) = after(fleet, 1)
    (admitted,) = after(fleet, 1, "admitted")
    for one in (admitted, over):
        assert (one["model"], one["version"]) == ("ada", adapters["ada"].id)
        assert (one["replica"], one["base"], one["decision"]) == ("default-0", "base", "allow")
    assert admitted["request_id"] == over["request_id"]
    assert (over["status"], over["outcome"], over["completion"]) == (200, "complete", 8)
    assert "hello" not in json.dumps(events(fleet))
    assert verified(fleet).ok


def test_a_killed_fleet_has_all_of_it_once(make_fleet: MakeFleet) -> None:
    """Whatever is killed, in the end each request is in the log once, and the chain holds."""
    fleet = make_fleet()
    fleet.ready()
    fleet.ask()
    after(fleet, 1)
    for role in ("control_process", "gateway_process"):
        pid = fleet.pid(role)
        fleet.kill(pid)
        fleet.gone(pid)
        fleet.ready()
        fleet.ask()
    with fleet.stream(max_tokens=8000, fake_fault={"between_chunks_s": 0.001}) as stream:
        next(stream)
        pid = fleet.pid("gateway_process")
        fleet.kill(pid)
    found = after(fleet, 4)
    assert sorted(one["outcome"] for one in found) == ["complete"] * 3 + ["gateway_crashed"]
    assert len({(one["source"], one["seq"]) for one in found}) == 4
    assert verified(fleet).ok


def test_changes_are_in_the_log(make_fleet: MakeFleet) -> None:
    """What somebody changes is in the log with who and how it ended; what somebody only looks at is not."""
    fleet = make_fleet()
    fleet.ready()
    with fleet.admin() as admin:
        assert admin.post("/tenants", json={"name": "acme"}).is_success
        assert admin.post("/tenants", json={"name": "acme"}).status_code == 409
        assert admin.get("/tenants").is_success
    found = after(fleet, 2, "control")
    assert [(one["actor"], one["action"], one["status"]) for one in found] == [
        ("local", "createTenant", 201),
        ("local", "createTenant", 409),
    ]
    assert [one["details"] for one in found] == [{"tenant": "acme"}] * 2


def test_the_log_can_be_checked_while_it_is_written(make_fleet: MakeFleet) -> None:
    """There is a signed head soon after an event, and after a proper end everything is signed."""
    fleet = make_fleet()
    fleet.ready()
    fleet.ask()
    after(fleet, 1)
    fleet.close_lifeline()
    fleet.wait()
    fleet.gone()
    signed = newest_head(fleet.state.audit)
    assert signed is not None
    report = verified(fleet)
    assert report.ok
    assert Path(fleet.state.audit / PUBLIC_FILE).exists()


def test_heads_are_kept_elsewhere(make_fleet: MakeFleet) -> None:
    """Each new head is posted where the fleet file says, and the log can be checked against it later."""
    heads: list[str] = []

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heads.append(json.loads(self.rfile.read(int(self.headers["content-length"])))["head"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Taker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        fleet = make_fleet()
        fleet.ready()
        url = f"http://127.0.0.1:{server.server_port}/heads"
        fleet.apply(msgspec.structs.replace(fleet.spec, records=Keeping(head_url=url)))
        fleet.wait_for(lambda: heads)
        fleet.ask()
        after(fleet, 1)
        server.shutdown()
    expected = Head.parse(heads[0])
    key = PublicKey.read(fleet.state.audit / PUBLIC_FILE)
    assert verify(fleet.state.audit, key, expected).ok
