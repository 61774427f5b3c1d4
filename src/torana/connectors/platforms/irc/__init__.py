"""IRC: the connector and its line protocol."""

from torana.connectors.platforms.irc.connector import Irc

__all__ = ["Irc"]
