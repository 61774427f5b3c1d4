"""A gateway that runs scripts, as the user of the tests and, where that is root, also as another user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.parts import require

#: A secret of the gateway that no script may read.
TOKEN = "token-of-the-gateway"
NOBODY = 65534

_FRONT = """\
---
name: {slug}
description: Tries things.
metadata:
  torana: {block}
---
# Tries
"""


@dataclass
class Result:
    """The tool's answer."""

    #: The text, or the text of its ``ToolError``.
    text: str
    failed: bool
    #: The number of steps of another task of the gateway meanwhile.
    ticks: int

    @property
    def first(self) -> str:
        return self.text.partition("\n")[0]

    @property
    def stdout(self) -> str:
        return self.text.partition("stdout:\n")[2].partition("\nstderr")[0]


@dataclass
class Gateway:
    """The running program and its folders, which all users may read."""

    home: Path
    process: subprocess.Popen[str]
    user: int
    hidden: list[Path] = field(default_factory=list[Path])

    @property
    def skills(self) -> Path:
        return self.home / "skills"

    def write(self, script: str, *, name: str = "scripts/try.py", slug: str = "tries", **block: Any) -> Path:
        """Make the skill ``slug`` with one script; ``block`` holds its declared needs."""
        folder = self.skills / slug
        shutil.rmtree(folder, ignore_errors=True)
        path = folder / name
        path.parent.mkdir(parents=True)
        (folder / "SKILL.md").write_text(_FRONT.format(slug=slug, block=json.dumps(block)))
        path.write_text(textwrap.dedent(script))
        return folder

    def request(
        self,
        *,
        script: str = "scripts/try.py",
        slug: str = "tries",
        arguments: list[str] | None = None,
        stdin: str = "",
        limits: Mapping[str, float] | None = None,
        approved: Mapping[str, list[str]] | str | None = "all",
        addresses: Mapping[str, list[str]] | None = None,
        private: Sequence[str] = (),
        swap: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        return {
            "call": {"slug": slug, "script": script, "arguments": arguments or [], "stdin": stdin},
            "skills": str(self.skills),
            "hidden": [str(path) for path in [self.home / "data", *self.hidden]],
            "limits": limits or {},
            "approved": approved,
            "addresses": addresses or {},
            "private": private,
            "swap": swap,
        }

    def call(self, **request: Any) -> Result:
        """Run a script of an existing skill with the tool."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{json.dumps(self.request(**request))}\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return Result(answer.get("text") or answer["error"], failed="error" in answer, ticks=answer["ticks"])

    def run(self, script: str, **call: Any) -> Result:
        """Write the Python script and run it; its error output appears in the result."""
        self.write(script)
        return self.call(**call)

    def must_run(self) -> None:
        """Run a simple script, which must succeed."""
        assert self.run("print('well')").text == "exit code 0\nstdout:\nwell"


#: Most gateways run as an ordinary user. Where the tests run as root, the long tier also tries it as root.
_USERS = [pytest.param("own", marks=pytest.mark.long), "nobody"] if os.geteuid() == 0 else ["own"]


@pytest.fixture(scope="session", params=_USERS)
def _gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    require("bwrap", "bubblewrap")
    user = NOBODY if request.param == "nobody" else os.geteuid()
    # Not pytest's folder, which is closed to other users; nor /tmp, which no script sees.
    home = Path(tempfile.mkdtemp(prefix="sandbox-", dir="/var/tmp"))
    home.chmod(0o755)
    for name in ("data", "skills", "shared", "out"):
        (home / name).mkdir()
        # The sandbox has another user where the gateway is root.
        os.chown(home / name, user or NOBODY, -1)
    (home / "data" / "torana.db").write_text("SQLite format 3")
    environ = {
        **os.environ,
        "TORANA_GATEWAY_TOKEN": TOKEN,
        "TRIES_KEY": "key-of-tries",
        "OTHER_KEY": "key-of-other",
        "TRIES_HOST": "Ingest-key-of-tries.example.com",
        "TRIES_REGION": "eu",
    }
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("gateway.py")), str(user)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    )
    with process:
        gateway = Gateway(home, process, user)
        gateway.run("print('rehearsed')")
        yield gateway
        gateway.must_run()
        assert process.stdin
        process.stdin.close()
    shutil.rmtree(home)


@pytest.fixture
def gateway(_gateway: Gateway) -> Gateway:
    """The gateway, which must still run a simple script after all tests."""
    _gateway.hidden = []
    return _gateway
