"""The real homeserver Synapse with its own database, and a proxy in front of it that can be cut."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote
from uuid import uuid4

import aiohttp
import nio
from aiohttp import web

from torana.connectors.platforms.matrix.connector import Matrix
from torana.testing.connectors import PATIENCE, Platform, Shown

DOMAIN = "matrix.test"
SECRET = "a secret of the tests"
V3 = "/_matrix/client/v3"
#: Replaced by a deeply nested list in an inserted event.
DEEP = "5,000 lists"

_CONFIG = """
server_name: DOMAIN
listeners: [{path: DIR/socket, type: http, x_forwarded: true, resources: [{names: [client, media]}]}]
database: {name: sqlite3, args: {database: DIR/homeserver.db}}
media_store_path: DIR/media
signing_key_path: DIR/signing.key
log_config: DIR/log.yaml
pid_file: DIR/pid
registration_shared_secret: SECRET
macaroon_secret_key: SECRET
form_secret: SECRET
report_stats: false
presence: {enabled: false}
user_directory: {enabled: false}
stats: {enabled: false}
trusted_key_servers: []
bcrypt_rounds: 4
rc_message: {per_second: 1000, burst_count: 1000}
rc_registration: {per_second: 1000, burst_count: 1000}
rc_joins: {local: {per_second: 1000, burst_count: 1000}}
rc_joins_per_room: {per_second: 1000, burst_count: 1000}
rc_room_creation: {per_second: 1000, burst_count: 1000}
rc_invites:
  per_room: {per_second: 1000, burst_count: 1000}
  per_user: {per_second: 1000, burst_count: 1000}
  per_issuer: {per_second: 1000, burst_count: 1000}
rc_login:
  address: {per_second: 1000, burst_count: 1000}
  account: {per_second: 1000, burst_count: 1000}
  failed_attempts: {per_second: 1000, burst_count: 1000}
