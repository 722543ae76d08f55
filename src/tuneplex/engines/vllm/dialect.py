"""vLLM's API server: OpenAI's API, adapters are models of their own."""

from __future__ import annotations

from tuneplex.engines.openai.dialect import OpenAIDialect

__all__ = ["VllmDialect"]


class VllmDialect(OpenAIDialect):
    """vLLM speaks OpenAI's API so closely that nothing on the wire differs; its error shapes are known to `wire`."""
