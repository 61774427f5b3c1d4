"""The tool that runs a skill's script: approval, start, and secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.sandbox.conftest import Gateway

from torana.models.builtin.answers import result_for_people
from torana.skills import SkillFileError, Skills, copy_skill, parse_skill
from torana.tools.sandbox import Bubblewrap

SECRETS = """
import os, sys
print("key:", os.environ.get("TRIES_KEY"), "other:", os.environ.get("OTHER_KEY"))
print("error with", os.environ.get("TRIES_KEY"), file=sys.stderr)
print(len(os.environ.get("TRIES_KEY", "")))
"""


def test_arguments_input_and_assets_reach_the_script(gateway: Gateway) -> None:
    folder = gateway.write("import sys; print(sys.argv[1:], sys.stdin.read(), open('assets/a.txt').read())")
    (folder / "assets").mkdir()
    (folder / "assets" / "a.txt").write_text("asset")

    result = gateway.call(arguments=["--place", "Ábo; rm -rf /", "$HOME"], stdin="line\n")

    assert result.stdout == "['--place', 'Ábo; rm -rf /', '$HOME'] line\n asset"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("scripts/a.sh", "echo ran $1"),
        ("scripts/a.bash", "set -o pipefail; echo ran $1"),
        ("scripts/a.py", "import sys; print('ran', sys.argv[1])"),
        pytest.param("scripts/a", "#!/bin/sh -e\necho ran $1", id="shebang with an argument"),
        pytest.param(
            "scripts/a.txt", "#!/usr/bin/env python3\nimport sys; print('ran', sys.argv[1])", id="env"
        ),
    ],
)
def test_interpreter_is_chosen_by_shebang_or_suffix(gateway: Gateway, name: str, text: str) -> None:
    gateway.write(text, name=name)

    assert gateway.call(script=name, arguments=["x"]).text == "exit code 0\nstdout:\nran x"


def test_programs_copy_files_without_the_refused_calls(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import os, shutil, socket, subprocess
        text = "line\\n" * 100_000
        open("/tmp/a", "w").write(text)
        shutil.copy("/tmp/a", "/tmp/b")
        copy = "cp b c && cat c | cat > d && tar cf - d | tar xOf - > e"
        subprocess.run(copy, shell=True, cwd="/tmp", check=True)
        reader, writer = socket.socketpair()
        if os.fork() == 0:
            writer.sendfile(open("/tmp/e", "rb"))
            raise SystemExit
        writer.close()
        print(reader.makefile().read() == text)
        """
    )

    assert result.text == "exit code 0\nstdout:\nTrue"


def test_exit_code_and_error_output_are_shown(gateway: Gateway) -> None:
    text = gateway.run("raise SystemExit('no such city')").text
    assert text == "exit code 1\nstderr:\nno such city"
    assert result_for_people("run_skill_script", text) == "The script failed with exit code 1:\nno such city"


def test_script_may_start_another_script_of_its_skill(gateway: Gateway) -> None:
    folder = gateway.write("import subprocess; subprocess.run(['scripts/other.sh'], check=True)")
    (folder / "scripts" / "other.sh").write_text("#!/bin/sh\necho other")

    assert gateway.call().stdout == "other"


def test_secret_reaches_only_its_script_and_is_masked_in_the_output(gateway: Gateway) -> None:
    gateway.write(SECRETS, secrets=["TRIES_KEY"])

    result = gateway.call()

    assert result.stdout == "key: [TRIES_KEY] other: None\n12"
    assert "error with [TRIES_KEY]" in result.text


def test_secret_is_masked_in_a_refused_host(gateway: Gateway) -> None:
    script = """
    import os, urllib.error, urllib.request
    try:
        urllib.request.urlopen(f"http://{os.environ['TRIES_HOST']}/")
    except urllib.error.HTTPError as error:
        print(error.read().decode())
    """
    gateway.write(script, secrets=["TRIES_HOST", "TRIES_KEY"], hosts=["granted.example"])

    assert gateway.call().text == (
        "exit code 0\nNot granted to it, and refused: [TRIES_HOST]:80.\nstdout:\n"
        "The operator has not granted [TRIES_HOST]:80 to this skill."
    )


def test_short_secret_value_is_not_masked(gateway: Gateway) -> None:
    gateway.write("import os; print('Neutral', os.environ['TRIES_REGION'])", secrets=["TRIES_REGION"])

    assert gateway.call().stdout == "Neutral eu"


def test_ungranted_or_undeclared_secret_is_absent(gateway: Gateway) -> None:
    gateway.write(SECRETS, secrets=["TRIES_KEY"])
    without = gateway.call(approved={"scripts": ["scripts/try.py"], "secrets": ["OTHER_KEY"]})
    gateway.write(SECRETS)
    undeclared = gateway.call(approved={"scripts": ["scripts/try.py"], "secrets": ["TRIES_KEY"]})

    assert without.stdout.startswith("key: None other: None")
    assert undeclared.stdout.startswith("key: None other: None")


def test_script_with_a_missing_secret_does_not_run(gateway: Gateway) -> None:
    gateway.write("print(1)", secrets=["TRIES_KEY", "UNSET_KEY"])

    result = gateway.call()

    assert result.failed
    assert result.text == (
        "The script was not run: the secret UNSET_KEY is not set; put the missing value into .env and restart "
        "the gateway."
    )


