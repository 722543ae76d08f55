"""Finds connections that leave this machine: by looking at sockets all the time, and by strace where it is there."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

__all__ = ["Sentry", "strace_command", "traced_addresses"]

_TABLES = ("tcp", "tcp6", "udp", "udp6")
_TRACED = re.compile(r'sa_family=AF_INET6?,.*?(?:inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)")')


class Sentry:
    """Looks at the sockets of some processes four times a second, from another thread.

    Args:
        processes: Tells which.

    Attributes:
        seen: Every remote address, with the process and its table.
        looks: How often it has looked.
    """

    def __init__(self, processes: Callable[[], Iterable[int]]) -> None:
        self._processes = processes
        self._stop = threading.Event()
        self.seen: set[str] = set()
        self.looks = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[Sentry]:
        """Look for as long as the block runs."""
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.25):
            sockets = _remote_addresses()
            for pid in self._processes():
                for inode in _sockets(pid):
                    if inode in sockets:
                        self.seen.add(sockets[inode])
            self.looks += 1


def strace_command(log: Path) -> list[str]:
    """What to put before a command so that every address it or its children connect to is written to `log`.

    Empty where strace is not installed or may not trace.
    """
    strace = shutil.which("strace")
    if strace is None:
        return []
    command = [strace, "-f", "--seccomp-bpf", "-qq", "-e", "trace=connect,sendto", "-e", "signal=none", "-o", str(log)]
    works = subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    return command if works else []


def traced_addresses(log: Path) -> set[str]:
    """The IP addresses in a log of strace that are not this machine's own."""
    found = {one or other for one, other in _TRACED.findall(log.read_text(errors="replace"))}
    return {address for address in found if _is_outside(ipaddress.ip_address(address))}


def _is_outside(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    inner = getattr(address, "ipv4_mapped", None) or address
    return not (inner.is_loopback or inner.is_unspecified)


def _remote_addresses() -> dict[str, str]:
    """The remote addresses of all sockets of this machine that are connected to another one, by inode."""
    found = {}
    for table in _TABLES:
        path = Path("/proc/net") / table
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            address = _decode(fields[2].split(":")[0])
            if _is_outside(address):
                found[fields[9]] = f"{table} {address}"
    return found


def _decode(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The kernel writes addresses as 32-bit words in the machine's own byte order."""
    words = [bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8)]
    return ipaddress.ip_address(b"".join(words))


def _sockets(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = str(Path(descriptor.path).readlink())
                if target.startswith("socket:["):
                    yield target[8:-1]
