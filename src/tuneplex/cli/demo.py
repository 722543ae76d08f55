"""`demo`: the example fleet on this machine, and what base and fine-tunes say."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tuneplex.adapters.progress import Progress
from tuneplex.app import demo as example
from tuneplex.app import engine_env
from tuneplex.app.demo import Answers, Question
from tuneplex.app.prepare import prepare
from tuneplex.app.state import StateDir, default_path
from tuneplex.cli import supervisor
from tuneplex.cli.ask import DEMO_KEY_FILE
from tuneplex.cli.ports import refuse_taken
from tuneplex.cli.progress import shown
from tuneplex.cli.terminal import Terminal
from tuneplex.cli.times import seconds
from tuneplex.cli.up import Stopped, say_stopping, stopping
from tuneplex.cli.watch import Watch
from tuneplex.types import FleetSpec, Listen, Status
from tuneplex.units import format_duration

__all__ = ["answers_table", "answers_text", "demo", "howto"]

_WIDEST = 140  # columns; longer lines are hard to read


def demo(*, once: bool, port: int, timeout: str) -> int:
    """Run the demo. Ending it with Ctrl-C once it is up is its normal end, so the exit code is 0 then.

    Raises:
        UserError: This machine does not allow it; nothing was started.
        EngineError: The fleet did not become ready, or did not answer; nothing is left running.
    """
    terminal = Terminal.standard()
    timeout_s = seconds(timeout, "--timeout")
    refuse_taken(Listen(port=port))
    state = StateDir(default_path("demo"))
    supervisor.refuse_running(state, "demo")
    try:
        with stopping():
            with shown(terminal) as progress:
                spec = _prepared(progress, port)
            return _run(terminal, state, spec, once=once, timeout_s=timeout_s)
    except Stopped as stopped:
        return stopped.exit_code


def _prepared(progress: Progress, port: int) -> FleetSpec:
    """The example fleet with all that it needs, fetched and made."""
    fleet = example.examples() / "demo" / "fleet.yaml"
    if engine_env.find() in {None, str(engine_env.default_directory() / "bin" / "python")}:
        engine_env.install(None, progress)  # what is there and up to date takes no time
    return example.with_port(prepare(fleet, progress), port)


def _run(terminal: Terminal, state: StateDir, spec: FleetSpec, *, once: bool, timeout_s: float) -> int:
    key = example.new_key()
    with supervisor.started(state, example.with_key(spec, key)) as child:
        _keep(state.path / DEMO_KEY_FILE, key)
        watch = Watch(terminal, state, child.check)
        try:
            status = watch.until_ready(timeout_s)
            terminal.note(f"ready after {format_duration(watch.elapsed_s)}")
            asked = example.questions(example.examples() / "demo" / "questions.yaml")
            _answer(terminal, status, key, asked)
            if once:
                return 0
            terminal.write(howto(status, key, asked))
        except Stopped:
            say_stopping(terminal)
            raise
        return _stay(terminal, watch)


def _keep(path: Path, key: str) -> None:
    """Leave the key where `tuneplex ask` of the same user finds it."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(key)


def _stay(terminal: Terminal, watch: Watch) -> int:
    try:
        watch.for_ever()
    except Stopped:
        say_stopping(terminal)
    return 0


def _answer(terminal: Terminal, status: Status, key: str, asked: Mapping[str, Question]) -> None:
    with shown(terminal) as progress:
        progress.step("asking the base and each fine-tune")
        answers = example.ask_all(status.url, key, status.base, asked, progress.advance)
    if terminal.live:
        terminal.gap()
        terminal.out.print(answers_table(answers, status.base), width=min(terminal.out.width, _WIDEST))
    else:
        terminal.write(answers_text(answers, status.base))


def answers_table(answers: Sequence[Answers], base: str) -> RenderableType:
    """The answers side by side, for a terminal."""
    table = Table(box=box.ROUNDED, show_lines=True, header_style="bold", expand=True, padding=(0, 1))
    table.add_column("asked", ratio=3, overflow="fold")
    table.add_column(Text(f"{base} (base)"), ratio=4, overflow="fold")
    table.add_column("its fine-tune", ratio=4, overflow="fold")
    for one in answers:
        table.add_row(
            Text.assemble((one.question.about, "dim"), "\n", one.question.prompt),
            Text(one.base, style="yellow"),
            Text.assemble((one.adapter, "bold green"), "\n", (one.tuned, "green")),
        )
    return table


def answers_text(answers: Sequence[Answers], base: str) -> str:
    """The answers below each other, for a pipe."""
    blocks = (
        "\n".join(
            (
                f"asked ({one.question.about}): {_line(one.question.prompt)}",
                f"  {base} (base): {_line(one.base)}",
                f"  {one.adapter}: {_line(one.tuned)}",
            )
        )
        for one in answers
    )
    return "\n\n".join(blocks) + "\n"


def _line(text: str) -> str:
    return " ".join(text.split())


def howto(status: Status, key: str, asked: Mapping[str, Question]) -> str:
    """What to copy and paste while the demo is up, with the shortest of its questions."""
    model, question = min(asked.items(), key=lambda item: len(item[1].prompt))
    body = msgspec.json.encode({"model": model, "messages": question.messages}).decode()
    return f"""
base URL  {status.url}
key       {key}
models    {", ".join((status.base, *asked))}

curl {status.url}/chat/completions \\
  -H 'Authorization: Bearer {key}' \\
  -H 'Content-Type: application/json' \\
  -d {shlex.quote(body)}

from openai import OpenAI
client = OpenAI(
    base_url="{status.url}",
    api_key="{key}",
)
question = (
    {_literal(question.prompt)}
)
reply = client.chat.completions.create(
    model="{model}", messages=[{{"role": "user", "content": question}}]
)
print(reply.choices[0].message.content)

In another terminal:
  tuneplex status
  tuneplex ask {model} {shlex.quote(question.prompt)}
  tuneplex logs -f

Ctrl-C ends the demo.
"""


def _literal(text: str) -> str:
    """The text as Python, a literal for each line."""
    return "\n    ".join(repr(line) for line in text.splitlines(keepends=True))
