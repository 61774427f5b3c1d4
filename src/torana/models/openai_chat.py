"""Send Chat Completions requests without the OpenAI client's processing of the body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from openai import AsyncOpenAI


#: Options for the client itself, not for the body.
_OF_CLIENT = frozenset({"model", "stream", "timeout", "extra_headers", "extra_query"})


def send_unchanged(client: AsyncOpenAI) -> None:
    """Make this client send the options of a chat request unchanged in the body.

    The client checks every message against all message types and searches every field for names to convert and
    files to read. pydantic-ai passes plain JSON, so this is unnecessary; ``extra_body`` is merged after the
    search. ``docs/explanation/performance.md`` has the measurements. Copies from ``client.with_options`` are
    not changed.
    """
    completions = client.chat.completions
    create = cast("Callable[..., Awaitable[Any]]", completions.create)

    async def create_untouched(*, extra_body: Mapping[str, object] | None = None, **options: object) -> Any:
        # The client marks omitted options with its own types.
        plain: dict[str, object] = {
            name: option
            for name, option in options.items()
            if name not in _OF_CLIENT and isinstance(option, str | int | float | list | dict)
        }
        left = {name: option for name, option in options.items() if name not in plain}
        return await create(extra_body={**plain, **(extra_body or {})}, **{"messages": (), **left})

    # Set on the object, so that the class and other clients stay unchanged.
    vars(completions)["create"] = create_untouched
