"""What becomes of an adapter's versions."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.control.conftest import BASE, version
from tuneplex.control.versions import (
    FILE,
    added,
    as_filed,
    ended,
    fleet_with,
    pool_for,
    promoted,
    removed,
    rolled_back,
    tried,
)
from tuneplex.errors import StoreConflict, StoreError, StoreMissing
from tuneplex.releases import AdapterChange, AdapterEvent, AdapterRecord, Rollout
from tuneplex.types import AdapterVersion, Candidate, FleetSpec, PoolSpec, Trial

MakeSpec = Callable[..., FleetSpec]

replace = msgspec.structs.replace
ONE, TWO, THREE = (version("one", digest) for digest in "abc")
NUMBERED = [AdapterVersion("one", f"{number:064x}", f"/adapters/{number}", 8, "default") for number in range(60)]


def filed(record: AdapterRecord | None, content: AdapterVersion | None, at: int = 1) -> AdapterRecord:
    """As it is after a fleet file with this content."""
    return there(as_filed(record, content, at))


def there(change: AdapterChange) -> AdapterRecord:
    """What the record becomes, if it stays."""
    assert change[0] is not None
    return change[0]


def wish(content: AdapterVersion, **fields: object) -> Rollout:
    """A rollout of it."""
    return replace(Rollout(content.digest, 5, "local"), **fields)


def digests(record: AdapterRecord) -> list[str]:
    """Of all that is known, by their letters."""
    return [known.version.digest[0] for known in record.versions]


def did(change: AdapterChange) -> list[tuple[str, str, str]]:
    """Who did what with which version."""
    return [(event.who, event.action, event.version) for event in change[1]]


# --- the fleet file


def test_what_the_file_says_first_is_promoted() -> None:
    """An adapter that was not known has one version, which requests get."""
    change = as_filed(None, ONE, 7)
    record = there(change)
    assert (record.filed, record.promoted, record.before, digests(record)) == (ONE.digest, ONE.digest, (), ["a"])
    assert (record.versions[0].added, record.versions[0].by) == (7, FILE)
    assert change[1] == (AdapterEvent(7, "one", FILE, "promoted", ONE.id, "the fleet file says so"),)


def test_the_same_file_again_changes_nothing() -> None:
    """What was promoted by hand since stays, and so does the order in which versions came."""
    record = there(promoted(there(added(filed(None, ONE), TWO, wish(TWO))), TWO.digest, 6, "local", ""))
    assert as_filed(record, ONE, 9) == (record, ())
    assert (record.promoted, digests(record)) == (TWO.digest, ["a", "b"])


def test_another_content_in_the_file_is_promoted() -> None:
    """The file has the last word when it says something else than before, also over what was promoted by hand."""
    record = there(promoted(there(added(filed(None, ONE), TWO, wish(TWO))), TWO.digest, 6, "local", ""))
    change = as_filed(record, THREE, 9)
    assert did(change) == [(FILE, "promoted", THREE.id)]
    assert (there(change).filed, there(change).before) == (THREE.digest, (TWO.digest, ONE.digest))
    known = as_filed(record, TWO, 9)  # which is promoted already
    assert (there(known).filed, there(known).promoted, known[1]) == (TWO.digest, TWO.digest, ())


def test_a_file_that_says_what_is_being_rolled_out_ends_the_rollout() -> None:
    """A rollout of another version goes on."""
    record = there(added(filed(None, ONE), TWO, wish(TWO)))
    assert filed(record, TWO).rollout is None
    assert filed(record, THREE).rollout == record.rollout


def test_what_leaves_the_file_is_removed_and_what_never_was_in_it_stays() -> None:
    """A file says nothing of adapters that were only added by hand."""
    change = as_filed(filed(None, ONE), None, 9)
    assert change[0] is None
    assert did(change) == [(FILE, "removed", ONE.id)]
    by_hand = there(added(None, ONE, wish(ONE)))
    assert as_filed(by_hand, None, 9) == (by_hand, ())
    assert as_filed(None, None, 9) == (None, ())


def test_the_same_content_from_another_place_takes_its_place() -> None:
    """A version is its content: a moved directory makes no second one."""
    record = filed(None, ONE)
    moved = replace(ONE, path="/elsewhere")
    assert [known.version for known in filed(record, moved, 2).versions] == [moved]


# --- by hand


def test_a_version_is_rolled_out_beside_the_promoted_one() -> None:
    """It is known, with who has added it, and nothing else changes."""
    change = added(filed(None, ONE), TWO, wish(TWO, by="k1"))
    record = there(change)
    assert (record.promoted, record.rollout, digests(record)) == (ONE.digest, wish(TWO, by="k1"), ["a", "b"])
    assert (record.versions[1].added, record.versions[1].by) == (5, "k1")
    assert did(change) == [("k1", "added", TWO.id)]


def test_what_stands_against_a_rollout_is_said() -> None:
    """The version is in use, or it or another one is being rolled out."""
    record = filed(None, ONE)
    with pytest.raises(StoreConflict, match=f"{ONE.id} is what requests for one get already"):
        added(record, ONE, wish(ONE))
    busy = there(added(record, TWO, wish(TWO)))
    with pytest.raises(StoreConflict, match=f"{TWO.id} is being rolled out already"):
        added(busy, TWO, wish(TWO))
    with pytest.raises(StoreConflict, match=f"{TWO.id}, is being rolled out: promote it or roll it back first"):
        added(busy, THREE, wish(THREE))


def test_promotion_ends_the_rollout_of_that_version_alone() -> None:
    """Another one that is being rolled out goes on."""
    record = there(added(filed(filed(None, ONE), TWO), THREE, wish(THREE)))
    assert there(promoted(record, ONE.digest, 9, "local", "")).rollout == record.rollout
    change = promoted(record, THREE.digest, 9, "k1", "so")
    assert there(change).rollout is None
    assert change[1] == (AdapterEvent(9, "one", "k1", "promoted", THREE.id, "so"),)
    with pytest.raises(StoreMissing, match="one has no version dddddddddddd"):
        promoted(record, "d" * 64, 9, "local", "")
    with pytest.raises(StoreConflict, match="get already"):
        promoted(record, TWO.digest, 9, "local", "")


def test_versions_go_back_one_by_one() -> None:
    """Each rollback goes one promotion further back, until there is none."""
    record = filed(filed(filed(None, ONE), TWO), THREE)
    assert record.before == (TWO.digest, ONE.digest)
    change = rolled_back(record, 9, "local")
    assert (there(change).promoted, there(change).before) == (TWO.digest, (ONE.digest,))
    assert change[1] == (AdapterEvent(9, "one", "local", "promoted", TWO.id, f"back from {THREE.id}"),)
    last = there(rolled_back(there(change), 9, "local"))
    assert (last.promoted, last.before, digests(last)) == (ONE.digest, (), ["a", "b", "c"])
    with pytest.raises(StoreConflict, match="one has no earlier version"):
        rolled_back(last, 9, "local")
    assert there(promoted(last, THREE.digest, 9, "local", "")).before == (ONE.digest,)


def test_a_rollback_gives_up_the_rollout_first() -> None:
    """What requests get stays, and the version that was on its way is forgotten."""
    change = rolled_back(there(added(filed(None, ONE), TWO, wish(TWO))), 9, "local")
    record = there(change)
    assert (record.promoted, record.rollout, digests(record)) == (ONE.digest, None, ["a"])
    assert did(change) == [("local", "rolled back", TWO.id)]


def test_a_refused_first_version_leaves_nothing() -> None:
    """An adapter that nobody has ever got is gone with it; its history says why."""
    change = ended(there(added(None, ONE, wish(ONE))), 9, "tuneplex", "refused", "no effect")
    assert change == (None, (AdapterEvent(9, "one", "tuneplex", "refused", ONE.id, "no effect"),))


def test_a_refused_version_that_was_in_use_once_stays_known() -> None:
    """Going back to it must stay possible."""
    record = there(added(filed(filed(None, ONE), TWO), ONE, wish(ONE)))
    after = there(ended(record, 9, "tuneplex", "refused", ""))
    assert (digests(after), after.before) == (["a", "b"], (ONE.digest,))


def test_without_a_rollout_there_is_nothing_to_try_or_to_end() -> None:
    """Whoever comes too late changes nothing."""
    record = filed(None, ONE)
    assert tried(record, 9.5, "") == (record, ())
    assert ended(record, 9.5, "local", "refused", "") == (record, ())


def test_a_trial_has_its_time() -> None:
    """Its begin is kept to the millisecond, as it decides which requests count."""
    change = tried(there(added(filed(None, ONE), TWO, wish(TWO))), 9.25, "well")
    rollout = there(change).rollout
    assert rollout is not None
    assert rollout.tried_since == 9.25
    assert did(change) == [("tuneplex", "trial", TWO.id)]


def test_removal() -> None:
    """The record goes, the event names what requests have got."""
    assert removed(filed(None, ONE), 9, "local") == (None, (AdapterEvent(9, "one", "local", "removed", ONE.id),))


def test_old_versions_are_forgotten_but_none_that_is_in_use() -> None:
    """Fifty are kept, among them always the promoted one, the one before, and the one that is rolled out."""
    record = filed(filed(None, NUMBERED[0]), NUMBERED[1])
    for content in NUMBERED[2:]:
        record = there(added(record, content, wish(content)))
        record = replace(record, rollout=None)  # as if it were promoted and rolled back, which keeps it known
    assert len(record.versions) == 50
    kept = {known.version.digest for known in record.versions}
    assert {record.promoted, *record.before[:1], NUMBERED[-1].digest} <= kept
    assert NUMBERED[2].digest not in kept
    busy = there(added(record, TWO, wish(TWO)))
    for content in NUMBERED[2:]:
        busy = filed(busy, content)
    assert busy.version(TWO.digest) == TWO
    assert len(busy.versions) == 50
    assert len(busy.before) == 20


# --- any sequence of them

Step = tuple[str, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["file", "nothing filed", "add", "promote", "roll back", "refuse", "try", "remove"]),
        st.integers(0, 4),
    ),
    max_size=30,
)


def done(record: AdapterRecord | None, step: Step, at: int) -> AdapterChange:
    """What one step makes of it."""
    what, number = step
    content = NUMBERED[number]
    if what == "file":
        return as_filed(record, content, at)
    if what == "nothing filed":
        return as_filed(record, None, at)
    if what == "add":
        return added(record, content, wish(content, since=at))
    if record is None:
        return record, ()
    rest: dict[str, Callable[[AdapterRecord], AdapterChange]] = {
        "promote": lambda one: promoted(one, content.digest, at, "local", ""),
        "roll back": lambda one: rolled_back(one, at, "local"),
        "refuse": lambda one: ended(one, at, "tuneplex", "refused", ""),
        "try": lambda one: tried(one, at, ""),
        "remove": lambda one: removed(one, at, "local"),
    }
    return rest[what](record)


def told(record: AdapterRecord | None) -> tuple[str, str]:
    """What of a record cannot change without an event."""
    if record is None:
        return "", ""
    return record.promoted, record.rollout.digest if record.rollout is not None else ""


def holds(record: AdapterRecord) -> None:
    """What is true of any record."""
    known = [one.version.digest for one in record.versions]
    assert len(set(known)) == len(known) <= 50
    assert not record.promoted or record.promoted in known
    assert record.promoted or not record.before
    assert record.promoted not in record.before
    assert len(set(record.before)) == len(record.before)
    assert "" not in record.before
    if record.rollout is not None:
        assert record.rollout.digest in known
        assert record.rollout.digest != record.promoted
    assert record.promoted or record.rollout is not None


@settings(max_examples=150, deadline=None)
@given(steps)
def test_whatever_is_done_a_record_makes_sense(sequence: list[Step]) -> None:
    """The promoted version is known, the one on its way is another one, and no way back leads to where one is."""
    record: AdapterRecord | None = None
    for at, step in enumerate(sequence):
        before = record
        try:
            record, events = done(record, step, at)
        except StoreError:
            continue
        assert {event.adapter for event in events} <= {"one"}
        if record is not None:
            holds(record)
            same = record.version(record.filed)
            assert same is None or as_filed(record, same, at) == (record, ())
        assert events or told(before) == told(record)


# --- pools


def test_an_adapter_goes_where_it_just_fits() -> None:
    """To the smallest shared pool, to a reserved one only where there is no other, and to the named one if it fits."""
    small, large = PoolSpec("small", max_lora_rank=16), PoolSpec("large", max_lora_rank=64)
    mine, other = PoolSpec("mine", max_lora_rank=8, tenants=("acme",)), PoolSpec("other", engine="openai")
    pools = (other, large, small, mine)
    assert [pool_for(pools, rank) for rank in (8, 16, 17, 65)] == ["small", "small", "large", None]
    assert pool_for((mine, other), 8) == "mine"
    assert [pool_for(pools, 8, name) for name in ("large", "mine", "other", "gone")] == ["large", "mine", None, None]
    assert pool_for(pools, 32, "small") is None
    assert pool_for((), 8) is None


# --- what a fleet should be


def test_a_fleet_has_what_is_promoted_and_what_is_on_its_way(make_spec: MakeSpec) -> None:
    """A version that is only probed is loaded and gets no requests; one that is tried gets its share."""
    spec = make_spec(version("zoe"), ONE)
    record = there(added(filed(filed(None, ONE), TWO), THREE, wish(THREE, share=0.25, divided_by="key")))
    fleet = fleet_with(spec, {"one": record})
    assert fleet.adapters == (version("zoe"), TWO)
    assert fleet.candidates == (Candidate(THREE),)
    begun = fleet_with(spec, {"one": there(tried(record, 9.5, ""))})
    assert begun.candidates == (Candidate(THREE, Trial(THREE.id, 0.25, f"{THREE.id} 9.500", "key")),)
    assert begun.loaded == (version("zoe"), TWO, THREE)


def test_an_adapter_that_only_was_added_follows_those_of_the_file(make_spec: MakeSpec) -> None:
    """By its name; while nothing of it is promoted, it is no adapter of the fleet yet."""
    two, amy = filed(None, version("two")), there(added(None, version("amy"), wish(version("amy"))))
    spec = make_spec(ONE)
    fleet = fleet_with(spec, {"two": two, "amy": amy, "one": filed(None, ONE)})
    assert [one.name for one in fleet.adapters] == ["one", "two"]
    assert [one.version.name for one in fleet.candidates] == ["amy"]
    assert fleet_with(spec, {"one": filed(None, ONE)}) == spec


def test_a_version_stays_in_its_pool_as_long_as_that_takes_it() -> None:
    """The file's pool comes first, then the one it was added to, then any; one that fits nowhere is left out."""
    small, large = PoolSpec("small", max_lora_rank=8), PoolSpec("large", max_lora_rank=64)
    spec = FleetSpec("fleet", BASE, (version("one", pool="large"),), pools=(small, large))
    records = {name: filed(None, version(name, "b", pool="large")) for name in ("one", "two")}
    assert {one.name: one.pool for one in fleet_with(spec, records).adapters} == {"one": "large", "two": "large"}
    gone = replace(spec, pools=(small,))
    assert {one.pool for one in fleet_with(gone, records).adapters} == {"small"}
    too_large = {"one": filed(None, replace(ONE, rank=128))}
    assert fleet_with(spec, too_large).adapters == ()
