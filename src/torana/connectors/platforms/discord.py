"""Discord, as a bot: messages arrive through its gateway, a WebSocket, and are sent through its HTTP API.

After a short break the library resumes the session, and Discord repeats missed messages. After a longer break,
or a restart, the connector requests the latest messages; repeated messages have the same ids.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from datetime import timedelta
from functools import partial
from hashlib import blake2s
from types import SimpleNamespace
from typing import Any, ClassVar

import aiohttp
from pydantic import Field, SecretStr

from torana.connectors.base import (
    ELSEWHERE,
    Attachment,
    Capabilities,
    Connector,
    ConnectorSettings,
    IncomingMessage,
    MessageSink,
    OutcomeUnknown,
    Part,
    PermanentError,
    Place,
    RetryLater,
    Sender,
    TooLarge,
    collect,
)
from torana.connectors.transport import markup
from torana.connectors.transport.concurrency import Hear, concurrently
from torana.connectors.transport.parsing import log_ignored_event, parse_alone

with warnings.catch_warnings():
    # The library's voice part imports `audioop`, of which Python 3.11 and 3.12 warn.
    warnings.simplefilter("ignore", DeprecationWarning)
    import discord
    from discord.gateway import KeepAliveHandler

_log = logging.getLogger(__name__)

#: Timeouts, in seconds, for a call and for closing the connection.
_CALL_TIMEOUT = 30.0
_CLOSING = 2.0
#: The minimum duration of a session, in seconds. After a shorter session the connection fails, so that the next
#: connection waits: Discord allows 1,000 sessions a day.
_SESSION = 300.0
#: The connector gives up after this many breaks within this many seconds.
_BREAKS, _WITHIN = 10, 60.0
#: Limits for missed messages: direct chats, channels of a server, and messages of each.
_CHATS, _CHANNELS, _MESSAGES = 50, 30, 100
#: The minimum pause, in seconds, at a rate limit for missed messages.
_PAUSE = 1.0
#: Maximum length of the queue of received messages.
_WAITING = 10_000

#: Messages of users; other types are system messages, such as a pin.
_USER_MESSAGES = (discord.MessageType.default, discord.MessageType.reply)
#: A close code that keeps the session.
_RESUMABLE = 4000
#: The gateway's codes for permanent errors, besides 4014 (a disabled intent).
_FINAL_CODES = (4004, 4010, 4011, 4012, 4013)
#: Codes of the HTTP API; the temporary ones are overload and errors of proxies.
_NO_TOKEN, _UNKNOWN_MESSAGE, _MAY_NOT_REPLY, _TEMPORARY = 401, 10008, 160002, (0, 40062, 40333, 130000)

_TOKEN_CURE = "Discord rejects the token: create a new one in the developer portal, under Bot"  # noqa: S105
_INTENT_CURE = (
    "Discord refuses the message content intent: enable it in the developer portal, under Bot, "
    "Privileged Gateway Intents"
)

#: A channel, or a user's id for a direct chat.
_Where = discord.abc.Messageable | int


class DiscordSettings(ConnectorSettings):
    """The settings of a Discord bot."""

    token: SecretStr = Field(min_length=1, description="The bot's token, from the developer portal.")
    catch_up_minutes: int = Field(
        default=10, ge=0, le=1_440, description="Maximum age, in minutes, of missed messages that are fetched."
    )


class Discord(Connector[DiscordSettings]):
    """A bot account: direct messages, and channels and threads of its servers."""

    Settings = DiscordSettings
    global_ids = True
    abilities: ClassVar[Capabilities] = Capabilities(
        length=2_000, repeat="keyed", render=markup.discord, edits=True, typing_every=8.0, threads=True
    )

    def __init__(self, settings: DiscordSettings) -> None:
        super().__init__(settings)
        self._client: _Client | None = None

    @property
    def credentials(self) -> str:
        return self.settings.token.get_secret_value()

    @property
    def link(self) -> str | None:
        me = self._client and self._client.user
        return f"https://discord.com/users/{me.id}" if me else None

    async def run(self, sink: MessageSink) -> None:
        """Connect and listen; a session that can be resumed is resumed."""
        paired = await sink.paired_ids(_CHATS)
        named = dict.fromkeys([*self.settings.allow, *self.settings.users, *paired])
        people = [int(one) for one in named if one.isdecimal()]
        client = _Client(sink, people=people, age=timedelta(minutes=self.settings.catch_up_minutes))
        self._client = client
        try:
            async with asyncio.timeout(_CALL_TIMEOUT):
                await client.login(self.credentials)
            async with concurrently(sink) as hear:
                # The error is raised after all received messages are processed: Discord may not repeat them.
                work = _first_of(_listen(client, hear), client.failure(), _connect(client))
                (ended,) = await asyncio.gather(work, return_exceptions=True)
                for message in client.take_waiting():
                    await _hear(client, message, hear)
            if ended is not None:
                raise ended
        except discord.LoginFailure as error:
            raise PermanentError(_TOKEN_CURE) from error
        except discord.PrivilegedIntentsRequired as error:
            raise PermanentError(_INTENT_CURE) from error
        except discord.ConnectionClosed as error:
            if error.code in _FINAL_CODES:
                raise PermanentError(_TOKEN_CURE if error.code == _FINAL_CODES[0] else str(error)) from error
            raise
        finally:
            self._client = None
            await _close(client)

    async def send(self, part: Part) -> str:
        """Send a part; its text never mentions (pings) a user."""
        client = self._client
        if client is None:
            raise RetryLater("there is no connection to Discord")
        try:
            async with asyncio.timeout(_CALL_TIMEOUT):
                return await _send_or_edit(client, part)
        except discord.HTTPException as error:
            if error.status == _NO_TOKEN:
                client.fail(PermanentError(_TOKEN_CURE))
                raise RetryLater(_TOKEN_CURE) from error
            reason = f"Discord answered {error.status}, code {error.code}: {error.text[:200]}"
            raise (RetryLater if error.code in _TEMPORARY else PermanentError)(reason) from error
        except aiohttp.ClientConnectorError as error:
            raise RetryLater("cannot connect to Discord") from error
        except (OSError, aiohttp.ClientError) as error:
            raise OutcomeUnknown(f"Discord did not confirm the message ({type(error).__name__})") from error

    async def typing(self, place: Place) -> None:
        with suppress(Exception):
            async with asyncio.timeout(_CALL_TIMEOUT):
                if self._client is not None:
                    await _channel(self._client, place).typing()


class _Client(discord.Client):
    """The library's client, which puts messages into a queue in order."""

    def __init__(self, sink: MessageSink, *, people: Sequence[int], age: timedelta) -> None:
        super().__init__(
            intents=discord.Intents(guilds=True, guild_messages=True, dm_messages=True, message_content=True),
            allowed_mentions=discord.AllowedMentions.none(),
            max_messages=None,
            member_cache_flags=discord.MemberCacheFlags.none(),
            guild_ready_timeout=0.05,  # servers that the library learns of later are reported, too
            enable_debug_events=True,  # events for all frames, including heartbeat responses
            http_trace=_raise_rate_limits(),
        )
        for event in ("MESSAGE_CREATE", "MESSAGE_UPDATE"):
            parsers = self._connection.parsers
            parsers[event] = partial(_parse_frame, parsers[event])
        self._sink = sink
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
        """Drop events after the connection has ended; the library cannot handle them."""
        if not self.is_closed():
            super().dispatch(event, *args, **kwargs)

    def fail(self, error: Exception) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    async def failure(self) -> None:
        """Wait for the error with which the connection ends, and raise it."""
        await self._failure

    async def _next_socket(self, url: str, *, compress: int = 0) -> aiohttp.ClientWebSocketResponse:
        await self.close_socket()
        self._socket = await self._open_socket(url, compress=compress)
        return self._socket

    async def close_socket(self) -> None:
        """Close the connection. The library does not close a connection without a session."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING):
                if self._socket is not None:
                    await self._socket.close(code=_RESUMABLE)

    async def before_identify_hook(self, shard_id: int | None, *, initial: bool = False) -> None:
        """Fail if the last session was short; the library would start new sessions without limit."""
        del shard_id
        if not initial and asyncio.get_running_loop().time() - self._began < _SESSION:
            raise discord.ClientException("Discord ended a session soon after its start")
        self._began = asyncio.get_running_loop().time()

    async def on_connect(self) -> None:
        self._up = True
        self._sink.ready()
        self._waiting.put_nowait([*self._direct.values()] or [*self._people[:_CHATS]])

    async def on_resumed(self) -> None:
        """Handle a resumed session; Discord has sent missed messages."""
        self._up = True

    async def on_disconnect(self) -> None:
        """Handle a break; the library resumes the session, unless there are too many breaks."""
        self._up = False
        self._breaks.append(asyncio.get_running_loop().time())
        if len(self._breaks) == _BREAKS and self._breaks[-1] - self._breaks[0] < _WITHIN:
            self.fail(ConnectionError("the connection to Discord breaks repeatedly"))

    async def on_socket_raw_receive(self, _: str) -> None:
        """Report a received frame, but only within a session."""
        if self._up:
            self._sink.alive()

    async def on_guild_available(self, guild: discord.Guild) -> None:
        """Queue the channels of a server that may have missed messages."""
        oldest = discord.utils.time_snowflake(discord.utils.utcnow() - self._age)
        here = [*guild.text_channels, *guild.voice_channels, *guild.stage_channels, *guild.threads]
        latest = sorted(here, key=_last_message, reverse=True)
        fresh: list[_Where] = [one for one in latest if _last_message(one) > oldest and self._may_read(one)]
        self._waiting.put_nowait(fresh[:_CHANNELS])

    async def on_message(self, message: discord.Message) -> None:
        if isinstance(message.channel, discord.DMChannel):
            self._remember(message.channel)
        self._waiting.put_nowait(message)

    async def on_error(self, event_method: str, /, *args: Any, **kwargs: Any) -> None:
        """End the connection after a failed event. The next connection fetches messages that were lost."""
        del args, kwargs
        self.fail(ConnectionError(f"Discord's events could not be handled ({event_method})"))

    async def messages(self) -> AsyncGenerator[discord.Message]:
        """Yield messages; missed messages come first."""
        while True:
            item = await self._waiting.get()
            if not isinstance(item, list):
                yield item
                continue
            # New messages wait no longer than this. A closed client has no ``loop``.
            until = asyncio.get_running_loop().time() + _CALL_TIMEOUT
            for where in item if self._age else ():
                for message in await self._fetch_in_time(where, until=until):
                    yield message

    def take_waiting(self) -> list[discord.Message]:
        """Return the received messages that wait behind a fetch of missed messages, and forget them."""
        items = [self._waiting.get_nowait() for _ in range(self._waiting.qsize())]
        return [item for item in items if not isinstance(item, list)]

    async def _fetch_in_time(self, where: _Where, *, until: float) -> list[discord.Message]:
        """Return the latest messages of a channel, the oldest first; none if this is not possible in time.

        A temporary error ends the connection, so that the next one fetches them; a permanent one does not.
        """
        try:
            async with asyncio.timeout_at(until):
                return await self._fetch_missed_messages(where)
        except Exception as error:  # noqa: BLE001 - the library checks no types
            failure = f"{type(error).__name__}: {error}"
            _log.warning("discord_missed_messages_not_fetched", extra={"error": failure})
            if isinstance(error, discord.HTTPException) and error.status == _NO_TOKEN:
                self.fail(PermanentError(_TOKEN_CURE))
            elif _is_temporary(error) and not self.is_closed():
                self.fail(ConnectionError(f"missed messages could not be fetched ({failure})"))
            return []

    async def _fetch_missed_messages(self, where: _Where) -> list[discord.Message]:
        while True:
            try:
                if isinstance(where, int):  # opening a direct chat does not notify the user
                    channel = self._remember(await self.create_dm(discord.Object(where)))
                else:
                    channel = where
                after = discord.utils.utcnow() - self._age
                found = channel.history(limit=_MESSAGES, after=after, oldest_first=False)
                return [message async for message in found][::-1]
            except RetryLater as limit:  # a new connection would reach the limit again
                await asyncio.sleep(max(_PAUSE, limit.seconds or 0.0))

    def _remember(self, chat: discord.DMChannel) -> discord.DMChannel:
        """Remember a direct chat: after a lost session, Discord does not list direct chats."""
        self._direct.pop(chat.id, None)
        self._direct[chat.id] = chat
        if len(self._direct) > _CHATS:
            del self._direct[next(iter(self._direct))]
        return chat

    def _may_read(self, channel: discord.abc.GuildChannel | discord.Thread) -> bool:
        place = channel.parent if isinstance(channel, discord.Thread) else channel
        me = place and place.guild.get_member(self.user.id if self.user else 0)
        return bool(place and me and place.permissions_for(me).read_message_history)


def _parse_frame(parse: Callable[[Any], None], data: Any) -> None:
    """Let the library parse an event; an error would end the connection."""
    try:
        parse(data)
    except Exception as error:  # noqa: BLE001 - the library checks no types, so the errors are of many kinds
        log_ignored_event(type(error).__name__)


def _is_temporary(error: Exception) -> bool:
    """Return whether a fetch may succeed over a new connection."""
    if isinstance(error, discord.HTTPException):
        return error.code in _TEMPORARY
    return isinstance(error, OSError | aiohttp.ClientError) and not isinstance(error, TimeoutError)


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Run the coroutines until one ends, and cancel the others. If several fail, raise the first error."""
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
    """Stay connected until the connection ends permanently."""
    try:
        await client.connect()
    except AttributeError as error:
        if client.ws:
            raise
        # The library raises this when its first connection fails.
        raise ConnectionError("cannot connect to Discord's gateway") from error.__context__


