"""What the model is given for a turn: instructions, what was said before, and the message itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic_ai.messages import ModelMessage, UserContent

from torana.agent.files import Prompts
from torana.agent.instructions import Instructions, Knowledge
from torana.memory import Memory
from torana.messages import Turn
from torana.sessions import Sessions

#: Memories put in front of the model, at most.
_RECALLED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the model is given; ``may_recall`` tells whether that may be what is remembered of the speaker.

    ``prompt`` is None where the message stands in ``messages`` already, with what was settled behind it.
    """

    instructions: str
    messages: Sequence[ModelMessage]
    prompt: str | Sequence[UserContent] | None
    may_recall: bool


class Contexts:
    """Gathers the context of one turn at a time."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        memory: Memory,
        instructions: Instructions,
        prompts: Prompts,
        recall_in_rooms: bool,
        clock: Callable[[], datetime],
    ) -> None:
        self.prompts = prompts
        self._sessions = sessions
        self._memory = memory
        self._instructions = instructions
        self._recall_in_rooms = recall_in_rooms
        self._clock = clock

    async def of(self, turn: Turn, settled: Sequence[ModelMessage]) -> Context:
        """The context of a turn of which ``settled`` is what earlier attempts settled."""
        window = await self._sessions.window(turn)
        may_recall = self._recall_in_rooms or not window.shared
        memories = await self._recalled(turn) if may_recall else []
        knowledge = Knowledge(shared=window.shared, memories=memories, before=window.before)
        restored = await self.prompts.restored(settled, turn.owner)
        return Context(
            instructions=self._instructions.render(turn, knowledge, now=self._clock()),
            messages=[*window.messages, *restored],
            prompt=None if settled else await self.prompts.of(turn),
            may_recall=may_recall,
        )

    async def _recalled(self, turn: Turn) -> list[str]:
        if turn.user is None:
            return []
        found = await self._memory.recall(turn.user, turn.content, limit=_RECALLED)
        return [item.memory.text for item in found]
