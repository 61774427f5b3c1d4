"""Connectors to chat platforms, and the runtime that they share."""
