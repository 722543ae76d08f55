"""Which of vLLM's plugins an engine loads: those it would load by itself, and ours.

vLLM adds HTTP routes of a plugin only where `VLLM_PLUGINS` names it, and a list in that variable is a limit for plugins
of every kind; without the variable it loads all of them, only no routes. So naming ours alone would switch everybody
else's off. Where the user gave a list, ours is added to it. Where not, the engine's own Python is asked what there is,
because nothing else knows for sure (a virtual environment, conda and a system's Python lay out their packages
differently), and the list holds just what vLLM would have loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterable, Mapping

from tuneplex.errors import EngineError
from tuneplex.log import get_logger

__all__ = ["OURS", "VARIABLE", "installed", "with_ours"]

VARIABLE = "VLLM_PLUGINS"
OURS = "tuneplex"

# The kinds that vLLM loads without being told to. Those that add routes are not among them, and stay out.
_KINDS = ("vllm.general_plugins", "vllm.platform_plugins", "vllm.io_processor_plugins", "vllm.stat_logger_plugins")
# Loaded in any case, but it goes to the network only where the list names it: that is for the user to say.
_ASKS_TO_BE_NAMED = frozenset({"lora_hf_hub_resolver"})
_QUESTION = """
import sys
from importlib.metadata import entry_points
print(*sorted({point.name for kind in sys.argv[1:] for point in entry_points(group=kind)}), sep="\\n")
"""
_PATIENCE_S = 60.0  # a Python on a cold network disk


def with_ours(names: Iterable[str]) -> str:
    """The value of `VLLM_PLUGINS` that lets an engine load these plugins and ours."""
    return ",".join(dict.fromkeys((*filter(None, names), OURS)))


async def installed(python: str, env: Mapping[str, str]) -> frozenset[str]:
    """What vLLM would load by itself, and ours if it is there; nothing if this Python does not say.

    Args:
        python: The engine's interpreter.
        env: The environment that the engine will have.
    """
    try:
        async with asyncio.timeout(_PATIENCE_S):
            answer = await _answer(python, env)
    except (OSError, EngineError) as error:
        why = str(error) or "no answer in time"
        get_logger(__name__).warning("does not say which plugins of vLLM it has", python=python, why=why)
        return frozenset()
    return frozenset(answer.split()) - _ASKS_TO_BE_NAMED


async def _answer(python: str, env: Mapping[str, str]) -> str:
    arguments = (python, "-c", _QUESTION, *_KINDS)
    process = await asyncio.create_subprocess_exec(*arguments, env=dict(env), stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    try:
        answer, complaint = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if process.returncode != 0:
        raise EngineError(complaint.decode(errors="replace").strip())
    return answer.decode()
