"""Completion of names in the shell. It must be quick and must never fail, so it only looks at files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["fleets", "logs", "models"]


def fleets(incomplete: str) -> list[str]:
    """Names of the fleets that have a state directory."""
    return sorted(path.name for path in _states() if path.name.startswith(incomplete))


def logs(incomplete: str) -> list[str]:
    """Names of processes that have a log, in any fleet."""
    found = {path.stem for state in _states() for path in (state / "logs").glob("*.log")}
    return sorted(name for name in found if name.startswith(incomplete))


def models(incomplete: str) -> list[str]:
    """Names that clients may put in `model`: bases, adapters and aliases of any fleet."""
    found = {name for state in _states() for name in _models(state)}
    return sorted(name for name in found if name.startswith(incomplete))


def _states() -> list[Path]:
    from tuneplex.app.state import default_path  # noqa: PLC0415 - help must not pay for what only completion needs

    root = default_path("any").parent
    return [path for path in root.iterdir() if (path / "fleet.json").is_file()] if root.is_dir() else []


def _models(state: Path) -> Iterator[str]:
    import msgspec  # noqa: PLC0415 - the same

    from tuneplex.types import FleetSpec  # noqa: PLC0415 - the same

    try:
        spec = msgspec.json.decode((state / "fleet.json").read_bytes(), type=FleetSpec)
    except (OSError, msgspec.DecodeError):
        return
    yield spec.base.name
    yield from (adapter.name for adapter in spec.adapters)
    yield from spec.aliases
