"""A Matrix homeserver, as matrix-nio reaches it.

nio by itself tries for ever, takes failures without words for success, and falls over what strangers encrypt.
Here every call is made once and either done or raises ``Refused``, ``TryLater`` or ``Unsure``.
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

from torana.connectors.base import Refused, TooLarge, TryLater, Unsure

_log = logging.getLogger(__name__)
# It tells of each event, and at DEBUG all that is answered, to a login with the token.
logging.getLogger("nio").setLevel(logging.WARNING)

#: Seconds for a call, and for a file or the state of all rooms.
_TIMEOUT, _LONG_TIMEOUT = 30, 300

#: A part of an address, such as an id, as it is written there.
quoted = partial(quote, safe="")


class Homeserver(nio.AsyncClient):
    """The homeserver of one account. ``rooms`` are those in which the account is; ``leave`` it in the end."""

    def __init__(self, *, address: str, user: str, device: str, store: Path | None) -> None:
        """``store`` is the directory for keys; without it nothing is encrypted or decrypted."""
        config = nio.AsyncClientConfig(max_limit_exceeded=0, max_timeouts=0, request_timeout=_TIMEOUT)
        super().__init__(address, user, device, str(store or ""), config)
        self._keys = asyncio.Lock()
        self._left = False

    async def log_in(self, *, password: str | None, token: str | None) -> None:
        """Become the account; ``Refused`` where the credentials are not good for that."""
        account = self.user
        if password is not None:
            await self.login(password, device_name="Torana")
        else:
            self.access_token, self.device_id = token or "", ""
            try:
                await self.whoami()  # this sets user and device
            except LoggedOut as e:
                raise Refused(str(e)) from e
            if self.store_path and self.device_id:
                self.load_store()
        if self.user_id != account:
            raise Refused(f"the credentials are those of {self.user_id}, not of {account}")
        if self.store_path and self.olm is None:
            raise Refused("the access token belongs to no device, and keys belong to devices")

    def load_store(self) -> None:
        """As ``AsyncClient``."""
        if self.store_path:
            Path(self.store_path).mkdir(mode=0o700, parents=True, exist_ok=True)
        super().load_store()
        if self.store is not None:
            self.olm = _Olm(self.user_id, self.device_id or "", self.store)

    async def leave(self) -> None:
        """Close all there is, for ever."""
        self._left = True
        try:
            await self.close()
        finally:
            if self.store is not None:
                self.store.database.close()

    async def poll(self, filter_: dict[str, Any], since: str, *, wait: float = 0) -> nio.SyncResponse:
        """What has happened since, as soon as something has or ``wait`` seconds are over.

        Without ``wait`` with the state of all rooms.
        """
        if wait:
            return cast("nio.SyncResponse", await self.sync(int(wait * 1000), filter_, since))
        async with asyncio.timeout(_LONG_TIMEOUT):
            # The whole state: what we knew of it is gone.
            answer = await self.sync(0, filter_, since, full_state=True if since else None)
        return cast("nio.SyncResponse", answer)

    async def earlier(self, room: str, start: str, end: str | None) -> nio.RoomMessagesResponse:
        """Up to a hundred events of a room from ``start`` back to ``end``, the newest first."""
        answer = await self.room_messages(room, start, end, limit=100)
        return cast("nio.RoomMessagesResponse", answer)

    async def say(self, room: nio.MatrixRoom, content: dict[str, Any], *, key: str) -> str:
        """Send a message, encrypted where the room is, and return its id; once with each key."""
        if room.encrypted:
            await self._share_key(room)
        answer = await self.room_send(room.room_id, "m.room.message", content, key, True)
        return cast("nio.RoomSendResponse", answer).event_id

    async def call(self, method: Literal["GET", "PUT"], path: str, body: object = None) -> Mapping[str, Any]:
        """A call that nio has not; what is asked for and cannot be had is empty."""
        headers = {"Authorization": f"Bearer {self.access_token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body)
        async with await self.send(method, f"/_matrix/client/v3{path}", data, headers) as response:
            answer = await self.parse_body(response)
        if response.status == 200:
            return answer
        if method == "GET" and answer.get("errcode") in {"M_NOT_FOUND", "M_FORBIDDEN"}:
            return {}
        raise _fault(response.status, response.headers, answer)

    async def fetch(self, server: str, media: str, limit: int) -> bytes:
        """The bytes of a file; ``TooLarge`` as soon as there are more than ``limit``."""
        path = f"/_matrix/client/v1/media/download/{quoted(server)}/{quoted(media)}"
        headers = {"Authorization": f"Bearer {self.access_token}"}
        data = bytearray()
        async with await self.send("GET", path, None, headers, timeout=_LONG_TIMEOUT) as response:
            if response.status != 200:
                raise _fault(response.status, response.headers, await self.parse_body(response))
            if (response.content_length or 0) > limit:
                raise TooLarge(f"the file has {response.content_length} bytes")
            with _answers():
                async for chunk in response.content.iter_chunked(65_536):
                    data += chunk
                    if len(data) > limit:
                        raise TooLarge(f"the file has more than {limit} bytes")
        return bytes(data)

    async def exchange_keys(self) -> None:
        """Tell others and ask of them what is due, so that all can read what is encrypted."""
        async with self._keys:
            try:
                if self.should_upload_keys:
                    await self.keys_upload()
                if self.should_query_keys:
                    await self.keys_query()
                if self.should_claim_keys:
                    await self.keys_claim({**self.get_users_for_key_claiming()})
                await self.send_to_device_messages()
            except (Refused, TryLater, Unsure) as e:
                _log.warning("matrix_keys_not_exchanged", extra={"reason": str(e)})

    async def _share_key(self, room: nio.MatrixRoom) -> None:
        """Give the room's devices the key of what is written next.

        nio would do so as it sends, and take it for done when it was not: nobody could read the message.
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
                # Left there when that fails early, the next message would wait for it for ever.
                self.sharing_session.pop(room.room_id, None)
            shared = cast("set[object]", cast("Any", answer).users_shared_with)
            devices = [one for user in room.users for one in self.device_store.active_user_devices(user)]
            others = [one.curve25519 for one in devices if one.id != self.device_id]
            if not shared and any(self.olm.session_store.get(key) for key in others):
                self.invalidate_outbound_session(room.room_id)
                raise TryLater("the room's devices did not get the key")

    async def send(
        self,
        method: str,
        path: str,
        data: Any = None,
        headers: dict[str, str] | None = None,
        trace_context: Any | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> ClientResponse:
        """As ``AsyncClient``, which would open again what was left, and nobody would close it."""
        if self._left:
            raise TryLater("not connected")
        with _answers():
            return await super().send(method, path, data, headers, trace_context, timeout)

    async def parse_body(self, transport_response: ClientResponse) -> dict[Any, Any]:
        """As ``AsyncClient``."""
        with _answers():
            return await super().parse_body(transport_response)

    async def create_matrix_response(
        self, response_class: Any, transport_response: ClientResponse, data: Any = None, save_to: Any = None
    ) -> Any:
        """As ``AsyncClient``, which looks for errors in words alone and falls over some; they are raised."""
        if transport_response.status >= 400:
            answer = await self.parse_body(transport_response)
            raise _fault(transport_response.status, transport_response.headers, answer)
        nio_s = cast("Any", super())
        return await nio_s.create_matrix_response(response_class, transport_response, data, save_to)

    async def receive_response(self, response: nio.Response) -> None:
        """As ``AsyncClient``; what is not understood is an error, and nothing was done."""
        if isinstance(response, nio.ErrorResponse):
            raise TryLater("the homeserver's answer is not one of Matrix")
        await super().receive_response(response)


class LoggedOut(TryLater):
    """The token is not known, or not any more."""


class _Olm(Olm):
    """Decrypts what strangers encrypted, which may be anything at all."""

    def decrypt_megolm_event(self, event: nio.MegolmEvent, room_id: str | None = None) -> Any:
        try:
            return super().decrypt_megolm_event(event, room_id)
        except nio.EncryptionError:
            raise
        except Exception as e:
            raise nio.EncryptionError(f"what was encrypted is no event ({type(e).__name__})") from e

    def handle_to_device_event(self, event: Any) -> Any:
        try:
            return cast("Any", super()).handle_to_device_event(event)
        except Exception as e:  # noqa: BLE001 - it must not end the run, again and again
            _log.warning("matrix_device_message_unreadable", extra={"reason": type(e).__name__})
            return None


@contextmanager
def _answers() -> Generator[None]:
    """Where no answer comes, the call may have been made."""
    try:
        yield
    except (ClientError, OSError) as e:  # among them TimeoutError
        raise Unsure(f"the homeserver did not answer ({type(e).__name__})") from e


def _fault(status: int, headers: Mapping[str, str], answer: Mapping[str, Any]) -> Exception:
    """What an answer other than 200 means."""
    code = answer.get("errcode") or ""
    told = f"the homeserver answered {status}: {code} {str(answer.get('error'))[:200]}"
    if status == 429 or code == "M_LIMIT_EXCEEDED":
        wait, header = answer.get("retry_after_ms"), headers.get("Retry-After", "")
        seconds = float(header) if header.isdecimal() else None
        return TryLater(told, seconds=wait / 1000 if isinstance(wait, int) else seconds)
    if status == 401:
        return LoggedOut(told)
    if status >= 500:
        return Unsure(told)
    # These pass; and what has no code does not come from a homeserver.
    if not code or code in {"M_RESOURCE_LIMIT_EXCEEDED", "M_CONSENT_NOT_GIVEN"}:
        return TryLater(told)
    return Refused(told)
