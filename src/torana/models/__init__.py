"""The language models: providers, and the builtin model."""
