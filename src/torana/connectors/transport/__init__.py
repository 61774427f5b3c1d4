"""Shared clients and formats for connectors: HTTP, websockets, access tokens, Markdown and splitting."""
