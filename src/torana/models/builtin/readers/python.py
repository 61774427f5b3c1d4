"""A snippet of Python that is to be run."""

from __future__ import annotations

from torana.models.builtin.message import Message
from torana.models.builtin.readers.base import Arguments, wordings

_RUN = wordings(r"(?:run|execute|evaluate)(?: (?:this|the|some))? python(?: code| snippet)?")


def run_python(message: Message) -> Arguments | None:
    """``run python:`` and the code behind it, below it or in a code fence."""
    return {"code": message.pasted} if message.pasted and _RUN.fullmatch(message.instruction) else None
