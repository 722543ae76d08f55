"""Heads of the audit log in a bucket with Object Lock: kept for good, and read again whatever somebody does to them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.support.audits import NOW, Clock, events, small_log
from tests.support.object_proxy import Proxy
from tests.support.object_stores import ObjectStore
from tuneplex.cli.main import run
from tuneplex.control.heads import Heads
from tuneplex.errors import AuditError
from tuneplex.objects import Place
from tuneplex.records.audit import AuditLog, Head, SignedHead, kept_heads, lock_head, newest_head
from tuneplex.types import Keeping
from tuneplex.types import ObjectStore as Settings

DAY_S = 86400.0
SIGNED = SignedHead(17, "ab" * 32, 1.0, "0123456789abcdef")


@dataclass(frozen=True)
class Kept:
    """A bucket with Object Lock, and the place in it."""

    bucket: str
    place: Place

    @property
    def keys(self) -> list[str]:
        """What is called how in it."""
        return [self.place.key("0123456789abcdef/000000000000000017-" + "ab" * 32 + ".json")]


@pytest.fixture
def there(weed: ObjectStore) -> Kept:
    """Where heads are kept."""
    bucket = weed.bucket(locked=True)
    return Kept(bucket, Place(bucket, "fleet/heads"))


def lock(place: Place, signed: SignedHead = SIGNED) -> None:
    """Keep a head for two days."""
    lock_head(place, Settings(), signed, time.time() + 2 * DAY_S)


def test_a_head_cannot_be_deleted(weed: ObjectStore, there: Kept) -> None:
    """A head is kept in compliance mode for the time that was asked for: its deletion is refused."""
    lock(there.place)
    (version,) = weed.client.list_object_versions(Bucket=there.bucket)["Versions"]
    assert [version["Key"]] == there.keys
    head = weed.client.head_object(Bucket=there.bucket, Key=version["Key"])
    assert head["ObjectLockMode"] == "COMPLIANCE"
    assert 1.9 * DAY_S < head["ObjectLockRetainUntilDate"].timestamp() - time.time() <= 2 * DAY_S
    with pytest.raises(ClientError, match="AccessDenied"):
        weed.client.delete_object(Bucket=there.bucket, Key=version["Key"], VersionId=version["VersionId"])


def test_a_head_that_somebody_hides(weed: ObjectStore, there: Kept) -> None:
    """A deletion that names no version only hides a head; it is found all the same."""
    lock(there.place)
    weed.client.delete_object(Bucket=there.bucket, Key=there.keys[0])
    assert "Contents" not in weed.client.list_objects_v2(Bucket=there.bucket)
    assert kept_heads(there.place, Settings(), SIGNED.key_id) == [Head(17, b"\xab" * 32)]
    with pytest.raises(AuditError, match="no head of a log with the key other was ever kept there"):
        kept_heads(there.place, Settings(), "other")


def test_a_bucket_without_a_lock(weed: ObjectStore) -> None:
    """A bucket without Object Lock is refused before anything is stored, with what to do."""
    bucket = weed.bucket()
    with pytest.raises(AuditError, match="has no Object Lock") as caught:
        lock(Place(bucket, "heads"))
    assert "make another bucket" in caught.value.hint
    assert weed.files(bucket, "heads") == {}


def test_a_store_that_only_says_so(front: Proxy, there: Kept) -> None:
    """A store that takes the lock and does not keep it is noticed."""
    front.hidden.add("x-amz-object-lock-mode")
    with pytest.raises(AuditError, match="can be deleted: the store does not lock objects"):
        lock(there.place)


async def test_control_keeps_one_a_minute(weed: ObjectStore, there: Kept) -> None:
    """The newest head is kept once, and the next one is looked for a minute later; failures wait as for any place."""
    newest = [SIGNED]
    heads = Heads(lambda: Keeping(head_url=str(there.place), head_lock_s=DAY_S), lambda: newest[-1])
    assert [await heads.look(), await heads.look()] == [60, 60]
    newest.append(SignedHead(18, "cd" * 32, 2.0, SIGNED.key_id))
    await heads.look()
    assert [head.n for head in kept_heads(there.place, Settings(), SIGNED.key_id)] == [17, 18]
    assert len(weed.client.list_object_versions(Bucket=there.bucket)["Versions"]) == 2
    nowhere = Heads(lambda: Keeping(head_url="s3://no-such-bucket/heads"), lambda: SIGNED)
    assert [await nowhere.look(), await nowhere.look()] == [2, 4]


def test_a_log_is_verified_against_them(there: Kept, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`audit verify --expect s3://…` holds the log against all heads that were kept, and finds one made anew."""
    log = tmp_path / "audit"
    small_log(log)
    signed = newest_head(log)
    assert signed is not None
    lock(there.place, signed)
    command = ["audit", "verify", str(log), "--public-key", str(log / "public.pem"), "--expect", str(there.place)]
    assert run(command) == 0
    assert f"agrees with the heads in {there.place}: 1, the newest of record {signed.n}" in capsys.readouterr().out
    for segment in log.glob("*.jsonl"):
        segment.unlink()
    with AuditLog(log, clock=Clock(NOW)) as anew:
        anew.append(events(1, 40))
        lock(there.place, anew.checkpoint())
    assert run(command) == 1
    assert "this log was changed and made anew" in capsys.readouterr().out


def test_expecting_what_is_no_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A place that is none, and one without heads, are said to be that."""
    small_log(tmp_path)
    assert run(["audit", "verify", str(tmp_path), "--expect", "s3://bucket"]) == 2
    assert "is not a place in an object store" in capsys.readouterr().err
    assert run(["audit", "verify", str(tmp_path), "--expect", "s3://no-such-bucket/heads"]) == 1
    assert "there is no such bucket" in capsys.readouterr().err
