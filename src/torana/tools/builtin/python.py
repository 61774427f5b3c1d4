"""Run Python snippets of the model with Monty, an interpreter without access to the machine.

Monty has no files, network, environment or other programs. Its workers are separate processes that can be
killed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, cast

from torana.tools.base import ToolError, ToolGroup, tool

if TYPE_CHECKING:  # takes 3 MB, so only on demand
    from pydantic_monty import AsyncMonty, OSPolicy, ResourceLimits

CODE_LIMIT = 20_000
#: The number of characters of the output, and of the result, that the model receives.
SHOWN_LIMIT = 16_000
SECONDS = 5.0

_MEMORY = 64 * 1024 * 1024
#: A snippet that sleeps would occupy a worker.
_POLICY: OSPolicy = {"sleep": "zero"}
#: Seconds beyond its own limit after which a worker counts as hung.
_GRACE = 5.0
_WORKERS = 2
#: The start of Monty's error for a snippet that took too long.
_TOO_LONG = re.compile(r"TimeoutError: \w+ time limit exceeded")


class PythonTools(ToolGroup):
    """The tool that runs snippets. Its workers start with the first snippet."""

    def __init__(self, *, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._limits: ResourceLimits = {
            "max_feed_duration_secs": seconds,
            "max_memory": _MEMORY,
            "max_suspensions": 100,
        }
        self._pool: AsyncMonty | None = None
        self._opening = asyncio.Lock()

    async def close(self) -> None:
        """End the workers. Idempotent.

        Call it well before the process ends: a process that ends directly after its workers may abort
        (SIGABRT).
        """
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.__aexit__(None, None, None)

    @tool(idempotent=True)
    async def run_python(self, code: str) -> str:
        """Run a snippet of Python and read what it prints and the value of its last expression.

        For calculations, counting and reshaping data. It has 5 seconds, no access to the machine (no files, no
        network, no packages) and few modules: math, re, json, datetime. The next snippet starts afresh.

        Args:
            code: The Python code, at most 20,000 characters; include data as literals.
        """
        from pydantic_monty import CollectString, MontyError

        if len(code) > CODE_LIMIT:
            raise ToolError(f"The code has {len(code):,} characters; send at most {CODE_LIMIT:,}.")
        printed = CollectString()
        pool = await self._open_pool()
        try:
            async with (
                asyncio.timeout(self._seconds + _GRACE),
                pool.checkout(limits=self._limits, os_policy=_POLICY) as worker,
            ):
                value: object = await worker.feed_run(code, print_callback=printed)
                result = "" if value is None else _labelled_output("result", _format_value(value))
        except TimeoutError as error:
            raise ToolError("No worker was free, or the code did not end; try again.") from error
        # Some values cannot leave the interpreter, such as a number with 5,000 digits.
        except (MontyError, ValueError, OverflowError, RecursionError) as error:
            raise ToolError(_fault(error, printed.output, self._seconds)) from error
        return (
            "\n".join(filter(None, [_labelled_output("printed", printed.output), result]))
            or "The code printed nothing."
        )

    async def _open_pool(self) -> AsyncMonty:
        from pydantic_monty import AsyncMonty

        async with self._opening:
            if self._pool is None:
                pool = AsyncMonty(
                    min_processes=0, max_processes=_WORKERS, request_timeout=self._seconds + _GRACE
                )
                self._pool = await pool.__aenter__()
            return self._pool


def _format_value(value: object) -> str:
    """Return the value in Python's notation, up to the limit.

    A list that contains another list many times is small, but its notation can be endless.
    """
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > SHOWN_LIMIT:
            break
    return text


def _pieces(value: object) -> Iterator[str]:
    match value:
        case list():
            yield from _format_items("[", cast("list[object]", value), "]")
        case tuple():
            items = cast("tuple[object, ...]", value)
            yield from _format_items("(", items, ",)" if len(items) == 1 else ")")
        case set() | frozenset() if value:
            yield from _format_items("{", cast("set[object]", value), "}")
        case dict():
            items = cast("dict[object, object]", value).items()
            for number, (key, item) in enumerate(items):
                yield ", " if number else "{"
                yield from _pieces(key)
                yield ": "
                yield from _pieces(item)
            yield "}" if items else "{}"
        case str() | bytes():
            yield repr(value[: SHOWN_LIMIT + 1])
        case _:
            yield repr(value)


def _format_items(begin: str, items: Iterable[object], end: str) -> Iterator[str]:
    yield begin
    for number, item in enumerate(items):
        if number:
            yield ", "
        yield from _pieces(item)
    yield end


def _fault(error: Exception, printed: str, seconds: float) -> str:
    message = str(error).strip() or type(error).__name__
    if _TOO_LONG.match(message):
        fault = f"The code ran for longer than {seconds:g} s and was stopped; do less in one snippet."
    else:
        fault = f"The code failed: {message[-2000:]}"
    return "\n".join(filter(None, [fault, _labelled_output("printed", printed)]))


def _labelled_output(name: str, text: str) -> str:
    text = text.strip().replace("\0", "\N{REPLACEMENT CHARACTER}")
    if not text:
        return ""
    note = " (its beginning)" if len(text) > SHOWN_LIMIT else ""
    return f"{name}{note}: {text[:SHOWN_LIMIT]}"
