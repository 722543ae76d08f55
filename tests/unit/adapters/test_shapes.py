"""What models and adapters are made of, and which are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuneplex.errors import SourceError
from tuneplex.shapes import read_adapter, read_base, read_header

MakeAdapter = Callable[..., Path]
PREFIX = "base_model.model.model.layers.0"


def write_header(file: Path, header: Mapping[str, object] | bytes, data: int = 0) -> None:
    """Write a safetensors file with exactly this header and as many zeros."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))


def rewrite(file: Path, **changes: object) -> None:
    """Change some keys of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_adapter(make_adapter: MakeAdapter) -> None:
    """An adapter's shape comes from its configuration and its weights' header."""
    shape = read_adapter(make_adapter(rank=16, config={"use_rslora": True, "modules_to_save": ["lm_head"]}))
    assert (shape.rank, shape.alpha, shape.target_modules) == (16, 32, ("q_proj",))
    assert (shape.base_name, shape.bias, shape.rslora, shape.dora) == ("acme/tiny", "none", True, False)
    assert shape.modules_to_save == ("lm_head",)
    assert shape.size == 2 * 16 * 32 * 4
    assert len(shape.tensors) == 2


def test_adapter_with_a_rank_pattern(make_adapter: MakeAdapter) -> None:
    """The rank is the largest of all patterns."""
    assert read_adapter(make_adapter(rank=8, config={"r": 4, "rank_pattern": {"q_proj": 8, "x": 64}})).rank == 64


def test_adapter_with_target_modules_as_an_expression(make_adapter: MakeAdapter) -> None:
    """Target modules may be one regular expression, or missing."""
    assert read_adapter(make_adapter(config={"target_modules": ".*q_proj"})).target_modules == (".*q_proj",)
    assert read_adapter(make_adapter(config={"target_modules": None})).target_modules == ()


@pytest.mark.parametrize(
    "config, message",
    [
        ({"peft_type": "IA3"}, "is of the kind 'IA3'; only LORA can be served"),
        ({"r": 0}, "the rank should be at least 1"),
        ({"r": "8"}, "is not what it should be"),
        ({"r": 16}, "has rank 8, the configuration says 16"),
        ({"rank_pattern": 3}, "is not what it should be"),
    ],
)
def test_adapter_with_a_wrong_configuration(
    make_adapter: MakeAdapter, config: Mapping[str, object], message: str
) -> None:
    """A configuration that cannot be, or does not belong to the weights, is refused."""
    with pytest.raises(SourceError, match=message):
        read_adapter(make_adapter(config=config))


def test_adapter_without_configuration(tmp_path: Path) -> None:
    """A directory without adapter_config.json is not an adapter."""
    with pytest.raises(SourceError, match=r"is not an adapter: adapter_config.json is missing"):
        read_adapter(tmp_path)


def test_adapter_with_half_a_configuration(make_adapter: MakeAdapter) -> None:
    """A configuration that is cut off is refused."""
    file = make_adapter() / "adapter_config.json"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(SourceError, match="is not what it should be") as caught:
        read_adapter(file.parent)
    assert "half written" in caught.value.hint


def test_pickled_adapter(make_adapter: MakeAdapter) -> None:
    """Pickled weights are refused with the way out."""
    directory = make_adapter()
    (directory / "adapter_model.safetensors").rename(directory / "adapter_model.bin")
    with pytest.raises(SourceError, match=r"adapter_model.bin: is a pickle") as caught:
        read_adapter(directory)
    assert "safe_serialization" in caught.value.hint


def test_adapter_without_weights(make_adapter: MakeAdapter) -> None:
    """An adapter without weights is not complete."""
    directory = make_adapter()
    (directory / "adapter_model.safetensors").unlink()
    with pytest.raises(SourceError, match=r"adapter_model.safetensors is missing"):
        read_adapter(directory)


def test_adapter_without_lora_weights(make_adapter: MakeAdapter) -> None:
    """Weights of another kind are refused."""
    directory = make_adapter()
    write_header(directory / "adapter_model.safetensors", {})
    with pytest.raises(SourceError, match="holds no LoRA weights"):
        read_adapter(directory)


def test_every_cut_is_noticed(make_adapter: MakeAdapter) -> None:
    """A weights file that ends early is refused wherever it ends."""
    file = make_adapter(rank=1, hidden=2) / "adapter_model.safetensors"
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises(SourceError, match=r"cut off|damaged"):
            read_header(file)


@pytest.mark.parametrize(
    "header, message",
    [
        (b"[]", "damaged"),
        (b"{", "damaged"),
        (b"\xff\xff", "damaged"),
        ({"a": {"dtype": "F32", "shape": [2]}}, "damaged"),
        ({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, "unknown type"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "another size"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}, "another size"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, "another size"),
        ({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}, "cut off: tensor a ends 32 bytes after"),
    ],
)
def test_wrong_headers(tmp_path: Path, header: Mapping[str, object] | bytes, message: str) -> None:
    """A header that cannot be true is refused."""
    file = tmp_path / "x.safetensors"
    write_header(file, header, data=4)
    with pytest.raises(SourceError, match=message):
        read_header(file)


def test_header_of_a_missing_file(tmp_path: Path) -> None:
    """A missing file is named."""
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        read_header(tmp_path / "none")


def test_enormous_header_is_not_read(tmp_path: Path) -> None:
    """A header length beyond the format's limit is refused without reading that much."""
    file = tmp_path / "x.safetensors"
    with file.open("wb") as handle:
        handle.write((1 << 40).to_bytes(8, "little"))
        handle.truncate(1 << 41)
    with pytest.raises(SourceError, match="cut off"):
        read_header(file)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.binary(max_size=300))
