"""A script for the engine's Python: turn one GGUF file into a directory that vLLM and PEFT read.

`PYTHON gguf_to_safetensors.py GGUF_FILE OUT_DIR`. It imports torch and transformers, which tuneplex itself never does,
and nothing of tuneplex. Its lines that start with `tuneplex:` are for `tuneplex.adapters.convert`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# How SmolLM2 splits text before its byte-pair merges. A GGUF file names this scheme ("smollm") without describing it,
# and transformers then leaves out the rule that every digit stands alone.
_SMOLLM_SPLIT = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}


def main(gguf_file: Path, out: Path) -> None:
    """Convert `gguf_file` into `out`, which exists and is empty."""
    _say("step starting PyTorch and transformers")
    import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - slow, and only here in the engine
    import transformers  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - the same

    where: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf_file.parent), "gguf_file": gguf_file.name}
    _say("step reading the quantized weights")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **where, quantization_config=transformers.GgufConfig(dequantize=True), dtype=torch.float32
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    _say("step writing bfloat16 safetensors")
    model = model.to(torch.bfloat16)
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = torch.bfloat16
    config._name_or_path = ""  # noqa: SLF001 - the only way to keep this machine's path out of config.json
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    _mend_tokenizer(out / "tokenizer.json", gguf_file)


def _mend_tokenizer(path: Path, gguf_file: Path) -> None:
    """Give the tokenizer the splitting rule that the GGUF file only names."""
    import gguf  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - only here in the engine's environment

    field = gguf.GGUFReader(gguf_file).get_field("tokenizer.ggml.pre")
    if field is None or field.contents() != "smollm":
        return
    tokenizer = json.loads(path.read_text("utf-8"))
    tokenizer["pre_tokenizer"] = _SMOLLM_SPLIT
    path.write_text(json.dumps(tokenizer, ensure_ascii=False, indent=1), "utf-8")


def _say(line: str) -> None:
    sys.stdout.write(f"tuneplex: {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
