"""What is to be run in the sandbox, within which bounds, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

MIB = 1024 * 1024

#: Why a run was ended before its time.
Stopped = Literal["time", "memory", "processes", "output", "files", "written", "filled"]


class SandboxFault(Exception):
    """The sandbox cannot be had or cannot be set up; the message says why and names the cure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of one run; sizes are in bytes."""

    seconds: float = 30.0
    #: Of one process, and of all of them together.
    memory: int = 512 * MIB
    processes: int = 64
    #: Of the private temporary directory, of each file, and of all that is written to writable directories.
    disk: int = 64 * MIB
    #: How many files the private temporary directory may have.
    files: int = 10_000
    #: What is kept of each output, and how much of both may come before the run is ended.
    output: int = 64 * 1024
    flood: int = 4 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A command and all that it may see and reach."""

    #: Puts the files that are shown as ``/skill`` into the empty folder it is given, and says what is then to
    #: be run. Called in a thread.
    prepare: Callable[[Path], Sequence[str]]
    #: The whole environment beyond what the sandbox sets itself.
    environ: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    stdin: bytes = field(default=b"", repr=False)
    #: Directories, shown at their own paths.
    directories: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    #: As ``Needs.hosts``; without any there is no network at all.
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    #: As a shell gives it: 128 and the signal's number for one that a signal killed.
    code: int
    stopped: Stopped | None
    seconds: float
    #: The beginning of each output, and how many bytes came in all.
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)
    stdout_bytes: int
    stderr_bytes: int
    #: ``host:port`` of connections that were asked for and not granted; each once.
    refused: tuple[str, ...] = ()
