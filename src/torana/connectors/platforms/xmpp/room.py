"""A room that the account joins (XEP-0045)."""

from __future__ import annotations

import asyncio
import logging
from xml.etree import ElementTree as ET

from slixmpp import JID, Presence

from torana.connectors.platforms.xmpp.client import TIMEOUT, XmppClient

log = logging.getLogger(__name__)

_MUC = "{http://jabber.org/protocol/muc}"
MUC_USER = "{http://jabber.org/protocol/muc#user}"


class XmppRoom:
    """A room: the account's nickname in it, and the other members (XEP-0045)."""

    def __init__(self, address: str, nick: str) -> None:
        self.address = address
        self.nick: str = nick
        #: The members' addresses by nickname; empty if the room hides them.
        self.people: dict[str, str] = {}
        self.is_in = False
        #: The permanent reason why the account cannot join.
        self.closed = ""
        self._entering: asyncio.Future[tuple[str, bool]] | None = None

    async def enter(self, client: XmppClient, nick: str) -> str:
        """Join under a nickname, without history; return the error, or an empty text."""
        self.nick, self.closed, self.is_in = nick, "", False
        self.people.clear()
        self._entering = asyncio.get_running_loop().create_future()
        presence = client.make_presence(pto=f"{self.address}/{nick}")
        ET.SubElement(ET.SubElement(presence.xml, f"{_MUC}x"), f"{_MUC}history", maxstanzas="0")
        presence.send()
        try:
            async with asyncio.timeout(TIMEOUT / 3):  # one slow room must not delay the others
                why, for_good = await self._entering
        except TimeoutError:
            why, for_good = "no answer", False
        self._entering = None
        self.closed = why if for_good else ""
        return why

    def take(self, presence: Presence) -> None:
        """Handle the presence of a member: a join, a leave or a new nickname."""
        nick, kind = str(presence["from"].resource), str(presence["type"])
        x = presence.xml.find(f"{MUC_USER}x")
        codes = [] if x is None else [one.get("code") for one in x.findall(f"{MUC_USER}status")]
        item = None if x is None else x.find(f"{MUC_USER}item")
        ours = "110" in codes or nick == self.nick
        if kind == "error":
            self._answer(presence["error"]["condition"], for_good=presence["error"]["type"] != "wait")
        elif kind == "unavailable":
            self.people.pop(nick, None)
            if ours and "303" in codes and item is not None:
                self.nick = str(item.get("nick") or nick)
            elif ours:
                self.is_in = False
                log.warning("xmpp_room_left", extra={"room": self.address, "codes": codes})
        else:
            jid = None if item is None else item.get("jid")
            self.people[nick] = JID(jid).bare if jid else ""
            if ours:
                self.nick, self.is_in = nick, True
                self._answer("", for_good=False)

    def _answer(self, why: str, *, for_good: bool) -> None:
        if self._entering is not None and not self._entering.done():
            self._entering.set_result((why, for_good))
