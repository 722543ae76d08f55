"""Serve many LoRA fine-tunes of one base model behind one OpenAI-compatible API."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("tuneplex")
