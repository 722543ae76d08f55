"""Why a server is not reached, in words for whoever has to mend it: pure functions of the error."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import httpx2

from tuneplex.http import Endpoint

__all__ = ["refused", "unreachable"]

_UNAUTHORIZED = (401, 403)
_NOT_FOUND = 404
# OpenSSL's numbers for what is wrong with a certificate.
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
_OTHER_NAME = (62, 64)


def unreachable(error: httpx2.HTTPError, where: Endpoint) -> str:
    """Why there was no answer at all, and what to do about it."""
    found = (_explained(cause, where) for cause in _causes(error))
    return next(filter(None, found), str(error) or type(error).__name__)


def refused(status: int, words: str, path: str) -> str:
    """Why an answer to a question for `path` is of no use, and what to do about it."""
    answered = f"GET {path} was answered by {status}"
    if status in _UNAUTHORIZED:
        return f"{answered} ({words}): it wants another key, which is `key` or `key_env` of the pool"
    if status == _NOT_FOUND:
        return f"{answered} ({words}): the pool's URL should be what stands before /v1, of such a server"
    return f"{answered}: {words}"


def _explained(error: BaseException, where: Endpoint) -> str:
    """One error in words; empty for one that says nothing yet."""
    at, words = where.path or f"{where.host}:{where.port}", ""
    match error:
        case socket.gaierror():
            words = f"the name {where.host} is not found ({error.strerror}): check the URL, and this machine's DNS"
        case ssl.SSLCertVerificationError():
            words = _certificate(error, where.host)
        case ssl.SSLWantReadError():
            words = f"{at} says nothing to our TLS handshake: perhaps its URL begins with http://"
        case ssl.SSLError():
            words = f"{at} does not speak TLS as we do ({error.reason}): perhaps its URL begins with http://"
        case ConnectionRefusedError() | FileNotFoundError():
            words = f"nothing listens at {at}: check the URL, and whether the engine runs"
        case httpx2.ConnectTimeout():
            words = f"no connection to {at} in time: check the URL, the network and firewalls"
        case httpx2.RemoteProtocolError():
            tls = "" if where.tls else "; if it speaks TLS its URL begins with https://"
            words = f"{at} broke off without an answer that is HTTP{tls}"
    return words


def _certificate(error: ssl.SSLCertVerificationError, host: str) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return f"the certificate of {host} has expired"
    if code == _NOT_YET_VALID:
        return f"the certificate of {host} is not valid yet: check this machine's clock"
    if code in _OTHER_NAME:
        return f"the certificate is not for {host}: use the name in the URL that it was made for"
    if code in _UNKNOWN_AUTHORITY:
        trust = "add its authority to the system's, or name a file with it in SSL_CERT_FILE before `tuneplex up`"
        return f"nobody whom this machine trusts has signed the certificate of {host}: {trust}"
    return f"the certificate of {host} is not accepted: {error.verify_message}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it came from, the root first: there it says most exactly what is wrong."""
    came_from = error.__cause__ or error.__context__
    if came_from is not None:
        yield from _causes(came_from)
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _causes(one)
    yield error
