"""What models and adapters are made of, read from their configurations and safetensors headers."""

from __future__ import annotations

from tuneplex.shapes.adapter import AdapterShape, read_adapter
from tuneplex.shapes.base import BaseShape, read_base
from tuneplex.shapes.fit import check_fit
from tuneplex.shapes.safetensors import Tensor, read_header

__all__ = ["AdapterShape", "BaseShape", "Tensor", "check_fit", "read_adapter", "read_base", "read_header"]
