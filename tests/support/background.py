"""Something asynchronous, run beside a test in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def background(context: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enter `context` on another thread's event loop, and leave it there at the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        entered = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(30)
        try:
            yield entered
        finally:
            asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
