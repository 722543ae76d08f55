"""What the gate accepts, a real vLLM serves in whole; what it refuses, vLLM would have served in part."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.lora import LAYERS, write_adapter
from tests.support.real_engine import RealEngine
from tests.support.residency import Residency, residency
from tuneplex.adapters import Verdict, inspect, make_version
from tuneplex.errors import SourceError
from tuneplex.shapes import BaseShape, read_base

pytestmark = pytest.mark.engine
Header = dict[str, dict[str, object]]


@pytest.fixture(scope="module")
def base(base_model: Path) -> BaseShape:
    """The engine's base."""
    return read_base(base_model)


@pytest.fixture
def routes(plugin_engine: RealEngine) -> Iterator[Residency]:
    """The routes of an engine without adapters, which is left without adapters."""
    with residency(plugin_engine) as client:
        yield client
        client.clear()


def rewritten(directory: Path, change: Callable[[str], str], more: Header | None = None, data: bytes = b"") -> Path:
    """Write the usual adapter with other names of tensors, and with more of them."""
    write_adapter(directory)
    file = directory / "adapter_model.safetensors"
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = {change(name): entry for name, entry in json.loads(content[8:end]).items()} | (more or {})
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[end:] + data)
    return directory


def configured(directory: Path, **values: object) -> Path:
    """Write the usual adapter with another configuration."""
    write_adapter(directory)
    file = directory / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return directory


def log_probabilities(routes: Residency, model: str) -> list[float]:
    """Of a short greedy answer."""
    body = {"model": model, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0, "logprobs": 1}
    reply = routes.client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    found: list[float] = reply.json()["choices"][0]["logprobs"]["token_logprobs"]
    return found


def test_what_is_converted_answers_as_the_usual_adapter(routes: Residency, base: BaseShape, tmp_path: Path) -> None:
    """Adapters with names that vLLM does not know answer, once converted, exactly as the usual one."""
    routes.load("usual", write_adapter(tmp_path / "usual"))
    usual = log_probabilities(routes, "usual")
    assert usual != log_probabilities(routes, routes.engine.model)
    kinds: dict[str, Callable[[str], str]] = {
        "named": lambda name: name.replace(".weight", ".default.weight"),
        "compiled": lambda name: name.replace("base_model.model.", "base_model.model._orig_mod."),
        "headless": lambda name: name.replace("base_model.model.model.", "base_model.model."),
    }
    for kind, change in kinds.items():
        version = make_version(kind, "", rewritten(tmp_path / kind, change), base=base, cache=tmp_path / "cache")
        routes.load(kind, Path(version.path))
        assert log_probabilities(routes, kind) == usual
        routes.done("unload", name=kind)


def test_what_is_accepted_is_applied(routes: Residency, base: BaseShape, tmp_path: Path) -> None:
    """Patterns and rsLoRA change what the engine answers: factors that the gate accepts are the engine's."""
    directory = write_adapter(tmp_path / "usual")
    routes.load("usual", directory)
    usual = log_probabilities(routes, "usual")
    others: dict[str, dict[str, object]] = {
        "patterns": {"alpha_pattern": {"v_proj": 2}},
        "rooted": {"use_rslora": True, "lora_alpha": 2},
    }
    for name, values in others.items():
        other = configured(tmp_path / name, **values)
        assert inspect(other, base).verdict is Verdict.ACCEPTED
        routes.load(name, other)
        assert log_probabilities(routes, name) != usual
        routes.done("unload", name=name)
    bare = rewritten(tmp_path / "bare", lambda name: name.removeprefix("base_model.model."))
    assert inspect(bare, base).verdict is Verdict.ACCEPTED
    routes.load("bare", bare)
    assert log_probabilities(routes, "bare") == usual


def half_elsewhere(directory: Path) -> Path:
    """An adapter of which every second layer is called as no layer of the base is."""
    odd = {f".layers.{layer}." for layer in range(1, LAYERS, 2)}
    return rewritten(
        directory, lambda name: name.replace(".layers.", ".blocks.") if any(one in name for one in odd) else name
    )


def with_more_tokens(directory: Path) -> Path:
    """An adapter that comes with embeddings of a larger vocabulary, as PEFT saves them after tokens were added."""
    begin = LAYERS * 4 * 8 * (576 + 192)
    size = 49_153 * 576 * 2
    entry: dict[str, object] = {"dtype": "BF16", "shape": [49_153, 576], "data_offsets": [begin, begin + size]}
    name = "base_model.model.model.embed_tokens.base_layer.weight"
    return rewritten(directory, lambda name: name, {name: entry}, bytes(size))


@pytest.mark.parametrize("write", [half_elsewhere, with_more_tokens])
def test_what_vllm_leaves_out_is_refused(
    routes: Residency, base: BaseShape, tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    """Adapters that vLLM loads and serves, without a part of them and without a word, do not get past the gate."""
    directory = write(tmp_path / "part")
    routes.load("part", directory)
    assert log_probabilities(routes, "part")
    with pytest.raises(SourceError, match="adapter part: "):
        make_version("part", "", directory, base=base, cache=tmp_path / "cache")
