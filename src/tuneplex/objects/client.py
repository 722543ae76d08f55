"""What is asked of an object store: botocore's client with settings that all stores understand.

Botocore alone: it has no transfer manager, so the CRT client is never chosen, and checksums that only some stores know
are sent where an operation demands them and nowhere else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import botocore.session
import msgspec
from botocore.config import Config
from botocore.exceptions import ClientError

from tuneplex.errors import ObjectStoreError
from tuneplex.objects.place import Place
from tuneplex.objects.told import told
from tuneplex.types import ObjectStore

__all__ = ["Found", "Objects", "Part"]

_CONNECT_S, _READ_S = 10, 30
_TRIES = 3
_CHUNK = 1 << 20
_MISSING = frozenset({"404", "NoSuchKey"})


class Found(msgspec.Struct, frozen=True):
    """An object, as the store lists it.

    Attributes:
        name: The last part of its key.
        size: Bytes.
        etag: What changes with its content.
        sha256: What `put` was told of it, or empty; only `stat` tells it.
    """

    name: str
    size: int
    etag: str
    sha256: str = ""


class Part(msgspec.Struct, frozen=True):
    """A part of an upload, as the store has it.

    Attributes:
        number: From 1.
        size: Bytes.
        etag: The MD5 of its content, on most stores.
    """

    number: int
    size: int
    etag: str


class Objects:
    """The objects directly below one place. Its methods may be called from several threads at once.

    Each of them raises `ObjectStoreError` where the store refuses or does not answer.

    Args:
        place: Where they lie.
        store: Which store; what it leaves open comes from the environment and from AWS's own files, as credentials do.
        connections: How many calls are under way at once, at most.

    Raises:
        ObjectStoreError: The settings make no sense.
    """

    def __init__(self, place: Place, store: ObjectStore | None = None, *, connections: int = 8) -> None:
        self.place = place
        store = store or ObjectStore()
        config = Config(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            retries={"mode": "standard", "total_max_attempts": _TRIES},
            max_pool_connections=connections,
            user_agent_extra="tuneplex",
        )
        with told(str(place)):
            session = botocore.session.get_session()
            region = store.region or None
            self._client: Any = session.create_client(
                "s3", region_name=region, endpoint_url=store.endpoint or None, config=config
            )

    def listed(self) -> list[Found]:
        """All objects directly below the place, in the order of their names."""
        prefix = self.place.key("")
        with told(str(self.place)):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.place.bucket, Prefix=prefix, Delimiter="/"
            )
            listed = [one for page in pages for one in page.get("Contents", ())]
        found = [Found(one["Key"].removeprefix(prefix), one["Size"], one["ETag"]) for one in listed]
        return sorted((one for one in found if one.name), key=lambda one: one.name)

    def stat(self, name: str) -> Found | None:
        """One object, if it is there."""
        with told(str(self.place)):
            try:
                head = self._client.head_object(**self._at(name))
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in _MISSING:
                    return None
                raise
        return Found(name, head["ContentLength"], head["ETag"], head.get("Metadata", {}).get("sha256", ""))

    def read(self, found: Found, begin: int, end: int) -> Iterator[bytes]:
        """The bytes from `begin` to before `end`, in pieces, of the very content that was found."""
        what = f"{self.place}/{found.name}"
        with told(what):
            reply = self._client.get_object(
                **self._at(found.name), Range=f"bytes={begin}-{end - 1}", IfMatch=found.etag
            )
            body = reply["Body"]
            try:
                if reply["ContentLength"] != end - begin:
                    raise ObjectStoreError(f"{what}: the object store does not answer with the range it was asked for")
                yield from body.iter_chunks(_CHUNK)
            finally:
                body.close()

    def get(self, found: Found) -> bytes:
        """A small object as a whole."""
        return b"".join(self.read(found, 0, found.size)) if found.size else b""

    def put(self, name: str, content: bytes, *, sha256: str = "") -> None:
        """Store a small object as a whole."""
        metadata = {"Metadata": {"sha256": sha256}} if sha256 else {}
        with told(f"{self.place}/{name}"):
            self._client.put_object(**self._at(name), Body=content, ContentMD5=_md5(content), **metadata)

    # --- large objects, part by part

    def uploads(self, name: str) -> list[str]:
        """The ids of uploads of this object that were begun and not completed, the newest first."""
        with told(f"{self.place}/{name}"):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.place.bucket, Prefix=self.place.key(name)
            )
            found = [one for page in pages for one in page.get("Uploads", ()) if one["Key"] == self.place.key(name)]
        found.sort(key=lambda one: one["Initiated"], reverse=True)
        return [one["UploadId"] for one in found]

    def begin(self, name: str, *, sha256: str) -> str:
        """Begin an upload; its id."""
        with told(f"{self.place}/{name}"):
            reply = self._client.create_multipart_upload(**self._at(name), Metadata={"sha256": sha256})
        return str(reply["UploadId"])

    def parts(self, name: str, upload: str) -> dict[int, Part]:
        """The parts that have arrived, by number."""
        with told(f"{self.place}/{name}"):
            pages = self._client.get_paginator("list_parts").paginate(**self._at(name), UploadId=upload)
            listed = [one for page in pages for one in page.get("Parts", ())]
        return {one["PartNumber"]: Part(one["PartNumber"], one["Size"], one["ETag"].strip('"')) for one in listed}

    def put_part(self, name: str, upload: str, number: int, content: bytes) -> Part:
        """Send one part; the store compares its MD5."""
        with told(f"{self.place}/{name}"):
            reply = self._client.upload_part(
                **self._at(name), UploadId=upload, PartNumber=number, Body=content, ContentMD5=_md5(content)
            )
        return Part(number, len(content), reply["ETag"].strip('"'))

    def complete(self, name: str, upload: str, parts: Mapping[int, Part]) -> None:
        """Make the object of its parts."""
        listed = [{"PartNumber": number, "ETag": f'"{parts[number].etag}"'} for number in sorted(parts)]
        with told(f"{self.place}/{name}"):
            self._client.complete_multipart_upload(**self._at(name), UploadId=upload, MultipartUpload={"Parts": listed})

    def abandon(self, name: str, upload: str) -> None:
        """Give an upload up, with all its parts."""
        with told(f"{self.place}/{name}"):
            self._client.abort_multipart_upload(**self._at(name), UploadId=upload)

    # --- objects that nobody can delete before their time

    def put_locked(self, name: str, content: bytes, until: datetime) -> None:
        """Store an object that nobody can change or delete until then: Object Lock in compliance mode.

        Raises:
            ObjectStoreError: The bucket has no Object Lock, or the store only says that it has.
        """
        what = f"{self.place}/{name}"
        with told(what):
            self._client.put_object(
                **self._at(name),
                Body=content,
                ContentMD5=_md5(content),
                ContentType="application/json",
                ObjectLockMode="COMPLIANCE",
                ObjectLockRetainUntilDate=until,
            )
            head = self._client.head_object(**self._at(name))
        if head.get("ObjectLockMode") != "COMPLIANCE":
            raise ObjectStoreError(f"{what}: was stored, but can be deleted: the store does not lock objects")

    def is_lockable(self) -> bool:
        """Whether the bucket has Object Lock."""
        with told(str(self.place)):
            try:
                reply = self._client.get_object_lock_configuration(Bucket=self.place.bucket)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in _NO_LOCK:
                    return False
                raise
        return bool(reply["ObjectLockConfiguration"].get("ObjectLockEnabled") == "Enabled")

    def ever(self) -> list[str]:
        """The names of all objects that were ever stored below the place and not really deleted, in order.

        An object that was deleted without naming its version is only hidden, so it is among them.
        """
        prefix = self.place.key("")
        with told(str(self.place)):
            pages = self._client.get_paginator("list_object_versions").paginate(Bucket=self.place.bucket, Prefix=prefix)
            keys = {one["Key"] for page in pages for one in page.get("Versions", ())}
        return sorted(key.removeprefix(prefix) for key in keys)

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self.place.bucket, "Key": self.place.key(name)}


_NO_LOCK = frozenset({"ObjectLockConfigurationNotFoundError", "ObjectLockConfigurationNotFound"})


def _md5(content: bytes) -> str:
    """As `Content-MD5` wants it, which stores compare; it keeps nobody from anything."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
