"""`adapters import`: from a tree of adapters, or a line of vLLM, to a fleet file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tuneplex.adapters import Progress, Report, Verdict
from tuneplex.adapters.found import find_adapters, names_for
from tuneplex.app.judging import Against, against, judge
from tuneplex.cli import render_gate
from tuneplex.cli.progress import shown
from tuneplex.cli.terminal import Cell, Sheet, Terminal
from tuneplex.errors import SourceError, UserError
from tuneplex.files import write_whole
from tuneplex.fleetfile import load, parse_source
from tuneplex.fleetfile.compose import Draft, DraftAdapter, DraftPool, compose
from tuneplex.fleetfile.sources import is_hub_name
from tuneplex.fleetfile.vllm_line import Line, Module, read_line

__all__ = ["Wish", "run"]

_POOL = "default"
_BASES_AT_MOST = 5


class Wish(msgspec.Struct, frozen=True):
    """How `adapters import` was called.

    Attributes:
        words: A directory, or a line of vLLM.
        base: The base's source; empty leaves it to the line, or to what the adapters say.
        to: The fleet file; standard output if it is not given.
        force: Replace a fleet file that is there.
        by_rank: A pool for each `max_lora_rank` that is needed, instead of one for all.
        as_json: For scripts.
    """

    words: tuple[str, ...]
    base: str = ""
    to: Path | None = None
    force: bool = False
    by_rank: bool = False
    as_json: bool = False


class _Candidate(msgspec.Struct, frozen=True):
    """An adapter that was found; `refused` says why it has no report, if it could not even be fetched."""

    name: str
    source: str
    report: Report | None = None
    refused: str = ""

    @property
    def taken(self) -> bool:
        """Whether it may be in the fleet file."""
        return self.report is not None and self.report.verdict is not Verdict.REFUSED

    @property
    def why(self) -> str:
        """Why it may not."""
        refusal = self.report.refusal if self.report else None
        return f"{refusal.detail}. Way out: {refusal.way_out}" if refusal and refusal.way_out else self._short

    @property
    def _short(self) -> str:
        refusal = self.report.refusal if self.report else None
        return refusal.detail if refusal else self.refused


def run(wish: Wish) -> int:
    """Write a fleet file; 1 if adapters had to be left out of it.

    Raises:
        UserError: There is nothing to import, the base is not known, or the file is there already.
    """
    if wish.to is not None and wish.to.exists() and not wish.force:
        hint = "--force replaces it, with all that is in it; or write to another file, and copy what you want"
        raise UserError(f"{wish.to} is there already", hint=hint)
    terminal = Terminal.standard()
    line, notes = _sources(wish)
    with shown(terminal) as progress:
        beside = _beside(wish.base or _source(line.model), progress)
        found = []
        progress.step(f"checking {len(line.modules)} adapters")
        for at, module in enumerate(line.modules):
            found.append(_judged(module, beside, progress))
            progress.advance(at + 1, len(line.modules))
    if not any(one.taken for one in found):
        why = found[0].why if found else "there are none"
        raise UserError(f"no adapter can be served; the first one: {why}", hint="`tuneplex adapters check` tells more")
    base = beside.source or _recorded(found)
    found = _named(Path(wish.words[0]), found, base) if _is_tree(wish) else found
    draft = _draft(wish, line, base, found)
    text = compose(draft)
    _check(text, wish.to)
    _tell(terminal, wish, found, text, (*notes, *line.notes))
    return 0 if all(one.taken for one in found) else 1


def _sources(wish: Wish) -> tuple[Line, tuple[str, ...]]:
    """The adapters of a tree as if vLLM had been given them, or what a line of vLLM says."""
    if len(wish.words) > 1 and Path(wish.words[0]).is_dir():
        raise UserError(f"a directory needs no {wish.words[1]!r}", hint="see `tuneplex adapters import --help`")
    if not _is_tree(wish):
        return read_line(wish.words), ()
    root = Path(wish.words[0])
    tree = find_adapters(root)
    if not tree.directories:
        raise UserError(f"{root} holds no adapters", hint="a directory that PEFT saved has adapter_config.json")
    notes = []
    if tree.below:
        notes.append(f"inside of adapters, {tree.below} more were left out: earlier states of the same ones")
    if not tree.whole:
        notes.append("the tree is too large; import its parts one after the other")
    return Line(modules=tuple(Module(_inside(root, one), str(one)) for one in tree.directories)), tuple(notes)


def _is_tree(wish: Wish) -> bool:
    return len(wish.words) == 1 and Path(wish.words[0]).is_dir()


def _inside(root: Path, directory: Path) -> str:
    return directory.relative_to(root).as_posix() if directory != root else root.absolute().name


def _named(root: Path, found: Sequence[_Candidate], base: str) -> list[_Candidate]:
    """What is taken gets its name; what is not takes none away, and is called as it lies in the tree."""
    model = parse_source(base).model_name
    names = names_for(root, [Path(one.source) for one in found if one.taken], frozenset({model}))
    return [msgspec.structs.replace(one, name=names.get(Path(one.source), one.name)) for one in found]


def _source(text: str) -> str:
    """As vLLM reads a name: a directory that is there, else a repository on the hub."""
    path = Path(text).expanduser()
    return f"hf:{text}" if text and not path.exists() and is_hub_name(text) else text


def _beside(base: str, progress: Progress) -> Against:
    """What adapters are held against. A base on the hub is not fetched for this; `tuneplex up` looks at any.

    Raises:
        UserError: It is no base.
    """
    if not base.startswith("hf:"):
        return against(base, progress) if base else Against()
    try:
        return Against(source=base, name=parse_source(base).model_name)
    except ValueError as error:
        raise UserError(f"{base}: {error}") from None


def _judged(module: Module, beside: Against, progress: Progress) -> _Candidate:
    source = _source(module.path)
    try:
        return _Candidate(module.name, source, judge(source, beside, progress, deep=False))
    except SourceError as error:
        return _Candidate(module.name, source, refused=str(error))


def _recorded(found: Sequence[_Candidate]) -> str:
    """The base that all adapters say they were trained on.

    Raises:
        UserError: They do not say, or not the same.
    """
    said = sorted({one.report.facts.base_name for one in found if one.taken and one.report})
    if len(said) != 1 or not said[0]:
        named = ", ".join(name or "none" for name in said[:_BASES_AT_MOST])
        hint = "name it with --base: a fleet has one base, so import the adapters of each on their own"
        raise UserError(f"the adapters were trained on several bases: {named}", hint=hint)
    return _source(said[0])


def _draft(wish: Wish, line: Line, base: str, found: Sequence[_Candidate]) -> Draft:
    root = wish.to.parent if wish.to else Path()
    taken = [one for one in found if one.taken]
    return Draft(
        base=_relative(base, root),
        base_name=line.served_name,
        adapters=tuple(DraftAdapter(one.name, _relative(one.source, root), _note(one)) for one in taken),
        pools=tuple(_pools(wish, line, taken)),
        gateway={} if line.port is None else {"port": line.port},
        head=("Written by `tuneplex adapters import`. docs/fleet-file.md has all keys.",),
    )


def _relative(source: str, root: Path) -> str:
    """A path from the fleet file's directory, where it lies below that; else the whole one."""
    if source.startswith(("hf:", "pypi:")):
        return source
    absolute, above = Path(source).expanduser().absolute(), root.absolute()
    inside = absolute.is_relative_to(above) and absolute != above
    return f"./{absolute.relative_to(above).as_posix()}" if inside else os.path.normpath(absolute)


