"""Move files and directories so that each move can be undone."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path


def set_aside(old: Path, name: str, undo: ExitStack) -> bool:
    """Rename an existing file, and return whether it existed; nothing is copied."""
    if not os.path.lexists(old):
        return False
    undo.callback(old.rename(old.with_name(name)).rename, old)
    return True


def put(new: Path, place: Path, undo: ExitStack) -> None:
    """Move a file to a free path, which may be on another disk; do nothing if there is no such file."""
    if new.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        undo.callback(_delete, place)
        shutil.move(new, place)


def _delete(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
