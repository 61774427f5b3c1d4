"""A stand-in of a Bot API server, after https://core.telegram.org/bots/api: one bot, and users who write to it.

It stores messages and returns them by ``getUpdates`` until an offset confirms them. It refuses what the real
server refuses, with the same codes and descriptions.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from html import unescape
from itertools import count
from typing import Any, Literal

from aiohttp import web
from tests.standins.http import HttpPlatform

from torana.connectors.platforms.telegram import Telegram
from torana.testing.connectors import Shown

Json = dict[str, Any]

TOKEN = "7000000001:AAE-stand_in_token_of_35_characters"
NAME = "torana_bot"
ME = {"id": 7_000_000_001, "is_bot": True, "first_name": "Torana", "username": NAME}
ROOM = -1_001_500_000_000
DOWNLOAD_LIMIT = 20_000_000

_TAGS = {"b", "strong", "i", "em", "u", "ins", "s", "strike", "del", "code", "pre", "a", "blockquote"}
_TAG = re.compile(
    r"<(?P<end>/?)(?P<name>[^\s>]*)(?P<attributes>(?:\s+[\w-]+\s*=\s*(?:\"[^\"]*\"|'[^']*'|[\w.-]+))*)\s*>"
)
_TEXT = re.compile(r"[^<]+")
_REFERENCE = re.compile(r"&(?:lt|gt|amp|quot|#\d+|#[xX][\da-fA-F]+);")
_FOUND = re.compile(r"(?<![\w/@])(?:@(?P<mention>\w{4,32})(?!\w)|/\w{1,32}(?:@\w{4,32})?)", re.ASCII)

#: Telegram finds no mentions and commands in the texts of these entities.
_CODE = ("code", "pre", "a")


class Fault(Exception):
    """An error response: its code, its description and further fields."""

    def __init__(self, code: int, description: str, **parameters: int) -> None:
        super().__init__(description)
        self.code = code
        self.parameters = parameters


def units(text: str) -> int:
    """Return the number of UTF-16 code units, in which Telegram counts."""
    return len(text.encode("utf-16-le")) // 2


def parse(html: str) -> tuple[str, list[Json]]:
    """Return the text of the "HTML" style and its entities. Raises ``Fault`` where Telegram does."""
    text = ""
    opened: list[tuple[str, int]] = []
    entities: list[Json] = []
    at = 0
    while at < len(html):
        place = len(html[:at].encode())
        if found := _TEXT.match(html, at):
            text += _REFERENCE.sub(lambda one: unescape(one[0]), found[0])
        elif not (found := _TAG.match(html, at)):
            raise Fault(400, f"Bad Request: can't parse entities: Unclosed start tag at byte offset {place}")
        elif found["end"]:
            _close(found["name"].lower(), opened, entities, text, place)
        else:
            _open(found["name"].lower(), opened, text, place)
        at = found.end()
    if opened:
        told = f'Can\'t find end tag corresponding to start tag "{opened[-1][0]}"'
        raise Fault(400, f"Bad Request: can't parse entities: {told}")
    return text, entities


def _open(name: str, opened: list[tuple[str, int]], text: str, place: int) -> None:
    nested = name == "blockquote" and any(one == name for one, _ in opened)
    if name not in _TAGS or nested:
        told = f'Unsupported start tag "{name}" at byte offset {place}'
        raise Fault(400, f"Bad Request: can't parse entities: {told}")
    opened.append((name, units(text)))


def _close(name: str, opened: list[tuple[str, int]], entities: list[Json], text: str, place: int) -> None:
    if not opened:
        told = f"Unexpected end tag at byte offset {place}"
        raise Fault(400, f"Bad Request: can't parse entities: {told}")
    expected, begin = opened.pop()
    if name != expected:
        told = f'Unmatched end tag at byte offset {place}, expected "</{expected}>", found "</{name}>"'
        raise Fault(400, f"Bad Request: can't parse entities: {told}")
    if units(text) > begin:
        entities.append({"type": name, "offset": begin, "length": units(text) - begin})


def found_in(text: str) -> list[Json]:
    """Return the mentions and commands that Telegram finds in a text."""
    found: list[Json] = []
    at = offset = 0
    for one in _FOUND.finditer(text):
        offset += units(text[at : one.start()])
        at = one.start()
        kind = "mention" if one["mention"] else "bot_command"
        found.append({"type": kind, "offset": offset, "length": units(one[0])})
    return found


class TelegramStandIn(HttpPlatform):
    """The server, with a bot whose token is ``TOKEN``, and a group with topics, ``ROOM``."""

    connector = Telegram
    link = f"https://t.me/{NAME}"
    room = str(ROOM)
    gives_up = True

    def __init__(self) -> None:
        super().__init__()
        self.app.router.add_route("*", "/file/bot{token}/{path:.+}", self._download)
        self.app.router.add_route("*", "/bot{token}/{method}", self._call)
        #: Unconfirmed updates, in the order of delivery.
        self.updates: list[Json] = []
        #: The offset of the newest poll, which confirms all earlier updates.
        self.offset = 0
        self.polls = 0
        self.webhook = ""
        #: Every call except polls: the method and its parameters.
        self.calls: list[tuple[str, Json]] = []
        #: The faults of the bot's next messages, and of the next calls of a method.
        self.next: dict[str, list[Fault | Callable[[web.Request], Awaitable[None]]]] = {}
        self.valid = True
        #: The messages in the chats, by chat and id.
        self.messages: dict[tuple[int, int], Json] = {}
        self.files: dict[str, bytes] = {}
        #: How files are sent: with a length, in compressed pieces, or at most up to their size.
        self.sends: Literal["whole", "pieces", "size"] = "whole"
        #: The announced directory of files of a server in local mode; empty otherwise.
        self.local_path = ""
        #: Chats that became other chats.
        self.moved: dict[int, int] = {}
        self._chats: dict[int, Json] = {}
        self._people: dict[str, Json] = {}
        self._topics: dict[str, int] = {}
        self._shared_ids = count(1)
        self._ids: dict[int, count[int]] = {}
        self._update_ids = count(873_000_001)
        self._poll: object = None
        self._allowed: list[str] = []
        self.add_chat({"id": ROOM, "type": "supergroup", "title": "Room", "is_forum": True})

    # Actions of tests.

    def settings(self) -> Mapping[str, Any]:
        """As ``Platform``."""
        return {"token": TOKEN, "api_url": self.url}

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
        """As ``Platform``; ids are ``chat:message``."""
        person = self.person(sender, bot=bot)
        if mention:
            command, space, rest = text.partition(" ")
            text = f"{command}@{NAME}{space}{rest}" if text.startswith("/") else f"@{NAME} {text}"
        content = self._file(*file) if file else {}
        if text:
            content |= self.text(text, caption=bool(file))
        if thread is not None:
            content |= self._in_topic(int(room or ROOM), thread)
        return await self.post(int(room) if room else int(person["id"]), {"from": person, **content})

    async def repeat(self, message: str) -> None:
        """As ``Platform``: the message arrives in another update."""
        chat, _, number = message.partition(":")
        await self.push({"message": self.messages[int(chat), int(number)]})

    async def shown(
        self, count: int, *, to: str = "ana", room: str | None = None, thread: str | None = None
    ) -> list[Shown]:
        """As ``Platform``."""
        chat = int(room) if room else int(self.person(to)["id"])
        topic = self._topics[thread] if thread else None

        def there() -> list[Json]:
            return [
                one
                for (where, _), one in self.messages.items()
                if where == chat and one["from"] == ME and one.get("message_thread_id") == topic
            ]

        await self.until(lambda: len(there()) >= count)
        return [
            Shown(id=str(one["message_id"]), text=one["text"], thread=thread if topic else None)
            for one in there()
        ]

    async def set_webhook(self, url: str) -> None:
        """Set a webhook, as another program does; a waiting poll is refused."""
        self.webhook = url
        self.stir()

    async def limit(self, seconds: float | None) -> None:
        """As ``Platform``."""
        self.fails("sendMessage", self.too_many(seconds))

    async def fail(self) -> None:
        """As ``Platform``: a proxy in front of the server responds with HTML, and the message is shown."""

        async def page(request: web.Request) -> None:
            await self._answered(request, self._send_message)
            raise web.HTTPBadGateway(text="<html><h1>502 Bad Gateway</h1></html>", content_type="text/html")

        self.next.setdefault("sendMessage", []).append(page)

    async def refuse_message(self) -> None:
        """As ``Platform``."""
        self.fails("sendMessage", Fault(403, "Forbidden: bot was blocked by the user"))

    async def refuse_login(self) -> None:
        """As ``Platform``."""
        self.valid = False

    @staticmethod
    def too_many(seconds: float | None) -> Fault:
        """Return a rate limit error, with a time or without."""
        if seconds is None:
            return Fault(429, "Too Many Requests")
        return Fault(429, f"Too Many Requests: retry after {seconds:.0f}", retry_after=int(seconds))

    def fails(self, method: str, *faults: Fault) -> None:
        """Answer the next calls of a method with these faults, one for each."""
        self.next.setdefault(method, []).extend(faults)

    def person(self, name: str, *, bot: bool = False) -> Json:
        """Return a user's account."""
        if name not in self._people:
            number = 100_000_001 + len(self._people)
            self._people[name] = {"id": number, "is_bot": bot, "first_name": name}
            self.add_chat({"id": number, "type": "private", "first_name": name})
        return self._people[name]

    def add_chat(self, chat: Json) -> int:
        """Add a chat; return its id."""
        self._chats[chat["id"]] = chat
        return int(chat["id"])

    async def post(self, chat: int, content: Json, *, kind: str = "message") -> str:
        """Send a message with these fields."""
        message = self._keep(chat, content)
        await self.push({kind: message})
        return f"{chat}:{message['message_id']}"

    async def push(self, update: Json, *, update_id: int | None = None) -> None:
        """Deliver an update of any type."""
        number = next(self._update_ids) if update_id is None else update_id
        if self._allowed and not any(kind in update for kind in self._allowed):
            return
        self.updates.append({"update_id": number, **self.changed(update)})
        self.stir()

    @staticmethod
    def text(text: str, *, caption: bool = False) -> Json:
        """Return a message's fields for a text, with the entities that Telegram finds."""
        name = "caption" if caption else "text"
        fields: Json = {name: text}
        if entities := found_in(text):
            fields["caption_entities" if caption else "entities"] = entities
        return fields

    def keep_file(self, data: bytes) -> Json:
        """Store a file on the server, and return the first fields of its message."""
        name = f"file{len(self.files)}"
        self.files[name] = data
        return {"file_id": name, "file_unique_id": name, "file_size": len(data)}

    # The behaviour of the server.

    def _keep(self, chat: int, content: Json) -> Json:
        """Store a message with its number: supergroups and channels have their own numbers, all other chats
        share theirs.
        """
        numbers = self._ids.setdefault(chat, count(1)) if chat < -(10**12) else self._shared_ids
        number = next(numbers)
        message: Json = {"message_id": number, "date": int(time.time()), "chat": self._chats[chat], **content}
        self.messages[chat, number] = message
        return message

    def _in_topic(self, room: int, name: str) -> Json:
        """Return a topic's fields: a message in it is a reply to the service message that began it."""
        if name not in self._topics:
            begin = {"name": name, "icon_color": 7_322_096}
            service = self._keep(room, {"from": self.person("owner"), "forum_topic_created": begin})
            self._topics[name] = service["message_id"]
        topic = self._topics[name]
        reply = self.messages[room, topic]
        return {"message_thread_id": topic, "is_topic_message": True, "reply_to_message": reply}

    def _file(self, name: str, media_type: str, data: bytes) -> Json:
        """Return a file's fields: pictures are photos, which have a smaller size too; other files are
        documents.
        """
        if not media_type.startswith("image/"):
            return {"document": {**self.keep_file(data), "file_name": name, "mime_type": media_type}}
        small = {**self.keep_file(data[: len(data) * 3 // 4]), "width": 90, "height": 90}
        return {"photo": [small, {**self.keep_file(data), "width": 800, "height": 800}]}

    async def _call(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        handlers = {
            "getMe": self._get_me,
            "getUpdates": self._get_updates,
            "deleteWebhook": self._delete_webhook,
            "sendMessage": self._send_message,
            "editMessageText": self._edit_message_text,
            "sendChatAction": self._send_chat_action,
            "getFile": self._get_file,
        }
        try:
            if not self.valid or request.match_info["token"] != TOKEN:
                raise Fault(401, "Unauthorized")
            if method not in handlers:
                raise Fault(404, "Not Found")
            if waiting := self.next.get(method):
                fault = waiting.pop(0)
                if isinstance(fault, Fault):
                    raise fault
                await fault(request)
            return web.json_response({"ok": True, "result": await self._answered(request, handlers[method])})
        except Fault as fault:
            answer: Json = {"ok": False, "error_code": fault.code, "description": str(fault)}
            headers: dict[str, str] = {}
            if fault.parameters:
                answer["parameters"] = fault.parameters
            if "retry_after" in fault.parameters:
                headers["Retry-After"] = str(fault.parameters["retry_after"])
            return web.json_response(answer, status=fault.code, headers=headers)
        finally:
            self.stir()

    async def _answered(self, request: web.Request, handler: Callable[[Json], Awaitable[Any]]) -> Any:
        """Parse the parameters, which come in the query, as a form or as JSON; a form contains JSON for fields
        that are no texts.
        """
        given: Json = dict(request.query)
        if request.content_type == "application/json":
            given |= await request.json()
        else:
            given |= dict(await request.post())
        for name in ("reply_parameters", "link_preview_options", "allowed_updates"):
            if isinstance(given.get(name), str):
                given[name] = json.loads(given[name])
        if request.match_info["method"] != "getUpdates":
            self.calls.append((request.match_info["method"], given))
        return await handler(given)

    async def _get_me(self, _: Json) -> Json:
        return {**ME, "can_join_groups": True, "can_read_all_group_messages": True}

    async def _delete_webhook(self, _: Json) -> bool:
        self.webhook = ""
        return True

    async def _get_updates(self, given: Json) -> list[Json]:
        self._check_webhook()
        self._allowed = given.get("allowed_updates", self._allowed)
        offset = int(given.get("offset", 0))
        limit = min(max(int(given.get("limit", 100)), 1), 100)
        if offset:
            self.offset = offset
            self.updates[:] = [one for one in self.updates if one["update_id"] >= offset]
        me = self._poll = object()
        self.polls += 1
        self.stir()

        def disturbed() -> bool:
            return bool(self.updates) or self._poll is not me or bool(self.webhook)

        with suppress(TimeoutError):
            await self.until(disturbed, within=int(given.get("timeout", 0)))
        self._check_webhook()
        if self._poll is not me:
            told = "terminated by other getUpdates request; make sure that only one bot instance is running"
            raise Fault(409, f"Conflict: {told}")
        return self.updates[:limit]

    def _check_webhook(self) -> None:
        if self.webhook:
            told = (
                "can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook"
            )
            raise Fault(409, f"Conflict: {told} first")

    def _writable(self, given: Json) -> int:
        chat = int(given["chat_id"])
        if chat in self.moved:
            told = "Bad Request: group chat was upgraded to a supergroup chat"
            raise Fault(400, told, migrate_to_chat_id=self.moved[chat])
        if chat not in self._chats:
            raise Fault(400, "Bad Request: chat not found")
        return chat

    @staticmethod
    def _content(given: Json) -> Json:
        text, entities = given.get("text", ""), []
        if given.get("parse_mode") == "HTML":
            text, entities = parse(text)
        elif given.get("parse_mode"):
            raise Fault(400, "Bad Request: unsupported parse_mode")
        if not text.strip():
            raise Fault(400, "Bad Request: message text is empty")
        if units(text) > 4096:
            raise Fault(400, "Bad Request: message is too long")
        hidden = [(one["offset"], one["offset"] + one["length"]) for one in entities if one["type"] in _CODE]
        for one in found_in(text):
            if not any(begin <= one["offset"] < end for begin, end in hidden):
                entities.append(one)
        return {"text": text.strip(), "entities": entities}

    async def _send_message(self, given: Json) -> Json:
        chat = self._writable(given)
        content = self._content(given)
        if "message_thread_id" in given:
            topic = int(given["message_thread_id"])
            if "forum_topic_created" not in self.messages.get((chat, topic), {}):
                raise Fault(400, "Bad Request: message thread not found")
            content |= {"message_thread_id": topic, "is_topic_message": True}
        if reply := given.get("reply_parameters"):
            said = self.messages.get((chat, int(reply["message_id"])))
            if said is None and not reply.get("allow_sending_without_reply"):
                raise Fault(400, "Bad Request: message to be replied not found")
            if said is not None:
                content["reply_to_message"] = said
        return self._keep(chat, {"from": ME, **content})

    async def _edit_message_text(self, given: Json) -> Json:
        chat = self._writable(given)
        message = self.messages.get((chat, int(given["message_id"])))
        if message is None:
            raise Fault(400, "Bad Request: message to edit not found")
        if message["from"] != ME:
            raise Fault(400, "Bad Request: message can't be edited")
        content = self._content(given)
        if content.items() <= message.items():
            same = (
                "specified new message content and reply markup are exactly the same as a current content and"
            )
            raise Fault(400, f"Bad Request: message is not modified: {same} reply markup of the message")
        message |= {**content, "edit_date": 1_772_443_900}
        return message

    async def _send_chat_action(self, given: Json) -> bool:
        self._writable(given)
        return True

    async def _get_file(self, given: Json) -> Json:
        name = str(given.get("file_id"))
        if name not in self.files:
            raise Fault(400, "Bad Request: wrong file_id or the file is temporarily unavailable")
        data = self.files[name]
        if len(data) > DOWNLOAD_LIMIT:
            raise Fault(400, "Bad Request: file is too big")
        path = self.local_path or f"files/{name}"
        return {"file_id": name, "file_unique_id": name, "file_size": len(data), "file_path": path}

    async def _download(self, request: web.Request) -> web.StreamResponse:
        data = self.files.get(request.match_info["path"].rpartition("/")[2])
        if request.match_info["token"] != TOKEN or data is None:
            return web.json_response({"ok": False, "error_code": 404, "description": "Not Found"}, status=404)
        if self.sends == "whole":
            return web.Response(body=data, content_type="application/octet-stream")
        response = web.StreamResponse()
        if self.sends == "size":
            response.content_length = len(data)
            await response.prepare(request)
            await asyncio.Event().wait()
        response.enable_chunked_encoding()
        response.enable_compression()
        await response.prepare(request)
        for begin in range(0, len(data), 10_000):
            await response.write(data[begin : begin + 10_000])
        return response
