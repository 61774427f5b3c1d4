"""Discord, as a bot: messages come through its gateway, a websocket, and are sent by its HTTP API.

After a short break the library resumes the session and Discord tells what was missed. After a longer one, or a
restart, the latest messages are asked for; those heard already have the ids that they had.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing, suppress
from datetime import timedelta
from hashlib import blake2s
from types import SimpleNamespace
from typing import Any, ClassVar

import aiohttp
from pydantic import Field, SecretStr

from torana.connectors import markup
from torana.connectors.abreast import abreast
from torana.connectors.base import (
    Abilities,
    Attachment,
    Connector,
    ConnectorSettings,
    Ears,
    Heard,
    Part,
    Place,
    Refused,
    Sender,
    TooLarge,
    TryLater,
    Unsure,
)

with warnings.catch_warnings():
    # The library's voice part imports `audioop`, of which Python 3.11 and 3.12 warn.
    warnings.simplefilter("ignore", DeprecationWarning)
    import discord
    from discord.gateway import KeepAliveHandler

_log = logging.getLogger(__name__)

#: Seconds that a call may take, and those in which the connection is closed.
_PATIENCE = 30.0
_CLOSING = 2.0
#: A session that ends for good sooner than this is not followed by another: Discord allows 1,000 a day.
_SESSION = 300.0
#: So many breaks of the connection within so many seconds are too many.
_BREAKS, _WITHIN = 10, 60.0
#: How many direct chats, and channels of a server, are asked for what was missed, and for how many messages.
_CHATS, _CHANNELS, _MESSAGES = 50, 30, 100
#: What was received and not yet taken.
_WAITING = 10_000

#: What people say; other types are the service's own news, such as a pin.
_SAID = (discord.MessageType.default, discord.MessageType.reply)
#: A code by which a connection is closed and the session kept.
_NOT_FOR_GOOD = 4000
#: The gateway's codes for what another try does not mend, besides 4014 (an intent that is switched off).
_FINAL_CODES = (4004, 4010, 4011, 4012, 4013)
#: Codes of the HTTP API; the passing ones are overload and what stands in front of Discord.
_NO_TOKEN, _UNKNOWN_MESSAGE, _MAY_NOT_REPLY, _PASSING = 401, 10008, 160002, (0, 40062, 40333, 130000)

_TOKEN_CURE = "Discord does not take the token: make a new one in the developer portal, under Bot"  # noqa: S105
_INTENT_CURE = (
    "Discord refuses the message content intent: switch it on in the developer portal, under Bot, "
    "Privileged Gateway Intents"
)

#: A direct chat or a channel; of a direct chat the person's id is enough.
_Where = discord.abc.Messageable | int


class DiscordSettings(ConnectorSettings):
    """What is needed to be a bot on Discord."""

    token: SecretStr = Field(min_length=1, description="The bot's token, from the developer portal.")
    catch_up_minutes: int = Field(
        default=10, ge=0, le=1_440, description="How old a missed message may be that is heard at the start."
    )


class Discord(Connector[DiscordSettings]):
    """A bot's account: direct messages, and the channels and threads of the servers that it was invited to."""

    Settings = DiscordSettings
    global_ids = True
    abilities: ClassVar[Abilities] = Abilities(
        length=2_000, repeat="keyed", render=markup.discord, edits=True, typing_every=8.0, threads=True
    )

    def __init__(self, settings: DiscordSettings) -> None:
        super().__init__(settings)
        self._client: _Client | None = None

    @property
    def credentials(self) -> str:
        """The token."""
        return self.settings.token.get_secret_value()

    async def run(self, ears: Ears) -> None:
        """As ``Connector``; a session that can be resumed is, without a word."""
        let_in = await ears.paired(_CHATS)
        named = dict.fromkeys([*self.settings.allow, *self.settings.users, *let_in])
        people = [int(one) for one in named if one.isdecimal()]
        client = _Client(ears, people=people, age=timedelta(minutes=self.settings.catch_up_minutes))
        self._client = client
        try:
            async with asyncio.timeout(_PATIENCE):
                await client.login(self.credentials)
            await _first_of(_listen(client, ears), client.failure(), _connect(client))
        except discord.LoginFailure as error:
            raise Refused(_TOKEN_CURE) from error
        except discord.PrivilegedIntentsRequired as error:
            raise Refused(_INTENT_CURE) from error
        except discord.ConnectionClosed as error:
            if error.code in _FINAL_CODES:
                raise Refused(_TOKEN_CURE if error.code == _FINAL_CODES[0] else str(error)) from error
            raise
        finally:
            self._client = None
            await _close(client)

    async def send(self, part: Part) -> str:
        """As ``Connector``. Whatever the text, nobody is pinged."""
        client = self._client
        if client is None:
            raise TryLater("there is no connection to Discord")
        try:
            async with asyncio.timeout(_PATIENCE):
                return await _show(client, part)
        except discord.HTTPException as error:
            if error.status == _NO_TOKEN:
                client.fail(Refused(_TOKEN_CURE))
                raise TryLater(_TOKEN_CURE) from error
            told = f"Discord answered {error.status}, code {error.code}: {error.text[:200]}"
            raise (TryLater if error.code in _PASSING else Refused)(told) from error
        except aiohttp.ClientConnectorError as error:
            raise TryLater("Discord cannot be reached") from error
        except (OSError, aiohttp.ClientError) as error:
            raise Unsure(f"Discord did not say whether it took the message ({type(error).__name__})") from error

    async def typing(self, place: Place) -> None:
        """As ``Connector``: shown for ten seconds."""
        with suppress(Exception):
            async with asyncio.timeout(_PATIENCE):
                if self._client is not None:
                    await _channel(self._client, place).typing()


