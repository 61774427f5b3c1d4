"""Run a skill's script in the sandbox with the resources that the operator granted."""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path

from torana.skills import Needs, Skill, SkillFileError, Skills, copy_skill
from torana.skills.grants import not_approved_message
from torana.tools.base import ToolError, ToolGroup, tool, tool_errors
from torana.tools.redaction import mask
from torana.tools.sandbox import (
    FOLDER,
    OTHERS,
    PROCESS_FACTOR,
    Job,
    Outcome,
    Sandbox,
    SandboxFault,
    SandboxLimits,
)
from torana.tools.sandbox.egress import TRAFFIC_EXCEEDED

#: Returns the resources granted to the skill in its current state, or None if it is not approved.
Granted = Callable[[Skill], Needs | None]

ARGUMENTS_LIMIT = 64
ARGUMENT_LIMIT = 8 * 1024
STDIN_LIMIT = 256 * 1024
#: The number of characters of each output that the model receives.
SHOWN_LIMIT = 16_000

_SHEBANG_LIMIT = 256
#: The interpreters of scripts without an interpreter line.
_INTERPRETERS = {
    ".py": "python3",
    ".sh": "sh",
    ".bash": "bash",
    ".js": "node",
    ".mjs": "node",
    ".rb": "ruby",
    ".pl": "perl",
}


@dataclass(eq=False, repr=False, kw_only=True)
class ScriptTools(ToolGroup):
    """The tool that runs scripts. ``environ`` contains the secrets; only granted ones are read."""

    skills: Skills
    sandbox: Sandbox
    granted: Granted
    environ: Mapping[str, str]
    limits: SandboxLimits = field(default_factory=SandboxLimits)

    @tool(idempotent=False)
    async def run_skill_script(
        self, slug: str, script: str, arguments: Sequence[str] = (), stdin: str = ""
    ) -> str:
        """Run a script of a skill, following its instructions. It runs in a sandbox without your other tools.

        The script starts in the skill's folder, can write to /tmp only, and has 30 seconds.

        Args:
            slug: The skill's short name.
            script: The script's path inside the skill's folder, such as scripts/report.py.
            arguments: The command line's arguments, one by one and unquoted.
            stdin: What the script reads from its standard input.
        """
        skill = self.skills.catalogue().get(slug)
        if skill is None:
            raise ToolError(f"There is no skill {slug!r}; list_skills lists all skills.")
        # In a thread, because it reads every file of the skill.
        needs = await asyncio.to_thread(self._needs, skill)
        name = posixpath.normpath(script.removeprefix(f"{FOLDER}/"))
        if name not in needs.scripts:
            listed = ", ".join(needs.scripts) or "none"
            raise ToolError(f"The skill {slug!r} has no script {script!r} that may be run; it has: {listed}.")
        secrets = self._secrets(skill, needs)
        job = Job(
            prepare=partial(self._prepare, skill, name, _check_arguments(arguments)),
            environ=secrets,
            stdin=_encode_stdin(stdin),
            directories=needs.directories,
            writable=needs.writable,
            hosts=needs.hosts,
        )
        with tool_errors(SandboxFault, SkillFileError):
            outcome = await self.sandbox.run(job, self.limits)
        return _report(outcome, self.limits, secrets=secrets)

    def _needs(self, skill: Skill) -> Needs:
        granted = self.granted(skill)
        if granted is None:
            raise ToolError(not_approved_message(skill.slug))
        return both(skill.needs, granted)

    def _secrets(self, skill: Skill, needs: Needs) -> dict[str, str]:
        """Return the values of granted secrets. Raises ``ToolError`` if a required one is not set."""
        found = {name: self.environ[name] for name in needs.secrets if self.environ.get(name)}
        lacking = [name for name in needs.secrets if name in skill.requires_env and name not in found]
        if lacking:
            missing = ", ".join(f"the secret {name} is not set" for name in lacking)
            raise ToolError(
                f"The script was not run: {missing}; put the missing value into .env and restart the gateway."
            )
        return found

    def _prepare(self, skill: Skill, name: str, arguments: Sequence[str], folder: Path) -> Sequence[str]:
        copy_skill(skill, folder)
        with (folder / name).open("rb") as file:
            first = file.readline(_SHEBANG_LIMIT).decode(errors="replace")
        words = _shebang(first) or _by_ending(name)
        if not words:
            raise ToolError(
                f"{name} has no interpreter line; begin it with a line such as '#!/usr/bin/env python3'."
            )
        for program in _programs(words):
            if self.sandbox.which(program) is None:
                raise ToolError(f"{name} is run by {program}, which is not installed for scripts.")
        return (*words, f"{FOLDER}/{name}", *arguments)


