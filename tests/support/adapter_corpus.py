"""Good and bad adapters for a tiny base, each with what the gate should say of it."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["CASES", "Case", "Recipe", "encoded", "write_tiny_base"]

LAYERS, HIDDEN, VALUE, INNER, VOCABULARY = 2, 16, 8, 32, 40
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
PREFIX = "base_model.model."
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (VALUE, HIDDEN),
    "self_attn.v_proj": (VALUE, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
_WIDTHS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I8": 1, "F8_E4M3": 1}

Shape = tuple[int, ...]


def encoded(dtype: str, values: list[float]) -> bytes:
    """Numbers as a file of this type holds them."""
    if dtype == "BF16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    if dtype in {"I8", "F8_E4M3"}:
        return bytes(len(values))
    return struct.pack(f"<{len(values)}{ {'F64': 'd', 'F32': 'f', 'F16': 'e'}[dtype] }", *values)


@dataclass
class Recipe:
    """An adapter before it is written.

    Attributes:
        config: `adapter_config.json`.
        tensors: Name -> type, shape and bytes.
        files: Further files, as text.
        edits: What is done to the directory at last.
    """

    config: dict[str, object]
    tensors: dict[str, tuple[str, Shape, bytes]]
    files: dict[str, str] = field(default_factory=dict)
    edits: list[Callable[[Path], object]] = field(default_factory=list)

    @classmethod
    def plain(
        cls,
        *targets: str,
        rank: int = 4,
        dtype: str = "F32",
        layers: tuple[int, ...] = tuple(range(LAYERS)),
        prefix: str = f"{PREFIX}model.",
        tail: str = ".weight",
    ) -> Recipe:
        """What PEFT saves after training some projections."""
        wanted = targets or ("q_proj", "v_proj")
        recipe = cls(_config(list(wanted), rank), {})
        for layer in layers:
            for module, shape in SHAPES.items():
                if module.rpartition(".")[2] in wanted:
                    recipe.pair(f"{prefix}layers.{layer}.{module}", shape, rank, dtype, tail)
        return recipe

    def pair(self, module: str, shape: tuple[int, int], rank: int, dtype: str = "F32", tail: str = ".weight") -> None:
        """Add both matrices of a module of this shape."""
        self.put(f"{module}.lora_A{tail}", (rank, shape[1]), dtype)
        self.put(f"{module}.lora_B{tail}", (shape[0], rank), dtype)

    def put(self, name: str, shape: Shape, dtype: str = "F32", value: float | None = None) -> None:
        """Add a tensor of random numbers, or of one."""
        chance = random.Random(name)  # noqa: S311 - weights are no secret
        count = math.prod(shape)
        numbers = [chance.uniform(-1, 1) for _ in range(count)] if value is None else [value] * count
        self.tensors[name] = (dtype, shape, encoded(dtype, numbers))

    def rename(self, change: Callable[[str], str]) -> Recipe:
        """Call all tensors otherwise."""
        self.tensors = {change(name): tensor for name, tensor in self.tensors.items()}
        return self

    def only(self, keep: Callable[[str], bool]) -> Recipe:
        """Leave tensors out."""
        self.tensors = {name: tensor for name, tensor in self.tensors.items() if keep(name)}
        return self

    def set(self, **values: object) -> Recipe:
        """Change the configuration."""
        self.config |= values
        return self

    def without(self, key: str) -> Recipe:
        """Take a key out of the configuration."""
        del self.config[key]
        return self

    def file(self, name: str, content: object) -> Recipe:
        """Add a file; what is no text is written as JSON."""
        self.files[name] = content if isinstance(content, str) else json.dumps(content)
        return self

    def then(self, edit: Callable[[Path], object]) -> Recipe:
        """Do something to the directory when it is written."""
        self.edits.append(edit)
        return self

    def first(self, letter: str) -> str:
        """The first tensor of this letter."""
        return next(name for name in self.tensors if f"lora_{letter}" in name)

    def spoil(self, letter: str, value: float, dtype: str = "F32") -> Recipe:
        """Put one number into the middle of a matrix."""
        name = self.first(letter)
        _dtype, shape, data = self.tensors[name]
        width = _WIDTHS[dtype]
        at = len(data) // width // 2 * width
        self.tensors[name] = (dtype, shape, data[:at] + encoded(dtype, [value]) + data[at + width :])
        return self

    def fill(self, value: float, letters: str = "B") -> Recipe:
        """Put one number everywhere into all matrices of these letters."""
        for name, (dtype, shape, _data) in list(self.tensors.items()):
            if any(f"lora_{letter}" in name for letter in letters):
                self.put(name, shape, dtype, value)
        return self

    def write(self, directory: Path) -> Path:
        """Write the adapter; its directory."""
        directory.mkdir(parents=True)
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, (dtype, shape, data) in self.tensors.items():
            begin, end = end, end + len(data)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        whole = struct.pack("<Q", len(text)) + text + b"".join(data for _dtype, _shape, data in self.tensors.values())
        (directory / "adapter_model.safetensors").write_bytes(whole)
        (directory / "adapter_config.json").write_text(json.dumps(self.config))
        for name, content in self.files.items():
            (directory / name).write_text(content)
        for edit in self.edits:
            edit(directory)
        return directory


def _config(targets: list[str], rank: int) -> dict[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "peft_version": "0.21.2",
        "base_model_name_or_path": "acme/tiny",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.05,
        "target_modules": targets,
        "bias": "none",
        "init_lora_weights": True,
        "rank_pattern": {},
        "alpha_pattern": {},
        "modules_to_save": None,
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
        "qalora_group_size": 16,
        "megatron_core": "megatron.core",
        "loftq_config": {},
    }


def write_tiny_base(directory: Path, **config: object) -> Path:
    """The base of all cases: two layers of Llama's kind, its head tied to the embedding, its numbers all zero."""
    directory.mkdir(parents=True)
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {f"model.layers.{layer}.{module}.weight": shape for module, shape in SHAPES.items()}
        shapes[f"model.layers.{layer}.input_layernorm.weight"] = (HIDDEN,)
    header: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    values = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
    }
    (directory / "config.json").write_text(json.dumps(values | config))
    tokens = {"added_tokens_decoder": {"0": {"content": "<s>"}, "1": {"content": "</s>"}}, "pad_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokens | {"chat_template": TEMPLATE}))
    (directory / "generation_config.json").write_text(json.dumps({"temperature": 0.7, "eos_token_id": 1}))
    return directory


@dataclass(frozen=True)
class Case:
    """An adapter and what is to become of it.

    Attributes:
        name: What it is.
        recipe: Makes it.
        verdict: The gate's.
        check: What the finding is about that decides.
        words: What this finding says, or part of it.
    """

    name: str
    recipe: Callable[[], Recipe]
    verdict: str = "accepted"
    check: str = "base"
    words: str = ""


def _pickle(directory: Path) -> None:
    """Only a pickle, which would tell if anybody opened it."""
    (directory / "adapter_model.safetensors").unlink()
    (directory / "adapter_model.bin").write_bytes(b"cos\nabort\n(tR.")


def _cut(directory: Path) -> None:
    file = directory / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])


