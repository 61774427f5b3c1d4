"""The host's directories that a job is shown: held by descriptor, as a path may soon lead elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from torana.tools.sandbox.job import SandboxFault


def open_directories(paths: Iterable[str], *, hidden: Iterable[Path], held: ExitStack) -> dict[str, int]:
    """A descriptor for each path: of the directory that is there now, whatever is put in its place later.

    ``held`` closes them. Blocks as long as the file systems do. Raises ``SandboxFault`` for a directory that is
    not there, to which a link leads, that is ``hidden``, or that has something hidden in it.
    """
    hidden = tuple(hidden)
    found: dict[str, int] = {}
    for path in dict.fromkeys(paths):
        found[path] = _open(path, held)
        if any(Path(path).is_relative_to(place) or place.is_relative_to(path) for place in hidden):
            raise SandboxFault(f"The directory {path!r} holds data of the gateway's own; no script may see it.")
    return found


def _open(path: str, held: ExitStack) -> int:
    try:
        descriptor = _walk(path)
        held.callback(os.close, descriptor)
        # It may have been moved while it was walked to.
        if str(Path(f"/proc/self/fd/{descriptor}").readlink()) == path:
            return descriptor
    except OSError:
        pass
    raise SandboxFault(f"The directory {path!r} is not there, or there is a link on the way to it; correct it.")


def _walk(path: str) -> int:
    """Open it step by step, as only the last step of ``open`` can be forbidden to follow a link."""
    # Not a constant: only Linux has it, and the gateway starts elsewhere too.
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
    at = os.open("/", flags)
    for name in Path(path).parts[1:]:
        above = at
        try:
            at = os.open(name, flags, dir_fd=above)
        finally:
            os.close(above)
    return at
