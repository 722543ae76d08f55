"""docs/fleet-file.md tells of every key what the schema says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from pydantic.fields import FieldInfo

from tuneplex.fleetfile import FleetFile, schema
from tuneplex.fleetfile.explain import DERIVED
from tuneplex.units import parse_bytes, parse_duration

LoadText = Callable[[str | bytes], FleetFile]
PAGE = (Path(__file__).parents[3] / "docs" / "fleet-file.md").read_text()
SECTIONS: dict[str, type[schema.Section]] = {
    "Top level": schema.FleetFile,
    "`base`": schema.BaseSection,
    "`adapters.NAME`": schema.AdapterSection,
    "`limits`": schema.LimitsSection,
    "`price`": schema.PriceSection,
    "`pools.NAME`": schema.PoolSection,
    "`engine`": schema.EngineSection,
    "`gateway`": schema.GatewaySection,
    "`gateway.tls`": schema.TlsSection,
    "`gateway.timeouts`": schema.TimeoutsSection,
    "`gateway.waiting`": schema.WaitingSection,
    "`gateway.retries`": schema.RetriesSection,
    "`gateway.breaker`": schema.BreakerSection,
    "`gateway.idempotency`": schema.IdempotencySection,
    "`store`": schema.StoreSection,
    "`storage`": schema.StorageSection,
    "`storage.s3`": schema.S3Section,
    "`records`": schema.RecordsSection,
    "`slo`": schema.SloSection,
    "`telemetry`": schema.TelemetrySection,
    "`slo` of a model": schema.ModelSloSection,
    "`prices`": schema.PricesSection,
    "`logs`": schema.LogsSection,
}
KEYS = [(title, key) for title, section in SECTIONS.items() for key in section.model_fields]


def rows(title: str) -> dict[str, tuple[str, str]]:
    """The table of one section of the page: key -> default, meaning."""
    part = PAGE.split(f"### {title}\n", 1)[1].split("\n### ", 1)[0]
    return {key: (default, meaning) for key, default, meaning in re.findall(r"\| `(\w+)` \| (.*?) \| (.*) \|", part)}


def value(text: str, key: str) -> object:
    """A default as it stands on the page, read as the fleet file would read it."""
    read: dict[str, Callable[[str], object]] = {"max_body": parse_bytes}
    read |= dict.fromkeys(
        [*schema.TimeoutsSection.model_fields, "longest", "comments", "open", "keep", "audit", "drain"], parse_duration
    )
    read["bytes"] = read["journal"] = parse_bytes
    return read.get(key, yaml.safe_load)(text)


def expected_words(title: str, key: str, field: FieldInfo) -> set[str]:
    """What the page may say about a default that is not a plain value."""
    if field.is_required():
        return {"needed"}
    if isinstance(field.default, schema.Section):
        return {"see below"}
    kind = f"{title.strip('`').removesuffix('.NAME')}.{key}".removeprefix("Top level.")
    return {DERIVED.get(kind, "none")} if kind != "pools" else {"one, called `default`"}


@pytest.mark.parametrize("title, key", KEYS, ids=[f"{title}-{key}" for title, key in KEYS])
def test_key_is_documented(title: str, key: str) -> None:
    """Each key stands in its section's table with its real default and its meaning."""
    field = SECTIONS[title].model_fields[key]
    default, meaning = rows(title)[key]
    assert meaning == field.description
    plain = re.fullmatch(r"`(.*)`", default)
    if plain:
        assert value(plain[1], key) == field.default
    else:
        assert default in expected_words(title, key, field)


def test_page_describes_no_other_keys() -> None:
    """The page names no key that the schema does not know."""
    assert sorted(KEYS) == sorted((title, key) for title in SECTIONS for key in rows(title))


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_examples_load(example: str, load_text: LoadText, tmp_path: Path) -> None:
    """The page's examples are valid fleet files."""
    (tmp_path / "adapters/contacts").mkdir()
    example = example.replace("/srv/adapters/legal", "adapters/one")
    assert "contacts" in load_text(example).adapters
