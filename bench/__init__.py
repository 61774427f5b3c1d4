"""Measure Torana beside the bare agent loop: ``python -m bench --help``."""
