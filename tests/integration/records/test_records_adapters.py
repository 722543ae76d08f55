"""The versions of adapters in both databases."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from tests.integration.records.conftest import MakeStore
from tuneplex.errors import StoreConflict, StoreError
from tuneplex.policy.sequential import Moments
from tuneplex.records import Store
from tuneplex.records import adapters as module
from tuneplex.releases import AdapterChange, AdapterEvent, AdapterRecord, KnownVersion, Probing, Rollout, Scorer
from tuneplex.types import AdapterVersion

replace = msgspec.structs.replace
ONE = AdapterVersion("one", "a" * 64, "/adapters/one", 8, "default", "hf:org/one")
TWO = replace(ONE, digest="b" * 64)
PROBES = (
    Probing(prompt="grüße\0\U0001f642", logprobs=(-0.1, -1e-300, -12.5)),
    Probing(messages=({"role": "user", "content": "hi"},)),
)
ROLLOUT = Rollout(
    TWO.digest,
    2**40,
    "k1",
    share=0.1,
    divided_by="key",
    within_s=1e9,
    probes=PROBES,
    scorer=Scorer(command=("/bin/true", "--x")),
    tried_since=1_796_000_000.123456,
    score=Moments(3, 0.1 + 0.2, 1e-17),
)
WHOLE = AdapterRecord(
    "one",
    ONE.digest,
    ONE.digest,
    (TWO.digest,),
    (KnownVersion(ONE, 1, "fleet file"), KnownVersion(TWO, 2, "k1")),
    ROLLOUT,
)


def event(number: int, adapter: str = "one", **fields: str) -> AdapterEvent:
    """Something that was done."""
    return AdapterEvent(number, adapter, **{"who": "local", "action": "promoted", "version": "v", **fields})


def keep(
    store: Store, record: AdapterRecord | None, *events: AdapterEvent, fleet: str = "shop", name: str = ""
) -> None:
    """Keep this, whatever was there."""
    change: AdapterChange = record, events
    assert store.change_adapter(fleet, name or (record.name if record else "one"), lambda _before: change) == record


def test_all_of_a_record_comes_back(store: Store, open_store: MakeStore, url: str) -> None:
    """To the last digit of a number and the last character of a text, also after the database was opened again."""
    keep(store, WHOLE, event(5, why="grüße \U0001f642"))
    store.close()
    again = open_store(url)
    assert again.adapters("shop") == (WHOLE,)
    assert again.adapter_events("shop") == (event(5, why="grüße \U0001f642"),)


def test_a_change_sees_what_is_there(store: Store) -> None:
    """It is asked once, with the record as it is; what it makes of it takes its place."""
    seen: list[AdapterRecord | None] = []

    def change(record: AdapterRecord | None) -> AdapterChange:
        seen.append(record)
        return replace(record or AdapterRecord("one"), filed=str(len(seen))), (event(len(seen)),)

    for _ in range(3):
        store.change_adapter("shop", "one", change)
    assert [None if record is None else record.filed for record in seen] == [None, "1", "2"]
    assert [one.at for one in store.adapter_events("shop")] == [1, 2, 3]


def test_a_change_that_fails_changes_nothing(store: Store) -> None:
    """Neither the record nor what was done."""
    keep(store, WHOLE, event(1))

    def fail(_record: AdapterRecord | None) -> AdapterChange:
        raise StoreConflict("no")

    with pytest.raises(StoreConflict, match="no"):
        store.change_adapter("shop", "one", fail)
    assert (store.adapters("shop"), store.adapter_events("shop")) == ((WHOLE,), (event(1),))


def test_a_removed_adapter_keeps_its_history(store: Store) -> None:
    """And one that comes back goes on with it."""
    keep(store, WHOLE, event(1))
    keep(store, None, event(2, action="removed"))
    assert store.adapters("shop") == ()
    keep(store, AdapterRecord("one"), event(3))
    assert [one.at for one in store.adapter_events("shop", "one")] == [1, 2, 3]


def test_two_fleets_on_one_store_do_not_meet(store: Store) -> None:
    """Each has its own adapters and its own history."""
    keep(store, WHOLE, event(1))
    keep(store, replace(WHOLE, rollout=None), *(event(at) for at in range(5)), fleet="bank")
    assert store.adapters("shop") == (WHOLE,)
    assert store.adapter_events("shop") == (event(1),)
    assert store.adapters("bank")[0].rollout is None
    keep(store, None, fleet="shop")
    assert (store.adapters("shop"), len(store.adapters("bank"))) == ((), 1)


def test_the_last_thousand_events_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go first, whichever adapter they are of; the last hundred are told if nobody says how many."""
    assert module._KEPT_EVENTS == 1000
    monkeypatch.setattr(module, "_KEPT_EVENTS", 120)
    keep(store, WHOLE, event(0, "amy"), *(event(at) for at in range(1, 70)))
    keep(store, WHOLE, *(event(at, "zoe") for at in range(70, 140)))
    assert [one.at for one in store.adapter_events("shop", limit=2000)] == list(range(20, 140))
    assert [one.at for one in store.adapter_events("shop")] == list(range(40, 140))
    assert [one.at for one in store.adapter_events("shop", "one", limit=2000)] == list(range(20, 70))
    assert store.adapter_events("shop", "amy") == ()
    keep(store, WHOLE, event(140))
    assert [one.at for one in store.adapter_events("shop", limit=2000)] == list(range(21, 141))


