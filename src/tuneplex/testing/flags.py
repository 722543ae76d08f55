"""The command line of the fake engine's process, which is vLLM's, and its `TUNEPLEX_FAKE_*` variables."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import msgspec

from tuneplex.testing.script import Script

__all__ = ["Behaviour", "Flags", "parse_flags"]

_PREFIX = "TUNEPLEX_FAKE_"


class Behaviour(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the process misbehaves; the field `start_delay_s` is set by `TUNEPLEX_FAKE_START_DELAY_S`, and so on.

    Attributes:
        start_delay_s: How long the start takes, spread over its phases.
        fail_start: Ends during the start, with this as its last words and exit code 1.
        die_after_s: Dies so long after it is ready, as if it had run out of memory.
        hang_on_term: Does not react to SIGTERM.
        plugin: Has the plugin tuneplex-vllm installed; its routes are there if `VLLM_PLUGINS` names it, too.
        children: Has the processes EngineCore and Worker, as vLLM does.
        script: How every request is answered, in JSON.
    """

    start_delay_s: float = 0.0
    fail_start: str = ""
    die_after_s: float = 0.0
    hang_on_term: bool = False
    plugin: bool = True
    children: bool = True
    script: str = "{}"

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Behaviour:
        """Take it from the environment.

        Raises:
            ValueError: A variable with the prefix has no meaning, or a value of the wrong kind.
        """
        given = {name.removeprefix(_PREFIX).lower(): value for name, value in env.items() if name.startswith(_PREFIX)}
        return msgspec.convert(given, cls, strict=False)

    def scripted(self) -> Script:
        """`script`, read."""
        return Script.parse(self.script)


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """What was on the command line; the fields are vLLM's flags."""

    model: str
    served_model_name: list[str]
    host: str | None
    port: int
    uds: str | None
    api_key: list[str]
    enable_lora: bool
    max_loras: int
    max_cpu_loras: int | None
    max_lora_rank: int
    max_num_seqs: int
    max_model_len: int
    tool_call_parser: str | None
    disable_uvicorn_access_log: bool
    ignored: list[str]

    @property
    def name(self) -> str:
        """What clients call the base."""
        return self.served_model_name[0] if self.served_model_name else self.model

    @property
    def address(self) -> str:
        """As vLLM's log names it."""
        return f"unix:{self.uds}" if self.uds else f"http://{self.host or '0.0.0.0'}:{self.port}"  # noqa: S104 - as vLLM says it


def parse_flags(arguments: Sequence[str]) -> Flags:
    """Read vLLM's command line; flags that the fake has no use for are taken and ignored, here and nowhere else."""
    parser = argparse.ArgumentParser("fake_engine", allow_abbrev=False, description=__doc__)
    parser.add_argument("--model", default="Qwen/Qwen3-0.6B")
    parser.add_argument("--served-model-name", nargs="+", default=[])
    parser.add_argument("--host")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--uds")
    parser.add_argument("--api-key", nargs="+", default=[])
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--max-loras", type=int, default=1)
    parser.add_argument("--max-cpu-loras", type=int)
    parser.add_argument("--max-lora-rank", type=int, default=16)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--tool-call-parser")
    parser.add_argument("--disable-uvicorn-access-log", action="store_true")
    known, ignored = parser.parse_known_args(arguments)
    return Flags(**vars(known), ignored=ignored)
