"""Events in words and values by name: one line each, and no secret in it."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneplex.identity import Scope
from tuneplex.log import MASK, get_logger, line_of, safe, values_of
from tuneplex.records.minting import mint

NAME = "tuneplex.tests.log"


def test_an_event_is_a_record_of_the_standard_library(caplog: pytest.LogCaptureFixture) -> None:
    """Its message is complete for any handler, and its values can be had by name."""
    with caplog.at_level(logging.INFO, NAME):
        get_logger(NAME).info(
            "does not load an adapter", replica="default-0", tries=3, error=ValueError("no such file")
        )
    (record,) = caplog.records
    assert (record.name, record.levelno) == (NAME, logging.INFO)
    assert record.getMessage() == 'does not load an adapter replica=default-0 tries=3 error="no such file"'
    values = {"replica": "default-0", "tries": 3, "error": "no such file"}
    assert values_of(record) == ("does not load an adapter", values)


def test_what_is_below_the_level_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """The level of the standard library's logger counts."""
    with caplog.at_level(logging.WARNING, NAME):
        get_logger(NAME).info("runs", pid=1)
    assert not caplog.records


def test_an_error_comes_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """As the standard library's loggers do it."""
    try:
        int("boom")
    except ValueError:
        get_logger(NAME).exception("a request failed", request_id="r-1")
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.getMessage() == "a request failed request_id=r-1"


@given(st.text(), st.dictionaries(st.text("abc", min_size=1), st.text()))
def test_nothing_makes_another_line(event: str, values: dict[str, str]) -> None:
    """Whatever is in an event and in its values, there is one line of characters that can be seen."""
    line = line_of(safe(event), {name: safe(value) for name, value in values.items()})
    assert line.isprintable()
    assert len(line.splitlines()) <= 1


def test_values_end_where_they_end() -> None:
    """A value cannot look like another value behind it."""
    line = line_of("runs", {"one": 'a" two=b', "path": "C:\\x", "empty": "", "none": None})
    assert line == r'runs one="a\" two=b" path="C:\\x" empty="" none=None'


@pytest.mark.parametrize(
    "text, shown",
    [
        ("Authorization: Bearer abc.def-ghi123", f"Authorization: Bearer {MASK}"),
        ("postgresql://fleet:hunter2@db/x failed", f"postgresql://fleet:{MASK}@db/x failed"),
        ("postgresql://fleet:hun@t/er:2@db/x", f"postgresql://fleet:{MASK}@db/x"),
        ("connect password=hunter2 host=db", f"connect password={MASK} host=db"),
        ("'api_key': 'abc'", f"'api_key': {MASK}"),
        ("sk-0123456789abcdefghij", f"sk-{MASK}"),
        ("http://127.0.0.1:8000/v1 answers", "http://127.0.0.1:8000/v1 answers"),
        ("the key tpx-abcdefghijkl is gone", "the key tpx-abcdefghijkl is gone"),
    ],
)
def test_secrets_are_known_by_their_shape(text: str, shown: str) -> None:
    """What looks like a secret is masked wherever it stands; what only resembles one stays."""
    assert safe(text) == shown


def test_the_keys_of_tenants_are_known_by_their_shape() -> None:
    """Of a key as it is made there is its id left, which is no secret."""
    key, secret = mint("acme", 0, scopes=(Scope.USE,))
    assert safe(f"refused {secret}, twice") == f"refused tpx-{key.id}-{MASK}, twice"


def test_what_clients_say_has_no_name_to_come_under(caplog: pytest.LogCaptureFixture) -> None:
    """Values by the name of a prompt, a body or a secret are masked, whatever they look like."""
    get_logger(NAME).warning("fails", prompt="my diary", body=b"{}", secret="x", replica="default-0")
    (record,) = caplog.records
    assert record.getMessage() == f"fails prompt={MASK} body={MASK} secret={MASK} replica=default-0"


def test_a_long_text_is_cut_behind_its_secrets() -> None:
    """Nobody fills the log with one event, and no half of a secret is left where it was cut."""
    secret = "postgresql://fleet:hunter2@db"
    told = safe("x" * (16_384 - 23) + " " + secret + " x" * 100_000)
    assert len(told) == 16_385
    assert "hunter" not in told
    assert len(safe("://a:" * 100_000)) == 16_385
