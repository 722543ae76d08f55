"""The key that signs the audit log, and the public one that checks it: Ed25519, as PEM files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from tuneplex.errors import AuditError
from tuneplex.files import write_whole

__all__ = ["PUBLIC_FILE", "SIGNING_FILE", "PublicKey", "Signer"]

SIGNING_FILE = "signing.pem"
PUBLIC_FILE = "public.pem"
_ID_LENGTH = 16


class PublicKey:
    """Checks signatures.

    Args:
        key: The key itself.
    """

    def __init__(self, key: Ed25519PublicKey) -> None:
        self._key = key
        raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.id = hashlib.sha256(raw).hexdigest()[:_ID_LENGTH]

    @classmethod
    def read(cls, file: Path) -> PublicKey:
        """The key in a PEM file.

        Raises:
            AuditError: It cannot be read, or holds no such key.
        """
        try:
            key = load_pem_public_key(_content(file))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise AuditError(f"{file} holds no public key") from error
        if not isinstance(key, Ed25519PublicKey):
            raise AuditError(f"{file} holds another kind of key than Ed25519")
        return cls(key)

    def pem(self) -> bytes:
        """The content of a PEM file."""
        return self._key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def holds(self, signature: bytes, message: bytes) -> bool:
        """Whether the owner of the private key has signed this."""
        try:
            self._key.verify(signature, message)
        except InvalidSignature:
            return False
        return True


class Signer:
    """Signs; the private key leaves its file for nobody else.

    Args:
        key: The private key.
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = PublicKey(key.public_key())

    @classmethod
    def make(cls, directory: Path) -> Signer:
        """A new key, in two files that only this user can read.

        Raises:
            OSError: They cannot be written.
        """
        key = Ed25519PrivateKey.generate()
        signer = cls(key)
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_whole(directory / SIGNING_FILE, secret)
        write_whole(directory / PUBLIC_FILE, signer.public.pem())
        return signer

    @classmethod
    def read(cls, directory: Path) -> Signer:
        """The key that was made in this directory. Its public file is written again where it is gone.

        Raises:
            AuditError: It cannot be read.
            OSError: The public file cannot be written.
        """
        file = directory / SIGNING_FILE
        try:
            key = load_pem_private_key(_content(file), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise AuditError(f"{file} holds no private key", hint="take it from a backup") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise AuditError(f"{file} holds another kind of key than Ed25519", hint="take it from a backup")
        signer = cls(key)
        if not (directory / PUBLIC_FILE).exists():
            write_whole(directory / PUBLIC_FILE, signer.public.pem())
        return signer

    def sign(self, message: bytes) -> bytes:
        """The signature, 64 bytes."""
        return self._key.sign(message)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise AuditError(f"{file} cannot be read: {error.strerror or error}") from error
