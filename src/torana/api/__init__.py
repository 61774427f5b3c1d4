"""The HTTP API: its routes, its middleware and its schemas."""