class _Client(discord.Client):
    """The library's client, whose messages wait in a queue, in their order."""

    def __init__(self, ears: Ears, *, people: Sequence[int], age: timedelta) -> None:
        super().__init__(
            intents=discord.Intents(guilds=True, guild_messages=True, dm_messages=True, message_content=True),
            allowed_mentions=discord.AllowedMentions.none(),
            max_messages=None,
            member_cache_flags=discord.MemberCacheFlags.none(),
            guild_ready_timeout=0.05,  # servers that come later are told of all the same
            enable_debug_events=True,  # every frame is told of, the answers to heartbeats too
            http_trace=_impatience(),
        )
        self._ears = ears
        self._people = people
        self._age = age
        self._direct: dict[int, discord.DMChannel] = {}
        self._up = False
        self._began = 0.0
        self._breaks: deque[float] = deque(maxlen=_BREAKS)
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting: asyncio.Queue[discord.Message | list[_Where]] = asyncio.Queue(_WAITING)
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._open_socket = self.http.ws_connect
        self.http.ws_connect = self._next_socket

    def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        """After its end the library would stumble over its own events."""
        if not self.is_closed():
            super().dispatch(event, *args, **kwargs)

    def fail(self, error: Exception) -> None:
        """Let the connection end with an error."""
        if not self._failure.done():
            self._failure.set_exception(error)

    async def failure(self) -> None:
        """Wait for the error with which the connection ends, and raise it."""
        await self._failure

    async def _next_socket(self, url: str, *, compress: int = 0) -> aiohttp.ClientWebSocketResponse:
        """Open a connection in the place of the last one."""
        await self.close_socket()
        self._socket = await self._open_socket(url, compress=compress)
        return self._socket

    async def close_socket(self) -> None:
        """Close the connection: the library forgets one that ended before it came to a session."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING):
                if self._socket is not None:
                    await self._socket.close(code=_NOT_FOR_GOOD)

    async def before_identify_hook(self, shard_id: int | None, *, initial: bool = False) -> None:
        """By itself the library would begin one session after the other."""
        del shard_id
        if not initial and self.loop.time() - self._began < _SESSION:
            raise discord.ClientException("Discord ended a session soon after it had begun")
        self._began = self.loop.time()

    async def on_connect(self) -> None:
        """A session began."""
        self._up = True
        self._ears.ready()
        self._waiting.put_nowait([*self._direct.values()] or [*self._people[:_CHATS]])

    async def on_resumed(self) -> None:
        """A session goes on, and what was missed has been told."""
        self._up = True

    async def on_disconnect(self) -> None:
        """The library will resume the session, if it is not always the same."""
        self._up = False
        self._breaks.append(self.loop.time())
        if len(self._breaks) == _BREAKS and self._breaks[-1] - self._breaks[0] < _WITHIN:
            self.fail(ConnectionError("the connection to Discord breaks again and again"))

    async def on_socket_raw_receive(self, _: str) -> None:
        """A connection that never comes to a session is not alive, whatever it answers."""
        if self._up:
            self._ears.alive()

    async def on_guild_available(self, guild: discord.Guild) -> None:
        """The channels of a server are known."""
        oldest = discord.utils.time_snowflake(discord.utils.utcnow() - self._age)
        here = [*guild.text_channels, *guild.voice_channels, *guild.stage_channels, *guild.threads]
        latest = sorted(here, key=_last_message, reverse=True)
        fresh: list[_Where] = [one for one in latest if _last_message(one) > oldest and self._may_read(one)]
        self._waiting.put_nowait(fresh[:_CHANNELS])

    async def on_message(self, message: discord.Message) -> None:
        """Something was said."""
        if isinstance(message.channel, discord.DMChannel):
            self._remember(message.channel)
        self._waiting.put_nowait(message)

    async def on_error(self, event_method: str, /, *args: Any, **kwargs: Any) -> None:
        """An event that could not be handled is a message that may be lost: let another connection find it."""
        del args, kwargs
        self.fail(ConnectionError(f"Discord's events could not be handled ({event_method})"))

    async def messages(self) -> AsyncGenerator[discord.Message]:
        """What is said, and where something was missed, that first."""
        while True:
            item = await self._waiting.get()
            if not isinstance(item, list):
                yield item
                continue
            until = self.loop.time() + _PATIENCE  # what is said now does not wait for long
            for where in item if self._age else ():
                for message in await self._missed(where, until=until):
                    yield message

    async def _missed(self, where: _Where, *, until: float) -> list[discord.Message]:
        """What was said there lately, oldest first."""
        try:
            async with asyncio.timeout_at(until):
                channel = await self._opened(where) if isinstance(where, int) else where
                after = discord.utils.utcnow() - self._age
                found = channel.history(limit=_MESSAGES, after=after, oldest_first=False)
                return [message async for message in found][::-1]
        except Exception as error:  # noqa: BLE001 - what cannot be asked for is no reason to hear nothing
            _log.warning(
                "what was missed cannot be asked for", extra={"error": f"{type(error).__name__}: {error}"}
            )
            return []

    async def _opened(self, person: int) -> discord.DMChannel:
        """The direct chat with a person; this calls nobody."""
        return self._remember(await self.create_dm(discord.Object(person)))

    def _remember(self, chat: discord.DMChannel) -> discord.DMChannel:
        """Keep a direct chat in mind: after a session that was lost, Discord does not tell of any."""
        self._direct.pop(chat.id, None)
        self._direct[chat.id] = chat
        if len(self._direct) > _CHATS:
            del self._direct[next(iter(self._direct))]
        return chat

    def _may_read(self, channel: discord.abc.GuildChannel | discord.Thread) -> bool:
        place = channel.parent if isinstance(channel, discord.Thread) else channel
        me = place and place.guild.get_member(self.user.id if self.user else 0)
        return bool(place and me and place.permissions_for(me).read_message_history)


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Do all until one ends; its error is raised, that of the foremost where several have one."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _connect(client: _Client) -> None:
    """Be connected, until that ends for good."""
    try:
        await client.connect()
    except AttributeError as error:
        if client.ws:
            raise
        # This is how the library fails when its very first connection does.
        raise ConnectionError("Discord's gateway cannot be reached") from error.__context__


async def _close(client: _Client) -> None:
    """Leave; a peer that does not answer is not waited for."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_CLOSING):
            await client.close()
            for thread in threading.enumerate():  # the library forgets a connection that came to no session
                if isinstance(thread, KeepAliveHandler) and thread.ws.token == client.http.token:
                    await thread.ws.close()
    await client.close_socket()
    await client.http.close()


