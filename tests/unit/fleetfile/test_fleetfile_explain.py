"""Every setting with its value and its origin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tuneplex.fleetfile import FleetFile, explain, resolve
from tuneplex.types import AdapterVersion, Base

LoadText = Callable[[str | bytes], FleetFile]


def settings(text: str, load_text: LoadText) -> dict[str, tuple[str, str]]:
    """Key -> value, origin."""
    return {key: (value, origin) for key, value, origin in explain(load_text(text))}


def test_origins(load_text: LoadText, tmp_path: Path) -> None:
    """Values come from a line of the file, from a default, or are derived in a way that is told."""
    text = "base: models/tiny\nadapters:\n- name: a\n  source: adapters/one\ngateway:\n  port: 81\n  cors: '*'\n"
    found = settings(text, load_text)
    assert found["base.source"] == (f"{tmp_path}/models/tiny", "fleet.yaml:1")
    assert found["base.name"] == ("tiny", "derived: from base.source")
    assert found["adapters.a.source"] == (f"{tmp_path}/adapters/one", "fleet.yaml:4")
    assert found["gateway.port"] == ("81", "fleet.yaml:6")
    assert found["gateway.cors"] == ("*", "fleet.yaml:7")
    assert found["gateway.host"] == ("127.0.0.1", "default")
    assert found["gateway.timeouts.first_byte"] == ("10m00s", "default")
    assert found["pools.default.max_loras"] == ("-", "derived: one for each adapter, at most 4")
    assert found["pools.default.replicas"] == ("1", "default")
    assert found["store.url"] == ("-", "derived: a file in the state directory")


def test_keys_that_mean_nothing_are_left_out(load_text: LoadText) -> None:
    """A local pool has no URLs, and an external one no GPUs."""
    found = settings("base: models/tiny\npools: {x: {launcher: external, url: 'http://h:1'}, l: {}}\n", load_text)
    assert "pools.l.urls" not in found
    assert "pools.x.gpus" not in found
    assert found["pools.x.replicas"][1] == "derived: one for each URL"
    assert found["pools.l.replicas"][1] == "default"


def test_secrets_are_masked(load_text: LoadText) -> None:
    """Keys, and whatever sounds like one, are shown as stars only."""
    text = (
        "base: models/tiny\n"
        "gateway: {key: hunter2}\n"
        "store: postgresql://me:hunter7@h/d\n"
        "pools:\n"
        "  x: {launcher: external, url: 'http://h:1', key: hunter3}\n"
        "  l:\n"
        "    env: {HF_TOKEN: hunter4, OMP_NUM_THREADS: '2'}\n"
        "    engine_args: [--hf-token, hunter5, --seed, '1', --some-password=hunter6]\n"
    )
    file = load_text(text)
    assert "hunter" not in str(explain(file)) + repr(file)
    found = settings(text, load_text)
    assert found["gateway.key"] == ("********", "fleet.yaml:2")
    assert found["store.url"] == ("********", "fleet.yaml:3")
    assert found["pools.l.env.HF_TOKEN"] == ("********", "fleet.yaml:7")
    assert found["pools.l.env.OMP_NUM_THREADS"] == ("2", "fleet.yaml:7")
    assert [found[f"pools.l.engine_args[{i}]"][0] for i in range(5)] == [
        "--hf-token",
        "********",
        "--seed",
        "1",
        "--some-password=********",
    ]


def test_resolved_values_are_shown(load_text: LoadText) -> None:
    """With the resolved fleet, derived settings show what they came to."""
    file = load_text("base: models/tiny\nadapters: {a: adapters/one}\n")
    versions = [AdapterVersion("a", "0" * 64, "/a", 20, "")]
    env = {"TUNEPLEX_API_KEY": "hunter2"}
    spec = resolve(file, base=Base("tiny", "/t"), adapters=versions, python="/engine/python", env=env)
    found = {key: (value, origin) for key, value, origin in explain(file, spec)}
    assert found["adapters.a.pool"][0] == "default"
    assert found["pools.default.max_lora_rank"][0] == "32"
    assert found["engine.python"][0] == "/engine/python"
    assert found["gateway.key"] == ("********", "environment: TUNEPLEX_API_KEY")


def test_store_of_an_environment_variable(load_text: LoadText) -> None:
    """A store's URL from the environment is told by the variable's name, not by its value."""
    file = load_text("base: models/tiny\nstore: {url_env: STORE_URL}\n")
    env = {"STORE_URL": "postgresql://me:hunter2@h/d"}
    spec = resolve(file, base=Base("tiny", "/t"), adapters=[], python="", env=env)
    found = {key: (value, origin) for key, value, origin in explain(file, spec)}
    assert found["store.url"] == ("********", "derived: from store.url_env")
    assert found["store.url_env"] == ("STORE_URL", "fleet.yaml:2")


def test_every_setting_appears_once(load_text: LoadText) -> None:
    """No key is listed twice."""
    keys = [key for key, _, _ in explain(load_text("base: models/tiny\nadapters: {a: adapters/one}\n"))]
    assert len(keys) == len(set(keys))


def test_limits(load_text: LoadText) -> None:
    """A model's limits are shown where there are any, with the line that sets them."""
    text = "base: models/tiny\nadapters:\n  a: {source: adapters/one}\n  b:\n    source: adapters/one\n    limits:\n"
    found = settings(text + "      requests_per_minute: 60\n", load_text)
    assert found["base.limits"] == ("-", "default")
    assert found["adapters.a.limits"] == ("-", "default")
    assert found["adapters.b.limits.requests_per_minute"] == ("60", "fleet.yaml:7")
    assert found["adapters.b.limits.concurrent"] == ("-", "default")


def test_drain_time(load_text: LoadText) -> None:
    """How long replicas drain is shown as a duration, for local and external pools, given or not."""
    found = settings(
        "base: models/tiny\npools:\n  l: {}\n  e: {launcher: external, url: 'http://h:1', drain: 1h30m}\n", load_text
    )
    assert (found["pools.l.drain"], found["pools.e.drain"]) == (("5m00s", "default"), ("1h30m", "fleet.yaml:4"))


def test_money(load_text: LoadText) -> None:
    """Prices and limits in money are shown as they were written, to the last decimal."""
    text = "base: {source: models/tiny, limits: {money_per_month: 25}, price: {prompt: 1.000001, completion: '2'}}\n"
    found = settings(text + "prices: {currency: EUR, prompt: 0.15, completion: 0.60}\n", load_text)
    assert found["base.limits.money_per_month"] == ("25.00", "fleet.yaml:1")
    assert found["base.price.prompt"] == ("1.000001", "fleet.yaml:1")
    assert found["base.price.cached"] == ("-", "default")
    assert found["prices.currency"] == ("EUR", "fleet.yaml:2")
    assert found["prices.prompt"] == ("0.15", "fleet.yaml:2")
    assert settings("base: models/tiny\n", load_text)["prices"] == ("-", "default")


def test_long_times(load_text: LoadText) -> None:
    """How long requests are kept is shown in days."""
    found = {setting.key: setting.value for setting in explain(load_text("base: models/tiny\nrecords: {keep: 400d}\n"))}
    assert (found["records.keep"], found["records.journal"]) == ("400d", "1.0 GiB")
    assert found["gateway.idempotency.keep"] == "24h00m"