def _note(one: _Candidate) -> str:
    return f"rank {one.report.facts.rank}" if one.report else ""


def _pools(wish: Wish, line: Line, taken: Sequence[_Candidate]) -> Iterator[DraftPool]:
    ranks = sorted({one.report.facts.max_lora_rank or 0 for one in taken if one.report})
    if wish.by_rank and len(ranks) > 1:
        keys = {key: value for key, value in line.pool.items() if key != "max_lora_rank"}
        yield from (DraftPool(f"rank-{rank}", keys | {"max_lora_rank": rank}, line.engine_args) for rank in ranks)
    elif line.pool or line.engine_args:
        yield DraftPool(_POOL, line.pool, line.engine_args)


def _check(text: str, to: Path | None) -> None:
    """Load what was written from where it will lie, before anybody else does."""
    directory = to.parent if to else Path()
    try:
        descriptor, name = tempfile.mkstemp(prefix=".tuneplex-import-", suffix=".yaml", dir=directory)
    except OSError as error:
        raise UserError(f"{directory.absolute()}: cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        load(Path(name))
    except UserError as error:
        raise UserError(str(error).replace(name, str(to or "the fleet file")), hint=error.hint) from None
    finally:
        Path(name).unlink()


def _tell(terminal: Terminal, wish: Wish, found: Sequence[_Candidate], text: str, notes: Sequence[str]) -> None:
    if wish.to is not None:
        write_whole(wish.to, text.encode())
    if wish.as_json:
        terminal.json({"fleet_file": str(wish.to) if wish.to else None, "text": text, **_as_json(found, notes)})
        return
    if wish.to is None:
        terminal.write(text)
        for one in found:
            if not one.taken:
                terminal.warn(f"{one.name} is left out: {one.why}")
    else:
        terminal.show(_sheet(found))
        terminal.gap()
    for note in notes:
        terminal.note(note)
    if wish.to is not None:
        left = sum(not one.taken for one in found)
        out = f"; {left} left out" if left else ""
        taken = f"{len(found) - left} adapter{'' if len(found) - left == 1 else 's'}"
        terminal.say(f"{wish.to}: {taken}{out}. Start it with `tuneplex up {wish.to}`")


def _as_json(found: Sequence[_Candidate], notes: Sequence[str]) -> dict[str, object]:
    adapters = [
        {
            "name": one.name,
            "source": one.source,
            "taken": one.taken,
            "why": "" if one.taken else one.why,
            "report": msgspec.to_builtins(one.report),
        }
        for one in found
    ]
    return {"adapters": adapters, "notes": list(notes)}


def _sheet(found: Sequence[_Candidate]) -> Sheet:
    return Sheet(
        columns=("ADAPTER", "RANK", "VERDICT", "SOURCE", "NOTE"),
        rows=tuple(
            (
                Cell(one.name, "bold"),
                Cell(str(one.report.facts.rank) if one.report and one.report.facts.rank else ""),
                render_gate.verdict_cell(one.report.verdict if one.report else Verdict.REFUSED),
                Cell(one.source, "dim"),
                Cell("; ".join(_doubts(one)) if one.taken else one.why),
            )
            for one in found
        ),
        right=frozenset({"RANK"}),
        flexible=frozenset({"SOURCE", "NOTE"}),
    )


def _doubts(one: _Candidate) -> Iterator[str]:
    for finding in one.report.findings if one.report else ():
        if finding.verdict in {Verdict.WARNED, Verdict.CONVERTED}:
            yield finding.detail
