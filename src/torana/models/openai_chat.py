"""Sends a long history and many tools to Chat Completions without the OpenAI client taking them apart first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from openai import AsyncOpenAI


#: The parts of a request that grow, and hold nothing but JSON.
_PLAIN = ("messages", "tools")


def send_as_it_is(client: AsyncOpenAI) -> None:
    """Make this client put the ``messages`` and ``tools`` of a chat request into the body untouched.

    The client checks every message against every type of message that there is, and every tool's schema field
    by field, looking for fields to rename and files to read. pydantic-ai hands over plain JSON, where there is
    nothing to find, so both travel as ``extra_body``, which is merged into the body after that search.
    ``docs/explanation/performance.md`` has what that saves.

    A copy made by ``client.with_options`` works as before, at the old price.
    """
    completions = client.chat.completions
    create = cast("Callable[..., Awaitable[Any]]", completions.create)

    async def create_untouched(*, extra_body: Mapping[str, object] | None = None, **options: object) -> Any:
        # Left out are marks of the client's own, which stand for nothing.
        plain = {name: options.pop(name) for name in _PLAIN if isinstance(options.get(name), list)}
        return await create(messages=(), extra_body={**plain, **(extra_body or {})}, **options)

    # An attribute of this one object: neither the class nor any other client is changed.
    vars(completions)["create"] = create_untouched
