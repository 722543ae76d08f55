"""Where something lies in an object store: `s3://BUCKET/PREFIX`."""

from __future__ import annotations

import re

import msgspec

__all__ = ["Place"]

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_LONGEST_PREFIX = 900  # a key has at most 1024 bytes, and names follow


class Place(msgspec.Struct, frozen=True):
    """A prefix of a bucket; what belongs together lies directly below it.

    Attributes:
        bucket: Its name.
        prefix: Without a slash at its ends; not empty.
    """

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read `s3://BUCKET/PREFIX`.

        Raises:
            ValueError: It is not one; the message says why.
        """
        rest = text.removeprefix("s3://")
        bucket, _, prefix = rest.rstrip("/").partition("/")
        if rest == text or not _BUCKET.fullmatch(bucket) or not prefix:
            raise ValueError("is not a place in an object store; write s3://BUCKET/PREFIX")
        if any(part in {"", ".", ".."} for part in prefix.split("/")) or not prefix.isprintable() or "\\" in prefix:
            raise ValueError("has a prefix that is no plain path; write s3://BUCKET/PREFIX")
        if len(prefix.encode()) > _LONGEST_PREFIX:
            raise ValueError(f"has a prefix that is longer than {_LONGEST_PREFIX} bytes")
        return cls(bucket, prefix)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def key(self, name: str) -> str:
        """The key of the object that is called so here."""
        return f"{self.prefix}/{name}"
