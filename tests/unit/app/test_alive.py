"""Processes whose event loop hangs."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, sys, time
from tuneplex.app.alive import end_when_hanging

async def main():
    watching = asyncio.create_task(end_when_hanging(0.5))
    await asyncio.sleep(1.5)
    print("busy, but alive", flush=True)
    if sys.argv[1] == "cancelled":
        watching.cancel()
        await asyncio.sleep(0)
    time.sleep(5 if sys.argv[1] == "hangs" else 1)
    print("never said by one that hangs", flush=True)

asyncio.run(main())
"""


def run(how: str) -> subprocess.CompletedProcess[str]:
    """A process with an event loop that stands still in the end."""
    return subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, timeout=60, check=False)


def test_a_process_that_hangs_ends_and_says_where() -> None:
    """As long as its event loop goes on it lives; then it ends with 1, and the last words show the line."""
    done = run("hangs")
    assert (done.returncode, done.stdout) == (1, "busy, but alive\n")
    assert "in main" in done.stderr


def test_whoever_is_not_watched_any_more_may_take_its_time() -> None:
    """A process that comes to its end in order is not ended by force."""
    assert run("cancelled").returncode == 0
