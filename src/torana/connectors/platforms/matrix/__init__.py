"""Matrix: the connector and its client of the homeserver's API."""

from torana.connectors.platforms.matrix.connector import Matrix

__all__ = ["Matrix"]
