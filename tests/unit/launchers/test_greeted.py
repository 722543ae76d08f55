"""The first line that a supervisor says, which may be of another version than who asks it."""

from __future__ import annotations

import msgspec
import pytest

from tuneplex.errors import EngineError
from tuneplex.launchers.spawner import PROTOCOL, Answer, Child, greeted


def test_a_supervisor_of_our_version() -> None:
    """What it says is taken, also what a newer one says besides."""
    answer = Answer(0, (Child("a", "m", 1.0, 7),), gateways=(0, 3), protocol=PROTOCOL)
    line = msgspec.json.encode(msgspec.to_builtins(answer) | {"mood": "fine"})
    assert greeted(line) == answer


@pytest.mark.parametrize(
    "line, words",
    [
        (b"", "the supervisor is gone"),
        (
            b'{"protocol": %d, "engines": 7}' % (PROTOCOL + 1),
            f"version {PROTOCOL + 1} of its protocol .* `tuneplex down`",
        ),
        (b'{"number": 0, "children": []}', "version 0 of its protocol"),
        (b'{"protocol": %d, "children": 7}' % PROTOCOL, "not understood"),
        (b"220 smtp ready", "not understood"),
    ],
)
def test_who_is_not_understood(line: bytes, words: str) -> None:
    """Another version, or something else altogether, is an error that says what is wrong, before anything is asked."""
    with pytest.raises(EngineError, match=words):
        greeted(line)
