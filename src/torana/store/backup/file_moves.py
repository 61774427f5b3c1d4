"""Move files and directories. ``undo`` collects the steps that reverse the moves."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path


def set_aside(old: Path, name: str, undo: ExitStack) -> bool:
    """Rename a file or directory within its directory, and return whether it existed."""
    if not os.path.lexists(old):
        return False
    undo.callback(old.rename(old.with_name(name)).rename, old)
    return True


def put(new: Path, target: Path, undo: ExitStack) -> None:
    """Move a file or directory, if it exists, to an unused path, which may be on another disk."""
    if new.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        undo.callback(_delete, target)
        shutil.move(new, target)


def _delete(target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
