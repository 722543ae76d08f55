"""Requests that are sent again to a fleet with several gateway processes, some of which are killed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import httpx2
import pytest

from tests.support.fleets import Fleet, MakeFleet


def send(fleet: Fleet, key: str, **fields: object) -> httpx2.Response:
    """A request with a key, on a connection of its own, to whichever gateway takes it."""
    body = {"model": "base", "prompt": "hello", "max_tokens": 8, **fields}
    with fleet.client() as client:
        return client.post("/completions", json=body, headers={"idempotency-key": key})


def generated(fleet: Fleet) -> float:
    """Tokens that all gateways have counted."""
    with fleet.admin() as admin:
        lines = admin.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("tuneplex_completion_tokens_total{"))


def gateways(fleet: Fleet) -> set[int]:
    """The gateway processes."""
    return {pid for pid, command in fleet.processes().items() if "gateway_process" in command}


def test_retries_at_any_gateway_are_one_request(make_fleet: MakeFleet) -> None:
    """All get the same bytes, and the tokens of one; also after all gateways were killed and started again."""
    fleet = make_fleet(gateways=2)
    fleet.ready()
    first = send(fleet, "k1", ignore_eos=True)
    assert first.status_code == 200
    again = [send(fleet, "k1", ignore_eos=True) for _ in range(10)]
    fleet.wait_for(lambda: generated(fleet) == 8)
    old = gateways(fleet)
    for pid in old:
        fleet.kill(pid)
    fleet.wait_for(lambda: len(gateways(fleet) - old) == 2)
    fleet.ready()
    again += [send(fleet, "k1", ignore_eos=True) for _ in range(4)]
    assert {reply.content for reply in again} == {first.content}
    assert all(reply.headers["idempotent-replayed"] == "true" for reply in again)


def test_a_retry_after_its_gateway_was_killed_runs_anew(make_fleet: MakeFleet) -> None:
    """The stream breaks without `[DONE]`; sent again, the same request under the same key is answered."""
    fleet = make_fleet()
    fleet.ready()
    (pid,) = gateways(fleet)
    with streaming(fleet) as reply:
        lines = reply.iter_lines()
        next(lines)
        fleet.kill(pid)
        with pytest.raises(httpx2.HTTPError):
            assert "data: [DONE]" not in list(lines)
    fleet.wait_for(lambda: gateways(fleet) - {pid})
    fleet.ready()
    with streaming(fleet) as retry:
        assert [line for line in retry.iter_lines() if line][-1] == "data: [DONE]"
    assert "idempotent-replayed" not in retry.headers


@contextlib.contextmanager
def streaming(fleet: Fleet) -> Iterator[httpx2.Response]:
    """A stream under one and the same key."""
    slow = {"fake_fault": {"between_chunks_s": 0.05}, "max_tokens": 40, "ignore_eos": True}
    body = {"model": "base", "prompt": "hello", "stream": True, **slow}
    headers = {"idempotency-key": "k1"}
    with fleet.client() as client, client.stream("POST", "/completions", json=body, headers=headers) as reply:
        assert reply.status_code == 200
        yield reply
