"""Show progress on a terminal; write nothing to any other output."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def progress_bar(label: str) -> Generator[Callable[[int, int], None]]:
    """Show a progress bar on standard error; yield the function that sets its done and total parts."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
