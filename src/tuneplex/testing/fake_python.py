"""A script that stands for the Python of an engine's environment: it starts FakeEngine where vLLM was meant."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

__all__ = ["write_fake_python"]

_SCRIPT = """#!/bin/sh
# Stands for the interpreter of an engine's environment: it starts the API server, and says which of vLLM's plugins are
# there. Whatever else goes to a real Python.
case " $* " in
  *" -m {server} "*) ;;
  *" vllm.general_plugins "*) echo tuneplex; exit ;;
  *) exec {python} "$@" ;;
esac
while [ "$1" != "{server}" ]; do shift; done
shift
exec {python} -m tuneplex.testing.fake_engine "$@"
"""


def write_fake_python(path: Path) -> Path:
    """Write the script and make it executable; name it as a pool's `python`.

    Called with `-m vllm.entrypoints.openai.api_server ARGS`, it becomes `python -m tuneplex.testing.fake_engine ARGS`.

    Args:
        path: Where to write it.

    Returns:
        The same path.
    """
    python = shlex.quote(sys.executable)
    path.write_text(_SCRIPT.format(server="vllm.entrypoints.openai.api_server", python=python))
    path.chmod(0o755)
    return path
