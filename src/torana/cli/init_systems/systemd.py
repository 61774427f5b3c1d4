"""The gateway as a service of systemd: of the user's manager, or of the system.

Decision 0039 explains the hardening.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from torana.cli.init_systems.base import MARKER, Command, ServiceDefinition
from torana.errors import OperatorError

GATEWAY, BACKUP, TIMER = "torana.service", "torana-backup.service", "torana-backup.timer"

#: The places of the system's service. Its user has the same name.
SYSTEM_SETTINGS = Path("/etc/torana")
SYSTEM_DATA = Path("/var/lib/torana")
SYSTEM_BACKUPS = Path("/var/backups/torana")
SYSTEM_USER = "torana"

# Filters of system calls need no privileges, so they also work in the user's manager. Scripts of skills run in
# a sandbox that mounts file systems and creates namespaces, so @mount, @privileged and namespaces stay allowed.
_FILTERS = """\
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=~@clock @cpu-emulation @debug @module @obsolete @raw-io @reboot @swap
SystemCallErrorNumber=EPERM
"""

# ProtectKernelTunables, ProtectKernelLogs and ProcSubset are missing because they cover parts of /proc, and the
# sandbox could then not mount its own. ProtectHostname is missing because the sandbox sets its own host name.
_ISOLATION = f"""\
User={SYSTEM_USER}
Group={SYSTEM_USER}
StateDirectory=torana
StateDirectoryMode=0700
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectKernelModules=yes
ProtectProc=invisible
RemoveIPC=yes
CapabilityBoundingSet=
AmbientCapabilities=
"""


class Systemd:
    """systemd; ``unit_dir`` is the user's own directory of units, or None for the system's service."""

    def __init__(self, *, unit_dir: Path | None) -> None:
        self._system = unit_dir is None
        self._unit_dir = unit_dir or Path("/etc/systemd/system")

    def files(self, service: ServiceDefinition) -> Mapping[Path, str]:
        """Return the units, and for the system's service its user and directories."""
        units = {GATEWAY: self._gateway(service)}
        if service.backups is not None:
            units |= {BACKUP: self._backup(service, service.backups), TIMER: _TIMER}
        files = {self._unit_dir / name: text for name, text in units.items()}
        if self._system:
            files[_SYSUSERS] = f'u {SYSTEM_USER} - "Torana gateway" {SYSTEM_DATA}\n'
            files[_TMPFILES] = _directories(service.backups)
        return {path: f"# {MARKER}\n{text}" for path, text in files.items()}

    def possible_files(self) -> Sequence[Path]:
        """Return the paths of all files that ``files`` may name."""
        own = [_SYSUSERS, _TMPFILES] if self._system else []
        return [*(self._unit_dir / name for name in (GATEWAY, BACKUP, TIMER)), *own]

    def start_commands(self, service: ServiceDefinition) -> Sequence[Command]:
        """Return the commands that enable the units and start them again."""
        timer = [TIMER] if service.backups is not None else []
        prepare = [("systemd-sysusers", str(_SYSUSERS)), ("systemd-tmpfiles", "--create", str(_TMPFILES))]
        return [
            *(prepare if self._system else []),
            self._systemctl("daemon-reload"),
            self._systemctl("enable", GATEWAY, *timer),
            self._systemctl("restart", GATEWAY, *timer),
        ]

    def optional_commands(self) -> Mapping[Command, str]:
        """Return the command that lets a user's service run without a login."""
        if self._system:
            return {}
        consequence = "the service stops when you log out; ask an administrator to run: loginctl enable-linger"
        return {("loginctl", "enable-linger"): consequence}

    def stop_commands(self, installed: Sequence[Path]) -> Sequence[Command]:
        """Return the command that stops and disables the units."""
        units = [path.name for path in installed if path.name in (GATEWAY, TIMER)]
        return [self._systemctl("disable", "--now", *units)] if units else []

    def reload_commands(self) -> Sequence[Command]:
        """Return the command that makes the manager forget deleted units."""
        return [self._systemctl("daemon-reload")]

    def status_command(self) -> Command:
        """Return the command that prints the state of the gateway."""
        return self._systemctl("status", "--no-pager", GATEWAY)

    def logs_command(self, *, lines: int, follow: bool) -> Command:
        """Return the command that prints the journal of the gateway, which also has the errors of its start."""
        unit = f"--unit={GATEWAY}" if self._system else f"--user-unit={GATEWAY}"
        return ("journalctl", unit, "--no-pager", f"--lines={lines}", *(["--follow"] if follow else []))

    def _systemctl(self, *arguments: str) -> Command:
        return ("systemctl", *([] if self._system else ["--user"]), *arguments)

    def _gateway(self, service: ServiceDefinition) -> str:
        # The user's manager has no units for the network and the clock. A board without a battery begins in the
        # past; replies of that time would count as late once the clock is right.
        network = (
            "Wants=network-online.target\nAfter=network-online.target time-sync.target\n"
            if self._system
            else ""
        )
        target = "multi-user.target" if self._system else "default.target"
        return f"""\
[Unit]
Description=Torana, a gateway in front of an LLM agent
StartLimitIntervalSec=0
{network}
[Service]
Type=exec
ExecStart={_command_line(service.serve)}
ExecReload=/bin/kill -HUP $MAINPID
WorkingDirectory={_path(service.directory)}
# The gateway stops its child processes, and has this time to end running turns.
KillMode=mixed
TimeoutStopSec={service.stop_seconds}
Restart=on-failure
RestartSec=5
# Exit status 2: the settings are invalid, so another start would fail, too.
RestartPreventExitStatus=2
# A script that uses too much memory does not end the gateway.
OOMPolicy=continue
{self._hardening()}
[Install]
WantedBy={target}
"""

    def _backup(self, service: ServiceDefinition, backups: Path) -> str:
        writable = f"ReadWritePaths={_quoted(str(backups))}\n" if self._system else ""
        return f"""\
[Unit]
Description=Backup of Torana

[Service]
Type=oneshot
ExecStart={_command_line(service.backup)}
WorkingDirectory={_path(service.directory)}
Nice=10
{writable}{self._hardening()}"""

    def _hardening(self) -> str:
        return f"{_ISOLATION}{_FILTERS}" if self._system else _FILTERS


