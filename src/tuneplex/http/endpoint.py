"""Where an HTTP server listens: a Unix socket, or a host and port with or without TLS."""

from __future__ import annotations

from typing import Self
from urllib.parse import urlsplit

import msgspec

__all__ = ["Endpoint"]

_DEFAULT_PORT = {"http": 80, "https": 443}


class Endpoint(msgspec.Struct, frozen=True):
    """An address to connect to.

    Attributes:
        path: Of the Unix socket, or empty.
        host: Of a TCP server, or empty.
        port: Of a TCP server.
        tls: Whether the connection is encrypted.
        prefix: What comes before every request path, without a slash at its end.
    """

    path: str = ""
    host: str = ""
    port: int = 0
    tls: bool = False
    prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `unix:/path`, `http://host:port` or `https://host:port/prefix`.

        Raises:
            ValueError: The text is none of the three.
        """
        if text.startswith("unix:"):
            return cls._unix(text)
        parts = urlsplit(text)
        if parts.scheme not in _DEFAULT_PORT or not parts.hostname or parts.query or parts.fragment or parts.username:
            raise ValueError(f"{text!r} is not an endpoint; write unix:/path, http://host:port or https://host:port")
        return cls(
            host=parts.hostname,
            port=parts.port or _DEFAULT_PORT[parts.scheme],
            tls=parts.scheme == "https",
            prefix=parts.path.rstrip("/"),
        )

    @classmethod
    def _unix(cls, text: str) -> Self:
        path = text.removeprefix("unix:")
        if not path.startswith("/"):
            raise ValueError(f"{text!r} is not an endpoint; the path of a Unix socket starts with /")
        return cls(path=path)

    @property
    def authority(self) -> str:
        """The value of the `host` header."""
        if self.path:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORT["https" if self.tls else "http"] else f"{host}:{self.port}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The spellings of this address that must not reach a client."""
        return (self.path,) if self.path else (f"{self.host}:{self.port}", self.host)

    def __str__(self) -> str:
        """As `parse` reads it."""
        if self.path:
            return f"unix:{self.path}"
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"
