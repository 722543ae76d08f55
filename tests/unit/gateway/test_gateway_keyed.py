"""What an `Idempotency-Key` says, and which replies are kept."""

from __future__ import annotations

import pytest

from tuneplex.errors import BadRequest
from tuneplex.gateway.heads import EVENT_STREAM, JSON
from tuneplex.gateway.keyed import KEY, fingerprint, name_of, read_key
from tuneplex.gateway.recorder import is_proper
from tuneplex.gateway.recording import Recording
from tuneplex.types import Route

DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"x","type":"server_error","param":null,"code":null}}\n\n'
COMPLETED = b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n'
INCOMPLETE = b'event: response.incomplete\ndata: {"type":"response.incomplete"}\n\n'


@pytest.mark.parametrize("key", [b"k", b"x" * 255, b'"quoted"', " schlüssel ".encode()])
def test_a_key_may_be_any_text(key: bytes) -> None:
    """Without the spaces around it."""
    assert read_key({KEY: key}) == key.strip()


@pytest.mark.parametrize("key", [b"", b" ", b"x" * 256, b"a\0b", b"a\x1fb", b"a\x7fb", b"a\tb"])
def test_other_keys_are_refused(key: bytes) -> None:
    """Empty, too long, or with control characters."""
    with pytest.raises(BadRequest) as caught:
        read_key({KEY: key})
    assert caught.value.code == "invalid_idempotency_key"


def test_names_and_fingerprints_tell_everything_apart() -> None:
    """Tenants, keys, routes, deployments and bodies, also where one ends as the other begins."""
    names = {name_of(tenant, key) for tenant in ("a", "ab") for key in (b"c", b"bc")}
    prints = {
        fingerprint(route, deployment, body)
        for route in ("completions", "chat/completions")
        for deployment in (None, "d", "dd")
        for body in (b"{}", b"d{}", b"")
    }
    assert (len(names), len(prints)) == (4, 18)


@pytest.mark.parametrize(
    "route, kind, pieces, proper",
    [
        (Route.CHAT, EVENT_STREAM, [b'data: {"a":1}\n\n', DONE], True),
        (Route.CHAT, EVENT_STREAM, [b'data: {"a":1}\n\n' + DONE.replace(b"\n", b"\r\n")], True),
        (Route.CHAT, EVENT_STREAM, [b": ended by a limit: x\n\n" + DONE], True),
        (Route.CHAT, EVENT_STREAM, [b'data: {"a":"data: [DONE]"}\n\n'], False),
        (Route.CHAT, EVENT_STREAM, [b'data: {"a":1}\n\n'], False),
        (Route.CHAT, EVENT_STREAM, [ERROR], False),
        (Route.CHAT, EVENT_STREAM, [ERROR, DONE], False),
        (Route.CHAT, EVENT_STREAM, [COMPLETED], False),
        (Route.RESPONSES, EVENT_STREAM, [COMPLETED], True),
        (Route.RESPONSES, EVENT_STREAM, [INCOMPLETE, DONE], True),
        (Route.RESPONSES, EVENT_STREAM, [COMPLETED.replace(b"completed", b"failed")], False),
        (Route.RESPONSES, EVENT_STREAM, [b'event: error\ndata: {"type":"error"}\n\n'], False),
        (Route.RESPONSES, EVENT_STREAM, [b'event: error\ndata: {"type":"error"}\n\n', DONE], False),
        (Route.EMBEDDINGS, JSON, [b"{}"], True),
    ],
)
def test_only_proper_ends_are_kept(route: Route, kind: bytes, pieces: list[bytes], *, proper: bool) -> None:
    """As a client tells them from errors, and from streams that were cut."""
    recording = Recording()
    recording.begin(200, kind, b"")
    for piece in pieces:
        recording.add(piece)
    recording.end()
    assert is_proper(route, recording) is proper


@pytest.mark.parametrize("status, broken", [(200, True), (400, False), (0, True)])
def test_errors_and_breaks_are_not_kept(status: int, *, broken: bool) -> None:
    """Whatever of them has come."""
    recording = Recording()
    recording.begin(status, JSON, b"")
    recording.add(b"{}")
    recording.end(broken=broken)
    assert not is_proper(Route.CHAT, recording)
