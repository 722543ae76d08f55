"""What a person is told when something goes wrong."""

from __future__ import annotations

import errno

import pytest
import typer

from tuneplex.cli.failures import failure
from tuneplex.errors import EngineError, EngineStartError, FleetFileError, UserError


@pytest.mark.parametrize(
    "error,code",
    [
        (UserError("wrong"), 2),
        (FleetFileError("fleet.yaml:3: base: wrong"), 2),
        (typer.BadParameter("wrong"), 2),
        (EngineError("wrong"), 1),
        (EngineStartError("wrong"), 1),
        (RuntimeError("wrong"), 1),
    ],
)
def test_exit_code_tells_whose_fault_it_was(error: Exception, code: int) -> None:
    """2 for wrong input, 1 for what ran and failed."""
    assert failure(error, ["up"]).code == code


def test_hint_of_a_user_error_is_passed_on() -> None:
    """A UserError's own hint is what the person reads."""
    told = failure(UserError("no fleet is running", hint="start one", tail="last words"), ["status"])
    assert told.tail == "last words"
    assert (told.message, told.hint) == ("no fleet is running", "start one")


def test_engine_that_did_not_start_brings_its_last_words() -> None:
    """The log's tail is shown, because the reason is most often there."""
    assert failure(EngineStartError("gave up", tail="CUDA out of memory"), ["up"]).tail == "CUDA out of memory"


def test_wrong_usage_points_to_help() -> None:
    """An error that knows no command points to the whole help."""
    assert failure(typer.BadParameter("no such option"), ["--bad"]).hint == "see `tuneplex --help`"


def test_unexpected_error_points_to_debug() -> None:
    """A bug is one sentence, with the command line that shows its traceback."""
    told = failure(KeyError("x"), ["ask", "m", "two words"])
    assert told.message == "unexpected KeyError: 'x'"
    assert "tuneplex --debug ask m 'two words'" in told.hint


def test_a_full_disk_is_called_so() -> None:
    """Whatever could not be written, a person is told to make room, and not of an unexpected error."""
    told = failure(OSError(errno.ENOSPC, "No space left on device", "/srv/state/lock"), ["up"])
    assert told.message == "the disk has no room left for /srv/state/lock (No space left on device)"
    assert (told.code, "make some" in told.hint) == (1, True)
    assert failure(OSError(errno.ENOSPC, "No space left on device"), ["up"]).message.startswith("the disk has no room")
