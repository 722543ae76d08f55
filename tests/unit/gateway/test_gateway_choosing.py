"""Which version of a model a request gets."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.support.room import Stage
from tuneplex.errors import NotFound
from tuneplex.gateway.asked import Asked
from tuneplex.gateway.choosing import as_it_is_now, known_model, tried
from tuneplex.identity import Grant, Limits, Principal
from tuneplex.types import FleetView, Model, Price, Trial

OLD, NEW, FIRST = "contacts@aaaaaaaaaaaa", "contacts@bbbbbbbbbbbb", "amy@cccccccccccc"
TRIAL = Trial(NEW, 0.25, "salt")
CONTACTS = Model("contacts", OLD, "base", price=Price(1, 2, 3), limits=Limits(concurrent=3), trial=TRIAL)
VIEW = FleetView(
    models={"base": Model("base", "base"), "contacts": CONTACTS},
    aliases={"gpt-4o": "contacts"},
    versions={OLD: "contacts", NEW: "contacts", FIRST: "amy"},
)
replace = msgspec.structs.replace


def asking(number: int = 0, *, key: str = "k1", model: Model = CONTACTS, **fields: object) -> Asked:
    """A request with this number for an id."""
    asked = Stage().asked("contacts")
    asked.model = model
    asked.exchange.request_id = b"req-%d" % number
    asked.principal = Principal("acme", key)
    asked.fields = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}
    return asked


def got(asked: Asked, **trial: object) -> str:
    """The version that a request gets."""
    return tried(replace(CONTACTS, trial=replace(TRIAL, **trial)), asked).version


# --- names


def test_the_id_of_a_version_means_just_that_version() -> None:
    """Its model is the adapter's in everything else, and is not divided any more."""
    for version in (OLD, NEW):
        assert known_model(VIEW, Grant(), version) == replace(CONTACTS, version=version, trial=None)
    assert known_model(VIEW, Grant(), "contacts") is known_model(VIEW, Grant(), "gpt-4o") is CONTACTS


def test_a_version_of_an_adapter_that_nobody_gets_yet_can_be_asked_for() -> None:
    """It belongs to the base, and has the name that it will have."""
    assert known_model(VIEW, Grant(), FIRST) == Model("amy", FIRST, "base")
    with pytest.raises(NotFound):
        known_model(VIEW, Grant(), "amy")


@pytest.mark.parametrize(
    "patterns, permitted",
    [
        ((), ["contacts", OLD, NEW]),
        ((("*",),), ["contacts", OLD, NEW]),
        ((("contacts*",),), ["contacts", OLD, NEW]),
        ((("contacts",),), ["contacts"]),
        ((("contacts", OLD),), ["contacts", OLD]),
        ((("*",), ("contacts",)), ["contacts"]),
        (((OLD,),), []),
        ((("legal*",),), []),
    ],
)
def test_who_names_a_version_needs_leave_for_the_adapter_and_for_the_version(
    patterns: tuple[tuple[str, ...], ...], permitted: list[str]
) -> None:
    """A key for `contacts` alone gets what its owner has promoted, and a version alone opens nothing."""
    found = []
    for name in ("contacts", OLD, NEW):
        try:
            known_model(VIEW, Grant(adapters=patterns), name)
        except NotFound:
            continue
        found.append(name)
    assert found == permitted


@pytest.mark.parametrize("name", [NEW, "contacts@bbbbbbbbbbb", "contacts@", "contacts@" + "f" * 12, "nobody"])
def test_what_may_not_be_called_is_as_unknown_as_what_is_not_there(name: str) -> None:
    """The error differs in nothing but the name that was asked for."""
    with pytest.raises(NotFound) as caught:
        known_model(VIEW, Grant(adapters=(("contacts",),)), name)
    error = caught.value
    assert (error.message, error.param, error.code) == (
        f"The model `{name}` does not exist.",
        "model",
        "model_not_found",
    )


# --- trials


@pytest.mark.parametrize("by", ["user", "key", "request"])
def test_about_the_share_gets_the_new_version(by: str) -> None:
    """Of users, of keys, or of requests, whatever requests are divided by; the others get the old one."""
    found = [got(asking(n, key=f"k{n}", user=f"u{n}"), by=by) for n in range(1000)]
    assert 200 < found.count(NEW) < 300
    assert found.count(OLD) + found.count(NEW) == 1000
    assert {got(asking(n, key=f"k{n}", user=f"u{n}"), by=by, share=1.0) for n in range(50)} == {NEW}
    assert {got(asking(n, key=f"k{n}", user=f"u{n}"), by=by, share=0.0) for n in range(50)} == {OLD}


@pytest.mark.parametrize("by", ["user", "key"])
def test_who_has_it_keeps_it(by: str) -> None:
    """All requests of a user, or of a key, get the same version, also when the share grows."""
    for who in range(20):
        first, *others = (got(asking(n, key=f"k{who}", user=f"u{who}"), by=by) for n in range(10))
        assert set(others) == {first}
        assert first == OLD or got(asking(0, key=f"k{who}", user=f"u{who}"), by=by, share=0.5) == NEW


def test_only_what_requests_are_divided_by_matters() -> None:
    """Of the same user with many keys, and of the same key with many users."""
    assert len({got(asking(n, key=f"k{n}", user="u1")) for n in range(40)}) == 1
    assert len({got(asking(n, key="k1", user=f"u{n}"), by="key") for n in range(40)}) == 1
    assert len({got(asking(0, key=f"k{n}", user=f"u{n}"), by="request") for n in range(40)}) == 1


@pytest.mark.parametrize("said", [False, True])
def test_who_does_not_say_who_it_is_is_divided_by_request(*, said: bool) -> None:
    """Else all of them together would be one user."""
    assert {got(asking(n, user=None) if said else asking(n)) for n in range(40)} == {OLD, NEW}


def test_without_a_trial_nothing_is_divided() -> None:
    """The model stays the very same."""
    model = replace(CONTACTS, trial=None)
    assert tried(model, asking(user="u1")) is model


# --- later


def test_what_waits_is_divided_as_before() -> None:
    """A request that has waited gets the same version as at first, as long as the trial is the same one."""
    for n in range(40):
        asked = asking(n, user=f"u{n}")
        asked.model = tried(CONTACTS, asked)
        assert as_it_is_now(VIEW, asked) == asked.model


def test_after_a_promotion_all_that_wait_get_the_new_version() -> None:
    """And after a rollback the old one: there may be no engine any more that has the other one."""
    for version, other in ((NEW, OLD), (OLD, NEW)):
        models = VIEW.models | {"contacts": replace(CONTACTS, version=version, trial=None)}
        view = replace(VIEW, models=models)
        asked = asking(model=replace(CONTACTS, version=other))
        assert as_it_is_now(view, asked).version == version


def test_who_has_named_a_version_keeps_it_while_it_waits() -> None:
    """Whatever is promoted meanwhile; when no engine has it any more, or the key may not any more, it is not found."""
    asked = asking(model=known_model(VIEW, Grant(), OLD))
    asked.pinned = True
    promoted = replace(VIEW, models=VIEW.models | {"contacts": replace(CONTACTS, version=NEW, trial=None)})
    assert as_it_is_now(promoted, asked).version == OLD
    with pytest.raises(NotFound):
        as_it_is_now(replace(promoted, versions={NEW: "contacts"}), asked)
    asked.principal = Principal("acme", "k1", grant=Grant(adapters=(("contacts",),)))
    with pytest.raises(NotFound):
        as_it_is_now(promoted, asked)
