"""A conversation over the HTTP API: send messages, follow turns, and decide approvals."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx2

from torana.cli.chat.attachments import AttachedFile
from torana.cli.chat.output import Output
from torana.cli.remote import other_token
from torana.cli.terminal import on_one_line
from torana.messages import utc_now
from torana.store.rows.approval_questions import arguments_text, escape_invisible

#: Asks whether a tool may run with arguments. Returns None if there is no terminal to ask on.
AskUser = Callable[[str, str], Awaitable[bool | None]]

_SCHEDULING = ("schedule_once", "schedule_repeating")
#: The maximum number of pages of messages that one search for replies reads; the next search reads on.
_PAGES = 5
#: The maximum number of characters of a message in a label.
_LABEL = 40


class Conversation:
    """Sends messages to one channel, and prints replies."""

    def __init__(
        self,
        *,
        client: httpx2.AsyncClient,
        output: Output,
        ask: AskUser,
        channel: str,
        user: str | None,
    ) -> None:
        self._client = client
        self._output = output
        self._ask = ask
        self._channel = self._first_channel = channel
        self._user = user
        #: The id of the turn whose events are being read.
        self._turn = ""
        #: The message of each turn of this chat, by the id of the turn.
        self._sent: dict[str, str] = {}
        #: The id of the turn whose events ended because the gateway stopped.
        self._interrupted = ""
        #: The start of the chat: earlier replies are not printed.
        self._started_at = utc_now()
        #: The ids of the turns whose replies have been printed.
        self._seen: set[str] = set()
        #: The cursor of the last page of each session.
        self._pages: dict[str, str] = {}
        #: True if the agent created a schedule.
        self.scheduled = False

    def start_new_channel(self) -> None:
        """Continue in a new channel."""
        self._channel = f"{self._first_channel}:{secrets.token_hex(4)}"

    async def send(self, content: str, files: Sequence[AttachedFile] = ()) -> bool:
        """Send a message, print the reply as it arrives, and return whether the reply is complete."""
        # Input in an encoding other than UTF-8 contains surrogates, which JSON cannot encode.
        content = content.encode(errors="replace").decode()
        body: dict[str, Any] = {"content": content, "channelId": self._channel, "userId": self._user}
        path = "message"
        if files:
            path, body["files"] = "v1/messages", [file.document for file in files]
        self._turn = ""
        try:
            async with self._client.stream(
                "POST", path, json=body, headers={"Accept": "text/event-stream", "Prefer": "decide-by-id"}
            ) as response:
                if response.status_code != HTTPStatus.OK:
                    await response.aread()
                    return self._print_problem(response.json())
                return await self._follow(response, message=content)
        except httpx2.TransportError as error:
            return self._print_error(f"no gateway responds at {self._client.base_url}: {error}")
        except ValueError:  # such as the page of a proxy
            return self._print_error(
                f"the server at {self._client.base_url} sent a response that is not a gateway's"
            )

    async def cancel(self) -> bool:
        """Cancel the turn whose events are being read; return False if there is none."""
        if not self._turn:
            return False
        with suppress(httpx2.TransportError):
            await self._client.post(f"v1/turns/{self._turn}/cancel")
        return True

    async def late_replies(self) -> list[str]:
        """Return the late replies and reminders in the channel that were not printed, each with a label."""
        labelled: list[str] = []
        with suppress(httpx2.TransportError):  # the next message reports the missing gateway
            async for message in self._messages():
                turn_id = message["turnId"]
                if message["role"] == "assistant" and turn_id not in self._seen:
                    self._seen.add(turn_id)
                    if datetime.fromisoformat(message["createdAt"]) >= self._started_at:
                        labelled.append(_label(message, question=self._sent.get(turn_id, "")))
        return labelled

    async def can_resume(self) -> bool:
        """Return whether the interrupted turn has ended or waits for an approval."""
        if not self._interrupted:
            return False
        with suppress(httpx2.TransportError):
            turn = await self._client.get(f"v1/turns/{self._interrupted}")
            return not turn.is_error and turn.json()["status"] not in ("queued", "running")
        return False

    async def resume(self) -> bool:
        """Follow the interrupted turn again; return whether its reply is complete."""
        self._turn, self._interrupted = self._interrupted, ""
        async with self._client.stream("GET", f"v1/turns/{self._turn}/events") as response:
            return await self._follow(response, message=self._sent[self._turn])

    async def decide_open_approvals(self) -> int:
        """Ask the user about each open approval that the token may decide; return their number."""
        found = await self._client.get("v1/approvals", params={"limit": "50"})
        if found.is_error:
            self._print_problem(found.json())
            return 0
        items = found.json()["items"]
        for item in reversed(items):
            await self._decide(item)
        return len(items)

    async def model(self) -> str | None:
        """Return the names of the gateway's models; None if the token may not read them."""
        status = await self._client.get("v1/status")
        return None if status.is_error else ", ".join(status.json()["model"])

    async def _messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the channel's messages that this token may read, after the pages that were read before."""
        wanted = {"channelId": self._channel, "limit": "1"} | ({"userId": self._user} if self._user else {})
        found = await self._client.get("v1/sessions", params=wanted)
        for session in () if found.is_error else found.json()["items"]:
            path = f"v1/sessions/{session['id']}/messages"
            for _ in range(_PAGES):
                query = {"limit": "200", "after": self._pages.get(path, "")}
                page = await self._client.get(path, params=query)
                document: dict[str, Any] = {"items": [], "next": None} if page.is_error else page.json()
                for item in document["items"]:
                    yield item
                if document["next"] is None:
                    break
                self._pages[path] = document["next"]

    async def _follow(self, response: httpx2.Response, *, message: str) -> bool:
        with suppress(httpx2.TransportError):  # treated as a response without its last event
            async for event, data in _events(response):
                ended = await self._handle(event, data)
                self._sent[self._turn] = message
                if ended is not None:
                    self._seen.add(self._turn)
                    self._turn = ""
                    return ended
        self._interrupted, self._turn = self._turn, ""
        return self._print_error(
            "The gateway stopped. It completes the reply after its next start: "
            f"torana turns show {self._interrupted}"
        )

    async def _handle(self, event: str, data: dict[str, Any]) -> bool | None:
        """Handle an event. For the last event, return whether the reply is complete; otherwise None."""
        match event:
            case "message.delta":
                self._output.add(data["text"])
            case "message.snapshot":
                self._output.replace(data["text"])
            case "turn.accepted":
                self._turn = data["id"]
            case "approval.required":
                await self._decide(data)
            case "tool.started" | "tool.finished":
                self._note_tool(data)
            case "turn.completed":
                self._output.finish()
                return True
            case "turn.failed" if data["code"] == "turn_cancelled":
                return self._print_error("Cancelled.")
            case "turn.failed":
                return self._print_problem(data)
            case _:
                pass
        return None

    def _note_tool(self, data: dict[str, Any]) -> None:
        """Print that a tool has started, or that it has finished without success."""
        name, succeeded = on_one_line(data["tool"]), data.get("ok")
        if succeeded is None:
            self._output.note(f"· {name}")
        elif not succeeded:
            self._output.note(f"× {name} did not succeed")
        self.scheduled = self.scheduled or (succeeded is not None and data["tool"] in _SCHEDULING)

    async def _decide(self, approval: dict[str, Any]) -> None:
        """Ask the user whether a tool may run. Without a terminal, deny it."""
        tool = on_one_line(escape_invisible(approval["tool"]))
        arguments = arguments_text(approval["arguments"])
        body = {"decision": "deny"}
        self._output.pause()
        match await self._ask(tool, arguments):
            case True:
                body = {"decision": "approve", "digest": approval["digest"]}
            case None:
                self._print_error(f"Denied {tool} with {arguments}: there is no terminal to ask on.")
                body["reason"] = "there was no terminal to ask on"
            case _:
                pass
        response = await self._client.post(f"v1/approvals/{quote(approval['id'], safe='')}", json=body)
        if response.is_error:
            self._print_error(response.json()["detail"])

    def _print_problem(self, problem: dict[str, Any]) -> bool:
        if problem["code"] == "unauthorized":
            return self._print_error(other_token(str(self._client.base_url).rstrip("/")))
        return self._print_error(f"{problem['error']}: {problem['detail']}")

    def _print_error(self, message: str) -> bool:
        self._output.error(message)
        return False


def _label(message: dict[str, Any], *, question: str) -> str:
    """Return a reply below a line with the time and, if this chat sent its message, the message's beginning."""
    at = datetime.fromisoformat(message["createdAt"]).astimezone()
    sent = on_one_line(question)
    if len(sent) > _LABEL:
        sent = f"{sent[:_LABEL]}…"
    label = f"{at:%H:%M} · late reply to “{sent}”" if sent else f"{at:%H:%M}"
    return f"{label}\n\n{message['content']}"


async def _events(response: httpx2.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    event = ""
    async for line in _lines(response):
        name, _, value = line.partition(": ")
        if name == "event":
            event = value
        elif name == "data":
            yield event, json.loads(value)


async def _lines(response: httpx2.Response) -> AsyncIterator[str]:
    """Yield the lines of a stream; httpx2's own method also splits at U+2028, which JSON may contain."""
    rest = ""
    async for text in response.aiter_text():
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            yield line
