"""`ask`: one question to one model, answered on the terminal while it is written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from tuneplex.app.state import StateDir
from tuneplex.cli import locate
from tuneplex.cli.terminal import Terminal
from tuneplex.cli.why import explained
from tuneplex.errors import StateError, TuneplexError, UserError
from tuneplex.why import HEADER

__all__ = ["DEMO_KEY_FILE", "Question", "Target", "ask", "client", "pieces", "prompt_text", "target"]

DEMO_KEY_FILE = "demo.key"
_TIMEOUT = httpx2.Timeout(10.0, read=600.0)
_WRONG_INPUT = range(400, 500)
_WAITS, _ENDED, _EXPLAINS = ": waiting", ": ended by a limit", ": why "  # comments of the gateway's in a stream
_GIVE_KEY = "give a key with --key or TUNEPLEX_API_KEY"
_MAKE_KEY = "`tuneplex keys create --tenant default` makes one"


@dataclass(frozen=True, slots=True)
class Target:
    """Where to ask.

    Attributes:
        base_url: With `/v1` at its end.
        key: The bearer token, or empty.
        is_fleet: It is a fleet of this machine, so whoever asks can make a key.
    """

    base_url: str
    key: str = ""
    is_fleet: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask; None leaves a setting to the server."""

    model: str
    prompt: str
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None

    def body(self, *, stream: bool) -> dict[str, Any]:
        """The request body for `/v1/chat/completions`."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        settings = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        given = {name: value for name, value in settings.items() if value is not None}
        messages.append({"role": "user", "content": self.prompt})
        return {"model": self.model, "messages": messages, "stream": stream, **given}


class _Refused(UserError):
    """The server finds fault with the request.

    Args:
        status: The HTTP status.
        message: The server's words.
        hint: See `UserError`.
    """

    def __init__(self, status: int, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.status = status


def ask(target: Target, question: Question, *, as_json: bool, why: bool = False) -> int:
    """Ask and print the answer; standard error tells how long it waits, and `why` it took so long.

    Raises:
        UserError: The server says that the request is wrong.
        TuneplexError: It cannot be reached, or broke off.
    """
    terminal = Terminal.standard()
    explanations = [""]
    with client(target) as http:
        if why:
            http.headers[HEADER] = "1"
            http.event_hooks["response"].append(lambda reply: explanations.append(reply.headers.get(HEADER, "")))
        try:
            if as_json:
                terminal.json(_whole(http, question))
            else:
                _answer(terminal, http, question, explanations)
        except _Refused as error:
            if error.status == httpx2.codes.UNAUTHORIZED and target.is_fleet:
                raise UserError(str(error), hint=f"{_GIVE_KEY}; {_MAKE_KEY}") from error
            raise
        except httpx2.HTTPError as error:
            raise TuneplexError(f"{target.base_url} does not answer: {str(error) or type(error).__name__}") from error
        finally:
            told = _explain(terminal, next(filter(None, explanations), ""))
    if why and not told:
        terminal.warn("the server has not said why: perhaps it is no gateway of tuneplex")
    return 0


def _answer(terminal: Terminal, http: httpx2.Client, question: Question, explanations: list[str]) -> None:
    """Write the answer; standard error tells how long it waits, and at the end that a limit has cut it.

    Args:
        terminal: Where to.
        http: The server.
        question: What to ask.
        explanations: What the server says of the request goes there.
    """
    ended: list[str] = []

    def aside(comment: str) -> None:
        words = comment.removeprefix(":").strip()
        if comment.startswith(_WAITS):
            terminal.note(words)
        elif comment.startswith(_ENDED):
            ended.append(words)
        elif comment.startswith(_EXPLAINS):
            explanations.append(comment.removeprefix(_EXPLAINS))

    for piece in pieces(http, question, aside):
        terminal.write(piece)
    terminal.write("\n")
    for words in ended:
        terminal.warn(words)


def _explain(terminal: Terminal, explanation: str) -> bool:
    """Print an explanation in words; whether it is one."""
    try:
        lines = explained(explanation)
    except msgspec.MsgspecError:
        return False
    for line in lines:
        terminal.note(line)
    return True


def target(base_url: str | None, key: str | None, state_dir: Path | None, fleet: str | None) -> Target:
    """The server that was named, or the running fleet.

    Raises:
        StateError: No fleet runs.
        UserError: The URL is none.
    """
    if base_url is not None:
        if not base_url.startswith(("http://", "https://")):
            raise UserError(
                f"--base-url: {base_url!r} is not a URL", hint="write for instance http://127.0.0.1:8000/v1"
            )
        return Target(base_url, key or "")
    state = locate.running_fleet(state_dir, fleet)
    info = state.supervisor()
    if info is None:
        raise StateError(f"the fleet in {state.path} is just starting", hint="`tuneplex status` shows how far it is")
    return Target(info.url, key or _demo_key(state), is_fleet=True)


def _demo_key(state: StateDir) -> str:
    """The key that `tuneplex demo` made for this run; other fleets keep only a hash of theirs."""
    try:
        return (state.path / DEMO_KEY_FILE).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def client(target: Target) -> httpx2.Client:
    """A client of an OpenAI-compatible server. Proxies from the environment are not for this machine's own fleet."""
    local = httpx2.URL(target.base_url).host in {"127.0.0.1", "::1", "localhost"}
    headers = {"authorization": f"Bearer {target.key}"} if target.key else {}
    base = target.base_url.rstrip("/") + "/"
    return httpx2.Client(base_url=base, headers=headers, timeout=_TIMEOUT, trust_env=not local)


