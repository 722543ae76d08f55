"""The processes behind the fake's API server, which hang together the way vLLM's do.

EngineCore outlives an API server that is killed; Worker ends with EngineCore, and so does the API server.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

__all__ = ["Children"]

_PR_SET_NAME = 15


class Children:
    """EngineCore and Worker.

    Attributes:
        core: Process id of EngineCore.
        worker: Process id of Worker.
    """

    def __init__(self, core: int, worker: int) -> None:
        self.core = core
        self.worker = worker

    @classmethod
    def fork(cls, *, hang: bool = False) -> Children:
        """Start both; to be called before there are threads, loops or sockets.

        Args:
            hang: Neither reacts to SIGTERM.
        """
        reading, writing = os.pipe()
        core = os.fork()
        if core == 0:
            os.close(reading)
            _be_core(writing, hang=hang)
        os.close(writing)
        worker = int(os.read(reading, 32))
        os.close(reading)
        return cls(core, worker)

    def kill(self) -> None:
        """End both at once."""
        for pid in (self.worker, self.core):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """End both, and wait for EngineCore."""
        self.kill()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.core, 0)


def _be_core(report: int, *, hang: bool) -> None:
    """Live as EngineCore until a signal, with a Worker that notices when this process is gone."""
    for number in (signal.SIGINT, signal.SIGTERM) if hang else ():
        signal.signal(number, signal.SIG_IGN)
    lifeline, held = os.pipe()
    worker = os.fork()
    if worker == 0:
        os.close(held)
        os.close(report)
        _name("VLLM::Worker")
        os.read(lifeline, 1)
        os._exit(0)
    os.close(lifeline)
    _name("VLLM::EngineCore")
    os.write(report, str(worker).encode())
    os.close(report)
    # A Worker that dies takes EngineCore with it.
    os.waitpid(worker, 0)
    os._exit(1)


def _name(name: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
