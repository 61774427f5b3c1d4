"""Sends a request to Chat Completions without the OpenAI client taking it apart first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from openai import AsyncOpenAI


#: What the client has to be told itself: whom it asks, and how it reads the answer.
_OF_CLIENT = frozenset({"model", "stream", "timeout", "extra_headers", "extra_query"})


def send_as_it_is(client: AsyncOpenAI) -> None:
    """Make this client put what a chat request says into the body untouched.

    The client checks every message against every type of message that there is, and everything else field by
    field, looking for fields to rename and files to read. pydantic-ai hands over plain JSON, where there is
    nothing to find, so it travels as ``extra_body``, which is merged into the body after that search.
    ``docs/explanation/performance.md`` has what that saves.

    A copy made by ``client.with_options`` works as before, at the old price.
    """
    completions = client.chat.completions
    create = cast("Callable[..., Awaitable[Any]]", completions.create)

    async def create_untouched(*, extra_body: Mapping[str, object] | None = None, **options: object) -> Any:
        plain = {name: option for name, option in options.items() if _is_plain(name, option)}
        left = {name: option for name, option in options.items() if name not in plain}
        return await create(extra_body={**plain, **(extra_body or {})}, **{"messages": (), **left})

    # An attribute of this one object: neither the class nor any other client is changed.
    vars(completions)["create"] = create_untouched


def _is_plain(name: str, option: object) -> bool:
    """Whether it is a part of the body. Of other types are the client's own marks for what is not given."""
    return name not in _OF_CLIENT and isinstance(option, str | int | float | list | dict)
