"""The documentation is correct: its commands run, its code works, and its names exist."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from socket import create_server
from typing import Any, get_args

import httpx2
import pytest
from tests.waiting import PATIENCE

from torana import errors
from torana.cli import COMMANDS
from torana.config import Settings, load, variable
from torana.errors import GatewayError
from torana.messages import EventType
from torana.turns.commands import WORDS

ROOT = Path(__file__).parents[1]
PAGES = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
}
#: Pages with instructions, written by hand.
GUIDES = {
    name: text
    for name, text in PAGES.items()
    if name in ("README.md", "docs/quickstart.md") or "/howto/" in name
}

ADDRESS = "http://127.0.0.1:18789"

#: Variables that are not settings.
OTHER_VARIABLES = {
    "TORANA_CHAT_TOKEN",
    "TORANA_CONFIG",
    "TORANA_CHAOS_SECONDS",
    "TORANA_FULL_INSTALL",
    "TORANA_SCREENSHOTS",
}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    page: str
    language: str
    text: str

    @property
    def file(self) -> str:
        """The file that a comment in the first line names, or an empty string."""
        found = re.match(r"# ([\w./-]+\.\w+)", self.text)
        return found[1] if found else ""


def _blocks(page: str) -> list[Block]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)
    return [Block(page, language, text) for language, text in found]


BLOCKS = [block for page in GUIDES for block in _blocks(page)]
SHOWN = [block for block in BLOCKS if block.language in ("sh", "console")]
TOML = [block for block in BLOCKS if block.language == "toml" and block.file == "torana.toml"]


@dataclass(frozen=True, slots=True)
class Shown:
    """A command of a page, and its documented output."""

    page: str
    command: str
    printed: str = ""


def _curls() -> Iterator[Shown]:
    for block in SHOWN:
        lines = block.text.splitlines()
        for number, line in enumerate(lines):
            command = line.removeprefix("$ ")
            if command.startswith("curl "):
                printed = "\n".join(lines[number + 1 :]) if block.language == "console" else ""
                yield Shown(block.page, command, printed)


CURLS = list(_curls())


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway in a directory in which the guides were followed."""

    place: Path
    url: str

    def curl(self, command: str) -> tuple[int, str]:
        """Run a curl command of the documentation, and return the status and the printed text."""
        turn = self._answer()
        for name, value in ((ADDRESS, self.url), ("TURN", turn["id"]), ("SESSION", turn["sessionId"])):
            command = command.replace(name, value)
        command = command.replace(
            "curl ", "curl --silent --show-error --max-time 20 --write-out ' %{http_code}' ", 1
        )
        environ = {"PATH": os.environ["PATH"], "TORANA_GATEWAY_TOKEN": "none-is-needed-here"}
        printed = subprocess.run(
            ["sh", "-c", command], env=environ, capture_output=True, text=True, timeout=30, check=True
        )
        text, _, status = printed.stdout.rpartition(" ")
        return int(status), text

    def say(self, content: str) -> str:
        """Return the reply to a message."""
        return self._answer(content)["reply"]

    def _answer(self, content: str = "hello") -> dict[str, Any]:
        answer = httpx2.post(
            f"{self.url}/message", json={"content": content}, timeout=PATIENCE, trust_env=False
        )
        return answer.raise_for_status().json()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home directory in which the guides for tools and skills were followed literally."""
    place = tmp_path_factory.mktemp("followed")
    for block in _blocks("docs/howto/write-a-tool.md"):
        if block.file:
            file = place / block.file
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
    (commands,) = (block.text for block in _blocks("docs/howto/write-a-skill.md") if "mkdir" in block.text)
    subprocess.run(["sh", "-ec", commands], cwd=place, env=_environ(place), check=True)
    return place


def _environ(home: Path) -> dict[str, str]:
    """Return the environment of a user who has set nothing yet."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PATH", "COVERAGE"))}
    data_dir = home / ".local/share/torana"  # as on Linux, wherever the tests run
    path = os.pathsep.join(
        [".", str(Path(errors.__file__).parents[1])]
    )  # the tested code, not an installed version
    return kept | {"HOME": str(home), "PYTHONPATH": path, "TORANA_DATA_DIR": str(data_dir)}


