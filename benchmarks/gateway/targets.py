"""What is measured: how each proxy is installed and started. README.md gives the reasons for the settings."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.environments import environment
from benchmarks.gateway.load import Names
from benchmarks.gateway.wire import KEY

__all__ = ["TARGETS", "Target"]

_HERE = Path(__file__).parent
_PLAIN = Names(client="contacts", engine="contacts")
_RENAMED = Names(client="contacts", engine="contacts@0123456789ab")


@dataclass(frozen=True, slots=True)
class Target:
    """One way from the client to the upstream.

    Attributes:
        name: As in tables, files and `--only`.
        what: For people, with the version.
        command: Makes the command line from the port to listen on, the upstream's URL and a second free port; None
            for no proxy at all.
        names: Of the model, on both sides.
        unix: Whether it reaches the upstream by its Unix socket.
        requirements: Stem of the file that pins what its environment has; None if it runs in ours.
        default: Whether it is measured when `--only` is not given.
        processes: How many of its own it has to spread over cores.
    """

    name: str
    what: str
    command: Callable[[int, str, int], list[str]] | None
    names: Names = field(default=_PLAIN)
    unix: bool = False
    requirements: str | None = None
    default: bool = True
    processes: int = 1

    def install(self) -> None:
        """Make its environment, if it needs one and that is not there yet."""
        if self.requirements is not None:
            _bin(self.requirements)


def _bin(requirements: str) -> Path:
    return environment(_HERE / "requirements" / f"{requirements}.txt")


def _tuneplex(loop: str, *more: str) -> Callable[[int, str, int], list[str]]:
    script = str(_HERE / "proxies" / "tuneplex_gateway.py")
    names = ("--key", KEY, "--model", _RENAMED.client, "--engine-model", _RENAMED.engine)
    return lambda port, upstream, _: [sys.executable, script, str(port), upstream, "--loop", loop, *names, *more]


def _vllm_router(port: int, upstream: str, spare: int) -> list[str]:
    program = _bin("vllm-router") / "vllm-router"
    return [
        *(str(program), "--host", "127.0.0.1", "--port", str(port), "--worker-urls", upstream),
        *("--policy", "round_robin", "--log-level", "warning", "--prometheus-port", str(spare)),
        *("--disable-retries", "--disable-circuit-breaker"),
        *("--health-check-interval-secs", "3600", "--worker-startup-check-interval", "1"),
    ]


def _smg(port: int, upstream: str, spare: int) -> list[str]:
    program = _bin("smg") / "smg"
    return [
        *(str(program), "launch", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", upstream),
        *("--policy", "round_robin", "--log-level", "warn", "--prometheus-port", str(spare)),
        *("--prometheus-host", "127.0.0.1", "--disable-retries", "--disable-circuit-breaker"),
        *("--disable-health-check", "--disable-load-monitoring", "--disable-tokenizer-autoload"),
        *("--worker-startup-check-interval", "1", "--upstream-pool-idle-timeout-secs", "0"),
    ]


def _starlette_httpx(port: int, upstream: str, _: int) -> list[str]:
    python = _bin("starlette-httpx") / "python"
    return [str(python), str(_HERE / "proxies" / "starlette_httpx.py"), str(port), upstream]


TARGETS = (
    Target("direct", "no proxy", None),
    Target("tuneplex", "tuneplex gateway (Python, uvloop)", _tuneplex("uvloop"), _RENAMED),
    Target(
        "tuneplex-migrate",
        "tuneplex gateway, which asks for the ids of tokens to continue streams elsewhere",
        _tuneplex("uvloop", "--migrate"),
        _RENAMED,
    ),
    Target(
        "tuneplex-limits",
        "tuneplex gateway, with limits of every kind for the tenant, the key and the model",
        _tuneplex("uvloop", "--limits"),
        _RENAMED,
    ),
    Target(
        "tuneplex-waiting",
        "the same, and half of the requests wait: the engine takes 16 at a time",
        _tuneplex("uvloop", "--limits", "--places", "16"),
        _RENAMED,
    ),
    Target(
        "tuneplex-records",
        "tuneplex gateway with such limits and a journal, and what makes usage and the audit log of it",
        _tuneplex("uvloop", "--limits", "--records"),
        _RENAMED,
    ),
    Target("vllm-router", "vllm-router 0.1.17 (Rust)", _vllm_router, requirements="vllm-router"),
    Target("smg", "smg 1.13.0 (Rust)", _smg, requirements="smg"),
    Target(
        "starlette-httpx",
        "Starlette 1.10.0 + httpx 0.28.1 (Python, uvloop)",
        _starlette_httpx,
        requirements="starlette-httpx",
    ),
    Target(
        "tuneplex-asyncio",
        "tuneplex gateway (Python, asyncio's own loop)",
        _tuneplex("asyncio"),
        _RENAMED,
        default=False,
    ),
    Target(
        "tuneplex-2",
        "two tuneplex gateways on one port and two cores",
        _tuneplex("uvloop", "--processes", "2"),
        _RENAMED,
        default=False,
        processes=2,
    ),
    Target(
        "tuneplex-unix",
        "tuneplex gateway, engine on a Unix socket as in a local fleet",
        _tuneplex("uvloop"),
        _RENAMED,
        unix=True,
        default=False,
    ),
)
