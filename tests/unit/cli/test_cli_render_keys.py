"""What the commands show of tenants and keys."""

from __future__ import annotations

import msgspec
import pytest

from tuneplex.cli import render_keys as render
from tuneplex.cli.terminal import Sheet, plain
from tuneplex.control.bodies import KeyInfo, LimitsInfo, TenantInfo
from tuneplex.identity import Key, Scope
from tuneplex.types import AdapterVersion, Base, FleetSpec, PoolSpec

NOW = 1_000_000
ACME = TenantInfo("acme", adapters=("acme-*",), base=False, created=NOW)
FLEET = FleetSpec(
    "shop",
    Base("tiny", ""),
    adapters=(AdapterVersion("acme-legal", "0" * 64, "", 8, "default"),),
    pools=(PoolSpec("default"), PoolSpec("own", tenants=("acme",))),
)


def info(**more: object) -> KeyInfo:
    """A key of acme."""
    fields = {"id": "k1", "tenant": "acme", "sha256": "", "created": NOW - 7200, **more}
    return KeyInfo.of(Key(**fields), NOW, "")  # type: ignore[arg-type]


def column(sheet: Sheet, name: str) -> list[str]:
    """The texts below one head."""
    at = sheet.columns.index(name)
    return [row[at].text for row in sheet.rows]


@pytest.mark.parametrize(
    "tenant,key,models",
    [
        ({}, {}, "all"),
        ({}, {"base": False}, "all adapters"),
        ({}, {"adapters": ()}, "base"),
        ({}, {"adapters": (), "base": False}, "none"),
        ({}, {"adapters": ("a-*", "sql")}, "base, a-*, sql"),
        ({"base": False}, {}, "all adapters"),
        ({"adapters": ("a-*",)}, {}, "base, a-*"),
        ({"adapters": ("a-*",)}, {"adapters": ("a-*",)}, "base, a-*"),
        ({"adapters": ("a-*",)}, {"adapters": ("a-legal", "sql")}, "base, a-legal"),
        ({"adapters": ("a-*", "b")}, {"adapters": ("*-legal",), "base": False}, "*-legal (of a-*, b)"),
        ({"adapters": ()}, {"adapters": ("sql",)}, "base"),
    ],
)
def test_models_of_a_key_are_those_that_its_tenant_leaves_it(
    tenant: dict[str, object], key: dict[str, object], models: str
) -> None:
    """The table shows what a key can really call, which depends on its tenant as well."""
    owner = msgspec.structs.replace(TenantInfo("acme"), **tenant)
    assert column(render.keys([info(**key)], {"acme": owner}, NOW), "MODELS") == [models]


def test_key_that_is_not_for_models_shows_none() -> None:
    """Without the scope `use` there is nothing to call, whatever the limits."""
    found = info(scopes=(Scope.USAGE,))
    assert column(render.keys([found], {"acme": ACME}, NOW), "MODELS") == [""]
    assert "none, without the scope use" in plain(render.key(found, ACME, NOW))


def test_state_of_a_key_counts_its_tenants_and_says_when() -> None:
    """Each key has its state and its end in words; an active key of a disabled tenant is shown as disabled."""
    found = [
        info(),
        info(expires=NOW + 90 * 86400),
        info(expires=NOW - 7200),
        info(revoked=NOW - 130),
        info(tenant="off"),
    ]
    sheet = render.keys(found, {"acme": ACME, "off": TenantInfo("off", disabled=True)}, NOW)
    assert column(sheet, "STATE") == ["active", "active", "expired", "revoked", "disabled"]
    assert column(sheet, "EXPIRES") == ["never", "in 90 days", "2 hours ago", "2 minutes ago", "never"]


def test_one_key_is_shown_with_all_that_is_known() -> None:
    """Facts that a key does not have are left out."""
    text = plain(render.key(info(label="ci", scopes=(Scope.USE, Scope.USAGE), replaces="k0"), ACME, NOW))
    facts = {line.split()[0]: line.split(maxsplit=1)[1] for line in text.splitlines()}
    assert (facts["KEY"], facts["label"], facts["scopes"], facts["models"]) == ("k1", "ci", "use, usage", "acme-*")
    assert facts["replaces"] == "k0"
    assert "revoked" not in facts


def test_tenants_are_listed_with_their_keys_and_what_is_special() -> None:
    """Only what differs from the usual is written into the columns for pools, caches and limits."""
    special = TenantInfo(
        "eu",
        isolated=True,
        cache_group="europe",
        disabled=True,
        limits=LimitsInfo(concurrent=5),
        weight=3,
        recorded=True,
    )
    sheet = render.tenants([TenantInfo("default"), special], {"eu": 3})
    assert [[cell.text for cell in row] for row in sheet.rows] == [
        ["default", "all", "", "", "", "1", "", "0", "active"],
        ["eu", "all", "reserved", "europe", "5 at a time", "3", "required", "3", "disabled"],
    ]


def test_one_tenant_is_shown_in_words() -> None:
    """What isolation, a cache group and being disabled mean is written out."""
    text = plain(render.tenant(TenantInfo("eu", isolated=True, cache_group="europe", disabled=True)))
    assert "only those that are reserved for it" in text
    assert "the group europe" in text
    assert "none of its keys opens anything" in text


@pytest.mark.parametrize(
    "adapters,tenant,isolated,doubts",
    [
        (("*", "acme-*"), "acme", True, []),
        (("acne-*", "*"), "acme", False, ["no adapter of the fleet matches 'acne-*' now"]),
        ((), "other", True, ["no pool is reserved for other now"]),
        ((), "other", False, []),
    ],
)
def test_what_was_hardly_meant_is_doubted(
    adapters: tuple[str, ...], tenant: str, *, isolated: bool, doubts: list[str]
) -> None:
    """Patterns that match nothing, and isolation without a pool, are pointed out."""
    found = render.doubts(FLEET, adapters, tenant=tenant, isolated=isolated)
    assert len(found) == len(doubts)
    assert all(one.startswith(doubt) for one, doubt in zip(found, doubts, strict=True))