def _shards(directory: Path) -> None:
    (directory / "adapter_model.safetensors").rename(directory / "adapter_model-00001-of-00002.safetensors")


def _with(recipe: Recipe, name: str, shape: Shape) -> Recipe:
    recipe.put(name, shape)
    return recipe


def _low_rank() -> Recipe:
    """Rank 16 in the files, and two directions that say anything."""
    recipe = Recipe.plain("q_proj", rank=16)
    for name, (dtype, shape, data) in list(recipe.tensors.items()):
        if "lora_A" in name:
            recipe.tensors[name] = (dtype, shape, data[: 2 * HIDDEN * 4] + bytes(len(data) - 2 * HIDDEN * 4))
    return recipe


def _two_ranks() -> Recipe:
    recipe = Recipe.plain("q_proj")
    for layer in range(LAYERS):
        recipe.pair(f"{PREFIX}model.layers.{layer}.self_attn.v_proj", (VALUE, HIDDEN), 8)
    return recipe.set(target_modules=["q_proj", "v_proj"], rank_pattern={"v_proj": 8}, alpha_pattern={"v_proj": 32})


def _head() -> Recipe:
    recipe = Recipe.plain("q_proj").set(target_modules=["q_proj", "lm_head"])
    recipe.pair(f"{PREFIX}lm_head", (VOCABULARY, HIDDEN), 4)
    return recipe


def _embedding(tokens: int = VOCABULARY) -> Recipe:
    recipe = Recipe.plain("q_proj").set(target_modules=["q_proj", "embed_tokens"])
    recipe.put(f"{PREFIX}model.embed_tokens.lora_embedding_A", (4, tokens))
    recipe.put(f"{PREFIX}model.embed_tokens.lora_embedding_B", (HIDDEN, 4))
    return recipe


def _frozen(tokens: int = VOCABULARY) -> Recipe:
    recipe = _embedding()
    recipe.put(f"{PREFIX}model.embed_tokens.base_layer.weight", (tokens, HIDDEN))
    return recipe


