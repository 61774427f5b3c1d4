"""Availability of the sandbox and the cures for its faults, with programs that fail like the real ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.parts import require

from torana.tools.sandbox import Bubblewrap, Job, Sandbox, SandboxFault, SandboxLimits

_PASS_ON = '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n'


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """``programs(script)`` creates a ``bwrap`` with this script; the programs before it pass arguments on."""

    def make(script: str) -> Path:
        nice = '#!/bin/sh\nshift 2; exec "$@"\n'
        texts = {"bwrap": f"#!/bin/sh\n{script}\n", "choom": _PASS_ON, "setpriv": _PASS_ON, "nice": nice}
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        monkeypatch.setattr("torana.tools.sandbox.bubblewrap.PATH", str(tmp_path))
        return tmp_path

    return make


def test_working_bubblewrap_has_no_fault() -> None:
    require("bwrap", "bubblewrap")

    assert Bubblewrap().fault() is None


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        ("bwrap: Unknown option --disable-userns", "This bubblewrap is too old: bwrap: Unknown option"),
        ("bwrap: Unknown option --ro-bind-fd", "the security update of 0.8 or 0.9 that knows --bind-fd"),
        (
            "bwrap: No permissions to create new namespace, likely because the kernel does not allow",
            "This system forbids user namespaces. Allow them: `sysctl -w user.max_user_namespaces=15000`",
        ),
        ("bwrap: setting up uid map: Permission denied", "kernel.apparmor_restrict_unprivileged_userns=0`"),
    ],
)
def test_fault_of_bubblewrap_is_reported_with_a_cure(
    programs: Callable[[str], Path], said: str, cure: str
) -> None:
    programs(f"echo '{said}' >&2; exit 1")

    fault = Bubblewrap().fault()

    assert fault is not None
    assert said in fault
    assert cure in fault


async def test_missing_bubblewrap_refuses_scripts_with_a_cure(
    programs: Callable[[str], Path],
) -> None:
    (programs("") / "bwrap").unlink()

    async def nowhere(_host: str, _port: int) -> list[str]:
        return []

    def never(_folder: Path) -> list[str]:
        raise AssertionError("nothing may be prepared")

    sandbox = Sandbox(bubblewrap=Bubblewrap(), resolve=nowhere)
    with pytest.raises(SandboxFault, match=r"The program bwrap is missing: apt install bubblewrap\."):
        await sandbox.run(Job(prepare=never), SandboxLimits())


def test_successful_probe_runs_once(programs: Callable[[str], Path]) -> None:
    folder = programs(f"echo x >> {os.devnull}; exit 0")
    bubblewrap = Bubblewrap()
    before = bubblewrap.fault()
    (folder / "bwrap").unlink()

    assert (before, bubblewrap.fault()) == (None, None)


def test_repaired_fault_is_noticed(programs: Callable[[str], Path]) -> None:
    programs("echo bwrap: no more processes >&2; exit 1")
    bubblewrap = Bubblewrap()
    before = bubblewrap.fault()
    programs("exit 0")

    assert before is not None
    assert bubblewrap.fault() is None


def test_programs_are_found_only_on_paths_in_the_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "tool"
    outside.write_text("#!/bin/sh\n")
    outside.chmod(0o755)
    monkeypatch.setattr("torana.tools.sandbox.bubblewrap.PATH", f"{tmp_path}:/usr/bin")

    assert Bubblewrap().which("tool") is None
    assert Bubblewrap().which("env") == "/usr/bin/env"
    assert Bubblewrap(hidden=[Path("/usr/bin")]).which("env") is None
