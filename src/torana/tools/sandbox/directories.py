"""Open the host's directories for a job as descriptors, because a path may lead elsewhere later."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from torana.tools.sandbox.job import SandboxFault


def open_directories(paths: Iterable[str], *, hidden: Iterable[Path], held: ExitStack) -> dict[str, int]:
    """Return a descriptor of the directory at each path, which later changes of the path do not affect.

    ``held`` closes them. Blocks on file systems. Raises ``SandboxFault`` for a path that is no directory,
    contains a link, or is ``hidden``, below or above a hidden one.
    """
    hidden = tuple(hidden)
    found: dict[str, int] = {}
    for path in dict.fromkeys(paths):
        found[path] = _open(path, held)
        if any(Path(path).is_relative_to(place) or place.is_relative_to(path) for place in hidden):
            raise SandboxFault(
                f"The directory {path!r} contains the gateway's own data; scripts cannot use it."
            )
    return found


def _open(path: str, held: ExitStack) -> int:
    try:
        descriptor = _walk(path)
        held.callback(os.close, descriptor)
        # The directory may have been moved meanwhile.
        if str(Path(f"/proc/self/fd/{descriptor}").readlink()) == path:
            return descriptor
    except OSError:
        pass
    raise SandboxFault(f"The directory {path!r} does not exist, or a part of its path is a link; correct it.")


def _walk(path: str) -> int:
    """Open the path step by step: ``open`` can refuse links only in the last part of a path."""
    # Inside the function, because only Linux has O_PATH, and the gateway runs elsewhere too.
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
    at = os.open("/", flags)
    for name in Path(path).parts[1:]:
        above = at
        try:
            at = os.open(name, flags, dir_fd=above)
        finally:
            os.close(above)
    return at
