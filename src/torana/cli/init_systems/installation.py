"""Install a service: write its files, and run the commands of its init system."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torana.cli.init_systems.base import MARKER, Command, ServiceDefinition
from torana.cli.init_systems.detection import InitSystem
from torana.errors import OperatorError


def run_command(command: Command) -> int:
    """Run a command that writes to this terminal, and return its exit code. Raises ``OperatorError``."""
    return _run(command, stdout=None).returncode


def run_quietly(command: Command) -> int:
    """Run a command as ``run_command`` does, but without its standard output."""
    return _run(command, stdout=subprocess.DEVNULL).returncode


def collect_lines(command: Command) -> tuple[int, list[str]]:
    """Run a command, and return its exit code and the lines of its output. Raises ``OperatorError``."""
    ended = _run(command, stdout=subprocess.PIPE)
    return ended.returncode, ended.stdout.decode(errors="replace").splitlines()


def _run(command: Command, *, stdout: int | None) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, check=False, stdout=stdout)  # noqa: S603 - the init systems' own commands
    except FileNotFoundError:
        raise OperatorError(f"{command[0]} is missing; install it, or check PATH") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceInstaller:
    """Installs and uninstalls the service. Data and settings of the gateway are never changed."""

    init_system: InitSystem
    run: Callable[[Command], int]
    report: Callable[[str], None]

    def install(self, service: ServiceDefinition) -> Sequence[Path]:
        """Write the files, start the service, and return the files; an installed service is replaced.

        Raises ``OperatorError``, and writes nothing, if a file was written by others. Raises it too for a
        command that fails; then the files stay, and a second call continues.
        """
        files = self.init_system.files(service)
        if installed := self._installed():
            self._stop(installed)
        for path in installed:
            if path not in files:
                path.unlink()
        for path, text in files.items():
            _write(path, text)
            self.report(f"wrote {path}")
        self._run_all(self.init_system.start_commands(service))
        for command, consequence in self.init_system.optional_commands().items():
            if self.run(command):
                self.report(f"warning: {consequence}")
        return list(files)

    def uninstall(self) -> Sequence[Path]:
        """Stop the service, and delete and return its files. Raises ``OperatorError`` if none is installed."""
        self.check_installed()
        installed = self._installed()
        self._stop(installed)
        for path in installed:
            path.unlink()
            self.report(f"deleted {path}")
        self._run_all(self.init_system.reload_commands())
        return installed

    def is_installed(self) -> bool:
        """Return whether a service is installed. Raises ``OperatorError`` for a file that others wrote."""
        return bool(self._installed())

    def check_installed(self) -> None:
        """Raise ``OperatorError`` if no service is installed."""
        if not self.is_installed():
            raise OperatorError("no service is installed; `torana service install` installs it")

    def _installed(self) -> Sequence[Path]:
        """Return the existing files. Raises ``OperatorError`` for a file that was written by others."""
        installed = [path for path in self.init_system.possible_files() if path.exists()]
        for path in installed:
            if MARKER not in path.read_text(encoding="utf-8", errors="replace"):
                raise OperatorError(f"{path} was not written by Torana; move it away, or delete it")
        return installed

    def _stop(self, installed: Sequence[Path]) -> None:
        for command in self.init_system.stop_commands(installed):
            if self.run(command):  # it may be stopped already
                self.report(f"warning: `{shlex.join(command)}` failed")

    def _run_all(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if code := self.run(command):
                raise OperatorError(
                    f"`{shlex.join(command)}` ended with exit code {code}; correct the cause, and run the "
                    "command again"
                )


def format_files(files: Mapping[Path, str]) -> str:
    """Return the texts of the files, each after its path."""
    return "\n".join(f"# {path}\n{text}" for path, text in files.items())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
