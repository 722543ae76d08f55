"""A script for the engine's Python: where the plugin takes over, and where it does not. Prints JSON."""

from __future__ import annotations

import json
from unittest import mock

import vllm
from vllm.platforms import current_platform

import tuneplex_vllm

STOCK = current_platform.get_punica_wrapper


def takes_over(version: str, *, on_cpu: bool) -> bool:
    """Whether `register` changes the platform's answer."""
    platform = type(current_platform)
    with (
        mock.patch.object(vllm, "__version__", version),
        mock.patch.object(platform, "is_cpu", return_value=on_cpu),
        mock.patch.object(platform, "get_punica_wrapper", STOCK),
        mock.patch.object(tuneplex_vllm, "_log") as log,
    ):
        tuneplex_vllm.register()
        tuneplex_vllm.register()
        changed = current_platform.get_punica_wrapper is not STOCK
        if changed == bool(log.info.call_count):
            raise SystemExit("a plugin that does nothing says why, and one that works says so when it starts")
    return changed


if __name__ == "__main__":
    found = {
        "known": takes_over("0.32.0", on_cpu=True),
        "unknown": takes_over("9.9.9", on_cpu=True),
        "gpu": takes_over("0.32.0", on_cpu=False),
    }
    print("RESULT " + json.dumps(found))
