"""Files that are replaced as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuneplex.files import replaced, write_whole


def test_a_file_is_replaced_and_private(tmp_path: Path) -> None:
    """The new content stands in a file that only this user can read, and nothing else is left."""
    path = tmp_path / "state"
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [*tmp_path.iterdir()] == [path]


def test_a_failure_changes_nothing(tmp_path: Path) -> None:
    """When the new content cannot be made, the old one stays, and no half of the new one is left."""
    path = tmp_path / "state"
    write_whole(path, b"old")

    def fail() -> None:
        with replaced(path) as file:
            file.write(b"ne")
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        fail()
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]
