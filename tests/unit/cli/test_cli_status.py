"""What `status` shows beside its tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuneplex.app.state import StateDir
from tuneplex.cli import status
from tuneplex.types import Status


@pytest.mark.parametrize("words", ["", "the store (x) does not answer, for 3m05s: changes are refused"])
def test_a_database_that_is_down_is_a_line(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong with the database stands below the headline, and nothing stands there when nothing is."""
    shown = Status("shop", "http://127.0.0.1:8000/v1", "base", ready=True, started=0.0, store=words)
    monkeypatch.setattr(status, "_ask", lambda _state: shown)
    assert status.show(StateDir(Path("/nowhere")), as_json=False) == 0
    assert capsys.readouterr().out.splitlines()[1] == words
