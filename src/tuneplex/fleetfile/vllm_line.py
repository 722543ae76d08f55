"""Reads a command line of vLLM, or only its `--lora-modules`, for what a fleet file says in its own way."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence

import msgspec

from tuneplex.errors import UserError

__all__ = ["Line", "Module", "read_line"]

_SWITCH = re.compile(r"--[A-Za-z][A-Za-z0-9_.-]*")
_SHORT = {"-tp": "--tensor-parallel-size", "-h": "--help"}
_MODULES = "--lora-modules"
_EXAMPLE = "for instance: --lora-modules contacts=./adapters/contacts sql=./adapters/sql"
# Flags that become keys of the pool, all of them whole numbers.
_POOL_KEYS = {
    "--max-loras": "max_loras",
    "--max-cpu-loras": "max_cpu_loras",
    "--max-lora-rank": "max_lora_rank",
    "--max-model-len": "max_model_len",
    "--max-num-seqs": "concurrent",
    "--tensor-parallel-size": "gpus",
}
# Flags that say nothing that a fleet would not do by itself.
_DROPPED = {
    "--enable-lora": "",
    "--uds": "each engine gets a socket of its own",
    "--api-key": "secrets are not copied: name a variable with gateway.key_env",
    "--host": "the gateway listens on 127.0.0.1: see gateway.host and gateway.tls",
}


class Module(msgspec.Struct, frozen=True):
    """One of vLLM's LoRA modules."""

    name: str
    path: str
    base_model_name: str | None = None


class Line(msgspec.Struct, frozen=True):
    """What a command line says.

    Attributes:
        model: The base; empty if the line does not name one.
        served_name: What clients call it; empty if the line does not say.
        modules: The adapters.
        pool: Keys of the fleet file's pool.
        port: The gateway's; None if the line does not say.
        engine_args: Flags that are passed on as they are.
        notes: What was left out, and why.
    """

    model: str = ""
    served_name: str = ""
    modules: tuple[Module, ...] = ()
    pool: dict[str, int | str] = {}
    port: int | None = None
    engine_args: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_line(words: Sequence[str]) -> Line:
    """Read a command line.

    Args:
        words: As a shell has split it; a word may be a whole line itself.

    Raises:
        UserError: It is no such line; the message says where.
    """
    return _Reader().read(_split(words))


def _split(words: Sequence[str]) -> list[str]:
    """A word with white space was quoted as a whole line, unless it is one of JSON."""
    parts: list[str] = []
    for word in words:
        try:
            parts += [word] if word.lstrip().startswith("{") or not re.search(r"\s", word) else shlex.split(word)
        except ValueError as error:
            raise UserError(f"the line cannot be read: {error}", hint=_EXAMPLE) from None
    return [part for part in parts if part not in {"\n", "\\"}]


class _Reader:
    """Collects what the flags say."""

    def __init__(self) -> None:
        self._model, self._served = "", ""
        self._port: int | None = None
        self._modules: list[Module] = []
        self._pool: dict[str, int | str] = {}
        self._rest: list[str] = []
        self._notes: list[str] = []

    def read(self, words: list[str]) -> Line:
        start = next((at for at, word in enumerate(words) if word.startswith("-") and word != "-m"), len(words))
        self._head(words[:start])
        for flag, values in _flags(words[start:]):
            self._flag(flag, values)
        if not self._modules:
            raise UserError("the line names no adapters", hint=_EXAMPLE)
        return Line(
            model=self._model,
            served_name=self._served,
            modules=tuple(self._modules),
            pool=self._pool,
            port=self._port,
            engine_args=tuple(self._rest),
            notes=tuple(self._notes),
        )

    def _head(self, words: list[str]) -> None:
        """`vllm serve MODEL`, or `python -m vllm.entrypoints.openai.api_server`."""
        if "serve" in words:
            self._model = "".join(words[words.index("serve") + 1 :][:1])
        elif words and not words[-1].startswith("vllm."):
            raise UserError(f"{words[0]!r} is neither a directory nor a line of vLLM", hint=_EXAMPLE)

    def _flag(self, flag: str, values: list[str]) -> None:
        known: dict[str, Callable[[list[str]], None]] = {
            _MODULES: self._add_modules,
            "--model": self._set_model,
            "--served-model-name": self._set_served,
            "--port": self._set_port,
        }
        if flag in known:
            known[flag](values)
        elif flag in _POOL_KEYS:
            self._pool[_POOL_KEYS[flag]] = _whole(flag, values)
        elif flag in _DROPPED:
            self._notes += [f"{flag} is left out: {_DROPPED[flag]}"] if _DROPPED[flag] else []
        else:
            self._rest += [flag, *values]

    def _add_modules(self, values: list[str]) -> None:
        for value in values:
            self._modules += _modules(value)

    def _set_model(self, values: list[str]) -> None:
        self._model = _one("--model", values)

    def _set_served(self, values: list[str]) -> None:
        """VLLM takes several names; the first one is its own, the others are for aliases."""
        self._served = values[0] if values else ""
        if len(values) > 1:
            self._notes.append(f"further names of the base are left out: write {', '.join(values[1:])} under aliases")

    def _set_port(self, values: list[str]) -> None:
        self._port = _whole("--port", values)


def _flags(words: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag, as vLLM documents it, with the values that follow it."""
    flag, values = "", list[str]()
    for word in words:
        name, given, value = word.partition("=")
        name = _SHORT.get(name, name)
        if not _SWITCH.fullmatch(name):
            values.append(word)
            continue
        if flag:
            yield flag, values
        flag, values = name.replace("_", "-"), [value] if given else []
    if flag:
        yield flag, values


def _one(flag: str, values: list[str]) -> str:
    if len(values) != 1:
        raise UserError(f"{flag} should have one value and has {len(values)}")
    return values[0]


def _whole(flag: str, values: list[str]) -> int:
    text = _one(flag, values)
    if not text.isascii() or not text.isdigit() or len(text) > len("2147483647"):
        raise UserError(f"{flag} should be a whole number and is {text!r}")
    return int(text)


def _modules(text: str) -> list[Module]:
    """`name=path`, or JSON: an object, or a list of them."""
    if text.lstrip().startswith(("{", "[")):
        try:
            found = msgspec.json.decode(text, type=Module | list[Module])
        except (msgspec.DecodeError, RecursionError) as error:
            raise UserError(f"{_MODULES}: {text[:80]} is not what it should be: {error}", hint=_EXAMPLE) from None
        return found if isinstance(found, list) else [found]
    name, given, path = text.partition("=")
    if not given or not name or not path:
        raise UserError(f"{_MODULES}: {text[:80]!r} should be NAME=PATH", hint=_EXAMPLE)
    return [Module(name, path)]
