"""Clients of a fleet that wait as long as it takes."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator

import httpx2

from tests.support.fleets import Fleet

__all__ = ["Patient", "keeping_busy", "statuses_until"]

_PATIENCE_S = 280.0


class Patient(threading.Thread):
    """One stream in a thread of its own.

    Attributes:
        status: Of the reply; 0 before it.
        headers: Of the reply.
        comments: What came before the first event.
        events: What came then.
    """

    def __init__(self, fleet: Fleet, model: str, **body: object) -> None:
        super().__init__(daemon=True)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.comments: list[str] = []
        self.events: list[str] = []
        self._fleet = fleet
        self._request = {"model": model, "prompt": "hello", "max_tokens": 8, "stream": True, **body}
        self.start()

    def run(self) -> None:
        """Ask, and read everything."""
        with self._fleet.client() as client:
            client.timeout = httpx2.Timeout(_PATIENCE_S)
            with client.stream("POST", "/completions", json=self._request) as reply:
                self.headers = dict(reply.headers)
                self.status = reply.status_code
                for line in reply.iter_lines():
                    if line.startswith(":"):
                        self.comments.append(line)
                    elif line:
                        self.events.append(line.removeprefix("data: "))

    @property
    def answered(self) -> bool:
        """It got its whole answer."""
        self.join(_PATIENCE_S)
        return self.status == 200 and self.events[-1:] == ["[DONE]"]

    @property
    def error(self) -> str:
        """What it got instead, for a message."""
        return f"{self.status}: {self.events[-1:]}"


def statuses_until(fleet: Fleet, model: str, change: Callable[[], object]) -> list[tuple[int, float]]:
    """Ask for a model again and again while it is being added, until it answers; statuses, and how long each waited."""
    found: list[tuple[int, float]] = []
    with fleet.client() as client:
        client.timeout = httpx2.Timeout(_PATIENCE_S)
        while not found or found[-1][0] == 404:
            reply = client.post("/completions", json={"model": model, "prompt": "hello", "max_tokens": 2})
            found.append((reply.status_code, float(reply.headers.get("x-tuneplex-waited", 0))))
            if len(found) == 1:
                change()
    return found


@contextlib.contextmanager
def keeping_busy(fleet: Fleet, model: str, clients: int) -> Iterator[list[str]]:
    """Ask for a model without a pause; what was not answered with 200 is in the list."""
    wrong: list[str] = []
    stop = threading.Event()

    def ask() -> None:
        with fleet.client() as client:
            client.timeout = httpx2.Timeout(_PATIENCE_S)
            body = {"model": model, "prompt": "hello", "max_tokens": 16, "ignore_eos": True}
            while not stop.is_set():
                reply = client.post("/completions", json=body)
                if reply.status_code != 200:
                    wrong.append(json.dumps(reply.json()))
                    return

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    try:
        yield wrong
    finally:
        stop.set()
        for thread in threads:
            thread.join(_PATIENCE_S)