"""

_LOG = """
version: 1
handlers: {file: {class: logging.FileHandler, filename: DIR/log}}
root: {level: WARNING, handlers: [file]}
disable_existing_loggers: false
"""


@contextmanager
def synapse() -> Generator[Path]:
    """A running homeserver; yields the path of its socket."""
    home = Path(tempfile.mkdtemp(prefix="torana-synapse-", dir="/tmp"))  # a socket's path must be short
    for name, text in {"config.yaml": _CONFIG, "log.yaml": _LOG}.items():
        told = text.replace("DIR", str(home)).replace("DOMAIN", DOMAIN).replace("SECRET", SECRET)
        (home / name).write_text(told)
    (home / "signing.key").write_text(
        f"ed25519 a_test {base64.b64encode(os.urandom(32)).decode().rstrip('=')}\n"
    )
    command = [sys.executable, "-W", "ignore", "-m", "synapse.app.homeserver", "-c", str(home / "config.yaml")]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
        notices.bind(str(home / "notices"))
        notices.settimeout(60)
        process = subprocess.Popen(
            command,
            env=os.environ | {"NOTIFY_SOCKET": str(home / "notices")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while b"READY=1" not in notices.recv(1_000):
                pass
            yield home / "socket"
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(home)


@dataclass(frozen=True, slots=True)
class Person:
    """An account of the homeserver."""

    id: str
    token: str
    password: str


@dataclass(slots=True)
class Homeserver:
    """The homeserver, as users' clients call it."""

    session: aiohttp.ClientSession
    people: dict[str, Person] = field(default_factory=dict[str, Person])

    async def call(self, method: str, path: str, body: object = None, *, token: str = "") -> Any:
        """Call the homeserver; an error response fails the test."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        content = {"data": body} if isinstance(body, bytes) else {"json": body} if method != "GET" else {}
        async with self.session.request(method, f"http://synapse{path}", headers=headers, **content) as answer:  # pyright: ignore[reportArgumentType]
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def person(self, name: str) -> Person:
        """Return a user with an account, new in each test."""
        if name not in self.people:
            path = "/_synapse/admin/v1/register"
            nonce = (await self.call("GET", path))["nonce"]
            user, password = f"{name}-{uuid4().hex[:12]}", uuid4().hex
            words = "\0".join([nonce, user, password, "notadmin"])
            mac = hmac.new(SECRET.encode(), words.encode(), hashlib.sha1).hexdigest()
            body = {
                "nonce": nonce,
                "username": user,
                "password": password,
                "mac": mac,
                "displayname": name.title(),
            }
            made = await self.call("POST", path, body)
            self.people[name] = Person(made["user_id"], made["access_token"], password)
        return self.people[name]

    async def send(self, who: Person, room: str, content: object, *, kind: str = "m.room.message") -> str:
        """Send any event; return its id."""
        path = f"{V3}/rooms/{quote(room)}/send/{kind}/{uuid4()}"
        return (await self.call("PUT", path, content, token=who.token))["event_id"]

    async def make_room(self, who: Person, *, invite: list[Person], **more: object) -> str:
        """Create a room with these invitations; return its id."""
        body = {"invite": [one.id for one in invite], **more}
        return (await self.call("POST", f"{V3}/createRoom", body, token=who.token))["room_id"]

    async def join(self, who: Person, room: str) -> None:
        """Accept an invitation."""
        await self.call("POST", f"{V3}/rooms/{quote(room)}/join", {}, token=who.token)

    async def events(self, who: Person, room: str) -> list[dict[str, Any]]:
        """Return the newest hundred events of a room, the oldest first."""
        path = f"{V3}/rooms/{quote(room)}/messages?dir=b&limit=100"
        return (await self.call("GET", path, token=who.token))["chunk"][::-1]

    async def members(self, who: Person, room: str) -> set[str]:
        """Return the members of a room."""
        return set(
            (await self.call("GET", f"{V3}/rooms/{quote(room)}/joined_members", token=who.token))["joined"]
        )

    async def until(self, who: Person, true: Callable[[], Any]) -> Any:
        """Wait until a condition holds; check it after each event of the user."""
        since = ""
        async with asyncio.timeout(PATIENCE):
            while not (found := await true()):
                path = f"{V3}/sync?timeout=1000{since}"
                since = f"&since={(await self.call('GET', path, token=who.token))['next_batch']}"
            return found


#: Makes a response from a request and its body.
Answer = Callable[[web.Request, bytes], web.Response]


class Wire:
    """A proxy between the connector and the homeserver, which passes all requests on unless a test sets a
    fault.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._transports: set[asyncio.Transport] = set()
        self._faults: list[tuple[str, Answer | None]] = []
        self._again: asyncio.Event = asyncio.Event()
        self._foreign: dict[str, list[object]] = {}
        #: The access tokens of the calls.
        self.secrets: set[str] = set()
        self._since: list[str] = []
        self._kept = asyncio.Event()
        self.url = ""

    def fault(self, path: str, answer: Answer | None) -> None:
        """Set the response to the next call whose path contains this text; None cuts the connection after the
        call was passed on.
        """
        self._faults.append((path, answer))

    def cut(self) -> None:
        """End every connection."""
        for transport in self._transports:
            transport.abort()
        self._transports.clear()

    def rewind(self) -> None:
        """Answer the waiting sync with all events since the first sync."""
        self._again.set()

    async def until_token_stored(self) -> None:
        """Wait until the homeserver has stored the connector's position once more."""
        self._kept.clear()
        async with asyncio.timeout(PATIENCE):
            await self._kept.wait()

    def slip_in(self, room: str, events: list[object]) -> None:
        """Insert events of other homeservers, which Synapse did not check, before the next events."""
        self._foreign[room] = events

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Pass a call on."""
        transport = request.transport
        assert isinstance(transport, asyncio.Transport)
        self._transports.add(transport)
        self.secrets.add(request.headers.get("Authorization", "Bearer none").split()[1])
        for fault in self._faults:
            if fault[0] in request.path:
                self._faults.remove(fault)
                if fault[1] is not None:
                    return fault[1](request, await request.read())
                await self._pass_on(request, request.path_qs)
                transport.abort()
        if request.path.endswith("/sync"):
            return await self._sync(request)
        answer = await self._pass_on(request, request.path_qs)
        if request.method == "PUT" and "torana.since" in request.path:
            self._kept.set()
        return answer

    async def _sync(self, request: web.Request) -> web.Response:
        since = request.query.get("since", "")
        self._since.append(since)
        passed = asyncio.create_task(self._pass_on(request, request.path_qs))
        again = asyncio.create_task(self._again.wait())
        try:
            await asyncio.wait({passed, again}, return_when=asyncio.FIRST_COMPLETED)
            if not self._again.is_set():
                return self._with_foreign(await passed)
            self._again.clear()
            first = next(token for token in self._since if token)
            return await self._pass_on(request, request.path_qs.replace(quote(since, safe=""), first))
        finally:
            passed.cancel()
            again.cancel()
            with suppress(asyncio.CancelledError, aiohttp.ClientError):
                await passed

    def _with_foreign(self, answer: web.Response) -> web.Response:
        assert isinstance(answer.body, bytes)
        told = json.loads(answer.body)
        for room, info in told.get("rooms", {}).get("join", {}).items():
            info["timeline"]["events"] = self._foreign.pop(room, []) + info["timeline"]["events"]
        text = json.dumps(told).replace(f'"{DEEP}"', "[" * 5_000 + "]" * 5_000)
        return web.Response(text=text, status=answer.status, content_type="application/json")

    async def _pass_on(self, request: web.Request, path: str) -> web.Response:
        headers = {"X-Forwarded-For": request.remote or ""} | {
            name: request.headers[name] for name in ("Authorization", "Content-Type") if name in request.headers
        }
        url = f"http://synapse{path}"
        data = await request.read()
        async with self._session.request(request.method, url, headers=headers, data=data) as answer:
            kept = {
                name: answer.headers[name] for name in ("Content-Type", "Retry-After") if name in answer.headers
            }
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)


@asynccontextmanager
async def wire(session: aiohttp.ClientSession) -> AsyncGenerator[Wire]:
    """A proxy on a free port."""
    made = Wire(session)
    app = web.Application(client_max_size=10**8)
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield made
    finally:
        await runner.cleanup()


class MatrixPlatform(Platform):
    """A homeserver with an account for the connector, and users who invite it."""

    connector = Matrix
    #: Created with the first message there.
    room = "the room"
    concurrently = True

    def __init__(self, homeserver: Homeserver, wire: Wire, account: Person) -> None:
        self.homeserver = homeserver
        self.wire = wire
        self.account = account
        self.link = f"https://matrix.to/#/{quote(account.id, safe='')}"
        self._chats: dict[str, str] = {}

    def settings(self) -> Mapping[str, Any]:
        """As ``Platform``."""
        return {
            "homeserver": self.wire.url,
            "user": self.account.id,
            "access_token": self.account.token,
        }

    async def chat(self, sender: str, room: str | None = None) -> str:
        """Return the direct room of a user and the account, or the room of ana, bob and the account."""
        if room:
            if room not in self._chats:
                ana, bob = await self.homeserver.person("ana"), await self.homeserver.person("bob")
                self._chats[room] = await self.homeserver.make_room(ana, invite=[self.account, bob])
                await self.homeserver.join(bob, self._chats[room])
            return self._chats[room]
        if sender not in self._chats:
            person = await self.homeserver.person(sender)
            self._chats[sender] = await self.homeserver.make_room(
                person, invite=[self.account], is_direct=True, preset="private_chat"
            )
        return self._chats[sender]

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
        """As ``Platform``."""
        person = await self.homeserver.person(sender)
        content: dict[str, Any] = {"msgtype": "m.notice" if bot else "m.text", "body": text, "m.mentions": {}}
        if mention:
            pill = f'<a href="https://matrix.to/#/{self.account.id}">Torana</a>'
            content |= {
                "body": f"Torana: {text}",
                "format": "org.matrix.custom.html",
                "formatted_body": f"{pill}: {text}",
                "m.mentions": {"user_ids": [self.account.id]},
            }
        if thread:
            content["m.relates_to"] = {
                "rel_type": "m.thread",
                "event_id": thread,
                "is_falling_back": True,
                "m.in_reply_to": {"event_id": thread},
            }
        if file:
            name, media_type, data = file
            url = await self.upload(person, data)
            info = {"mimetype": media_type, "size": len(data)}
            content |= {"msgtype": "m.image", "filename": name, "url": url, "info": info}
        return await self.homeserver.send(person, await self.chat(sender, room), content)

    async def upload(self, person: Person, data: bytes) -> str:
        """Upload a file, and return its address."""
        answer = await self.homeserver.call("POST", "/_matrix/media/v3/upload", data, token=person.token)
        return answer["content_uri"]

    async def repeat(self, message: str) -> None:
        """As ``Platform``."""
        del message
        self.wire.rewind()

    async def shown(
        self, count: int, *, to: str = "ana", room: str | None = None, thread: str | None = None
    ) -> list[Shown]:
        """As ``Platform``."""
        person = await self.homeserver.person(to)
        where = await self.chat(to, room)

        async def enough() -> list[Shown]:
            all_shown = self._shown(await self.homeserver.events(person, where))
            found = [one for one in all_shown if one.thread == thread]
            return found if len(found) >= count else []

        return await self.homeserver.until(person, enough)

    def _shown(self, events: list[dict[str, Any]]) -> list[Shown]:
        shown: dict[str, Shown] = {}
        for event in events:
            if event["sender"] != self.account.id or event["type"] != "m.room.message":
                continue
            content = event["content"]
            relation: dict[str, Any] = content.get("m.relates_to", {})
            kind, other = relation.get("rel_type"), relation.get("event_id", "")
            if kind == "m.replace":
                before = shown[other]
                shown[other] = Shown(id=other, text=content["m.new_content"]["body"], thread=before.thread)
            else:
                thread = other if kind == "m.thread" else None
                shown[event["event_id"]] = Shown(id=event["event_id"], text=content["body"], thread=thread)
        return list(shown.values())

    async def cut(self) -> None:
        """As ``Platform``."""
        self.wire.cut()

    async def limit(self, seconds: float | None) -> None:
        """As ``Platform``."""
        told: dict[str, Any] = {} if seconds is None else {"retry_after_ms": int(seconds * 1000)}
        body = {"errcode": "M_LIMIT_EXCEEDED", "error": "Too Many Requests", **told}
        self.wire.fault("/send/", lambda _, __: web.json_response(body, status=429))

    async def fail(self) -> None:
        """As ``Platform``."""
        body = {"errcode": "M_UNKNOWN", "error": "Internal server error"}
        self.wire.fault("/send/", lambda _, __: web.json_response(body, status=500))

    async def refuse_message(self) -> None:
        """As ``Platform``: the homeserver's own error for a banned user."""
        ana = await self.homeserver.person("ana")
        path = f"{V3}/rooms/{quote(await self.chat('ana'))}/ban"
        await self.homeserver.call("POST", path, {"user_id": self.account.id}, token=ana.token)

    async def refuse_login(self) -> None:
        """As ``Platform``: the homeserver's own error for a token that was logged out."""
        await self.homeserver.call("POST", f"{V3}/logout", {}, token=self.account.token)