def prompt_text(prompt: str) -> str:
    """The prompt, or all of standard input for `-`.

    Raises:
        UserError: There is nothing to ask.
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise UserError("the prompt is empty", hint='tuneplex ask MODEL "How are you?", or - to read standard input')
    return text.strip() if prompt == "-" else text


def pieces(http: httpx2.Client, question: Question, aside: Callable[[str], None]) -> Iterator[str]:
    """The answer, piece by piece as it arrives; the stream's comments go to `aside`."""
    with http.stream("POST", "chat/completions", json=question.body(stream=True)) as reply:
        if reply.is_error:
            reply.read()
            _refuse(http, reply)
        failures: list[str] = []
        for line in reply.iter_lines():
            if line.startswith("data:"):
                yield from _text(line[5:].strip(), failures)
            elif line.startswith(":"):
                aside(line)
        if failures:
            raise TuneplexError(failures[0])


def _text(data: str, failures: list[str]) -> Iterator[str]:
    if data == "[DONE]":
        return
    chunk = msgspec.json.decode(data, type=dict[str, Any])
    if "error" in chunk:
        failures.append(_message(chunk) or "the engine broke off")
    for choice in chunk.get("choices", ()):
        if content := choice.get("delta", {}).get("content"):
            yield str(content)


def _whole(http: httpx2.Client, question: Question) -> Any:  # noqa: ANN401 - the reply as the server shaped it
    reply = http.post("chat/completions", json=question.body(stream=False))
    if reply.is_error:
        _refuse(http, reply)
    return reply.json()


def _refuse(http: httpx2.Client, reply: httpx2.Response) -> None:
    """Turn the server's refusal into ours.

    Raises:
        UserError: The request was at fault.
        TuneplexError: The server was.
    """
    try:
        message = _message(reply.json())
    except ValueError:
        message = ""
    message = message or f"the server answered {reply.status_code}"
    if reply.status_code in _WRONG_INPUT:
        raise _Refused(reply.status_code, message, hint=_hint(http, reply.status_code))
    raise TuneplexError(message)


def _hint(http: httpx2.Client, status: int) -> str:
    if status == httpx2.codes.UNAUTHORIZED:
        return _GIVE_KEY
    if status == httpx2.codes.NOT_FOUND:
        return f"models here: {', '.join(model_names(http)) or 'none that this key may call'}"
    return ""


def model_names(http: httpx2.Client) -> list[str]:
    """What the server can be asked for."""
    reply = http.get("models")
    return [] if reply.is_error else [str(model.get("id")) for model in reply.json().get("data", ())]


def _message(body: Mapping[str, Any]) -> str:
    error = body.get("error")
    return str(error.get("message", "")) if isinstance(error, dict) else ""
