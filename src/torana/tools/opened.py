"""The tools that a session has opened, in order, and the tools that its requests do not list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic_ai.tools import ToolDefinition

#: Maximum number of opened tools of a session. A further one replaces the one that was opened first.
_MOST = 64


class OpenedTools:
    def __init__(self, names: Iterable[str] = ()) -> None:
        """``names`` are the tools that earlier turns of the session opened."""
        self.names = self._stored = tuple(names)
        #: The permitted tools that the last request did not list; a search finds them.
        self.unlisted: Sequence[ToolDefinition] = ()

    @property
    def to_store(self) -> tuple[str, ...] | None:
        """Return the names for the session's later turns; None if they have not changed."""
        return None if self.names == self._stored else self.names

    def open(self, names: Iterable[str]) -> None:
        """Append the tools that are not open yet."""
        new = [name for name in dict.fromkeys(names) if name not in self.names]
        if new:
            self.names = (*self.names, *new)[-_MOST:]
