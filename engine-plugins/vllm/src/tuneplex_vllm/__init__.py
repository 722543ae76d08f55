"""tuneplex's plugin for vLLM: LoRA at its true cost on the CPU, and under true control everywhere.

vLLM calls `register` in each of its processes (entry point group `vllm.general_plugins`). On a version that it knows,
it lets vLLM's model runners use `tuneplex_vllm.manager.WorkerManager`, which knows where every adapter is, and on the
CPU platform also `tuneplex_vllm.wrapper.RankExactWrapper`. On other versions it changes nothing. No file of vLLM is
touched.
"""

from __future__ import annotations

import logging
import multiprocessing

__all__ = ["KNOWN_VERSIONS", "__version__", "is_known", "register"]

__version__ = "0.1.0"

KNOWN_VERSIONS = frozenset({"0.32.0"})
"""The vLLM versions whose LoRA layers and managers this plugin was tested with."""

WRAPPER = "tuneplex_vllm.wrapper.RankExactWrapper"

# Under vLLM's own name, so that the line goes where vLLM's lines go.
_log = logging.getLogger("vllm.tuneplex")


def register() -> None:
    """Install in this process what fits its platform and version of vLLM; safe to call more than once."""
    import vllm  # noqa: PLC0415 - vLLM is just importing itself when it asks for the entry point
    from vllm.platforms import current_platform  # noqa: PLC0415 - the same

    if not is_known(vllm.__version__):
        _say(
            f"tuneplex-vllm leaves the LoRA kernels alone, and vLLM's management of adapters too: vLLM "
            f"{vllm.__version__} is not one of the versions it was tested with ({', '.join(sorted(KNOWN_VERSIONS))})."
        )
        return
    from tuneplex_vllm import manager, worker  # noqa: PLC0415 - they need the insides of a known version

    manager.install()
    worker.install()
    if not current_platform.is_cpu():
        _say("tuneplex-vllm leaves the LoRA kernels alone: this platform is not the CPU, and vLLM's own serve it well.")
        return
    type(current_platform).get_punica_wrapper = classmethod(_wrapper)  # type: ignore[method-assign,assignment]


def is_known(version: str) -> bool:
    """Whether this plugin was tested with a version of vLLM, whatever it was built for ("0.32.0+cu129")."""
    return version.split("+", maxsplit=1)[0] in KNOWN_VERSIONS


def _wrapper(_platform: object) -> str:
    """What the platform answers when vLLM asks for its LoRA implementation."""
    return WRAPPER


def _say(line: str) -> None:
    """Log a line once, not in every process of the engine."""
    if multiprocessing.parent_process() is None:
        # vLLM sets its log up after it has loaded plugins; until then a warning goes to stderr, and less is lost.
        _log.warning("%s", line)
