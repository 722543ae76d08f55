"""How long steps are shown."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tuneplex.cli import progress
from tuneplex.cli.progress import LineProgress, shown
from tuneplex.cli.terminal import Terminal


def terminal(*, live: bool) -> tuple[Terminal, io.StringIO]:
    """A terminal, or a pipe, and what is written to its standard error."""
    err = io.StringIO()
    console = Console(file=err, force_terminal=live, color_system=None, width=80)
    return Terminal(out=Console(file=io.StringIO()), err=console), err


def test_pipe_gets_a_line_for_each_step() -> None:
    """A step is told once, and its numbers only after a while."""
    there, err = terminal(live=False)
    with shown(there) as told:
        told.step("downloading [model]")
        told.advance(1, 2)
        told.step("converting")
    assert err.getvalue() == "downloading [model]\nconverting\n"


def test_pipe_hears_of_a_long_step_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of a long download shows that it goes on."""
    there, err = terminal(live=False)
    told = LineProgress(there)
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    told.step("downloading")
    told.advance(1, 4)
    told.advance(0, 0)
    assert err.getvalue() == "downloading\ndownloading: 25%\n"


def test_terminal_keeps_a_line_for_each_finished_step() -> None:
    """A moving bar becomes a line with a tick; brackets in a text are only brackets."""
    there, err = terminal(live=True)
    with shown(there) as told:
        told.advance(1, 2)
        told.step("downloading [model]")
        told.advance(1, 2)
        told.step("converting")
    text = err.getvalue()
    assert "✓ downloading [model] 0.0s" in text
    assert "✓ converting 0.0s" in text


def test_broken_step_is_not_ticked_off() -> None:
    """An error leaves no tick behind."""
    there, err = terminal(live=True)

    def download() -> None:
        with shown(there) as told:
            told.step("downloading")
            raise ValueError("no network")

    with pytest.raises(ValueError, match="no network"):
        download()
    assert "✓" not in err.getvalue()


@pytest.mark.parametrize("said,agreed", [("y\n", True), ("YES\n", True), ("\n", False), ("n\n", False), ("", False)])
def test_only_yes_is_consent(monkeypatch: pytest.MonkeyPatch, said: str, *, agreed: bool) -> None:
    """Enter alone, and an end of input, change nothing."""
    there, err = terminal(live=True)
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
    assert there.confirm("apply?") is agreed
    assert "apply? [y/N]" in err.getvalue()
