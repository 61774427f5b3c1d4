"""Protecting the process from inspection, and erasing variables from its environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torana.app.secrets import secret_variables
from torana.config import load

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def run(code: str, **environ: str) -> str:
    """Run Python code with only these variables, and return its output."""
    head = "import ctypes, os, subprocess, sys\nfrom torana.cli.process_secrets import *\n"
    done = subprocess.run(
        [sys.executable, "-c", head + code], env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout


@linux
def test_process_is_not_dumpable_but_its_children_are() -> None:
    output = run(
        """
deny_inspection()
show = "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), flush=True)"
exec(show)
subprocess.run([sys.executable, "-c", show])
"""
    )

    assert output == "0\n1\n"


@linux
def test_own_proc_files_stay_readable() -> None:
    output = run(
        """
deny_inspection()
with open("/etc/passwd") as file:
    print(os.readlink(f"/proc/self/fd/{file.fileno()}"), str(file.fileno()) in os.listdir("/proc/self/fd"))
"""
    )

    assert output == "/etc/passwd True\n"


@linux
def test_erased_variable_is_absent_from_every_environment() -> None:
    output = run(
        """
os.environ["LATER"] = "later-secret"
erase_variables(["SECRET", "EMPTY", "LATER", "MISSING"])
print(sorted(os.environ.keys() - {"LC_CTYPE"}))
print(open("/proc/self/environ").read().replace(chr(0), " ").split())
sys.stdout.flush()
subprocess.run(["/usr/bin/env"])
""",
        SECRET="a-secret-with-Ünicode",
        EMPTY="",
        OTHER="other",
    )

    assert output.startswith("['OTHER']\n['SECRET=', ")
    assert "'OTHER=other'" in output
    assert "OTHER=other\n" in output
    assert "secret" not in output


def test_secret_variables_come_from_settings_providers_and_entries(tmp_path: Path) -> None:
    (tmp_path / "servers.json").write_text('{"mcpServers": {"b": {"command": "b", "args": ["${env:B_KEY}"]}}}')
    (tmp_path / "torana.toml").write_text(
        """
mcp_config = "servers.json"
[mcp.a]
command = "a"
env = { KEY = "$A_KEY", PATH = "$PATH", HTTPS_PROXY = "$HTTPS_PROXY", TEXT = "${A_TEXT:-none} and ${A_MORE}" }
[connectors.chat]
secrets = ["$CHAT_KEY"]
"""
    )
    environ = {"TORANA_GATEWAY_TOKEN": "0123456789abcdef", "torana_port": "1", "UNRELATED": "x"}
    loaded = load(flags={}, environ=environ, cwd=tmp_path, user_dir=tmp_path)

    found = secret_variables(loaded)

    assert found >= {"TORANA_GATEWAY_TOKEN", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"}
    assert found >= {"A_KEY", "A_TEXT", "A_MORE", "B_KEY", "CHAT_KEY"}
    assert not found & {"PATH", "HTTPS_PROXY", "UNRELATED", "AWS_SECRET_ACCESS_KEY"}
