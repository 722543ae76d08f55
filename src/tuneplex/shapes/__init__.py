"""What models and adapters are made of, read from their configurations and safetensors headers."""

from __future__ import annotations

from tuneplex.shapes.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS, AdapterShape, read_adapter
from tuneplex.shapes.base import BaseShape, read_base
from tuneplex.shapes.jsonfile import read_json
from tuneplex.shapes.safetensors import Tensor, read_header
from tuneplex.shapes.speech import Speech, read_speech

__all__ = [
    "ADAPTER_CONFIG",
    "ADAPTER_WEIGHTS",
    "AdapterShape",
    "BaseShape",
    "Speech",
    "Tensor",
    "read_adapter",
    "read_base",
    "read_header",
    "read_json",
    "read_speech",
]
