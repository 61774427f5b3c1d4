"""Build the model's input for a turn: instructions, history and the message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelRequestPart, UserContent, UserPromptPart

from torana.agent.prompt.files import Prompts
from torana.agent.prompt.instructions import Instructions, Knowledge
from torana.agent.prompt.tool_list import ToolList
from torana.memory import Memory
from torana.messages import NOTE_MARK, Turn
from torana.sessions import Sessions, history
from torana.tools.base import OpenedTools

#: Maximum number of memories in the instructions.
_RECALLED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The model's input; ``may_recall`` is true if it may contain the user's memories.

    ``prompt`` is None if ``messages`` already contains the message and the settled steps.
    """

    instructions: str
    messages: Sequence[ModelMessage]
    prompt: str | Sequence[UserContent] | None
    may_recall: bool
    opened_tools: OpenedTools


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    sessions: Sessions
    memory: Memory
    instructions: Instructions
    prompts: Prompts
    tool_list: ToolList
    recall_in_rooms: bool
    clock: Callable[[], datetime]

    async def of(self, turn: Turn, settled: Sequence[ModelMessage]) -> Context:
        """Build the context of a turn; ``settled`` are the messages that earlier attempts settled."""
        window = await self.sessions.window(turn)
        may_recall = self.recall_in_rooms or not window.shared
        # The messages may hold private results from the time when the session had one user.
        messages = window.messages if may_recall else history.without_private_data(window.messages)
        memories = await self._recall(turn) if may_recall else []
        knowledge = Knowledge(shared=window.shared, memories=memories, before=window.before)
        opened_tools = OpenedTools(window.opened_tools)
        opened_tools.open(self.tool_list.opened_in(settled))
        note = self.instructions.note(turn, knowledge)
        restored = await self.prompts.restore(settled, turn.owner)
        return Context(
            instructions=self.instructions.render(turn, knowledge, now=self.clock()),
            messages=[*messages, *restored],
            prompt=None if settled else with_note(await self.prompts.of(turn), note),
            may_recall=may_recall,
            opened_tools=opened_tools,
        )

    async def _recall(self, turn: Turn) -> list[str]:
        if turn.user is None:
            return []
        found = await self.memory.recall(turn.user, turn.content, limit=_RECALLED)
        return [item.memory.text for item in found]


def with_note(prompt: str | Sequence[UserContent], note: str) -> str | Sequence[UserContent]:
    """Return the prompt with the note behind its text.

    The note follows the message, so that the beginning of a prompt is the same in the next turn. It is no
    separate message, because the templates of several models require that user and assistant alternate.
    """
    if not note:
        return prompt
    if isinstance(prompt, str):
        return f"{prompt}{NOTE_MARK}{note}"
    text, *files = prompt
    return [f"{text}{NOTE_MARK}{note}", *files]


def without_note(messages: Sequence[ModelMessage], content: str) -> list[ModelMessage]:
    """Return the messages of a turn without the note on its message ``content``."""
    return [
        replace(message, parts=[_without_note(part, content) for part in message.parts])
        if isinstance(message, ModelRequest)
        else message
        for message in messages
    ]


def _without_note(part: ModelRequestPart, content: str) -> ModelRequestPart:
    if not isinstance(part, UserPromptPart):
        return part
    text = part.content if isinstance(part.content, str) else part.content[0]
    if not (isinstance(text, str) and text.startswith(content + NOTE_MARK)):
        return part
    return replace(part, content=content if isinstance(part.content, str) else [content, *part.content[1:]])
