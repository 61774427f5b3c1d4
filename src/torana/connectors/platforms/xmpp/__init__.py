"""XMPP: the connector, its rooms and its client."""

from torana.connectors.platforms.xmpp.client import XmppSettings
from torana.connectors.platforms.xmpp.connector import Xmpp

__all__ = ["Xmpp", "XmppSettings"]
