"""ASGI middleware of the HTTP API."""