def _turned(recipe: Recipe) -> Recipe:
    """Each matrix the other way round, as MLX saves them."""
    recipe.tensors = {
        name: (dtype, (shape[1], shape[0]), data) for name, (dtype, shape, data) in recipe.tensors.items()
    }
    return recipe


def _tokenizer(*tokens: tuple[str, int], pad: str = "</s>") -> Mapping[str, object]:
    return {"added_tokens_decoder": {str(number): {"content": text} for text, number in tokens}, "pad_token": pad}


plain = Recipe.plain
_OWN = (("<s>", 0), ("</s>", 1))

_GOOD = (
    Case("plain", plain, words="4 modules of LlamaForCausalLM"),
    Case("all linear modules", lambda: plain(*(name.rpartition(".")[2] for name in SHAPES)), words="14 modules"),
    Case("bfloat16", lambda: plain(dtype="BF16"), check="dtype", words="BF16"),
    Case("float16", lambda: plain(dtype="F16"), check="dtype", words="F16"),
    Case("float64", lambda: plain(dtype="F64"), check="dtype", words="F64"),
    Case("rank 1", lambda: plain(rank=1), check="rank", words="needs a pool with max_lora_rank 8"),
    Case("rank 9", lambda: plain(rank=9), check="rank", words="needs a pool with max_lora_rank 16"),
    Case("rank 512", lambda: plain("q_proj", rank=512, layers=(0, 1)), check="rank", words="max_lora_rank 512"),
    Case("rsLoRA", lambda: plain().set(use_rslora=True), check="rsLoRA", words="square root"),
    Case("patterns", _two_ranks, check="patterns", words="1 in rank_pattern"),
    Case("fractional alpha", lambda: plain().set(lora_alpha=0.5), check="numbers", words="all finite"),
    Case("targets as an expression", lambda: plain().set(target_modules=r".*\.(q|v)_proj"), words="4 modules"),
    Case("targets left open", lambda: plain().set(target_modules=None), words="4 modules"),
    Case("one layer on purpose", lambda: plain(layers=(1,)).set(layers_to_transform=[1]), words="2 modules"),
    Case("gaussian start", lambda: plain().set(init_lora_weights="gaussian"), words="4 modules"),
    Case("EVA", lambda: plain().set(init_lora_weights="eva", eva_config={"rho": 2.0}), words="4 modules"),
    Case("names without PEFT's prefix", lambda: plain(prefix="model."), words="4 modules"),
    Case("a pickle beside it", lambda: plain().file("adapter_model.bin", "x"), check="files", words="never opened"),
    Case("cards and states", lambda: plain().file("README.md", "x").file("training_args.bin", "x"), check="files"),
    Case("the base's template", lambda: plain().file("chat_template.jinja", TEMPLATE), check="chat template"),
    Case("the base's tokens", lambda: plain().file("tokenizer_config.json", _tokenizer(*_OWN)), check="added tokens"),
    Case("the base's defaults", lambda: plain().file("generation_config.json", {"temperature": 0.7}), check="defaults"),
    Case("less than its rank", _low_rank, check="effective rank", words="within rank 2"),
    Case("negative zeros among numbers", lambda: plain().spoil("B", -0.0), check="numbers", words="all finite"),
)

_CONVERTED = (
    Case(
        "the adapter's name in names",
        lambda: plain(tail=".default.weight"),
        "converted",
        "names",
        "8 tensors are renamed",
    ),
    Case(
        "a compiled model",
        lambda: plain().rename(lambda name: name.replace("base_model.model.", "base_model.model._orig_mod.")),
        "converted",
        "names",
        "_orig_mod",
    ),
    Case("a parallel model", lambda: plain().rename(lambda name: f"module.{name}"), "converted", "names"),
    Case(
        "a sharded model",
        lambda: plain().rename(lambda name: name.replace("layers.", "_fsdp_wrapped_module.layers.")),
        "converted",
        "names",
    ),
    Case(
        "trained without a head", lambda: plain(prefix=PREFIX), "converted", "names", "to base_model.model.model.layers"
    ),
)