async def _close(client: _Client) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_CLOSING):
            await client.close()
            for thread in threading.enumerate():  # the library does not close a connection without a session
                if isinstance(thread, KeepAliveHandler) and thread.ws.token == client.http.token:
                    await thread.ws.close()
    await client.close_socket()
    await client.http.close()


async def _listen(client: _Client, hear: Hear) -> None:
    """Process each message once. Discord may repeat missed messages."""
    taken: deque[int] = deque(maxlen=_WAITING)
    async with aclosing(client.messages()) as messages:
        async for message in messages:
            if message.id not in taken:
                taken.append(message.id)
                await _hear(client, message, hear)


async def _hear(client: _Client, message: discord.Message, hear: Hear) -> None:
    if client.user is not None and (heard := parse_alone(_parse_message, message, me=client.user.id)):
        await hear(heard)


def _parse_message(message: discord.Message, *, me: int) -> IncomingMessage | None:
    """Return the message, or None for the bot's own messages and system messages."""
    if message.author.id == me or message.type not in _USER_MESSAGES:
        return None
    sources = [message, *message.message_snapshots]  # forwarded text counts too
    text = "\n".join(source.content for source in sources if source.content)
    attachments = [_attachment(file) for source in sources for file in source.attachments]
    if not text and not attachments:  # a sticker, a poll
        return None
    author = message.author
    names = {str(user.id): f"@{user.display_name}" for user in message.mentions}
    text = re.sub(rf"^\s*<@!?{me}>[\s,:]*", "", text)
    direct = isinstance(message.channel, discord.DMChannel)
    return IncomingMessage(
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
        in_reply_to=_replied_message(message),
    )


