"""Certificates that are right, and wrong in each way there is."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

__all__ = ["Authority"]

_EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Authority:
    """Signs certificates for servers of this machine.

    Args:
        directory: For its own certificate, and those that it signs.

    Attributes:
        file: Its own certificate.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.file = directory / "ca.pem"
        self._key = directory / "ca.key"
        _openssl("req", "-x509", *_EC, "-days", "2", "-subj", "/CN=authority", "-keyout", self._key, "-out", self.file)

    def server(self, host: str = "localhost", *, days: int = 2) -> ssl.SSLContext:
        """What a server needs that shows a certificate for a host; it expires after so many days, or has."""
        key, wish, cert = (self._directory / f"{host}{days}.{kind}" for kind in ("key", "csr", "pem"))
        name = ("-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}")
        _openssl("req", *_EC, *name, "-keyout", key, "-out", wish)
        signing = ("-CA", self.file, "-CAkey", self._key, "-copy_extensions", "copy", "-days", str(days))
        _openssl("x509", "-req", "-in", wish, *signing, "-out", cert)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        return context


def _openssl(*words: str | Path) -> None:
    command = ["openssl", *map(str, words)]
    subprocess.run(command, check=True, capture_output=True)
