"""Read a request to run Python code."""

from __future__ import annotations

from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import Arguments, wordings

_RUN = wordings(r"(?:run|execute|evaluate)(?: (?:this|the|some))? python(?: code| snippet)?")


def run_python(message: BuiltinMessage) -> Arguments | None:
    """Read ``run python:`` with code after it, below it or in a code fence."""
    return {"code": message.pasted} if message.pasted and _RUN.fullmatch(message.instruction) else None
