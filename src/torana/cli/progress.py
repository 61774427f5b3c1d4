"""How far something has come, on a terminal and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


@contextmanager
def progress_bar(label: str) -> Generator[Callable[[int, int], None]]:
    """Show a bar on standard error, and give what moves it: called with how many of how many parts are done."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
