"""Add the files of a message to the prompt, as far as the model accepts their kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    TextContent,
    UserContent,
    UserPromptPart,
)

from torana.messages import FILE_TEXT_LIMIT, File, FileKind, Turn, file_kind
from torana.sessions import Sessions, history


class Prompts:
    """Makes prompts from messages. Files are loaded for each run and are not stored in the history."""

    def __init__(self, *, sessions: Sessions, takes: frozenset[FileKind]) -> None:
        self._sessions = sessions
        self._takes = takes

    async def of(self, turn: Turn) -> str | Sequence[UserContent]:
        """Return the turn's message with the files whose kinds the model accepts."""
        shown = await self._file_parts(turn.owner, turn.id) if turn.files else []
        return history.with_files(turn.content, turn.id, shown) if shown else turn.content

    async def restore(self, messages: Sequence[ModelMessage], owner: str) -> list[ModelMessage]:
        return [await self._with_files(m, owner) if isinstance(m, ModelRequest) else m for m in messages]

    async def _with_files(self, request: ModelRequest, owner: str) -> ModelRequest:
        parts = list(request.parts)
        for place, turn_id in history.shown_files(request).items():
            part, shown = parts[place], await self._file_parts(owner, turn_id)
            if shown and isinstance(part, UserPromptPart) and isinstance(part.content, str):
                parts[place] = replace(part, content=history.with_files(part.content, turn_id, shown))
        return replace(request, parts=parts)

    async def _file_parts(self, owner: str, turn_id: str) -> list[UserContent]:
        if not self._takes:
            return []
        files = await self._sessions.files(owner, turn_id)
        return list(_contents([file for file in files if file_kind(file.media_type) in self._takes]))


def _contents(files: Sequence[File]) -> Iterator[UserContent]:
    """Yield each file after its name; all texts together have at most ``FILE_TEXT_LIMIT`` characters."""
    room = FILE_TEXT_LIMIT
    for file in files:
        name = file.name or "a file without a name"
        if file_kind(file.media_type) != "text":
            yield TextContent(f"{name}:")
            yield BinaryContent(file.body, media_type=file.media_type)
            continue
        text = file.body.decode("utf-8", "replace")
        shown = text[:room]
        room -= len(shown)
        cut = f" (its first {len(shown):,} of {len(text):,} characters)" if len(shown) < len(text) else ""
        yield TextContent(f"{name}{cut}:\n{shown}\n[end of {name}]")
