"""Accept, order, run, record: the durable inbox and the only writer of history."""

from torana.turns.changes import SessionChanges
from torana.turns.inbox import Submitted, Turns
from torana.turns.queue import Queue
from torana.turns.runner import Runner, RunsTurns

__all__ = ["Queue", "Runner", "RunsTurns", "SessionChanges", "Submitted", "Turns"]