def test_cut_output_contains_no_part_of_a_secret(gateway: Gateway) -> None:
    gateway.write("import os; print(os.environ['TRIES_KEY'] * 8000)", secrets=["TRIES_KEY"])

    result = gateway.call(limits={"output": 100})

    assert "key" not in result.text.partition("stdout")[2]
    assert "[TRIES_KEY][TRIES_KEY]" in result.text


def test_output_that_imitates_bubblewrap_is_masked(gateway: Gateway) -> None:
    gateway.write("import os; raise SystemExit('bwrap: ' + os.environ['TRIES_KEY'])", secrets=["TRIES_KEY"])

    assert gateway.call().text == "exit code 1\nstderr:\nbwrap: [TRIES_KEY]"


def test_declared_directories_are_readable_or_writable(gateway: Gateway) -> None:
    shared, out = gateway.home / "shared", gateway.home / "out"
    (shared / "data.txt").write_text("shared data")
    gateway.write(
        f"""
        print(open("{shared}/data.txt").read())
        open("{out}/report.txt", "w").write("made")
        try:
            open("{shared}/more.txt", "w")
        except OSError as error:
            print(error.strerror)
        """,
        directories=[str(shared)],
        writable=[str(out)],
    )

    assert gateway.call().stdout == "shared data\nRead-only file system"
    assert (out / "report.txt").read_text() == "made"


def test_data_directory_and_links_are_refused(gateway: Gateway) -> None:
    link = gateway.home / "link"
    if not link.is_symlink():
        link.symlink_to(gateway.home / "data")
    refusals: list[str] = []
    for path in (gateway.home / "data", gateway.home, link, gateway.home / "none"):
        gateway.write("print(1)", directories=[str(path)])
        result = gateway.call()
        assert result.failed
        refusals.append(result.text.partition("' ")[2])

    assert refusals == [
        "contains the gateway's own data; scripts cannot use it.",
        "contains the gateway's own data; scripts cannot use it.",
        "does not exist, or a part of its path is a link; correct it.",
        "does not exist, or a part of its path is a link; correct it.",
    ]


def test_unapproved_script_does_not_run(gateway: Gateway) -> None:
    gateway.write("print(1)")

    result = gateway.call(approved=None)

    assert result.failed
    assert result.text == (
        "The scripts of the skill 'tries' are not approved; the operator can approve them with "
        "`torana skills approve tries`."
    )


@pytest.mark.parametrize(
    "script", ["SKILL.md", "../../etc/passwd", "/bin/sh", "scripts/none.py", "scripts", ""]
)
def test_only_a_granted_script_runs(gateway: Gateway, script: str) -> None:
    gateway.write("print(1)")

    result = gateway.call(script=script)

    assert result.failed
    assert result.text.endswith("that may be run; it has: scripts/try.py.")


def test_script_without_an_installed_interpreter_is_refused(gateway: Gateway) -> None:
    gateway.write("words", name="scripts/notes.txt")
    assert "has no interpreter line" in gateway.call(script="scripts/notes.txt").text

    gateway.write("#!/opt/tool/bin/tool\n", name="scripts/tool")
    assert gateway.call(script="scripts/tool").text == (
        "scripts/tool is run by /opt/tool/bin/tool, which is not installed for scripts."
    )


def test_file_changed_after_parsing_is_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "skills" / "tries"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: tries\ndescription: x\n---\n")
    (folder / "run.py").write_text("print('approved')")
    skill = parse_skill(folder, source="user")
    (folder / "run.py").write_text("print('changed!')")
    (tmp_path / "copy").mkdir()

    with pytest.raises(SkillFileError, match="have changed since it was read"):
        copy_skill(skill, tmp_path / "copy")


def test_oversized_arguments_and_input_are_refused(gateway: Gateway) -> None:
    gateway.write("print(1)")

    assert "at most 64 arguments" in gateway.call(arguments=["x"] * 65).text
    assert "at most 64 arguments" in gateway.call(arguments=["x" * 9000]).text
    assert "at most 64 arguments" in gateway.call(arguments=["€" * 3000]).text
    assert "cannot contain U+0000" in gateway.call(arguments=["a\0b"]).text
    assert "send at most 262,144" in gateway.call(stdin="x" * 300_000).text


def test_lone_surrogates_are_replaced(gateway: Gateway) -> None:
    gateway.write("import sys; print(sys.argv[1], sys.stdin.read())")

    assert gateway.call(arguments=["a\ud800b"], stdin="c\ud800d").stdout == "a?b c?d"


def test_required_programs_are_looked_up_in_the_sandbox(tmp_path: Path) -> None:
    (tmp_path / "tries").mkdir()
    front = "name: tries\ndescription: x\nmetadata: {torana: {bins: [env, no-such-program], secrets: [KEY]}}"
    (tmp_path / "tries" / "SKILL.md").write_text(f"---\n{front}\n---\n")
    skills = Skills(core_dir=tmp_path / "none", user_dir=tmp_path, environ={}, which=Bubblewrap().which)
    (skill,) = skills.catalogue().loaded

    assert skills.missing(skill) == {"env": ["KEY"], "bins": ["no-such-program"]}
