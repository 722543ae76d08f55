"""Processes that the supervisor starts again whenever they end.

A process table reaps every child of its process, so each test gives it a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PREAMBLE = """
import asyncio, signal, sys
from pathlib import Path
from tuneplex.app.process_table import ProcessTable
from tuneplex.app.services import Service

logs = Path(sys.argv[1])
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(99)"

async def until_lines(count):
    async with asyncio.timeout(20):
        while not (logs / "it.log").exists() or len((logs / "it.log").read_text().splitlines()) < count:
            await asyncio.sleep(0.02)

async def main():
    table = ProcessTable()
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, table.reap)
    def service(program):
        return Service("it", [sys.executable, "-c", program], table=table, logs=logs)
"""


def run(body: str, logs: Path) -> str:
    """Run the lines of a test in a process of its own; what the service has written."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    program = f"{PREAMBLE}{lines}\nasyncio.run(main())"
    subprocess.run([sys.executable, "-c", program, str(logs)], check=True, timeout=60)
    return (logs / "it.log").read_text()


def test_a_service_that_ends_comes_again(tmp_path: Path) -> None:
    """It is started again and again, and its log goes on."""
    body = """
one = service("print('here')")
one.start()
await until_lines(3)
await one.stop(5)
"""
    assert run(body, tmp_path).startswith("here\nhere\nhere\n")


def test_a_service_that_is_stopped_stays_away(tmp_path: Path) -> None:
    """Stopping kills a process that ignores SIGTERM after its time, and nothing starts it again."""
    body = """
one = service(DEAF)
one.start()
await until_lines(1)
await one.stop(0.1)
await asyncio.sleep(0.3)  # longer than the first delay before a restart
"""
    assert run(body, tmp_path) == "deaf\n"
