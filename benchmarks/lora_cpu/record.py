"""The JSON file of a run: written after every round, so that an interruption loses one round at most."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

from benchmarks.errors import BenchmarkError
from benchmarks.lora_cpu.checks import Tokens
from benchmarks.lora_cpu.plan import Cell, Plan
from benchmarks.machine import machine

__all__ = ["Load", "Piece", "Record", "Session", "begin", "read", "session", "write"]


class Load(msgspec.Struct, frozen=True):
    """Cores that were used while a cell was measured.

    Attributes:
        engine: By the engine that was asked.
        load: By the load generator.
        idle: By the other engines, which had nothing to do.
        others: By all others on the machine, a disturbance.
        average: The machine's load average over the last minute, at the end.
    """

    engine: float
    load: float
    idle: float
    others: float
    average: float


class Piece(msgspec.Struct, frozen=True):
    """One cell, measured once.

    Attributes:
        round: Its number, from 1; all cells of one number were measured one after the other.
        session: Number of the start of the engines, from 1; more than one if the run was interrupted.
        cell: What was measured.
        wall_s: From the first request to the end of the last reply.
        tokens_per_s: Output tokens of all clients in a second of that time.
        ttft_ms: Time to the first token, of each request.
        tpot_ms: Time between tokens after the first one, of each request.
        changed: Share of the adapters' answers that differ from the base's to the same prompt; None if none was asked.
        busy: Who used the processor meanwhile.
    """

    round: int
    session: int
    cell: Cell
    wall_s: float
    tokens_per_s: float
    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]
    changed: float | None
    busy: Load


class Session(msgspec.Struct, frozen=True):
    """One start of the engines.

    Attributes:
        started: When, in UTC.
        versions: Of what is measured and of what measures.
        commands: The engines' command lines, without directories.
        answers: What each model of each engine said to the question of the check, as token ids.
    """

    started: str
    versions: dict[str, str]
    commands: dict[str, list[str]]
    answers: dict[str, dict[str, Tokens]]


class Record(msgspec.Struct):
    """All of one run."""

    machine: dict[str, str | int | float | None]
    plan: Plan
    sessions: list[Session]
    pieces: list[Piece]

    @property
    def rounds(self) -> int:
        """How many rounds are complete."""
        return max((piece.round for piece in self.pieces), default=0)


def begin(plan: Plan, file: Path, *, resume: bool) -> Record:
    """A record to go on with: a new one, or the interrupted one in the file.

    Raises:
        BenchmarkError: The file exists and must not be overwritten, or holds a run that cannot be continued.
    """
    if not file.exists():
        return Record(machine(), plan, [], [])
    if not resume:
        raise BenchmarkError(f"{file} exists; --resume goes on with it, or give another name")
    record = read(file)
    if (record.plan, record.machine) != (plan, machine()):
        raise BenchmarkError(f"{file} holds a run with other settings, or of another machine")
    return record


def session(commands: dict[str, list[str]], answers: dict[str, dict[str, Tokens]], engine: dict[str, str]) -> Session:
    """The session that begins now; `engine` holds the versions in the engine's environment."""
    short = {name: [_short(word) for word in words] for name, words in commands.items()}
    versions = {"python": platform.python_version(), "tuneplex": version("tuneplex"), **engine}
    return Session(datetime.now(tz=UTC).isoformat(timespec="seconds"), versions, short, answers)


def _short(word: str) -> str:
    """Without directories, which say nothing and belong to one machine."""
    before, _, path = word.rpartition("=")
    return f"{before}={Path(path).name}" if before else Path(word).name if word.startswith("/") else word


def read(file: Path) -> Record:
    """The record in a file.

    Raises:
        BenchmarkError: It is not there, or is no record.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError) as error:
        raise BenchmarkError(f"{file}: {error}") from error


def write(record: Record, file: Path) -> None:
    """Put the record into the file, all of it or none."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.part")
    fields = msgspec.structs.asdict(record)
    lines = [f'"{name}": {_value(value)}' for name, value in fields.items()]
    unfinished.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    unfinished.replace(file)


def _value(value: object) -> str:
    """JSON, with each item of a list on a line of its own."""
    if isinstance(value, list):
        return "[\n" + ",\n".join(msgspec.json.encode(item).decode() for item in value) + "\n]"
    return msgspec.json.encode(value).decode()
