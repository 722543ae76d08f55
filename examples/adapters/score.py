"""Score the base and the fine-tunes on held-out examples, through a running gateway.

    python score.py --base-url http://127.0.0.1:8000/v1 --key KEY

Needs nothing but Python. Base and fine-tune get the same prompts, greedy decoding and the same lenient reading of the
reply: JSON or SQL is found inside prose and code fences, a team's name counts wherever the reply names it first, and
SQL counts as right when it gives the wanted rows, however it is written. The base has seen none of the tasks' formats
before, which is what a fine-tune is for; it gets no examples in the prompt, and neither does the fine-tune.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import sqlite3
import sys
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from data import TASKS, Example, Table, examples

MAX_TOKENS = {"contacts": 96, "triage": 24, "sql": 72}
ROWS = 14
MOST_STEPS = 1_000_000  # of SQLite's machine; the wanted queries take hundreds
Replies = list[tuple[str, str]]
READ_ONLY = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}


def contacts_right(example: Example, reply: str) -> bool:
    """Whether the reply holds a JSON object with exactly the wanted fields."""
    match = re.search(r"\{.*?\}", reply, re.DOTALL)
    try:
        return match is not None and json.loads(match[0]) == json.loads(example.answer)
    except json.JSONDecodeError:
        return False


def triage_right(example: Example, reply: str) -> bool:
    """Whether the team that the reply names first is the wanted one."""
    match = re.search(r"billing|shipping|technical|return", reply.lower())
    return match is not None and example.answer.startswith(match[0])


def sql_right(example: Example, reply: str) -> bool:
    """Whether the reply's query gives the rows that the wanted one gives."""
    fenced = re.search(r"```(?:sql(?:ite)?)?(.*?)```", reply, re.DOTALL | re.IGNORECASE)
    query = re.search(r"\bSELECT\b[^;]*", fenced[1] if fenced else reply, re.IGNORECASE)
    if query is None or example.table is None:
        return False
    with contextlib.closing(filled(example.table)) as database:
        wanted = database.execute(example.answer).fetchall()
        try:
            got = database.execute(query[0]).fetchall()
        except (sqlite3.Error, sqlite3.Warning):
            return False
    return got == wanted if "ORDER BY" in example.answer else sorted(got, key=str) == sorted(wanted, key=str)


def filled(table: Table) -> sqlite3.Connection:
    """A small database with this table, always the same rows; no two have the same number. It can only be read."""
    chance = random.Random(table.name)  # noqa: S311 - repeatable on purpose
    numbers = chance.sample(range(5, 120), ROWS)
    database = sqlite3.connect(":memory:")
    database.execute(f"CREATE TABLE {table.name} ({table.label} TEXT, {table.category} TEXT, {table.number} INTEGER)")
    rows = [(f"{table.singular} {i}", chance.choice(table.values), number) for i, number in enumerate(numbers)]
    database.executemany(f"INSERT INTO {table.name} VALUES (?, ?, ?)", rows)  # noqa: S608 - names from our own data
    database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READ_ONLY else sqlite3.SQLITE_DENY)
    database.set_progress_handler(lambda: True, MOST_STEPS)
    return database


RIGHT: dict[str, Callable[[Example, str], bool]] = {
    "contacts": contacts_right,
    "triage": triage_right,
    "sql": sql_right,
}


class Gateway:
    """The few requests that are made to it."""

    def __init__(self, base_url: str, key: str) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})

    def models(self) -> list[dict[str, Any]]:
        """What it serves."""
        models: list[dict[str, Any]] = self._call("/models", None)["data"]
        return models

    def reply(self, model: str, prompt: str, max_tokens: int) -> str:
        """What a model says to a prompt, greedily."""
        messages = [{"role": "user", "content": prompt}]
        body = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0}
        text: str = self._call("/chat/completions", body)["choices"][0]["message"]["content"] or ""
        return text

    def _call(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base_url + path, data, self._headers)  # noqa: S310 - the user's own URL
        with urllib.request.urlopen(request, timeout=600) as response:  # noqa: S310 - the same
            answer: dict[str, Any] = json.load(response)
        return answer


def score(gateway: Gateway, model: str, held_out: list[Example], task: str, clients: int) -> tuple[int, Replies]:
    """How many of these examples a model gets right, and the first few of its replies."""
    with ThreadPoolExecutor(clients) as pool:
        replies = list(pool.map(lambda one: gateway.reply(model, one.prompt, MAX_TOKENS[task]), held_out))
    right = sum(RIGHT[task](one, reply) for one, reply in zip(held_out, replies, strict=True))
    return right, [(one.prompt, reply) for one, reply in zip(held_out[:3], replies, strict=False)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Score what the gateway serves and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"))
    parser.add_argument("--key", default=os.environ.get("OPENAI_API_KEY", ""))
    parser.add_argument("--base", help="the base's name; default: the first model without a parent")
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated; an adapter has its task's name")
    parser.add_argument("--count", type=int, default=40, help="held-out examples for each task (default 40)")
    parser.add_argument(
        "--seed", type=int, default=1, help="of the held-out examples (default 1; 0 was used in making)"
    )
    parser.add_argument("--clients", type=int, default=8, help="requests at once (default 8)")
    parser.add_argument("--json", action="store_true", help="print JSON, with a few replies of each")
    given = parser.parse_args(arguments)
    gateway = Gateway(given.base_url, given.key)
    base = given.base or next(model["id"] for model in gateway.models() if not model.get("parent"))
    results = []
    for task in given.tasks.split(","):
        row: dict[str, Any] = {"task": task, "examples": given.count}
        held_out = list(islice(examples(task, "test", given.seed), given.count))
        for column, model in (("base", base), ("adapter", task)):
            print(f"{task}: asking {model}", file=sys.stderr)
            row[column], row[f"{column}_replies"] = score(gateway, model, held_out, task, given.clients)
        results.append(row)
    print(json.dumps(results, indent=2) if given.json else table(results, base))
    return 0


def table(results: list[dict[str, Any]], base: str) -> str:
    """The scores for people."""
    lines = [f"{'task':10} {base:>16} {'fine-tune':>16}"]
    for row in results:
        scores = (f"{row[column]} of {row['examples']}" for column in ("base", "adapter"))
        lines.append(f"{row['task']:10} " + " ".join(f"{text:>16}" for text in scores))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
