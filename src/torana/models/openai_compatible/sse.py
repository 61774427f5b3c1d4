"""Split a response body into server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable

_LINE_ENDS = (b"\n", b"\r")


async def event_data(pieces: AsyncIterable[bytes]) -> AsyncGenerator[str]:
    """Yield the data of each event. Events without data, comments and an event without its end are left out.

    Each byte is copied once, however small the pieces are. Raises ``UnicodeDecodeError``.
    """
    line, data, after_return = bytearray(), list[str](), False
    async for piece in pieces:
        rest = piece[1:] if after_return and piece.startswith(b"\n") else piece
        after_return = piece.endswith(b"\r")
        for part in rest.splitlines(keepends=True):
            line += part
            if not part.endswith(_LINE_ENDS):
                continue
            text = line.decode().rstrip("\r\n")
            line.clear()
            if text.startswith("data:"):
                data.append(text[5:].removeprefix(" "))
            elif text == "data":
                data.append("")
            elif not text and data:
                yield "\n".join(data)
                data.clear()
