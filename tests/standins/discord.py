"""A stand-in of Discord on loopback: the gateway's WebSocket, and the parts of the HTTP API v10 that a bot
needs.

It is written from the public reference (https://docs.discord.com/developers): opcodes, close codes, error
codes, limits and headers are Discord's. Sessions outlive their connections and are resumed; a session that is
closed with 1000 or 1001 ends. The rate of IDENTIFY and permissions are not enforced.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any
from unittest import mock

import aiohttp
import yarl
from aiohttp import web
from tests.standins.http import HttpPlatform

from torana.connectors.platforms.discord import Discord
from torana.testing.connectors import Shown

#: Any JSON object.
Object = dict[str, Any]

EPOCH = 1_420_070_400_000
TOKEN = "MTAwMA.standin.discord-token"
DM, TEXT, THREAD = 1, 0, 11
DEFAULT, THREAD_STARTED, REPLY = 0, 18, 19
GUILD_MESSAGES, DIRECT_MESSAGES, MESSAGE_CONTENT = 1 << 9, 1 << 12, 1 << 15
A_MESSAGE = "(POST|PATCH) .*/messages"
READ_MESSAGE_HISTORY = 1 << 16
#: The number of messages that a channel accepts, and the period in seconds.
BUCKET, WINDOW = 5, 0.2

#: The fields of a member of a server.
MEMBER: Object = {
    "roles": [],
    "joined_at": "2026-01-01T00:00:00+00:00",
    "flags": 0,
    "deaf": False,
    "mute": False,
}


class ApiError(Exception):
    """An error response."""

    def __init__(self, status: int, code: int, message: str, **more: object) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"message": message, "code": code, **more}


def _json(data: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a response without a charset, like Discord's."""
    body = json.dumps(data).encode()
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


@dataclass(slots=True)
class Session:
    """The numbered events of a bot, and its current connection."""

    id: str
    intents: int
    events: list[Object] = field(default_factory=list[Object])
    connection: Connection | None = None