def test_a_record_that_no_backup_could_hold_is_refused(store: Store, tmp_path: Path) -> None:
    """What is just small enough goes into a backup and back; what is larger changes nothing."""
    short = replace(WHOLE, rollout=replace(ROLLOUT, probes=(Probing("x"),)))
    room = 900_001 - len(msgspec.json.encode(msgspec.json.encode(short).decode()))  # as a backup writes it
    fits, longer = (
        replace(WHOLE, rollout=replace(ROLLOUT, probes=(Probing("x" * size),))) for size in (room, room + 1)
    )
    keep(store, fits)
    with pytest.raises(StoreConflict, match="adapter one: its probes are too long to be kept"):
        keep(store, longer)
    assert store.adapters("shop") == (fits,)
    store.backup(tmp_path / "a", 5)
    keep(store, None)
    store.restore(tmp_path / "a", replace=True)
    assert store.adapters("shop") == (fits,)


def test_a_record_full_of_quotes_goes_into_a_backup(store: Store, tmp_path: Path) -> None:
    """Also what takes many times its length there is either refused, or restored as it was."""
    kept = AdapterRecord("one")
    for size in (200_000, 250_000, 440_000):
        bad = replace(WHOLE, rollout=replace(ROLLOUT, probes=(Probing('"' * size),)))
        try:
            keep(store, bad)
        except StoreConflict:
            continue
        kept = bad
        store.backup(tmp_path / "a", 5, overwrite=True)
        store.restore(tmp_path / "a", replace=True)
        assert store.adapters("shop") == (kept,)
    assert kept != AdapterRecord("one")


def test_a_backup_holds_versions_and_history(store: Store, tmp_path: Path) -> None:
    """They come back as they were, with the same numbers, so that what follows follows."""
    keep(store, WHOLE, *(event(at) for at in range(3)))
    store.backup(tmp_path / "a", 5)
    keep(store, None, event(9, action="removed"))
    store.restore(tmp_path / "a", replace=True)
    assert (store.adapters("shop"), [one.at for one in store.adapter_events("shop")]) == ((WHOLE,), [0, 1, 2])
    keep(store, WHOLE, event(3))
    assert [one.at for one in store.adapter_events("shop")] == [0, 1, 2, 3]


def test_backup_of_the_fourth_revision(store: Store, tmp_path: Path) -> None:
    """A backup from before versions were kept restores: no adapter has any, and they can be kept from then on."""
    keep(store, WHOLE, event(1))
    tenant = {
        "name": "default",
        "adapters": '["*"]',
        "base": True,
        "isolated": False,
        "cache_group": "",
        "disabled": False,
    }
    lines = (
        {"format": "tuneplex-store", "revision": "0004", "made": 5},
        {"table": "meta", "row": {"id": 1, "generation": 3, "keys_ever": False, "salt": "s"}},
        {
            "table": "tenants",
            "row": tenant | {"disabled": False, "created": 0, "limits": "{}", "weight": 1, "recorded": False},
        },
        {"rows": 2},
    )
    file = tmp_path / "old"
    file.write_bytes(gzip.compress(b"".join(msgspec.json.encode(line) + b"\n" for line in lines)))
    assert store.restore(file, replace=True) == 2
    assert (store.adapters("shop"), store.adapter_events("shop")) == ((), ())
    keep(store, WHOLE, event(1))
    assert store.adapters("shop") == (WHOLE,)


DAMAGES = [
    (b'"at":7', b'"at":"x"'),
    (b'"who":"local"', b'"who":null'),
    (rb"\"promoted\":\"aaaa", rb"\"promoted\":5,\"x\":\"aaaa"),
    (rb"\"divided_by\":\"key\"", rb"\"divided_by\":[]"),
]


def test_a_damaged_backup_of_versions_is_refused(store: Store, tmp_path: Path) -> None:
    """Nothing of it is restored, as control could not read it afterwards."""
    keep(store, WHOLE, event(7))
    store.backup(tmp_path / "a", 5)
    data = gzip.decompress((tmp_path / "a").read_bytes())
    for was, damaged in DAMAGES:
        assert was in data
        (tmp_path / "b").write_bytes(gzip.compress(data.replace(was, damaged)))
        with pytest.raises(StoreError, match=f"{tmp_path / 'b'} is damaged"):
            store.restore(tmp_path / "b", replace=True)
        assert (store.adapters("shop"), store.adapter_events("shop")) == ((WHOLE,), (event(7),))
