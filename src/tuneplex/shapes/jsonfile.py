"""Reads a JSON file of a model or an adapter into a typed value."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from tuneplex.errors import SourceError

__all__ = ["read_json"]

_T = TypeVar("_T")
_MAX_BYTES = 64 * 1024 * 1024  # the index of a very large model has a few megabytes


def read_json(path: Path, kind: type[_T]) -> _T:
    """Decode the file as `kind`.

    Raises:
        SourceError: It cannot be read, is too large, or holds something else.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise SourceError(f"{path}: is too large for a configuration file")
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = "the file may be half written; fetch or export it again"
        raise SourceError(f"{path}: is not what it should be: {error}", hint=hint) from None
