"""slixmpp's client for one connection of an account, and its settings."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Literal, Self
from xml.etree import ElementTree as ET

from pydantic import Field, SecretStr, field_validator, model_validator
from slixmpp import JID, ClientXMPP, Iq
from slixmpp.stanza import StreamFeatures
from slixmpp.xmlstream.xmlstream import NotConnectedError

from torana.connectors.base import ConnectorSettings, Ids, PermanentError

log = logging.getLogger(__name__)

#: Network timeout in seconds.
TIMEOUT = 30.0
#: Maximum nesting of a stanza; slixmpp handles stanzas recursively.
_DEPTH = 64
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: slixmpp's plugins for chat states, acknowledgements, pings, delays and unique ids. Its plugin for rooms
#: (XEP-0045) is not used: a join waits for the room's subject, and misses errors without the original payload.
_PLUGINS = ("xep_0085", "xep_0198", "xep_0199", "xep_0203", "xep_0359")


class XmppSettings(ConnectorSettings):
    """The settings of an account on an XMPP server."""

    jid: str = Field(
        pattern=r"^[^@/\s]+@[^@/\s]+(/\S+)?$",
        description="The account's address, such as `torana@example.org`.",
    )
    password: SecretStr = Field(description="The account's password.")
    host: str = Field(default="", description="The server's host name, if it cannot be found by the JID.")
    port: int = Field(default=5222, ge=1, le=65_535, description="The server's port, if `host` is given.")
    tls: Literal["starttls", "direct", "none"] = Field(
        default="starttls",
        description="How the connection is encrypted; `none` only for this machine (`host` is 127.0.0.1).",
    )
    join: Ids = Field(
        default=(), description="Addresses of the rooms to join, such as `room@rooms.example.org`."
    )
    nick: str = Field(default="torana", min_length=1, max_length=60, description="The nickname in rooms.")

    @field_validator("jid")
    @classmethod
    def _address(cls, jid: str) -> str:
        return JID(jid).full

    @field_validator("join")
    @classmethod
    def _rooms(cls, rooms: tuple[str, ...]) -> tuple[str, ...]:
        if any(not JID(room).user or JID(room).resource for room in rooms):
            raise ValueError("a room has an address such as room@rooms.example.org")
        return tuple(JID(room).bare for room in rooms)

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if self.tls == "none" and self.host not in _LOOPBACK:
            raise ValueError('tls = "none" is for a server on this machine: host must be 127.0.0.1')
        return self


class XmppClient(ClientXMPP):
    """slixmpp's client for one connection; ``close`` ends all its tasks."""

    def __init__(self, settings: XmppSettings) -> None:
        jid = JID(settings.jid)
        if not jid.resource:
            # A fixed resource: a new connection replaces an old one that the server takes for alive.
            jid.resource = "torana"
        plain = settings.tls == "none"
        login = {"unencrypted_plain": plain, "unencrypted_scram": plain}
        password = settings.password.get_secret_value()
        super().__init__(jid, password, {"feature_mechanisms": login})  # pyright: ignore[reportUnknownMemberType]
        self.enable_plaintext = plain
        self.enable_starttls = settings.tls == "starttls" or (not plain and not settings.host)
        self.enable_direct_tls = settings.tls == "direct" or (not plain and not settings.host)
        self.max_redirects = -1
        for plugin in _PLUGINS:
            self.register_plugin(plugin)  # pyright: ignore[reportUnknownMemberType]
        # The server repeats unacknowledged messages after the next login, for which another object is used.
        self.plugin["xep_0198"].allow_resume = False
        self.refusals: list[str] = []
        self.faults: list[str] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._address = (settings.host, settings.port) if settings.host else (None, None)

    def open(self) -> None:
        """Begin to connect; events report the result."""
        self.connect(*self._address)  # pyright: ignore[reportUnknownMemberType]

    def ping(self, to: str) -> asyncio.Future[Iq]:
        """Ping an address; the result raises ``IqError`` or ``IqTimeout``."""
        return self.plugin["xep_0199"].send_ping(JID(to), timeout=TIMEOUT)  # pyright: ignore[reportUnknownMemberType]

    def refusal(self) -> Exception:
        if "temporary-auth-failure" in self.refusals:
            return ConnectionError("the server cannot check passwords at the moment")
        why = ", ".join(self.refusals) or "it offers no secure login method"
        return PermanentError(f"{self.boundjid.host} refuses {self.boundjid.bare}: {why}")

    async def close(self) -> None:
        self.cancel_connection_attempt()
        with suppress(TimeoutError, NotConnectedError):
            async with asyncio.timeout(2):
                await self.disconnect(wait=1)  # pyright: ignore[reportUnknownMemberType]
        self.abort()
        await asyncio.sleep(0)
        for name in list(self.scheduled_events):
            self.cancel_schedule(name)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def send_raw(self, data: str | bytes) -> None:
        """Send data as the library does, without a log line: the data may hold passwords."""
        if self.transport is None:
            raise NotConnectedError
        self.transport.write(data.encode() if isinstance(data, str) else data)

    def _spawn_event(self, xml: ET.Element) -> None:
        """Process a stanza; one that is nested too deeply loses its content, but is counted and answered."""
        if _is_deeper(xml, _DEPTH):
            log.warning("xmpp_stanza_unreadable", extra={"reason": f"it is nested deeper than {_DEPTH}"})
            del xml[:]
        super()._spawn_event(xml)

    def _handle_roster(self, iq: Iq) -> None:
        """Acknowledge a change of the roster. The roster is not kept, as strangers can make it grow."""
        if iq["type"] == "set":
            iq.reply().send()

    async def run_filters(self) -> None:
        """Run the library's filters in a task that ``close`` ends."""
        self._hold()
        await super().run_filters()

    async def _connect_loop(self) -> asyncio.Future[Any] | None:
        self._hold()
        return await super()._connect_loop()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    async def _handle_stream_features(self, features: StreamFeatures) -> bool | None:
        self._hold()
        return await super()._handle_stream_features(features)

    def _hold(self) -> None:
        if task := asyncio.current_task():
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


def _is_deeper(xml: ET.Element, depth: int) -> bool:
    level = [xml]
    for _ in range(depth):
        level = [child for element in level for child in element]
    return bool(level)
