"""Which language model answers."""