def _place(message: discord.Message, *, direct: bool) -> Place:
    channel = message.channel
    reply_to = {} if direct else {"message": str(message.id)}
    if isinstance(channel, discord.Thread):
        return Place(chat=str(channel.parent_id), thread=str(channel.id), reply_to=reply_to)
    return Place(chat=str(channel.id), reply_to=reply_to)


def _answers(message: discord.Message, me: int) -> bool:
    answered = message.reference.resolved if message.reference else None
    return isinstance(answered, discord.Message) and answered.author.id == me


def _replied_message(message: discord.Message) -> str | None:
    if message.message_snapshots:
        return ELSEWHERE
    reference = message.reference if message.type is discord.MessageType.reply else None
    return str(reference.message_id) if reference and reference.message_id else None


def _attachment(file: discord.Attachment) -> Attachment:
    media_type = file.content_type or "application/octet-stream"
    kind = media_type.partition("/")[0]

    async def fetch(limit: int) -> bytes:
        if file.size > limit:
            raise TooLarge
        timeout = aiohttp.ClientTimeout(total=_CALL_TIMEOUT)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(file.url) as response:
            if response.status != 200:  # the URL gives access to the file, so the error omits it
                raise ConnectionError(f"Discord answered {response.status} for the file")
            return await collect(response.content.iter_chunked(65_536), limit)

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


