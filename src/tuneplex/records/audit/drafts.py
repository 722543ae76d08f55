"""Lines of the audit log that are to be written together, made ready in memory."""

from __future__ import annotations

import msgspec

from tuneplex.records.audit.chain import Head, body, seal
from tuneplex.records.audit.keys import Signer
from tuneplex.records.audit.marks import Checkpoint, SignedHead, to_sign

__all__ = ["Draft"]


class Draft:
    """Lines that follow on each other.

    Args:
        head: The place of the chain that the first one follows on.

    Attributes:
        head: The place of the last one.
        count: How many there are.
    """

    def __init__(self, head: Head) -> None:
        self.head = head
        self.count = 0
        self._content = bytearray()

    def add(self, kind: str, members: bytes) -> None:
        """One more line; see `chain.body`."""
        self._seal(body(self.head.n + 1, kind, members))

    def sign(self, signer: Signer, checkpoint: Checkpoint) -> SignedHead:
        """A checkpoint, and its place."""
        text = body(self.head.n + 1, checkpoint.kind, msgspec.json.encode(checkpoint))
        signature = signer.sign(to_sign(self.head.chain, text))
        self._seal(b'%s,"signature":"%s"' % (text, signature.hex().encode()))
        return SignedHead(self.head.n, self.head.chain.hex(), checkpoint.at, checkpoint.key_id)

    def _seal(self, text: bytes) -> None:
        line, chain = seal(self.head.chain, text)
        self.head = Head(self.head.n + 1, chain)
        self.count += 1
        self._content += line

    def content(self) -> bytes:
        """All of them as they are written."""
        return bytes(self._content)
