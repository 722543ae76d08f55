"""Every mistake in a fleet file gives one message with file, line, key and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tuneplex.errors import FleetFileError
from tuneplex.fleetfile import FleetFile, load

LoadText = Callable[[str | bytes], FleetFile]

BASE = "base: models/tiny\n"


class Bad(NamedTuple):
    """A wrong fleet file and what is said about it."""

    name: str
    text: str
    message: str
    hint: str = ""


BAD_FILES = [Bad(**entry) for entry in yaml.safe_load(Path(__file__).with_name("bad_files.yaml").read_text())]


@pytest.mark.parametrize("bad", BAD_FILES, ids=lambda bad: bad.name)
def test_one_clear_message(bad: Bad, load_text: LoadText, tmp_path: Path) -> None:
    """A wrong file is refused with the exact place, the reason and, where it helps, a hint."""
    with pytest.raises(FleetFileError) as caught:
        load_text(bad.text)
    assert str(caught.value).replace(str(tmp_path), "HERE") == bad.message
    assert caught.value.hint == bad.hint


def test_table_is_long_enough() -> None:
    """The table covers the mistakes that people make."""
    assert len({bad.name for bad in BAD_FILES}) == len(BAD_FILES) > 90


@pytest.mark.parametrize("bad", BAD_FILES, ids=lambda bad: bad.name)
def test_no_secret_in_messages(bad: Bad) -> None:
    """No message repeats a key or a password."""
    assert "hunter" not in bad.message + bad.hint


def test_missing_file(tmp_path: Path) -> None:
    """A fleet file that is not there is named."""
    with pytest.raises(FleetFileError, match=r"nothing.yaml: cannot be read: No such file or directory"):
        load(tmp_path / "nothing.yaml")


def test_directory_instead_of_file(tmp_path: Path) -> None:
    """A directory is not a fleet file."""
    with pytest.raises(FleetFileError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_huge_file(load_text: LoadText) -> None:
    """A file of more than a mebibyte is refused before it is parsed."""
    with pytest.raises(FleetFileError, match=r"^fleet\.yaml: is larger than 1 MiB; this cannot be a fleet file$"):
        load_text("#" * (1024 * 1024 + 1))


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_wrong_encoding(load_text: LoadText, encoding: str) -> None:
    """Text in another encoding than UTF-8 is named as such, with its line where possible."""
    with pytest.raises(FleetFileError, match=r"^fleet\.yaml:[12]: is not UTF-8 text$") as caught:
        load_text((BASE + "name: \u00e4\n").encode(encoding))
    assert caught.value.hint == "save the file as UTF-8"


def test_billion_laughs(load_text: LoadText) -> None:
    """Anchors that multiply are stopped early."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(FleetFileError, match="too many"):
        load_text("\n".join(lines))


def test_deep_nesting(load_text: LoadText) -> None:
    """Brackets without end are refused, not followed."""
    with pytest.raises(FleetFileError, match="nested too deeply"):
        load_text(BASE + "name: " + "[" * 5000)


def test_first_error_in_the_file_is_reported(load_text: LoadText) -> None:
    """Of several wrong keys, the one that stands first is named."""
    with pytest.raises(FleetFileError, match=r"^fleet\.yaml:2: gateway: "):
        load_text(BASE + "gateway: 1\naliases: 2\nzzz: 3\n")


def test_control_characters_in_keys_are_escaped(load_text: LoadText) -> None:
    """A key cannot break the message's line or colour the terminal."""
    with pytest.raises(FleetFileError) as caught:
        load_text(BASE + 'adapters: {"a\\n\\e[31m": adapters/one}\n')
    assert str(caught.value).isprintable()
