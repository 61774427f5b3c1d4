"""The files that the user attaches to a message by their paths."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path

from torana.errors import OperatorError
from torana.message_files import FILE_LIMIT


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """A file of this machine, for the next message."""

    name: str
    body: bytes = field(repr=False)

    @property
    def document(self) -> dict[str, str]:
        """Return the file as ``POST /v1/messages`` accepts it."""
        return {"name": self.name, "data": base64.b64encode(self.body).decode()}

    def __str__(self) -> str:
        return f"{self.name} ({len(self.body) / 1000:.1f} kB)"


def read_file(path: str) -> AttachedFile:
    """Return the file at a path. Raises ``OperatorError`` if it cannot be read or is too large."""
    place = Path(path).expanduser()
    if place.exists() and not place.is_file():
        raise OperatorError(f"{path}: not a file")
    try:
        with place.open("rb") as file:
            body = file.read(FILE_LIMIT + 1)
    except OSError as error:
        raise OperatorError(f"{path}: cannot be read ({error.strerror})") from error
    if len(body) > FILE_LIMIT:
        raise OperatorError(f"{path}: has more than {FILE_LIMIT:,} bytes, the maximum of a file")
    return AttachedFile(place.name, body)
