"""The whole of `adapter_config.json`, as far as it can change what an adapter computes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tuneplex.errors import SourceError
from tuneplex.shapes import ADAPTER_CONFIG, read_json

__all__ = ["Config", "read_config"]

# Of training, of how PEFT puts an adapter into a model, of who made it: nothing that changes the product of B and A.
_HARMLESS = frozenset(
    {"auto_mapping", "eva_config", "exclude_modules", "inference_mode", "layers_pattern", "lora_dropout"}
    | {"lora_ga_config", "megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config"}
    | {"task_type", "velora_config", "loftq_config", "corda_config", "megatron_config", "unsloth_fixed"}
)


class Config(msgspec.Struct, frozen=True):
    """What `LoraConfig` of PEFT writes; attributes are called as its keys are."""

    peft_type: str
    r: int
    lora_alpha: float | None = None
    target_modules: list[str] | str | msgspec.UnsetType | None = msgspec.UNSET
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    base_model_name_or_path: str | None = None
    use_rslora: bool = False
    use_dora: bool = False
    bias: str = "none"
    lora_bias: bool = False
    fan_in_fan_out: bool = False
    modules_to_save: list[str] | None = None
    init_lora_weights: bool | str | None = True
    layers_to_transform: list[int] | int | None = None
    exclude_modules: list[str] | str | None = None
    layer_replication: object = None
    alora_invocation_tokens: object = None
    use_bdlora: object = None
    use_qalora: bool = False
    arrow_config: object = None
    kasa_config: object = None
    monteclora_config: object = None
    target_parameters: object = None
    trainable_token_indices: object = None
    ensure_weight_tying: bool = False

    @property
    def ranks(self) -> frozenset[int]:
        """All ranks that the weights may have."""
        return frozenset([self.r, *(self.rank_pattern or {}).values()])

    @property
    def targets(self) -> tuple[str, ...]:
        """The names in `target_modules`; none where it is an expression or nothing."""
        return tuple(self.target_modules) if isinstance(self.target_modules, list) else ()


def read_config(directory: Path) -> tuple[Config, tuple[str, ...]]:
    """The configuration, and those of its keys that are not known here and say something.

    Raises:
        SourceError: It cannot be read, or holds something else.
    """
    file = directory / ADAPTER_CONFIG
    try:
        config, everything = read_json(file, Config), read_json(file, dict[str, object])
    except SourceError as error:
        raise SourceError(str(error).replace(f"{file}: ", "", 1), hint=error.hint) from None
    known = _HARMLESS | set(Config.__struct_fields__)
    return config, tuple(sorted(key for key, value in everything.items() if value and key not in known))
