"""`adapters add`, `show`, `promote`, `rollback` and `remove`: the versions of a running fleet's adapters."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tuneplex.adapters import Progress, Room, fetch_adapter, make_version
from tuneplex.adapters.progress import SilentProgress
from tuneplex.app.cache_users import in_use
from tuneplex.app.prepare import cache_dir
from tuneplex.app.state import StateDir
from tuneplex.cli import render_versions as render
from tuneplex.cli.admin import Admin
from tuneplex.cli.progress import shown
from tuneplex.cli.terminal import Terminal
from tuneplex.control.version_bodies import AdapterInfo, RolloutWish
from tuneplex.errors import StateError, UserError
from tuneplex.fleetfile import parse_source
from tuneplex.releases import Probing, Scorer
from tuneplex.shapes import read_base
from tuneplex.types import AdapterVersion, FleetSpec

__all__ = ["Wish", "add", "probe", "promote", "remove", "roll_back", "scorer", "show"]

_LOOK_S = 0.5
_AWAY_S = 30.0  # so long may control be away while somebody waits
_NEWS_S = 10.0
_MOST_PROBES = 200
_NUMBER = re.compile(r"[0-9.]+")


@dataclass(frozen=True, slots=True)
class Wish:
    """How `add` was called.

    Attributes:
        share: Of the requests that the version gets while it is tried, 0 to 1.
        divided_by: `user`, `key` or `request`.
        within_s: How long it is tried at most, seconds.
        probes: A file with a probe in each line.
        scorer: Tells how good answers are.
        wait: Until it is decided.
        as_json: For scripts.
    """

    share: float = 0.1
    divided_by: str = "user"
    within_s: float = 3600.0
    probes: Path | None = None
    scorer: Scorer | None = None
    wait: bool = True
    as_json: bool = False


def add(state: StateDir, name: str, source: str, wish: Wish) -> int:
    """Fetch a version, let it through the gate, and roll it out; 1 when it was waited for and is not promoted.

    Raises:
        UserError: It cannot be fetched or served, or something stands against it.
        TuneplexError: Control or the store does not answer.
    """
    terminal, probes = Terminal.standard(), read_probes(wish.probes)
    version = _version(terminal, state.read_spec(), name, source, as_json=wish.as_json)
    asked = RolloutWish(version, wish.share, wish.divided_by, wish.within_s, probes, wish.scorer)
    with Admin(state.admin_socket) as admin:
        found = admin.add_adapter(asked)
    if not wish.as_json:
        terminal.note(f"{version.id} is being rolled out")
    if wish.wait:
        return _to_its_end(terminal, state, version, wish)
    _print(terminal, found, as_json=wish.as_json)
    return 0


def show(state: StateDir, name: str, *, as_json: bool) -> int:
    """Print an adapter's versions, its rollout and its history.

    Raises:
        UserError: There is none of this name.
        TuneplexError: Control or the store does not answer.
    """
    terminal = Terminal.standard()
    with Admin(state.admin_socket) as admin:
        found, events = admin.adapter(name), admin.adapter_history(name)
    if as_json:
        terminal.json({**msgspec.to_builtins(found), "history": msgspec.to_builtins(events)})
        return 0
    now = time.time()
    terminal.show(render.versions(found, now))
    if found.rollout is not None:
        terminal.gap()
        terminal.show(render.rollout(found.rollout, now))
    terminal.gap()
    terminal.show(render.history(events))
    return 0


def promote(state: StateDir, wished: str, *, as_json: bool) -> int:
    """Let requests get a version.

    Raises:
        UserError: There is none, or they get it already.
        TuneplexError: Control or the store does not answer.
    """
    name = _named(wished)
    with Admin(state.admin_socket) as admin:
        _print(Terminal.standard(), admin.promote_adapter(name, wished), as_json=as_json)
    return 0


def roll_back(state: StateDir, name: str, *, as_json: bool) -> int:
    """Give up the version that is being rolled out, or go back to the one before.

    Raises:
        UserError: There is no such adapter, or no version before.
        TuneplexError: Control or the store does not answer.
    """
    with Admin(state.admin_socket) as admin:
        _print(Terminal.standard(), admin.roll_back_adapter(name), as_json=as_json)
    return 0


def probe(state: StateDir, wished: str, file: Path | None) -> int:
    """Print probes with the log-probabilities of their tokens, a line of JSON each.

    Raises:
        UserError: There is no such version, or the file has no probes.
        TuneplexError: Control does not answer, or no replica has it loaded.
    """
    name, probes = _named(wished), read_probes(file)
    if not probes:
        raise UserError("there is nothing to read", hint="--probes names a file with probes")
    with Admin(state.admin_socket) as admin:
        found = admin.probe_adapter(name, wished, probes)
    sys.stdout.write("".join(f"{msgspec.json.encode(one).decode()}\n" for one in found))
    return 0


def remove(state: StateDir, name: str) -> int:
    """Let nobody get an adapter any more.

    Raises:
        UserError: There is none, or it is in the fleet file.
        TuneplexError: Control or the store does not answer.
    """
    with Admin(state.admin_socket) as admin:
        admin.remove_adapter(name)
    Terminal.standard().say(f"{name} is removed; requests for it that are under way finish")
    return 0


def _named(wished: str) -> str:
    """The adapter of a version's id."""
    name, at, _digest = wished.partition("@")
    if not at:
        raise UserError(f"{wished} names no version", hint=f"write NAME@DIGEST; `tuneplex adapters show {name}`")
    return name


