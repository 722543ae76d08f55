"""tuneplex's plugin for vLLM: LoRA on the CPU at each adapter's own rank.

vLLM calls `register` in each of its processes (entry point group `vllm.general_plugins`). On the CPU platform of a
known version it makes vLLM use `tuneplex_vllm.wrapper.RankExactWrapper`; everywhere else it changes nothing. No file
of vLLM is touched.
"""

from __future__ import annotations

import logging
import multiprocessing

__all__ = ["KNOWN_VERSIONS", "register"]

KNOWN_VERSIONS = frozenset({"0.32.0"})
"""The vLLM versions whose LoRA layers this plugin was tested with."""

WRAPPER = "tuneplex_vllm.wrapper.RankExactWrapper"

# Under vLLM's own name, so that the line goes where vLLM's lines go.
_log = logging.getLogger("vllm.tuneplex")


def register() -> None:
    """Let vLLM's CPU platform use rank-exact LoRA products; safe to call more than once."""
    import vllm  # noqa: PLC0415 - vLLM is just importing itself when it asks for the entry point
    from vllm.platforms import current_platform  # noqa: PLC0415 - the same

    reason = _why_not(vllm.__version__, on_cpu=current_platform.is_cpu())
    if reason:
        if multiprocessing.parent_process() is None:  # once, not in every process of the engine
            _log.info("tuneplex-vllm leaves the LoRA kernels alone: %s.", reason)
        return
    type(current_platform).get_punica_wrapper = classmethod(_wrapper)  # type: ignore[method-assign,assignment]


def _wrapper(_platform: object) -> str:
    """What the platform answers when vLLM asks for its LoRA implementation."""
    return WRAPPER


def _why_not(version: str, *, on_cpu: bool) -> str:
    """Why vLLM keeps its own kernels here; empty when it does not."""
    if not on_cpu:
        return "this platform is not the CPU, and vLLM's own kernels serve it well"
    if version.split("+", maxsplit=1)[0] not in KNOWN_VERSIONS:
        return f"vLLM {version} is not one of the versions it was tested with ({', '.join(sorted(KNOWN_VERSIONS))})"
    return ""
