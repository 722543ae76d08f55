"""Engines that speak OpenAI's API and cannot load adapters."""
