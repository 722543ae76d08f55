"""Where base models and adapters come from."""
