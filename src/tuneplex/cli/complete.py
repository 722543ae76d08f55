"""Completion of names in the shell. It must be quick and must never fail, so it only looks at files.

Names are those of any fleet, unless the environment says which one is meant.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuneplex.identity import Access
    from tuneplex.types import FleetSpec

__all__ = ["adapters", "fleets", "keys", "logs", "models", "replicas", "tenants"]


def fleets(incomplete: str) -> list[str]:
    """Names of the fleets that have a state directory."""
    return sorted(path.name for path in _usual_states() if path.name.startswith(incomplete))


def logs(incomplete: str) -> list[str]:
    """Names of processes that have a log."""
    found = {path.stem for state in _states() for path in (state / "logs").glob("*.log")}
    return sorted(name for name in found if name.startswith(incomplete))


def replicas(incomplete: str) -> list[str]:
    """Names of replicas: those that each pool begins with, and those of which there are logs."""
    found = {name for state in _states() for spec in _specs(state) for name in _replicas(state, spec)}
    return sorted(name for name in found if name.startswith(incomplete))


def models(incomplete: str) -> list[str]:
    """Names that clients may put in `model`: bases, adapters and aliases."""
    found = {name for state in _states() for name in _models(state)}
    return sorted(name for name in found if name.startswith(incomplete))


def adapters(incomplete: str) -> list[str]:
    """Names of adapters."""
    found = {name for state in _states() for name in _adapters(state)}
    return sorted(name for name in found if name.startswith(incomplete))


def tenants(incomplete: str) -> list[str]:
    """Names of tenants, as the fleet last knew them."""
    found = {tenant.name for access in _accesses() for tenant in access.tenants}
    return sorted(name for name in found if name.startswith(incomplete))


def keys(incomplete: str) -> list[str]:
    """Ids of keys that are active, as far as the fleet last knew."""
    now = int(time.time())
    found = {key.id for access in _accesses() for key in access.keys if key.expires is None or key.expires > now}
    return sorted(name for name in found if name.startswith(incomplete))


def _accesses() -> Iterator[Access]:
    """What fleets last knew of their tenants and keys; they keep that for the case that their database is down."""
    import msgspec  # noqa: PLC0415 - help must not pay for what only completion needs

    from tuneplex.app.state import StateDir  # noqa: PLC0415 - the same
    from tuneplex.identity import Access  # noqa: PLC0415 - the same

    for state in _states():
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            yield msgspec.msgpack.decode(StateDir(state).access_file.read_bytes(), type=Access)


def _states() -> list[Path]:
    """State directories of fleets: the one that the environment names, else all in the usual place."""
    named = os.environ.get("TUNEPLEX_STATE_DIR")
    return [Path(named)] if named else _usual_states()


def _usual_states() -> list[Path]:
    from tuneplex.app.state import default_path  # noqa: PLC0415 - help must not pay for what only completion needs

    root = default_path("any").parent
    return [path for path in root.iterdir() if (path / "fleet.json").is_file()] if root.is_dir() else []


def _replicas(state: Path, spec: FleetSpec) -> Iterator[str]:
    logged = [path.stem for path in (state / "logs").glob("*.log")]
    for pool in spec.pools:
        yield from (f"{pool.name}-{index}" for index in range(pool.replicas))
        yield from (name for name in logged if re.fullmatch(rf"{re.escape(pool.name)}-[0-9]+", name))


def _models(state: Path) -> Iterator[str]:
    for spec in _specs(state):
        yield spec.base.name
        yield from (adapter.name for adapter in spec.adapters)
        yield from spec.aliases


def _adapters(state: Path) -> Iterator[str]:
    yield from {*(adapter.name for spec in _specs(state) for adapter in spec.adapters), *_versions(state)}


def _versions(state: Path) -> Iterator[str]:
    """The adapters that control knows, also those that are not in the fleet file."""
    from tuneplex.app.state import StateDir  # noqa: PLC0415 - the same

    return (record.name for record in StateDir(state).read_versions())


def _specs(state: Path) -> Iterator[FleetSpec]:
    """The fleet in a state directory, if it can be read."""
    import msgspec  # noqa: PLC0415 - the same

    from tuneplex.types import FleetSpec  # noqa: PLC0415 - the same

    with contextlib.suppress(OSError, msgspec.MsgspecError):
        yield msgspec.json.decode((state / "fleet.json").read_bytes(), type=FleetSpec)