async def _send_or_edit(client: _Client, part: Part) -> str:
    """Send a part, or edit the earlier message. If the earlier message was deleted, send a new message."""
    channel = _channel(client, part.place)
    if part.edits:
        try:
            await channel.get_partial_message(int(part.edits)).edit(content=part.text)
        except discord.NotFound as error:
            if error.code != _UNKNOWN_MESSAGE:
                raise
        else:
            return part.edits
    # A nonce has at most 25 characters; the nonce of a deleted message cannot be used again.
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


def _raise_rate_limits() -> aiohttp.TraceConfig:
    """Return a trace that raises ``RetryLater`` at a rate limit. Without it, the library waits and retries."""
    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(_raise_rate_limit)
    return trace


async def _raise_rate_limit(
    _: aiohttp.ClientSession, __: SimpleNamespace, ended: aiohttp.TraceRequestEndParams
) -> None:
    response = ended.response
    if response.status == 429:
        body = await response.content.read(10_000)
        response.close()  # the library does not handle the response
        raise RetryLater("Discord's rate limit is reached", seconds=_requested_wait(response, body))
    if response.status >= 500:
        response.close()
        raise ConnectionError(f"Discord answered {response.status}")


def _requested_wait(response: aiohttp.ClientResponse, body: bytes) -> float | None:
    """Return the seconds that Discord, or a proxy before it, requests."""
    with suppress(ValueError, KeyError, TypeError, OverflowError):
        return float(json.loads(body)["retry_after"])
    with suppress(ValueError):
        return float(response.headers.get("Retry-After", ""))
    return None
