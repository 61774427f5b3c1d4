"""Turns: accept messages, order them, run the agent and record the results."""

from torana.turns.inbox import Submitted, Turns
from torana.turns.live import LiveTurns
from torana.turns.queue import Queue
from torana.turns.reader import TurnReader
from torana.turns.runner import Runner, RunsTurns
from torana.turns.session_changes import SessionChanges
from torana.turns.writer import TurnWriter

__all__ = [
    "LiveTurns",
    "Queue",
    "Runner",
    "RunsTurns",
    "SessionChanges",
    "Submitted",
    "TurnReader",
    "TurnWriter",
    "Turns",
]