_SYSUSERS = Path("/etc/sysusers.d/torana.conf")
_TMPFILES = Path("/etc/tmpfiles.d/torana.conf")

_TIMER = """\
[Unit]
Description=Daily backup of Torana

[Timer]
OnCalendar=daily
RandomizedDelaySec=1h
# After a boot, run the backup that was missed.
Persistent=yes

[Install]
WantedBy=timers.target
"""


#: Words of a unit that need no quotation marks.
_PLAIN = re.compile(r"[\w/.=-]+", re.ASCII)


def _directories(backups: Path | None) -> str:
    """Return the directories of the system's service, and its settings file if there is none."""
    lines = [
        f"d {SYSTEM_SETTINGS} 0750 root {SYSTEM_USER} -",
        f'f {SYSTEM_SETTINGS}/torana.toml 0640 root {SYSTEM_USER} - data_dir = "{SYSTEM_DATA}"\\n',
        f"d {SYSTEM_DATA} 0700 {SYSTEM_USER} {SYSTEM_USER} -",
    ]
    if backups is not None:
        lines.append(f'd "{_path(backups)}" 0700 {SYSTEM_USER} {SYSTEM_USER} -')
    return "".join(f"{line}\n" for line in lines)


def _command_line(command: Command) -> str:
    """Return a command as a line of a unit (systemd.service(5), "COMMAND LINES")."""
    return " ".join(_quoted(word).replace("$", "$$") for word in command)


def _quoted(word: str) -> str:
    escaped = _escaped(word).replace("\\", "\\\\").replace('"', '\\"')
    return escaped if _PLAIN.fullmatch(escaped) else f'"{escaped}"'


def _path(path: Path) -> str:
    return _escaped(str(path))


def _escaped(text: str) -> str:
    """Escape systemd's specifiers. Raises ``OperatorError`` for a control character, such as a line end."""
    if not text.isprintable():
        raise OperatorError(f"{text!r} contains a control character, which a unit cannot contain; rename it")
    return text.replace("%", "%%")