def test_any_bytes(tmp_path: Path, content: bytes) -> None:
    """A file of any bytes is read or refused by a SourceError."""
    file = tmp_path / "x.safetensors"
    file.write_bytes(content)
    try:
        read_header(file)
    except SourceError:
        return


def test_base(base: Path) -> None:
    """A base's shape comes from its configuration and the header of its weights."""
    shape = read_base(base)
    assert (shape.architecture, shape.hidden_size, shape.layers) == ("LlamaForCausalLM", 32, 2)
    assert (shape.heads, shape.kv_heads, shape.vocab_size, shape.max_position) == (4, 4, 100, 512)
    assert shape.size == 2 * sum((100 * 32, 32, 2 * (32 * 32 + 32 + 64 * 32)))
    assert not shape.quantized


def test_base_for_more_than_text(base: Path) -> None:
    """The sizes may stand in the configuration's part for text."""
    (base / "config.json").write_text(json.dumps({"text_config": {"hidden_size": 7, "num_key_value_heads": 2}}))
    assert (read_base(base).hidden_size, read_base(base).kv_heads) == (7, 2)


def test_base_in_several_files(base: Path) -> None:
    """A model in several files is read by its index, and each file must be there."""
    (base / "model.safetensors").rename(base / "model-1.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(SourceError, match=r"is not a complete model: model-2.safetensors is missing"):
        read_base(base)
    write_header(base / "model-2.safetensors", {"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, data=4)
    assert "x" in read_base(base).tensors


def test_index_that_leads_elsewhere(base: Path) -> None:
    """An index cannot name files outside the model's directory."""
    (base / "model.safetensors").unlink()
    (base / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../secret"}}')
    with pytest.raises(SourceError, match="outside its directory"):
        read_base(base)


def test_base_without_index(base: Path) -> None:
    """Without the usual names all safetensors files count."""
    (base / "model.safetensors").rename(base / "weights.safetensors")
    assert read_base(base).layers == 2


def test_base_that_is_none(base: Path, make_adapter: MakeAdapter, tmp_path: Path) -> None:
    """An empty directory, an adapter, pickles and a model without weights are told apart."""
    with pytest.raises(SourceError, match=r"is not a model: config.json is missing"):
        read_base(tmp_path)
    with pytest.raises(SourceError, match="is not a model") as caught:
        read_base(make_adapter())
    assert caught.value.hint == "this is an adapter; it belongs under 'adapters'"
    (base / "model.safetensors").rename(base / "pytorch_model.bin")
    with pytest.raises(SourceError, match="its weights are pickles"):
        read_base(base)
    (base / "pytorch_model.bin").unlink()
    with pytest.raises(SourceError, match="there are no safetensors files"):
        read_base(base)