class Connection:
    """A WebSocket of the gateway; with compression, all its frames are one zlib stream."""

    def __init__(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        self.socket = socket
        self._request = request
        compressed = request.query.get("compress") == "zlib-stream"
        self._deflater = zlib.compressobj() if compressed else None
        self._lock = asyncio.Lock()

    async def tell(self, payload: Object) -> None:
        """Send a payload, unless the connection has ended."""
        text = json.dumps(payload)
        async with self._lock:
            with suppress(ConnectionError):
                if self._deflater is None:
                    await self.socket.send_str(text)
                else:
                    body = self._deflater.compress(text.encode()) + self._deflater.flush(zlib.Z_SYNC_FLUSH)
                    await self.socket.send_bytes(body)

    def cut(self) -> None:
        """End the connection without a close frame."""
        if self._request.transport is not None:
            self._request.transport.abort()


class DiscordStandIn(HttpPlatform):
    """A server with two channels, the bot, and users who write to the bot directly."""

    concurrently = True
    connector = Discord

    def __init__(self) -> None:
        super().__init__()
        api = "/api/v10"
        self.app.middlewares.append(self._guard)
        self.app.add_routes(
            [
                web.get("/gateway/", self._gateway),
                web.get(f"{api}/users/@me", self._get_me),
                web.get(f"{api}/oauth2/applications/@me", self._get_application),
                web.post(f"{api}/users/@me/channels", self._post_direct),
                web.get(f"{api}/channels/{{channel}}/messages", self._get_messages),
                web.post(f"{api}/channels/{{channel}}/messages", self._post_message),
                web.patch(f"{api}/channels/{{channel}}/messages/{{message}}", self._patch_message),
                web.post(f"{api}/channels/{{channel}}/typing", self._post_typing),
                web.get("/attachments/{file}/{name}", self._get_file),
            ]
        )
        self._ids = count()
        #: The difference of its clock from ours.
        self.minutes = 0
        self.me = self.user("Torana", bot=True)
        self.link = f"https://discord.com/users/{self.me['id']}"
        self.people: dict[str, Object] = {name: self.user(name) for name in ("ana", "bob")}
        self._channels: dict[str, Object] = {}
        self._messages: dict[str, list[Object]] = {}
        self.files: dict[str, tuple[str, bytes]] = {}
        self._nonces: dict[tuple[str, str], Object] = {}
        self._buckets: dict[str, tuple[int, float]] = {}
        self.sessions: dict[str, Session] = {}
        self._answers: list[tuple[str, Callable[[web.Request], web.Response]]] = []
        #: Calls with this method and path are answered when the event is set.
        self.gates: dict[str, asyncio.Event] = {}
        self.guild = self.snowflake()
        self.general: str = self._channel(type=TEXT, guild_id=self.guild, name="general")["id"]
        self.room = self.general
        self.side: str = self._channel(type=TEXT, guild_id=self.guild, name="side")["id"]
        #: The connections of the gateway; a resumed session has its own connection.
        self.connections: list[Connection] = []
        self.heartbeat = 41_250
        self.identified = self.resumed = self.heartbeats = self.typings = 0
        #: The number of all connections.
        self.connected = 0
        #: The messages that exceeded a rate limit.
        self.overrun = 0
        self.login_refused = False
        self.content_intent = True
        #: Opcode 9 instead of READY and RESUMED, no READY, no HELLO, or a close frame instead of HELLO.
        self.invalidate = self.silent = self.mute = self.hang_up = False
        #: The users that messages notify.
        self.pinged: list[str] = []
        self.asked_for_history: list[str] = []
        self._patches = ExitStack()

    async def __aexit__(self, *_: object) -> None:
        self._patches.close()
        await super().__aexit__()

    def move(self, url: str) -> None:
        """As ``HttpPlatform``; the library has no setting for the URL."""
        super().move(url)
        self._patches.enter_context(mock.patch("discord.http.Route.BASE", f"{url}/api/v10"))
        gateway = mock.patch("discord.gateway.DiscordWebSocket.DEFAULT_GATEWAY", self._gateway_url())
        self._patches.enter_context(gateway)

    # Actions of tests

    def settings(self) -> Mapping[str, Any]:
        return {"token": TOKEN, "allow": [self.people["ana"]["id"], self.people["bob"]["id"]]}

    async def say(
        self,
        text: str,
        *,
        sender: str = "ana",
        room: str | None = None,
        thread: str | None = None,
        mention: bool = False,
        bot: bool = False,
        file: tuple[str, str, bytes] | None = None,
    ) -> str:
        author = self.people.setdefault(sender, self.user(sender, bot=bot))
        channel = thread and await self.open_thread(thread)
        channel = channel or room or self.direct(author)["id"]
        if mention:
            text = f"<@{self.me['id']}> {text}"
        attachments = [self.attachment(*file)] if file else []
        return (await self.create(channel, author, content=text, attachments=attachments))["id"]

    async def repeat(self, message: str) -> None:
        await self.dispatch("MESSAGE_CREATE", self.told(self._find(message)))

    async def shown(
        self, count: int, *, to: str = "ana", room: str | None = None, thread: str | None = None
    ) -> list[Shown]:
        channel = thread or room or self.direct(self.people[to])["id"]
        await self.until(lambda: len(self.messages(channel)) >= count)
        return [Shown(id=m["id"], text=m["content"], thread=thread) for m in self.messages(channel)]

    async def cut(self) -> None:
        for connection in self.connections:
            connection.cut()

    async def limit(self, seconds: float | None) -> None:
        if seconds is None:  # a proxy in front of Discord responds like this
            self.answer(429, "<html>error 1015</html>")
            return
        body = {"message": "You are being rate limited.", "retry_after": seconds, "global": False}
        self.answer(429, body, headers={"Retry-After": str(int(seconds) + 1), "Via": "1.1 google"})

    async def fail(self) -> None:
        self.answer(502, "<html>Bad Gateway</html>")

    async def refuse_message(self) -> None:
        self.answer(403, {"message": "Cannot send messages to this user", "code": 50007})

    async def refuse_login(self) -> None:
        self.login_refused = True

    def answer(
        self,
        status: int,
        body: Object | str,
        *,
        headers: Mapping[str, str] | None = None,
        to: str = A_MESSAGE,
    ) -> None:
        """Set the response to the next call with this method and path; by default, to the next message."""
        if isinstance(body, str):
            self._answers.append((to, lambda _: web.Response(status=status, text=body, headers=headers)))
        else:
            self._answers.append((to, lambda _: _json(body, status=status, headers=headers)))

    def hang_up_on_a_message(self) -> None:
        """End the connection on which the bot's next message arrives, without a response."""

        def cut(request: web.Request) -> web.Response:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()

        self._answers.append((A_MESSAGE, cut))

    async def close(self, code: int) -> None:
        """Close the connections with a code."""
        for connection in list(self.connections):
            await connection.socket.close(code=code)

    # Users, channels and files

    def snowflake(self) -> str:
        """Return an id, which contains its time."""
        at = int((time.time() + 60 * self.minutes) * 1000)
        return str((at - EPOCH << 22) + next(self._ids) % 4096)

    def user(self, name: str, *, bot: bool = False) -> Object:
        """Return a new user."""
        names = {"username": name.lower(), "global_name": None if bot else name, "discriminator": "0"}
        return {"id": self.snowflake(), **names, "avatar": None, "bot": bot}

    def _channel(self, **what: Any) -> Object:
        channel: Object = {"id": self.snowflake(), "last_message_id": None, **what}
        self._messages.setdefault(channel["id"], [])
        return self._channels.setdefault(channel["id"], channel)

    def direct(self, user: Object) -> Object:
        """Return the direct chat with a user."""
        for channel in self._channels.values():
            if channel["type"] == DM and channel["recipients"] == [user]:
                return channel
        return self._channel(type=DM, recipients=[user])

    def hide_history(self, channel: str) -> None:
        """Forbid reading earlier messages of a channel."""
        denied = {"id": self.guild, "type": 0, "allow": "0", "deny": str(READ_MESSAGE_HISTORY)}
        self._channels[channel]["permission_overwrites"] = [denied]

    async def open_thread(self, start: str) -> str:
        """Open a thread at a message; it has the message's id."""
        if start not in self._channels:
            parent = self._find(start)["channel_id"]
            now = datetime.now(UTC).isoformat()
            metadata = {
                "archived": False,
                "auto_archive_duration": 1440,
                "archive_timestamp": now,
                "locked": False,
            }
            counts = {"message_count": 0, "member_count": 1}
            thread = self._channel(
                id=start, type=THREAD, guild_id=self.guild, parent_id=parent, name="thread",
                owner_id=self.me["id"], thread_metadata=metadata, **counts,
            )  # fmt: skip
            await self.dispatch("THREAD_CREATE", {**thread, "newly_created": True})
        return start

    def attachment(self, name: str, media_type: str, data: bytes, *, size: int | None = None) -> Object:
        """Return a file; ``size`` is the reported size."""
        file = self.snowflake()
        self.files[file] = (media_type, data)
        url = str(yarl.URL(self.url) / "attachments" / file / name % {"hm": "signature"})
        types = {"content_type": media_type, "size": len(data) if size is None else size}
        return {"id": file, "filename": name, "url": url, "proxy_url": url, **types}

    def _guild(self) -> Object:
        mine = [c for c in self._channels.values() if c.get("guild_id") == self.guild]
        view_and_send = str(1 << 10 | 1 << 11 | READ_MESSAGE_HISTORY)
        everyone = {"id": self.guild, "name": "@everyone", "permissions": view_and_send, "position": 0}
        everyone |= {"color": 0, "hoist": False, "managed": False, "mentionable": False}
        member = {"user": self.me, **MEMBER}
        return {
            "id": self.guild, "unavailable": False, "name": "the server", "owner_id": self.people["ana"]["id"],
            "member_count": 3, "large": False, "roles": [everyone], "members": [member],
            "channels": [{"position": 0, "permission_overwrites": [], **c} for c in mine if c["type"] == TEXT],
            "threads": [c for c in mine if c["type"] == THREAD],
        }  # fmt: skip

    def _find(self, message: str) -> Object:
        return next(m for ms in self._messages.values() for m in ms if m["id"] == message)

    # Messages

    async def create(self, channel: str, author: Object, **what: Any) -> Object:
        """Create a message with ``content`` and any other fields."""
        message: Object = {
            "id": self.snowflake(), "channel_id": channel, "author": author, "content": "", "type": DEFAULT,
            "timestamp": datetime.now(UTC).isoformat(), "edited_timestamp": None, "tts": False, "pinned": False,
            "mention_everyone": False, "mention_roles": [], "attachments": [], "embeds": [],
            **what,
        }  # fmt: skip
        known = [*self.people.values(), self.me]
        mentioned = [
            u for u in known if f"<@{u['id']}>" in message["content"] or f"<@!{u['id']}>" in message["content"]
        ]
        message["mentions"] = [*what.get("mentions", []), *mentioned]
        self._messages[channel].append(message)
        self._channels[channel]["last_message_id"] = message["id"]
        await self.dispatch("MESSAGE_CREATE", self.told(message))
        self.stir()
        return message

    def told(self, message: Object) -> Object:
        """Return a message in the format of the gateway."""
        channel = self._channels[message["channel_id"]]
        where: Object = {"channel_type": channel["type"]}
        if "guild_id" in channel:
            where["guild_id"] = channel["guild_id"]
            if "webhook_id" not in message:
                where["member"] = {
                    "roles": [],
                    "joined_at": "2026-01-01T00:00:00+00:00",
                    "flags": 0,
                    "deaf": False,
                }
                where["member"]["mute"] = False
        return {**message, **where}

    # The gateway

    def _gateway_url(self) -> yarl.URL:
        return yarl.URL(self.url).with_scheme("ws") / "gateway/"

    async def dispatch(self, event: str, data: Object) -> None:
        """Send an event to every session whose intents include it."""
        for session in list(self.sessions.values()):
            if event.startswith("MESSAGE_"):
                needed = GUILD_MESSAGES if "guild_id" in data else DIRECT_MESSAGES
                if not session.intents & needed:
                    continue
            await self._tell(session, event, data)

    async def _tell(self, session: Session, event: str, data: Object) -> None:
        told = self.changed(data) if event == "MESSAGE_CREATE" else data
        payload = {"op": 0, "s": len(session.events) + 1, "t": event, "d": told}
        session.events.append(payload)
        if session.connection is not None:
            await session.connection.tell(payload)

    async def _gateway(self, request: web.Request) -> web.WebSocketResponse:
        assert (request.query["v"], request.query["encoding"]) == ("10", "json")
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        connection = Connection(socket, request)
        self.connections.append(connection)
        self.connected += 1
        session: Session | None = None
        try:
            if self.hang_up:
                await socket.close(code=4000)
            if not self.mute:
                await connection.tell({"op": 10, "d": {"heartbeat_interval": self.heartbeat}})
            self.stir()
            async for frame in socket:
                assert frame.type is aiohttp.WSMsgType.TEXT
                if len(frame.data) > 4096:
                    await socket.close(code=4002)
                payload: Object = json.loads(frame.data)
                session = await self._received(connection, session, payload) or session
        finally:
            self.connections.remove(connection)
            self.stir()
            if session is not None and session.connection is connection:
                session.connection = None
                if socket.close_code in (1000, 1001):
                    self.sessions.pop(session.id, None)
                    self.stir()
        return socket

    async def _received(
        self, connection: Connection, session: Session | None, payload: Object
    ) -> Session | None:
        match payload["op"], payload.get("d"):
            case 1, _:
                await connection.tell({"op": 11})
                self.heartbeats += 1
                self.stir()
            case ((2 | 6), _) if session is not None:
                await connection.socket.close(code=4005)
            case ((2 | 6), {"token": token}) if token != TOKEN or self.login_refused:
                await connection.socket.close(code=4004)
            case ((2 | 6), _) if self.silent:
                pass
            case ((2 | 6), _) if self.invalidate:
                await connection.tell({"op": 9, "d": False})
            case 2, {"intents": int(intents), "properties": _}:
                return await self._identify(connection, intents)
            case 6, {"session_id": known, "seq": int(seq)}:
                return await self._resume(connection, known, seq)
            case _:
                await connection.socket.close(code=4003 if session is None else 4001)
        return None

    async def _identify(self, connection: Connection, intents: int) -> Session | None:
        if intents & MESSAGE_CONTENT and not self.content_intent:
            await connection.socket.close(code=4014)
            return None
        session = Session(self.snowflake(), intents, connection=connection)
        self.sessions[session.id] = session
        self.identified += 1
        ready = {
            "v": 10,
            "user": self.me,
            "guilds": [{"id": self.guild, "unavailable": True}],
            "session_id": session.id,
            "resume_gateway_url": str(self._gateway_url()),
            "application": {"id": self.me["id"], "flags": 0},
        }
        await self._tell(session, "READY", ready)
        await self._tell(session, "GUILD_CREATE", self._guild())
        return session

    async def _resume(self, connection: Connection, known: str, seq: int) -> Session | None:
        session = self.sessions.get(known)
        if session is None:
            await connection.tell({"op": 9, "d": False})
            return None
        self.resumed += 1
        session.connection = connection
        for missed in session.events[seq:]:
            await connection.tell(missed)
        await self._tell(session, "RESUMED", {})
        return session

    def forget_sessions(self) -> None:
        """Drop all sessions, as after a long interruption."""
        self.sessions.clear()

    # The HTTP API

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if not request.path.startswith("/api/"):
            return await handler(request)
        try:
            if not request.headers["User-Agent"].startswith("DiscordBot ("):
                raise ApiError(403, 40333, "internal network error")
            if self.login_refused or request.headers.get("Authorization") != f"Bot {TOKEN}":
                raise ApiError(401, 0, "401: Unauthorized")
            for call, gate in self.gates.items():
                if re.match(call, f"{request.method} {request.path}"):
                    await gate.wait()
            for answer in self._answers:
                if re.match(answer[0], f"{request.method} {request.path}"):
                    self._answers.remove(answer)
                    return answer[1](request)
            return await handler(request)
        except ApiError as error:
            return _json(error.body, status=error.status)

    async def _get_me(self, _: web.Request) -> web.Response:
        return _json(self.me)

    async def _get_application(self, _: web.Request) -> web.Response:
        flags = {"bot_public": False, "bot_require_code_grant": False, "flags": 1 << 19, "verify_key": "0" * 64}
        named = {"id": self.me["id"], "name": "Torana", "icon": None, "description": ""}
        return _json({**named, **flags, "owner": self.people["ana"]})

    async def _post_direct(self, request: web.Request) -> web.Response:
        wanted = str((await request.json())["recipient_id"])
        user = next((one for one in self.people.values() if one["id"] == wanted), None)
        if user is None:
            raise ApiError(400, 50033, "Invalid Recipient(s)")
        return _json(self.direct(user))

    def _asked(self, request: web.Request) -> str:
        channel = request.match_info["channel"]
        if channel not in self._channels:
            raise ApiError(404, 10003, "Unknown Channel")
        return channel

    async def _get_messages(self, request: web.Request) -> web.Response:
        channel = self._asked(request)
        self.asked_for_history.append(channel)
        limit, after = int(request.query.get("limit", 50)), int(request.query.get("after", 0))
        before = int(request.query.get("before", 1 << 63))
        if not 1 <= limit <= 100 or {"before", "after"} <= set(request.query):
            raise ApiError(400, 50035, "Invalid Form Body")
        found = [m for m in self._messages[channel] if after < int(m["id"]) < before]
        found = found[:limit] if "after" in request.query else found[-limit:]
        return _json(found[::-1])

    async def _post_message(self, request: web.Request) -> web.Response:
        channel = self._asked(request)
        body: Object = await request.json()
        headers = self._pace(channel)
        self._check(body)
        nonce = body.get("nonce")
        repeated = self._nonces.get((channel, str(nonce))) if nonce and body.get("enforce_nonce") else None
        if repeated is not None:
            return _json(repeated, headers=headers)
        what: Object = {"content": body["content"]}
        if reference := body.get("message_reference"):
            what |= self._reply(channel, reference)
        self._ping(body)
        message = await self.create(channel, self.me, nonce=nonce, **what)
        self._nonces[channel, str(nonce)] = message
        return _json(message, headers=headers)

    def _pace(self, channel: str) -> Mapping[str, str]:
        """Return the headers of a rate limit bucket, which is refilled at the end of its period. Raises an
        error if it is empty.
        """
        now = time.monotonic()
        left, until = self._buckets.get(channel, (0, 0.0))
        if now >= until:
            left, until = BUCKET, now + WINDOW
        if not left:
            self.overrun += 1
            raise ApiError(429, 0, "You are being rate limited.", retry_after=until - now)
        self._buckets[channel] = (left - 1, until)
        return {
            "X-RateLimit-Limit": str(BUCKET),
            "X-RateLimit-Remaining": str(left - 1),
            "X-RateLimit-Reset": f"{time.time() + until - now:.3f}",
            "X-RateLimit-Reset-After": f"{until - now + 0.001:.3f}",
            "X-RateLimit-Bucket": "messages",
        }

    def _check(self, body: Object) -> None:
        if not str(body.get("content") or "").strip():
            raise ApiError(400, 50006, "Cannot send an empty message")
        wrong = {"content": len(body["content"]) > 2000, "nonce": len(str(body.get("nonce", ""))) > 25}
        if errors := {
            name: {"_errors": [{"code": "BASE_TYPE_MAX_LENGTH", "message": "too long"}]}
            for name in wrong
            if wrong[name]
        }:
            raise ApiError(400, 50035, "Invalid Form Body", errors=errors)

    def _reply(self, channel: str, reference: Object) -> Object:
        known = {m["id"]: m for m in self._messages[channel]}
        answered = known.get(str(reference["message_id"]))
        if answered is None and reference.get("fail_if_not_exists", True):
            raise ApiError(400, 50035, "Invalid Form Body", errors={"message_reference": {"_errors": []}})
        found = {"message_id": str(reference["message_id"]), "channel_id": channel}
        return {"type": REPLY, "message_reference": found, "referenced_message": answered}

    def _ping(self, body: Object) -> None:
        """Return the users that a message notifies."""
        allowed = body.get("allowed_mentions")
        kinds = ["everyone", "users", "roles"] if allowed is None else allowed.get("parse", [])
        if "everyone" in kinds and ("@everyone" in body["content"] or "@here" in body["content"]):
            self.pinged.append("everyone")
        if "users" in kinds and "<@" in body["content"]:
            self.pinged.append("somebody")
        if body.get("message_reference") and (allowed is None or allowed.get("replied_user")):
            self.pinged.append("who was answered")

    async def _patch_message(self, request: web.Request) -> web.Response:
        channel, body = self._asked(request), await request.json()
        self._check(body)
        known = {m["id"]: m for m in self._messages[channel]}
        message = known.get(request.match_info["message"])
        if message is None:
            raise ApiError(404, 10008, "Unknown Message")
        if message["author"] != self.me:
            raise ApiError(403, 50005, "Cannot edit a message authored by another user")
        self._ping(body)
        return _json(await self.edit(message["id"], body["content"]))

    async def edit(self, message: str, content: str) -> Object:
        """Edit a message."""
        found = self._find(message)
        found |= {"content": content, "edited_timestamp": datetime.now(UTC).isoformat()}
        await self.dispatch("MESSAGE_UPDATE", self.told(found))
        self.stir()
        return found

    def messages(self, channel: str) -> list[Object]:
        """Return the bot's messages in a channel."""
        return [m for m in self._messages[channel] if m["author"]["id"] == self.me["id"]]

    def delete(self, message: str) -> None:
        """Delete a message, as a moderator does."""
        for messages in self._messages.values():
            messages[:] = [m for m in messages if m["id"] != message]

    async def _post_typing(self, request: web.Request) -> web.Response:
        self._asked(request)
        self.typings += 1
        return web.Response(status=204)

    async def _get_file(self, request: web.Request) -> web.Response:
        if request.match_info["file"] not in self.files:
            raise web.HTTPNotFound
        media_type, data = self.files[request.match_info["file"]]
        return web.Response(body=data, content_type=media_type)
