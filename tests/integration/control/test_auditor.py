"""What control itself writes into the audit log: each change once, with names and without secrets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette

from tests.support.desk import Desk
from tuneplex.control.audit_routes import noted_by
from tuneplex.control.auditor import Auditor
from tuneplex.control.heads import Heads
from tuneplex.control.identity_routes import identity_operations
from tuneplex.control.operations import handlers, routes
from tuneplex.records.audit import AuditEvent, AuditLog, SignedHead
from tuneplex.types import Keeping


def auditor_of(directory: Path, keeping: Keeping | None = None) -> Auditor:
    """Who writes a log."""
    return Auditor(directory / "audit", base=lambda: "base", settings=lambda: keeping or Keeping())


def events(directory: Path) -> list[dict[str, Any]]:
    """What the log says, without its own marks."""
    lines = [line for path in (directory / "audit").glob("*.jsonl") for line in path.read_text().splitlines()]
    return [one for one in map(json.loads, lines) if one["kind"] == "event"]


@contextlib.asynccontextmanager
async def running(auditor: Auditor) -> AsyncIterator[None]:
    """Look after it as long as the block runs."""
    task = asyncio.create_task(auditor.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_change_is_in_the_log_when_it_is_answered(tmp_path: Path) -> None:
    """Whatever kills control then, who has changed what is known."""
    auditor = auditor_of(tmp_path)
    async with running(auditor):
        await auditor.acted("local", "revokeKey", status=200, details={"id": "k1"})
        assert [(one["action"], one["details"]) for one in events(tmp_path)] == [("revokeKey", {"id": "k1"})]


async def test_an_event_is_written_once_when_control_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event that is being written when control is told to end is not written again at the end."""
    real, began, go_on = AuditLog.append, threading.Event(), threading.Event()

    def slow(log: AuditLog, wanted: Iterable[AuditEvent]) -> int:
        count = real(log, wanted)
        began.set()
        go_on.wait(5)
        return count

    monkeypatch.setattr(AuditLog, "append", slow)
    auditor = auditor_of(tmp_path)
    async with running(auditor):
        acting = asyncio.create_task(auditor.acted("local", "revokeKey", status=200, details={}))
        await asyncio.to_thread(began.wait)
        acting.cancel()
        asyncio.get_running_loop().call_later(0.1, go_on.set)
    assert len(events(tmp_path)) == 1


async def test_the_last_events_are_written_at_the_end(tmp_path: Path) -> None:
    """Also where the log had not been opened, and how many had no room is told, too."""
    auditor = auditor_of(tmp_path)
    auditor._own = [AuditEvent(source="control", seq=0, at=1.0, event="control")]
    auditor._dropped = 3
    async with running(auditor):
        pass
    assert [(one["event"], one.get("count", 0)) for one in events(tmp_path)] == [("control", 0), ("lost", 3)]


async def test_changes_are_told_by_name(desk: Desk, tmp_path: Path) -> None:
    """Of tenants and keys there are names, ids and changed fields, and neither values nor a secret."""
    auditor = auditor_of(tmp_path)
    app = Starlette(
        routes=routes(identity_operations(desk.registry, lambda: ""), noted_by(auditor)), exception_handlers=handlers()
    )
    async with running(auditor), httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://c") as client:
        await client.post("/tenants", json={"name": "acme"})
        await client.post("/tenants", json={"name": "acme"})
        await client.patch("/tenants/acme", json={"disabled": False, "weight": 7})
        made = (await client.post("/keys", json={"tenant": "acme", "label": "laptop"})).json()
        found = events(tmp_path)
    assert [(one["action"], one["status"], one["details"]) for one in found] == [
        ("createTenant", 201, {"tenant": "acme"}),
        ("createTenant", 409, {"tenant": "acme"}),
        ("changeTenant", 200, {"changed": "disabled,weight", "name": "acme"}),
        ("createKey", 201, {"tenant": "acme", "label": "laptop", "key": made["key"]["id"]}),
    ]
    assert made["secret"] not in json.dumps(found)


async def test_a_place_that_takes_no_heads_is_asked_less_and_less() -> None:
    """After each failure the pause is twice as long, up to a minute."""
    signed = SignedHead(7, "a" * 64, 1.0, "k")
    heads = Heads(lambda: Keeping(head_url="http://127.0.0.1:1/"), lambda: signed)
    pauses = [await heads.look() for _ in range(8)]
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]


async def test_signing_does_not_wait_for_heads(tmp_path: Path) -> None:
    """A place that never answers holds up nothing."""
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as quiet:
        auditor = auditor_of(tmp_path, Keeping(head_url=f"http://127.0.0.1:{quiet.getsockname()[1]}/"))
        async with running(auditor):
            await asyncio.sleep(2.5)
            await auditor.acted("local", "revokeKey", status=200, details={})
    assert len(events(tmp_path)) == 1
    assert time.monotonic() - began < 8