def scorer(url: str | None, command: str | None, tokens: int) -> Scorer | None:
    """Who tells how good answers are.

    Raises:
        UserError: Both are given, or the one that is given is none.
    """
    if url is not None and command is not None:
        raise UserError("--score-url and --score-command say the same", hint="give one of them")
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise UserError(f"--score-url: {url} is not a URL of HTTP")
        return Scorer(url=url, tokens=tokens)
    if command is None:
        return None
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UserError(f"--score-command: {error}") from error
    if not words or shutil.which(words[0]) is None:
        raise UserError(f"--score-command: there is no program {words[0] if words else 'without a name'}")
    return Scorer(command=(str(shutil.which(words[0])), *words[1:]), tokens=tokens)


def read_probes(file: Path | None) -> tuple[Probing, ...]:
    """The probes in a file: in each line a JSON object with `prompt` or `messages`, and perhaps `logprobs`.

    Raises:
        UserError: It cannot be read, or a line is something else.
    """
    if file is None:
        return ()
    try:
        lines = [line for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read: {error}") from error
    if not 1 <= len(lines) <= _MOST_PROBES:
        raise UserError(f"{file}: has {len(lines)} probes; there should be 1 to {_MOST_PROBES}")
    return tuple(_probe(file, number, line) for number, line in enumerate(lines, 1))


def _probe(file: Path, number: int, line: str) -> Probing:
    hint = 'for instance {"prompt": "Mail: …"} or {"messages": [{"role": "user", "content": "…"}]}'
    try:
        probe = msgspec.json.decode(line, type=Probing)
    except msgspec.MsgspecError as error:
        raise UserError(f"{file}, line {number}: {error}", hint=hint) from error
    if bool(probe.prompt) is bool(probe.messages):
        raise UserError(f"{file}, line {number}: needs either `prompt` or `messages`", hint=hint)
    return probe


def _version(terminal: Terminal, spec: FleetSpec, name: str, source: str, *, as_json: bool) -> AdapterVersion:
    """The version on this machine, after the gate."""
    if as_json:
        return _fetched(spec, name, source, SilentProgress())
    with shown(terminal) as progress:
        return _fetched(spec, name, source, progress)


def _fetched(spec: FleetSpec, name: str, source: str, progress: Progress) -> AdapterVersion:
    where = str(Path(source).absolute()) if parse_source(source).kind == "dir" else source
    progress.step(f"fetching and checking {source}")
    room = Room(cache_dir(), spec.storage.cache, lambda: in_use(cache_dir()))
    directory = fetch_adapter(name, where, cache_dir(), progress, store=spec.storage.objects, room=room)
    base = read_base(Path(spec.base.path)) if spec.base.path else None
    # An engine that runs elsewhere must find the files under the path that was given.
    local = any(pool.launcher == "local" for pool in spec.pools)
    return make_version(name, source, directory, base=base, cache=cache_dir() if local else None)


def _to_its_end(terminal: Terminal, state: StateDir, version: AdapterVersion, wish: Wish) -> int:
    """Tell what happens until it is decided; Ctrl-C leaves the rollout as it is."""
    told, at = "", 0.0
    try:
        while (found := _look(state, version.name)) is not None and found.rollout is not None:
            words = f"{version.id}: {found.rollout.words}"
            news = _NUMBER.sub("", words) != _NUMBER.sub("", told) or time.monotonic() - at > _NEWS_S
            if news and not wish.as_json:
                terminal.note(words)
                told, at = words, time.monotonic()
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        terminal.note(f"the rollout goes on; `tuneplex adapters show {version.name}` tells how far it is")
        raise
    return _decided(terminal, state, version, found, wish)


def _decided(
    terminal: Terminal, state: StateDir, version: AdapterVersion, found: AdapterInfo | None, wish: Wish
) -> int:
    promoted = found is not None and found.promoted == version.id
    with Admin(state.admin_socket) as admin:
        events = [event for event in admin.adapter_history(version.name) if event.version == version.id]
    last = events[-1] if events else None
    if wish.as_json:
        terminal.json({"version": version.id, "promoted": promoted, "why": last.why if last else ""})
    elif last is not None:
        terminal.say(f"{version.id} was {last.action}: {last.why}", "green" if promoted else "bold red")
    return 0 if promoted else 1


def _look(state: StateDir, name: str) -> AdapterInfo | None:
    """An adapter now, None if it is gone. A control that is just being started again is no reason to end."""
    deadline = time.monotonic() + _AWAY_S
    while True:
        try:
            with Admin(state.admin_socket) as admin:
                return next((one for one in admin.adapters() if one.name == name), None)
        except StateError:
            if time.monotonic() > deadline or not state.is_locked():
                raise
            time.sleep(_LOOK_S)


def _print(terminal: Terminal, found: AdapterInfo, *, as_json: bool) -> None:
    if as_json:
        terminal.json(msgspec.to_builtins(found))
    else:
        terminal.say(render.summary(found))