_WARNED = (
    Case("B is zero", lambda: plain().fill(0.0), "warned", "numbers", "it changes nothing"),
    Case("B is zero in bfloat16", lambda: plain(dtype="BF16").fill(-0.0), "warned", "numbers", "it changes nothing"),
    Case("A is zero", lambda: plain().fill(0.0, "A"), "warned", "numbers", "it changes nothing"),
    Case("alpha is zero", lambda: plain().set(lora_alpha=0), "warned", "alpha", "alpha is 0"),
    Case("a layer is missing", lambda: plain(layers=(0,)), "warned", "complete", "1 of 2 layers"),
    Case(
        "a target is missing",
        lambda: plain().set(target_modules=["q_proj", "v_proj", "k_proj"]),
        "warned",
        "complete",
        "names k_proj",
    ),
    Case("an unknown key", lambda: plain().set(wobble_config={"a": 1}), "warned", "unknown keys", "wobble_config"),
    Case("the head", _head, "warned", "embeddings", "changes lm_head"),
    Case("the embedding", _embedding, "warned", "embeddings", "changes embed_tokens"),
    Case("a frozen copy of the embedding", _frozen, "warned", "embeddings"),
    Case(
        "padding of its own",
        lambda: plain().file("tokenizer_config.json", _tokenizer(*_OWN, ("<pad>", 40), pad="<pad>")),
        "warned",
        "added tokens",
        "for padding",
    ),
)

_CONFIGURED = (
    ("DoRA", {"use_dora": True}, "DoRA", "magnitudes"),
    ("biases", {"bias": "lora_only"}, "bias", "biases were trained too"),
    ("LoRA bias", {"lora_bias": True}, "LoRA bias", "lora_bias is set"),
    ("a whole head", {"modules_to_save": ["lm_head"]}, "whole modules", "lm_head was trained whole"),
    ("a classifier", {"modules_to_save": ["score"]}, "whole modules", "classifier's head is not served"),
    ("PiSSA", {"init_lora_weights": "pissa"}, "initialization", "the base itself was changed"),
    ("OLoRA", {"init_lora_weights": "olora"}, "initialization", "the base itself was changed"),
    ("activated LoRA", {"alora_invocation_tokens": [1, 2]}, "activated LoRA", "from certain tokens on"),
    ("more layers", {"layer_replication": [[0, 1], [0, 2]]}, "layer replication", "doubled"),
    ("KaSA", {"kasa_config": {"beta": 1}}, "KaSA", "changes the base itself"),
    ("Arrow", {"arrow_config": {"top_k": 3}}, "Arrow", "for each token"),
    ("fused experts", {"target_parameters": ["experts.down_proj"]}, "parameters", "cannot be checked"),
    ("single tokens", {"trainable_token_indices": [7]}, "tokens", "single tokens were trained"),
    ("IA3", {"peft_type": "IA3"}, "kind", "only LORA"),
    ("another rank", {"r": 8}, "rank", "has rank 4, the configuration says 8"),
    ("no rank", {"r": 0}, "rank", "below 1"),
    ("a rank in words", {"r": "four"}, "readable", "Expected `int`"),
    ("a pattern for nothing else", {"rank_pattern": {"v_proj": 16}}, "rank", "has rank 4, the configuration says 16"),
    ("a pattern that never ends", {"rank_pattern": {"(a+)+$": 8}}, "patterns", "is not tried"),
    ("a pattern that is none", {"alpha_pattern": {"[": 8}}, "patterns", "no regular expression"),
)

