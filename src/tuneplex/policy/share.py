"""Who gets a new version while only a share of the traffic does: the same ones each time, by a hash."""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["takes_new"]

_BYTES = 8
_ALL = 2.0 ** (8 * _BYTES)


def takes_new(subject: str, salt: str, share: float) -> bool:
    """Whether a subject's requests go to the new version.

    Whoever is in stays in as the share grows. Nobody can choose to be in without the salt, and with another one others
    are in. At 0 nobody is, from 1 on everybody.

    Args:
        subject: A key or a user, whatever shall always see the same version.
        salt: Another one for each rollout, so that it is not always the same who get new versions first.
        share: Of all subjects, from 0 to 1.
    """
    # The zero between them keeps `a` + `bc` apart from `ab` + `c`. A user's name may be no proper Unicode.
    digest = blake2b(f"{salt}\0{subject}".encode(errors="surrogatepass"), digest_size=_BYTES).digest()
    return int.from_bytes(digest) < share * _ALL