@asynccontextmanager
async def matrix_platform(path: Path) -> AsyncGenerator[MatrixPlatform]:
    """A new account on a running homeserver."""
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path), limit=0)) as session:
        homeserver = Homeserver(session)
        account = await homeserver.person("torana")
        async with wire(session) as line:
            yield MatrixPlatform(homeserver, line, account)


ENCRYPTION = {"type": "m.room.encryption", "state_key": "", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}


class Device:
    """A user's client that encrypts and decrypts."""

    def __init__(self, client: nio.AsyncClient, line: Wire, reader: str) -> None:
        self.client = client
        self.line = line
        self._reader = reader

    async def sync(self) -> nio.SyncResponse:
        """Sync once, and upload and query keys as needed."""
        answer = await self.client.sync(1_000)
        assert isinstance(answer, nio.SyncResponse), answer
        if self.client.should_upload_keys:
            await self.client.keys_upload()
        if self.client.should_query_keys:
            await self.client.keys_query()
        return answer

    async def say(self, room: str, content: dict[str, Any]) -> str:
        """Send an encrypted message, as soon as the reader has a device with keys."""
        async with asyncio.timeout(PATIENCE):
            while not list(self.client.device_store.active_user_devices(self._reader)):
                await self.sync()
            answer = await self.client.room_send(
                room, "m.room.message", content, ignore_unverified_devices=True
            )
        assert isinstance(answer, nio.RoomSendResponse), answer
        return answer.event_id

    def encrypted(self, room: str, plaintext: str) -> dict[str, Any]:
        """Return encrypted content, which may be no event."""
        client = self.client
        assert client.olm is not None
        session = client.olm.outbound_group_sessions[room]
        return {
            "algorithm": "m.megolm.v1.aes-sha2",
            "sender_key": client.olm.account.identity_keys["curve25519"],
            "ciphertext": cast("Any", session).encrypt(plaintext),
            "session_id": session.id,
            "device_id": client.device_id,
        }

    async def read(self) -> dict[str, Any]:
        """Return the reader's next message that can be decrypted."""
        async with asyncio.timeout(PATIENCE):
            while True:
                answer = await self.sync()
                for room in answer.rooms.join.values():
                    for event in cast("list[object]", room.timeline.events):
                        if isinstance(event, nio.RoomMessage) and event.sender == self._reader:
                            assert event.decrypted
                            return event.source["content"]


@asynccontextmanager
async def device(platform: MatrixPlatform, person: Person, store: Path) -> AsyncGenerator[Device]:
    """A user's client with its keys in a directory."""
    async with wire(platform.homeserver.session) as line:
        client = nio.AsyncClient(line.url, person.id, store_path=str(store))
        client.access_token = person.token
        await client.whoami()
        client.load_store()
        try:
            made = Device(client, line, platform.account.id)
            await made.sync()
            yield made
        finally:
            await client.close()
            assert client.store is not None
            client.store.database.close()