async def _listen(client: _Client, ears: Ears) -> None:
    """Take what is said; what was missed may be told by the gateway as well."""
    taken: deque[int] = deque(maxlen=_WAITING)
    async with aclosing(client.messages()) as messages, abreast(ears) as hear:
        async for message in messages:
            if message.id in taken or client.user is None:
                continue
            taken.append(message.id)
            if heard := _heard(message, me=client.user.id):
                await hear(heard)


def _heard(message: discord.Message, *, me: int) -> Heard | None:
    """What somebody said; None for our own messages and the service's news."""
    if message.author.id == me or message.type not in _SAID:
        return None
    sources = [message, *message.message_snapshots]  # what is forwarded is said too
    text = "\n".join(source.content for source in sources if source.content)
    attachments = [_attachment(file) for source in sources for file in source.attachments]
    if not text and not attachments:  # a sticker, a poll
        return None
    author = message.author
    names = {str(user.id): f"@{user.display_name}" for user in message.mentions}
    text = re.sub(rf"^\s*<@!?{me}>[\s,:]*", "", text)
    direct = isinstance(message.channel, discord.DMChannel)
    return Heard(
        id=str(message.id),
        sender=Sender(
            id=str(author.id),
            name=author.display_name,
            automatic=author.bot or author.system or message.webhook_id is not None,
        ),
        place=_place(message, direct=direct),
        text=re.sub(r"<@!?(\d+)>", lambda found: names.get(found[1], found[0]), text),
        direct=direct,
        addressed=direct or any(user.id == me for user in message.mentions) or _answers(message, me),
        attachments=attachments,
        said_at=message.created_at,
    )


