"""The client of a Matrix homeserver, based on matrix-nio.

nio retries for ever, treats some failures as success, and crashes on malformed encrypted events. Here each call
is made once, and either succeeds or raises ``PermanentError``, ``RetryLater`` or ``OutcomeUnknown``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import quote

import nio
from aiohttp import ClientError, ClientResponse
from nio.crypto import Olm

from torana.connectors.base import MessageSink, OutcomeUnknown, PermanentError, RetryLater, collect
from torana.connectors.platforms.matrix.keys import KeyStore, StoredKeys
from torana.json_bounds import without_deep_values, without_dense_values

_log = logging.getLogger(__name__)
# nio logs each event, and at DEBUG all responses, including the token of a login.
logging.getLogger("nio").setLevel(logging.WARNING)

#: Timeouts, in seconds, for a call, and for a file or the state of all rooms.
_TIMEOUT, _LONG_TIMEOUT = 30, 300
#: Maximum nesting of a response. Events are handled recursively.
_DEPTH = 100
#: A value in an event with more than ``_VALUES`` values has at least ``_VALUE_LENGTH`` characters for each:
#: senders write any JSON, and the lists of a page of events could take seconds.
_VALUES, _VALUE_LENGTH = 1_000, 16
#: The fields with lists of events.
_EVENT_LISTS = frozenset({"events", "chunk"})
#: Maximum number of digits of an integer.
_DIGITS = 1_000
#: The length from which a response is parsed in a thread.
_SHORT = 64 * 1024

#: Quotes an id as a segment of a URL path.
quoted = partial(quote, safe="")


class Homeserver(nio.AsyncClient):
    """The homeserver of one account. ``rooms`` are the joined rooms; call ``leave`` at the end."""

    def __init__(self, *, address: str, user: str, device: str) -> None:
        config = nio.AsyncClientConfig(max_limit_exceeded=0, max_timeouts=0, request_timeout=_TIMEOUT)
        super().__init__(address, user, device, config=config)
        self._keys = asyncio.Lock()
        self._stored_keys: StoredKeys | None = None
        self._left = False

    async def log_in(self, *, password: str | None, token: str | None) -> None:
        """Log in. Raises ``PermanentError`` if the credentials are wrong or of another account."""
        account = self.user
        if password is not None:
            await self.login(password, device_name="Torana")
        else:
            self.access_token, self.device_id = token or "", ""
            try:
                await self.whoami()  # this sets user and device
            except LoggedOut as e:
                raise PermanentError(str(e)) from e
        if self.user_id != account:
            raise PermanentError(f"the credentials belong to {self.user_id}, not to {account}")

    async def open_keys(self, sink: MessageSink, earlier: Path | None) -> None:
        """Load the keys of the device; from now on, messages are encrypted and decrypted.

        ``earlier`` is the directory of an earlier version, whose keys are copied to the records of the account.
        """
        if not self.device_id:
            raise PermanentError(
                "the access token belongs to no device, so it has no keys; set `password` instead"
            )
        name = f"keys of {self.device_id}"
        store = KeyStore(self.user_id, self.device_id)
        records = await sink.load_records(name)
        store.load(records)
        file = earlier / f"{self.user_id}_{self.device_id}.db" if earlier and not records else None
        if file is not None and await asyncio.to_thread(file.is_file):
            store.copy_file(file)
            _log.info("matrix_keys_copied", extra={"directory": str(earlier)})
        self._stored_keys = StoredKeys(store, lambda changes: sink.save_records(name, changes))
        self.store = store
        self.olm = _Olm(self.user_id, self.device_id, store)
        self.encrypted_rooms = store.load_encrypted_rooms()

    def load_store(self) -> None:
        """Do nothing at the login: ``open_keys`` loads the keys."""

    async def leave(self) -> None:
        """Close all connections and files; the object cannot be used again."""
        self._left = True
        try:
            await self.close()
        finally:
            if self.store is not None:
                self.store.database.close()

    async def poll(self, filter_: dict[str, Any], since: str, *, wait: float = 0) -> nio.SyncResponse:
        """Return the events since the token, at once or within ``wait`` seconds.

        If ``wait`` is 0, the response contains the state of all rooms.
        """
        if wait:
            return cast("nio.SyncResponse", await self.sync(int(wait * 1000), filter_, since))
        async with asyncio.timeout(_LONG_TIMEOUT):
            # The full state, as earlier state was not stored.
            answer = await self.sync(0, filter_, since, full_state=True if since else None)
        return cast("nio.SyncResponse", answer)

    async def earlier(self, room: str, start: str, end: str | None) -> nio.RoomMessagesResponse:
        """Return up to a hundred events of a room from ``start`` back to ``end``, newest first."""
        answer = await self.room_messages(room, start, end, limit=100)
        return cast("nio.RoomMessagesResponse", answer)

    async def send_event(self, room: nio.MatrixRoom, content: dict[str, Any], *, key: str) -> str:
        """Send a message, encrypted in an encrypted room, and return its id; ``key`` prevents repetition."""
        if room.encrypted:
            await self._share_key(room)
        answer = await self.room_send(room.room_id, "m.room.message", content, key, True)
        return cast("nio.RoomSendResponse", answer).event_id

    async def call(self, method: Literal["GET", "PUT"], path: str, body: object = None) -> Mapping[str, Any]:
        """Make a call that nio lacks; return an empty object if a GET finds nothing or is forbidden."""
        headers = {"Authorization": f"Bearer {self.access_token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body)
        async with await self.send(method, f"/_matrix/client/v3{path}", data, headers) as response:
            answer = await self.parse_body(response)
        if response.status == 200:
            return answer
        if method == "GET" and answer.get("errcode") in {"M_NOT_FOUND", "M_FORBIDDEN"}:
            return {}
        raise _fault(response.status, response.headers, answer)

    def account_data_path(self, kind: str) -> str:
        return f"/user/{quoted(self.user_id)}/account_data/{kind}"

    async def fetch(self, server: str, media: str, limit: int) -> bytes:
        """Return the content of a file. Raises ``TooLarge`` for more than ``limit`` bytes."""
        path = f"/_matrix/client/v1/media/download/{quoted(server)}/{quoted(media)}"
        headers = {"Authorization": f"Bearer {self.access_token}"}
        async with await self.send("GET", path, None, headers, timeout=_LONG_TIMEOUT) as response:
            if response.status != 200:
                raise _fault(response.status, response.headers, await self.parse_body(response))
            with _answers():
                size = response.content_length or 0
                return await collect(response.content.iter_chunked(65_536), limit, announced=size)

    async def exchange_keys(self) -> None:
        """Upload, query and claim the encryption keys that are due."""
        async with self._keys:
            try:
                if self.should_upload_keys:
                    await self.keys_upload()
                if self.should_query_keys:
                    await self.keys_query()
                if self.should_claim_keys:
                    await self.keys_claim({**self.get_users_for_key_claiming()})
                await self.send_to_device_messages()
            except (PermanentError, RetryLater, OutcomeUnknown) as e:
                _log.warning("matrix_keys_not_exchanged", extra={"reason": str(e)})

    async def _share_key(self, room: nio.MatrixRoom) -> None:
        """Share the key of the next messages with the room's devices.

        nio does this when it sends, and ignores failures: then no device can read the message.
        """
        async with self._keys:
            if not room.members_synced:
                await self.joined_members(room.room_id)
            if self.should_query_keys:
                await self.keys_query()
            if self.olm is None or not self.olm.should_share_group_session(room.room_id):
                return
            if missing := self.get_missing_sessions(room.room_id):
                await self.keys_claim({**missing})
            try:
                answer = await self.share_group_session(room.room_id, ignore_unverified_devices=True)
            finally:
                # nio leaves this entry after an early failure, and the next message would wait for ever.
                self.sharing_session.pop(room.room_id, None)
            shared = cast("set[object]", cast("Any", answer).users_shared_with)
            devices = [one for user in room.users for one in self.device_store.active_user_devices(user)]
            others = [one.curve25519 for one in devices if one.id != self.device_id]
            if not shared and any(self.olm.session_store.get(key) for key in others):
                self.invalidate_outbound_session(room.room_id)
                raise RetryLater("the room's devices did not get the key")

    async def send(
        self,
        method: str,
        path: str,
        data: Any = None,
        headers: dict[str, str] | None = None,
        trace_context: Any | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> ClientResponse:
        """Send a request. Raises ``RetryLater`` after ``leave``.

        nio would then open a new HTTP session, and would never close it.
        """
        if self._left:
            raise RetryLater("not connected")
        if self._stored_keys is not None:
            # Changed keys are stored before a request uses them: otherwise the next process would use the same
            # keys again.
            await self._stored_keys.save()
        with _answers():
            return await super().send(method, path, data, headers, trace_context, timeout)

    async def parse_body(self, transport_response: ClientResponse) -> dict[Any, Any]:
        """Return the JSON of a response, or an empty object.

        Values that are nested too deeply, or that would take long, are dropped: an event with such a value
        would make the whole response unreadable, at each attempt.
        """
        with _answers():
            text = await transport_response.text(errors="replace")
        document = _parse(text) if len(text) < _SHORT else await asyncio.to_thread(_parse, text)
        return cast("dict[Any, Any]", document) if isinstance(document, dict) else {}

    async def create_matrix_response(
        self, response_class: Any, transport_response: ClientResponse, data: Any = None, save_to: Any = None
    ) -> Any:
        """Create the response, and raise its error; the library recognises only some errors."""
        if transport_response.status >= 400:
            answer = await self.parse_body(transport_response)
            raise _fault(transport_response.status, transport_response.headers, answer)
        nio_s = cast("Any", super())
        return await nio_s.create_matrix_response(response_class, transport_response, data, save_to)

    async def receive_response(self, response: nio.Response) -> None:
        """Handle a response; raise an error for one that is not understood, without changing any state."""
        if isinstance(response, nio.ErrorResponse):
            raise RetryLater("the homeserver's response is not valid Matrix")
        await super().receive_response(response)


class LoggedOut(RetryLater):
    """The access token is not valid."""


class _Olm(Olm):
    """Decrypts events, and handles malformed content."""

    def decrypt_megolm_event(self, event: nio.MegolmEvent, room_id: str | None = None) -> Any:
        try:
            return super().decrypt_megolm_event(event, room_id)
        except nio.EncryptionError:
            raise
        except Exception as e:
            raise nio.EncryptionError(f"the encrypted content is not an event ({type(e).__name__})") from e

    def handle_to_device_event(self, event: Any) -> Any:
        try:
            return cast("Any", super()).handle_to_device_event(event)
        except Exception as e:  # noqa: BLE001 - a malformed event must not end the connection
            _log.warning("matrix_device_message_unreadable", extra={"reason": type(e).__name__})
            return None


def _parse(text: str) -> object:
    """Parse the JSON of a response; None if it is not valid."""
    sparse = without_dense_values(text, _EVENT_LISTS, limit=_VALUES, length=_VALUE_LENGTH)
    bounded = without_deep_values(sparse, _DEPTH)
    try:
        return json.loads(bounded, parse_int=_parse_integer)
    except ValueError:
        return None


def _parse_integer(digits: str) -> int | None:
    """Return an integer, or None for one that Python refuses to parse because it is too long."""
    return int(digits) if len(digits) <= _DIGITS else None


@contextmanager
def _answers() -> Generator[None]:
    """Translate a missing response to ``OutcomeUnknown``: the call may have been executed."""
    try:
        yield
    except (ClientError, OSError) as e:  # TimeoutError is an OSError
        raise OutcomeUnknown(f"the homeserver did not answer ({type(e).__name__})") from e


def _fault(status: int, headers: Mapping[str, str], answer: Mapping[str, Any]) -> Exception:
    code = answer.get("errcode") or ""
    reason = f"the homeserver answered {status}: {code} {str(answer.get('error'))[:200]}"
    if status == 429 or code == "M_LIMIT_EXCEEDED":
        wait, header = answer.get("retry_after_ms"), headers.get("Retry-After", "")
        seconds = float(header) if header.isdecimal() else None
        return RetryLater(reason, seconds=wait / 1000 if isinstance(wait, int) else seconds)
    if status == 401:
        return LoggedOut(reason)
    if status >= 500:
        return OutcomeUnknown(reason)
    # These are temporary; a response without a code does not come from a homeserver.
    if not code or code in {"M_RESOURCE_LIMIT_EXCEEDED", "M_CONSENT_NOT_GIVEN"}:
        return RetryLater(reason)
    return PermanentError(reason)