@pytest.fixture(scope="module")
def running(place: Path) -> Iterator[Running]:
    """A gateway that was started there."""
    with closing(create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "torana", "serve", "--port", str(port)]
    with (place / "told").open("wb") as told:
        process = subprocess.Popen(command, cwd=place, env=_environ(place), stdout=subprocess.PIPE, stderr=told)
    with process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert b"listens on" in said, (place / "told").read_text()
            yield Running(place, f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _need_curl() -> None:
    """Skip without a curl that knows ``--json``, or fail where all tests must run."""
    found = shutil.which("curl")
    told = subprocess.check_output([found, "--version"], text=True) if found else ""
    version = re.match(r"curl (\d+)\.(\d+)", told)
    if version and (int(version[1]), int(version[2])) >= (7, 82):
        return
    reason = "curl 7.82 or newer is missing"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.mark.parametrize("shown", CURLS, ids=lambda shown: shown.command.removeprefix("curl "))
def test_documented_request_succeeds(running: Running, shown: Shown) -> None:
    _need_curl()
    status, text = running.curl(shown.command)
    if "/retry" in shown.command:  # the sent turn did not fail
        assert (status, json.loads(text)["code"]) == (409, "not_failed")
    else:
        assert status in (200, 201, 202), text
    pattern = ".*".join(map(re.escape, shown.printed.split("…")))
    assert re.fullmatch(pattern, text, re.DOTALL) if shown.printed else text


def test_tools_of_the_guide_work(running: Running) -> None:
    assert running.say('use order_status {"number": "1042"}') == "Order 1042 is packed."
    assert "no order 7" in running.say('use order_status {"number": "7"}')
    assert re.fullmatch(r"Good (morning|afternoon|evening), stranger\.", running.say("use greeting"))


def test_example_of_the_guide_passes(place: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, cwd=place, env=_environ(place), capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_skill_of_the_guide_is_listed_as_documented(running: Running) -> None:
    (shown,) = (block.text for block in BLOCKS if block.language == "json" and "slug" in block.text)
    entry = json.loads(shown.replace(", …", ""))
    skills = httpx2.get(f"{running.url}/skills", trust_env=False, timeout=PATIENCE).json()
    (listed,) = (skill for skill in skills if skill["slug"] == entry["slug"])
    assert listed.items() >= entry.items()
    assert "Invent nothing" in running.say("explain the weekly-report skill")


@pytest.mark.parametrize("block", TOML, ids=lambda block: block.page)
def test_documented_settings_file_is_valid(block: Block, tmp_path: Path) -> None:
    (tmp_path / "torana.toml").write_text(block.text, encoding="utf-8")
    loaded = load(flags={}, environ={}, cwd=tmp_path, user_dir=tmp_path)
    names = set(tomllib.loads(block.text))
    assert names
    assert {name for name, origin in loaded.origins.items() if origin.startswith("file")} == names


@pytest.mark.parametrize("page", PAGES)
def test_every_link_has_a_target(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)", PAGES[page])
    for path, heading in links:
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), path
        assert not heading or heading in _anchors(target), f"{path}#{heading}"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_nothing_is_installed_from_an_index_that_lacks_it() -> None:
    sources = {str(file.relative_to(ROOT)): file.read_text("utf-8") for file in (ROOT / "src").rglob("*.py")}
    by_name = re.compile(r"install\b[^\n]*[\s'\"]torana(?![\w.-])")

    assert {name: found for name, text in (PAGES | sources).items() if (found := by_name.findall(text))} == {}


def test_names_of_the_code_are_documented() -> None:
    names = [
        *map(variable, Settings.model_fields),
        *(
            kind.code
            for kind in vars(errors).values()
            if isinstance(kind, type) and issubclass(kind, GatewayError)
        ),
        *get_args(EventType),
        *WORDS,
        *(f"torana {command}" for command in COMMANDS),
    ]
    text = "\n".join(PAGES.values())
    assert [name for name in names if f"`{name}" not in text] == []


def test_documented_names_exist_in_the_code() -> None:
    text = "\n".join(PAGES.values())
    known = {*map(variable, Settings.model_fields), *OTHER_VARIABLES}
    assert set(re.findall(r"\bTORANA_[A-Z_]+[A-Z]\b", text)) <= known
    assert set(re.findall(r"`torana ([a-z]+)", text)) <= set(COMMANDS)
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z]+)", text)) <= set(targets)
    table = PAGES["docs/explanation/architecture.md"].partition("## Behaviour → file")[2].partition("\n## ")[0]
    files = re.findall(
        r"`([\w./]+(?:\.py|\.md|/))`", "\n".join(line.rpartition(" | ")[2] for line in table.splitlines())
    )
    assert [file for file in files if not (ROOT / "src/torana" / file).exists()] == []


def test_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts/gen_docs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_audited_actions_are_documented() -> None:
    table = set(re.findall(r"`([a-z]+\.[a-z]+)`", PAGES["docs/howto/let-others-in.md"]))
    recorded = {name for file in (ROOT / "src").rglob("*.py") for name in _acts(ast.parse(file.read_bytes()))}
    assert len(recorded) > 25
    assert recorded - table == set()


def _quoted_messages() -> Iterator[tuple[str, str]]:
    """Yield the messages in the first column of tables headed “message”, each with its page."""
    pages = {name: text for name, text in PAGES.items() if name in GUIDES or "/connectors/" in name}
    for page, text in pages.items():
        for rows in re.findall(r"^\| message \|.*\n\|[-| ]+\n((?:\|.*\n)+)", text, re.MULTILINE):
            for row in rows.splitlines():
                yield from ((page, message) for message in re.findall(r"`([^`]+)`", row.split(" | ")[0]))


def _texts_in_source() -> Iterator[str]:
    """Yield the error codes, and the string constants of the code on one line, with … for inserted values."""
    yield from (
        kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GatewayError)
    )
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_bytes())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            if isinstance(node, ast.JoinedStr) or (
                isinstance(node, ast.Constant) and isinstance(node.value, str)
            ):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
                yield " ".join(text.split())


def test_quoted_messages_exist_in_the_code() -> None:
    texts = "\n".join(_texts_in_source())
    quoted = list(_quoted_messages())
    assert len(quoted) > 20
    patterns = {one: ".*".join(map(re.escape, one[1].split("…"))) for one in quoted}
    assert [one for one, pattern in patterns.items() if not re.search(pattern, texts)] == []


def _acts(module: ast.Module) -> Iterator[str]:
    """Yield the action names that a module passes together with an ``act``."""
    for call in (node for node in ast.walk(module) if isinstance(node, ast.Call)):
        if any(isinstance(node, ast.Name) and node.id == "act" for node in ast.walk(call)):
            for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
                for value in (
                    (argument.body, argument.orelse) if isinstance(argument, ast.IfExp) else (argument,)
                ):
                    if isinstance(value, ast.Constant) and re.fullmatch(r"[a-z]+\.[a-z]+", str(value.value)):
                        yield str(value.value)