def _place(message: discord.Message, *, direct: bool) -> Place:
    channel = message.channel
    reply_to = {} if direct else {"message": str(message.id)}
    if isinstance(channel, discord.Thread):
        return Place(chat=str(channel.parent_id), thread=str(channel.id), reply_to=reply_to)
    return Place(chat=str(channel.id), reply_to=reply_to)


def _answers(message: discord.Message, me: int) -> bool:
    """Whether it is a reply to one of ours."""
    answered = message.reference.resolved if message.reference else None
    return isinstance(answered, discord.Message) and answered.author.id == me


def _attachment(file: discord.Attachment) -> Attachment:
    media_type = file.content_type or "application/octet-stream"
    kind = media_type.partition("/")[0]

    async def fetch(limit: int) -> bytes:
        if file.size > limit:
            raise TooLarge
        timeout = aiohttp.ClientTimeout(total=_PATIENCE)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(file.url) as response:
            if response.status != 200:  # its address, which opens the file, is told to nobody
                raise ConnectionError(f"Discord's files answered {response.status}")
            found = bytearray()
            async for chunk in response.content.iter_chunked(65_536):
                found += chunk
                if len(found) > limit:
                    raise TooLarge
            return bytes(found)

    return Attachment(
        kind="voice" if file.is_voice_message() else kind if kind in ("image", "video") else "file",
        name=file.filename,
        media_type=media_type,
        size=file.size,
        fetch=fetch,
    )


def _last_message(channel: discord.abc.GuildChannel | discord.Thread) -> int:
    return getattr(channel, "last_message_id", None) or 0


def _channel(client: _Client, place: Place) -> discord.PartialMessageable:
    return client.get_partial_messageable(int(place.thread or place.chat))


async def _show(client: _Client, part: Part) -> str:
    """Send a part, or put it in the place of an earlier message; if that is gone, it is sent."""
    channel = _channel(client, part.place)
    if part.edits:
        try:
            await channel.get_partial_message(int(part.edits)).edit(content=part.text)
        except discord.NotFound as error:
            if error.code != _UNKNOWN_MESSAGE:
                raise
        else:
            return part.edits
    # A nonce has 25 characters at most; the message that is gone had the key alone.
    nonce = blake2s(f"{part.key} {part.edits or ''}".encode(), digest_size=12).hexdigest()
    answered = part.place.reply_to.get("message")
    if answered and part.number == 0:
        reference = discord.MessageReference(
            message_id=int(answered), channel_id=channel.id, fail_if_not_exists=False
        )
        try:
            return str((await channel.send(part.text, nonce=nonce, reference=reference)).id)
        except discord.HTTPException as error:
            if error.code != _MAY_NOT_REPLY:
                raise
    return str((await channel.send(part.text, nonce=nonce)).id)


def _impatience() -> aiohttp.TraceConfig:
    """Lets a refusal for the moment be known at once: the library would wait and try again by itself."""
    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(_look_at)
    return trace


async def _look_at(_: aiohttp.ClientSession, __: SimpleNamespace, ended: aiohttp.TraceRequestEndParams) -> None:
    response = ended.response
    if response.status == 429:
        body = await response.content.read(10_000)
        response.close()  # the library does not see it any more
        raise TryLater("too many calls for Discord", seconds=_named_wait(response, body))
    if response.status >= 500:
        response.close()
        raise ConnectionError(f"Discord answered {response.status}")


def _named_wait(response: aiohttp.ClientResponse, body: bytes) -> float | None:
    """The seconds that Discord names, or that which stands in front of it."""
    with suppress(ValueError, KeyError, TypeError, OverflowError):
        return float(json.loads(body)["retry_after"])
    with suppress(ValueError):
        return float(response.headers.get("Retry-After", ""))
    return None
