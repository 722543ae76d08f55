"""Work in several threads, of which none is waited for when somebody presses Ctrl-C."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable

__all__ = ["each"]

_LAST_WORDS_S = 1.0


def each(tasks: Iterable[Callable[[threading.Event], None]], workers: int) -> None:
    """Run all tasks. The first one that fails ends the others, and its error is raised.

    Args:
        tasks: Each is given an event; once that is set it should return soon.
        workers: How many run at a time.
    """
    waiting: queue.SimpleQueue[Callable[[threading.Event], None]] = queue.SimpleQueue()
    count = 0
    for task in tasks:
        waiting.put(task)
        count += 1
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    stop = threading.Event()
    # A daemon: one that waits for a silent server must not keep the whole program from ending.
    threads = [
        threading.Thread(target=_work, args=(waiting, ended, stop), daemon=True) for _ in range(min(workers, count))
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(count):
            if (error := ended.get()) is not None:
                raise error
    finally:
        stop.set()
        until = time.monotonic() + _LAST_WORDS_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))


def _work(
    waiting: queue.SimpleQueue[Callable[[threading.Event], None]],
    ended: queue.SimpleQueue[BaseException | None],
    stop: threading.Event,
) -> None:
    while not stop.is_set():
        try:
            task = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            task(stop)
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            ended.put(error)
        else:
            ended.put(None)