_REFUSED = (
    *(
        Case(name, lambda values=values: plain().set(**values), "refused", check, words)  # type: ignore[misc]
        for name, values, check, words in _CONFIGURED
    ),
    Case("only a pickle", lambda: plain().then(_pickle), "refused", "files", "is a pickle"),
    Case("several files", lambda: plain().then(_shards), "refused", "files", "in several files"),
    Case("cut off", lambda: plain().then(_cut), "refused", "readable", "is cut off"),
    Case("no alpha", lambda: plain().without("lora_alpha"), "refused", "alpha", "lora_alpha is missing"),
    Case("no targets", lambda: plain().without("target_modules"), "refused", "targets", "target_modules is missing"),
    Case("rank 513", lambda: plain("q_proj", rank=513), "refused", "rank", "vLLM serves at most 512"),
    Case("nothing in it", lambda: plain().only(lambda _: False), "refused", "tensors", "no LoRA weights"),
    Case("half of a pair", lambda: plain().only(lambda name: "lora_B" not in name), "refused", "tensors", "other half"),
    Case(
        "shards that were not gathered",
        lambda: _with(plain(), f"{PREFIX}model.layers.0.self_attn.q_proj.lora_A.weight", (0,)),
        "refused",
        "tensors",
        "something else than a pair",
    ),
    Case(
        "magnitudes of DoRA",
        lambda: _with(plain(), f"{PREFIX}model.layers.0.self_attn.q_proj.lora_magnitude_vector", (HIDDEN,)),
        "refused",
        "tensors",
        "magnitudes",
    ),
    Case(
        "a trained norm",
        lambda: _with(plain(), f"{PREFIX}model.norm.weight", (HIDDEN,)),
        "refused",
        "tensors",
        "not A or B",
    ),
    Case(
        "a whole head beside it",
        lambda: _with(plain(), f"{PREFIX}lm_head.weight", (VOCABULARY + 1, HIDDEN)),
        "refused",
        "tensors",
        "saved whole",
    ),
    Case(
        "a trained bias",
        lambda: _with(plain(), f"{PREFIX}model.layers.0.self_attn.q_proj.bias", (HIDDEN,)),
        "refused",
        "tensors",
        "biases of the base",
    ),
    Case(
        "two adapters in one file",
        lambda: plain(tail=".one.weight").rename(
            lambda name: name.replace(".one", ".two" if "v_proj" in name else ".one")
        ),
        "refused",
        "tensors",
        "several adapters: one, two",
    ),
    Case(
        "MLX",
        lambda: _turned(
            plain().rename(lambda name: name.replace("lora_A.weight", "lora_a").replace("lora_B.weight", "lora_b"))
        ),
        "refused",
        "tensors",
        "MLX",
    ),
    Case(
        "diffusers",
        lambda: plain().rename(lambda name: name.replace("lora_A", "lora_down").replace("lora_B", "lora_up")),
        "refused",
        "tensors",
        "image models",
    ),
    Case(
        "layers by another name",
        lambda: plain().rename(lambda name: name.replace("model.layers", "model.blocks")),
        "refused",
        "base",
        "no module model.blocks.0",
    ),
    Case(
        "the decoder of two",
        lambda: plain(prefix=f"{PREFIX}model.decoder."),
        "refused",
        "base",
        "no module model.decoder.layers.0",
    ),
    Case("a larger model", lambda: plain(layers=(0, 1, 2)), "refused", "base", "no module model.layers.2"),
    Case(
        "modules of another architecture",
        lambda: plain().rename(lambda name: name.replace("self_attn.q_proj", "attention.query")),
        "refused",
        "base",
        "no module model.layers.0.attention.query",
    ),
    Case(
        "another width",
        lambda: _with(plain(), f"{PREFIX}model.layers.0.self_attn.q_proj.lora_A.weight", (4, HIDDEN * 2)),
        "refused",
        "base",
        "is 16 x 32 in the adapter and 16 x 16 in the base",
    ),
    Case(
        "a matrix the other way round",
        lambda: plain("up_proj").rename(lambda name: name.replace("up_proj", "down_proj")),
        "refused",
        "base",
        "is 32 x 16 in the adapter and 16 x 32 in the base",
    ),
    Case("more tokens in the embedding", lambda: _embedding(41), "refused", "base", "41 x 16"),
    Case("more tokens in the frozen copy", lambda: _frozen(41), "refused", "embeddings", "41 x 16 and the base's 40"),
    Case("new embeddings", lambda: plain().file("new_embeddings.safetensors", "x"), "refused", "added tokens"),
    Case("NaN", lambda: plain().spoil("A", math.nan), "refused", "numbers", "NaN or infinity"),
    Case("NaN in bfloat16", lambda: plain(dtype="BF16").spoil("B", math.nan, "BF16"), "refused", "numbers", "NaN"),
    Case("infinity in float16", lambda: plain(dtype="F16").spoil("B", math.inf, "F16"), "refused", "numbers", "NaN"),
    Case("minus infinity", lambda: plain().spoil("B", -math.inf), "refused", "numbers", "NaN or infinity"),
    Case("whole numbers", lambda: plain(dtype="I8"), "refused", "dtype", "I8"),
    Case("eight bits", lambda: plain(dtype="F8_E4M3"), "refused", "dtype", "F8_E4M3"),
    Case(
        "a template of its own",
        lambda: plain().file("chat_template.jinja", "{{ messages }}"),
        "refused",
        "chat template",
        "differs from the base's",
    ),
    Case(
        "tokens of its own",
        lambda: plain().file("tokenizer_config.json", _tokenizer(*_OWN, ("<tool>", 40))),
        "refused",
        "added tokens",
        "'<tool>' is 40",
    ),
    Case(
        "defaults of its own",
        lambda: plain().file("generation_config.json", {"temperature": 0.1, "max_length": 9}),
        "refused",
        "defaults",
        "temperature differ",
    ),
    Case("a tokenizer that is damaged", lambda: plain().file("tokenizer_config.json", "{"), "refused", "tokenizer"),
)

CASES = (*_GOOD, *_CONVERTED, *_WARNED, *_REFUSED)
