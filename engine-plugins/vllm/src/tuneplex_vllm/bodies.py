"""What the routes take and what they answer; pure functions from what is known to JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from tuneplex_vllm.snapshot import Row, State

__all__ = [
    "Counts",
    "Drain",
    "Known",
    "Load",
    "Named",
    "Paths",
    "RefusedError",
    "Sleep",
    "Unload",
    "counts_of",
    "digest_of",
    "entry",
    "totals",
]

Counts: TypeAlias = "tuple[int | None, int | None]"
"""Running and waiting requests; None when that is not known."""

_CHUNK = 1 << 20


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Named(_Body):
    """One adapter."""

    name: str


class Load(_Body):
    """An adapter to load, from a directory that the engine can read."""

    name: str
    path: str = Field(min_length=1)
    tier: Literal["device", "host"] = "device"
    replace: bool = False


class Unload(_Body):
    """An adapter to unload, and what its running requests mean for that."""

    name: str
    running: Literal["wait", "refuse"] = "wait"
    timeout_s: Annotated[float, Field(ge=0)] = 60.0


class Sleep(_Body):
    """How deep to sleep. Deeper than 1, the engine would forget its weights, and could not wake by itself."""

    level: Literal[1] = 1


class Drain(_Body):
    """How long to wait for running requests."""

    timeout_s: Annotated[float, Field(ge=0)] = 60.0


class RefusedError(Exception):
    """Why a route does not do what it was asked for.

    Args:
        status: The answer's status.
        code: A word for programs.
        message: A sentence for people.
        param: The field of the body that it is about.
    """

    def __init__(self, status: HTTPStatus, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        """The answer's body, in OpenAI's shape."""
        kind = f"{self.status.phrase.title().replace(' ', '')}Error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class Known:
    """An adapter as the API server knows it.

    Attributes:
        name: What clients call it.
        id: What the engine calls it.
        path: Where it was loaded from, as whoever loaded it said.
    """

    name: str
    id: int
    path: str


def digest_of(directory: str) -> str | None:
    """The SHA-256 of an adapter's files, the same only for the same content; None when there are none."""
    digest = hashlib.sha256()
    try:
        files = sorted(path for path in Path(directory).iterdir() if path.name.startswith("adapter_"))
        for path in files:
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest() if files else None


class Paths:
    """The same directory in other words for each content: vLLM's prefix cache knows only an adapter's name and path."""

    def __init__(self) -> None:
        self._contents: dict[tuple[str, str], list[str]] = {}

    def of(self, name: str, path: str, digest: str) -> str:
        """A path that means the same directory, and that no other content of this name was ever given."""
        plain = path
        while plain.endswith(("/.", "/")) and plain.strip("/."):
            plain = plain.removesuffix("/.").removesuffix("/")
        contents = self._contents.setdefault((name, plain), [])
        if digest not in contents:
            contents.append(digest)
        return plain + "/." * contents.index(digest)


def counts_of(requests: Iterable[tuple[int, bool]]) -> dict[int, Counts]:
    """Running and waiting requests by adapter, from the adapter's id of each request and whether it runs."""
    counts: dict[int, list[int]] = {}
    for adapter, runs in requests:
        counts.setdefault(adapter, [0, 0])[not runs] += 1
    return {adapter: (running, waiting) for adapter, (running, waiting) in counts.items()}


def entry(known: Known, row: Row | None, last: Row | None, counts: Counts, *, told: bool = True) -> dict[str, Any]:
    """One adapter, as the routes answer.

    Args:
        known: Its name, id and path.
        row: What the worker has of it; None when it was evicted.
        last: What the worker last had of it.
        counts: Its requests.
        told: Whether the worker tells at all; without, its tier is not known.
    """
    seen = row or last
    tier = ("disk" if row is None else "host" if row.slot is None else "device") if told else None
    return {
        "name": known.name,
        "id": known.id,
        "path": known.path,
        "rank": None if seen is None else seen.rank,
        "bytes": None if seen is None else seen.size,
        "tier": tier,
        "slot": None if row is None else row.slot,
        "pinned": row is not None and row.pinned,
        "last_used": None if seen is None else seen.used_at,
        "running": counts[0],
        "waiting": counts[1],
        "activation_ms": None if seen is None or seen.activation_s is None else seen.activation_s * 1000,
    }


def totals(state: State | None, now: float) -> Mapping[str, Any]:
    """The part of the list that comes from the worker; `now` is the machine's monotonic clock."""
    if state is None:
        names = ("slots", "slots_used", "host_capacity", "host_used", "slot_bytes", "max_rank", "age_s")
        return dict.fromkeys(names) | {"activations": {"count": None, "seconds": None, "bytes": None}}
    return {
        "slots": state.slots,
        "slots_used": sum(row.slot is not None for row in state.rows),
        "host_capacity": state.host_capacity,
        "host_used": len(state.rows),
        "slot_bytes": state.slot_bytes,
        "max_rank": state.max_rank,
        "activations": {
            "count": state.activations,
            "seconds": state.activation_s,
            "bytes": state.activation_bytes,
        },
        "age_s": max(0.0, now - state.at),
    }
