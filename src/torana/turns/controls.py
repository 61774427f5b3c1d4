"""Words to the gateway itself: taken before anything is queued, and answered without the agent.

They are the commands, and while somebody is asked whether a tool may run, their yes or no.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Set
from contextlib import suppress
from functools import partial

from torana.errors import Erased, NotFound
from torana.messages import Inbound, Turn
from torana.store import keys
from torana.store import sessions as session_rows
from torana.store import turns as rows
from torana.store.approvals import Approval, is_lost
from torana.store.audit import Act
from torana.store.database import Connection, Database
from torana.store.questions import question_text
from torana.store.turns import NewTurn
from torana.turns.approvals import Approvals, Choice, answer, ask_again, unanswered
from torana.turns.questions import read_answer

#: What a message has to be, and nothing else, to be taken.
WORDS = ("/stop", "/status", "/new", "/help")

_HELP = """\
/new begins a new conversation, /stop ends what is running, /status tells what runs and waits. \
Everything else is a message to the agent."""

_TOO_EARLY = "You said that before my question stood here, so I do not count it. Please answer once more."
_NOT_SHOWN = "I do not count that, because I cannot tell whether you saw this question."
_ONCE_MORE = "I cannot tell whether you saw my question, so I do not count that and ask once more."


class Controls:
    """Obeys a control word for one channel."""

    def __init__(
        self, *, database: Database, cancel: Callable[[str, str], Awaitable[Turn]], approvals: Approvals
    ) -> None:
        self._database = database
        self._cancel = cancel
        self._approvals = approvals

    @staticmethod
    def word(content: str) -> str | None:
        """The control word that a message is; None for a message to the agent."""
        word = content.strip().casefold()
        return word if word in WORDS else None

    async def obey(self, word: str, *, owner: str, channel: str) -> str:
        """Do it, and say what was done."""
        live = await self._database.run(partial(rows.of_channel, owner=owner, channel=channel))
        running = [turn for turn in live if turn.state in ("running", "waiting")]
        match word:
            case "/stop":
                for turn in running:
                    with suppress(NotFound, Erased):  # its session was deleted meanwhile
                        await self._cancel(owner, turn.id)
                return "Stopped." if running else "Nothing is running here."
            case "/new":
                await self._database.run(partial(session_rows.start_afresh, owner=owner, channel=channel))
                return "A new conversation: what was said here before is not shown to the agent any more."
            case "/help":
                return _HELP
            case _:
                counts = f"Running here: {len(running)}. Waiting: {len(live) - len(running)}."
                asked = [one for turn in running for one in await self._approvals.open_of(owner, turn.id)]
                return " ".join([counts, *(f"Asked: may I run `{one.tool}`?" for one in asked)])

    async def answer(self, inbound: Inbound, new: NewTurn) -> Turn | None:
        """The turn of a yes or a no, where its sender had been asked something in this channel; None for any
        other message.

        It answers one question, once: in the transaction that writes it down. Heard again it is the same turn.
        Where its sender cannot have seen the question that is open, it counts for nothing, and they are told;
        over HTTP the reply puts the question, and the next word answers it.
        """
        approve = read_answer(inbound.content)
        if approve is None or inbound.channel is None:
            return None
        choice = Choice(approve=approve)
        streamed = self._approvals.streamed_ids()
        work = partial(_answered, inbound=inbound, new=new, choice=choice, streamed=streamed)
        answered = await self._database.run(work)
        if answered is None:
            return None
        turn, approval = answered
        if approval is not None:
            self._approvals.wake(approval)
        return turn


def _answered(
    connection: Connection,
    inbound: Inbound,
    new: NewTurn,
    choice: Choice,
    streamed: Set[str],
) -> tuple[Turn, Approval | None] | None:
    known = keys.find(connection, inbound, new.at)
    if known is not None:
        return known, None
    act = Act(principal=inbound.principal, source=f"channel {new.channel}", at=new.at)
    decided = answer(connection, inbound, choice, act, streamed=streamed)
    if decided is None:
        return _not_counted(connection, inbound, new)
    approval, more = decided
    text = f"I run `{approval.tool}`." if choice.approve else f"I do not run `{approval.tool}`."
    text = "\n\n".join([text, *(question_text(one.tool, one.arguments) for one in more[:1])])
    return keys.answer_at_once(connection, inbound, new, text), approval


def _not_counted(connection: Connection, inbound: Inbound, new: NewTurn) -> tuple[Turn, None] | None:
    """The turn of a word that may have been meant for an open question, but is not taken for its answer."""
    approval = unanswered(connection, inbound, new.at)
    if approval is None:
        return None
    if inbound.account is None:
        text = f"{_NOT_SHOWN}\n\n{question_text(approval.tool, approval.arguments)}"
        return keys.answer_at_once(connection, inbound, new, text), None
    once_more = is_lost(connection, approval)
    turn = keys.answer_at_once(connection, inbound, new, _ONCE_MORE if once_more else _TOO_EARLY)
    if once_more:
        ask_again(connection, approval, new.at)
    return turn, None