def both(one: Needs, other: Needs) -> Needs:
    return Needs(
        **{
            field.name: tuple(name for name in getattr(one, field.name) if name in getattr(other, field.name))
            for field in fields(Needs)
        }
    )


def _shebang(line: str) -> tuple[str, ...]:
    """Return the interpreter and its only argument, as the kernel parses them (execve(2))."""
    if not line.startswith("#!"):
        return ()
    program, _, argument = line[2:].strip().partition(" ")
    return (program, argument.strip()) if argument.strip() else (program,)


def _by_ending(name: str) -> tuple[str, ...]:
    program = _INTERPRETERS.get(posixpath.splitext(name)[1].lower())
    return ("/usr/bin/env", program) if program else ()


def _programs(words: Sequence[str]) -> Iterator[str]:
    """Yield the programs that an interpreter line needs; for ``env`` also the program that it starts."""
    yield words[0]
    if posixpath.basename(words[0]) == "env" and len(words) > 1 and not words[1].startswith("-"):
        yield words[1]


def _check_arguments(arguments: Sequence[str]) -> Sequence[str]:
    # Single surrogates cannot be encoded, and are replaced.
    encoded = [argument.encode(errors="replace") for argument in arguments]
    if len(encoded) > ARGUMENTS_LIMIT or any(len(argument) > ARGUMENT_LIMIT for argument in encoded):
        raise ToolError(
            f"A script takes at most {ARGUMENTS_LIMIT} arguments of {ARGUMENT_LIMIT:,} bytes; "
            "send more as stdin."
        )
    if any(b"\0" in argument for argument in encoded):
        raise ToolError("An argument cannot contain U+0000; remove it.")
    return [argument.decode() for argument in encoded]


def _encode_stdin(stdin: str) -> bytes:
    data = stdin.encode(errors="replace")
    if len(data) > STDIN_LIMIT:
        raise ToolError(f"stdin has {len(data):,} bytes; send at most {STDIN_LIMIT:,}.")
    return data


def _report(outcome: Outcome, limits: SandboxLimits, *, secrets: Mapping[str, str]) -> str:
    why = {
        "time": f"it was still running after {limits.seconds:g} seconds",
        "memory": f"it used more than {limits.memory >> 20} MiB of memory",
        "kernel": f"the kernel's memory grew by more than {limits.kernel >> 20} MiB during the run",
        "processes": f"it ran more than {PROCESS_FACTOR * limits.processes} processes and threads",
        "output": f"it wrote more than {limits.flood >> 20} MiB of output",
        "files": f"it made more than {limits.files:,} files",
        "written": f"it wrote more than {limits.disk >> 20} MiB to its writable directories",
        "filled": (
            "during the run, the free space of the disk that it writes to shrank by more than "
            f"{OTHERS * limits.disk >> 20} MiB or {OTHERS * limits.files:,} files"
        ),
    }
    ended = f"exit code {outcome.code}"
    parts = [f"The script was stopped: {why[outcome.stopped]}." if outcome.stopped else ended]
    # Decoded like the outputs, so that the values match.
    names = {os.fsencode(value).decode(errors="replace"): f"[{name}]" for name, value in secrets.items()}
    parts += [TRAFFIC_EXCEEDED] if outcome.exceeded_traffic else []
    parts += [f"Not granted to it, and refused: {mask(place, names)}." for place in outcome.refused]
    parts += _format_output("stdout", outcome.stdout, outcome.stdout_bytes, names)
    parts += _format_output("stderr", outcome.stderr, outcome.stderr_bytes, names)
    return "\n".join(parts)


def _format_output(title: str, data: bytes, size: int, names: Mapping[str, str]) -> list[str]:
    cut = size > len(data)
    text = mask(data.decode(errors="replace"), names)
    if cut:  # the end may be a part of a secret
        text = text[: len(text) - max(map(len, names), default=0)]
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}").strip()
    if not text:
        return []
    note = f" (its beginning; {size:,} bytes in all)" if cut or len(text) > SHOWN_LIMIT else ""
    return [f"{title}{note}:", text[:SHOWN_LIMIT]]
