"""``torana chat`` through a running gateway, and with its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from torana.cli import main
from torana.store.engine.lock import read_address
from torana.testing import Fault, OpenAIStandIn

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place

TOKEN = "kR7v2mXq9LwB4tZs8JcN1yHdE5gFuA3p"


def test_one_message_is_answered_without_a_running_gateway(place: Place) -> None:
    assert place.run("chat", "what is 17 % of 2,340") == (0, "17 % of 2,340 = 397.8\n", "")
    assert read_address(place.data_dir) is None


def test_earlier_messages_are_available_in_the_next_chat(place: Place) -> None:
    place.run("chat", "what", "is", "1 + 1")  # as a shell passes unquoted words
    assert place.run("chat", "what did I say last?") == (0, "You said: what is 1 + 1\n", "")


def test_piped_lines_are_messages_until_quit(place: Place) -> None:
    code, out, err = place.run(
        "chat", given="what is 1 + 1\n\n/new\nwhat did I say last?\n/help\n  2 * 3  \n/quit\n4 * 5\n"
    )
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "1 + 1 = 2",
        "A new conversation.",
        "No earlier message in this conversation matches.",
        "Each line is a message. /new starts a new conversation, /quit ends the chat.",
        "2 * 3 = 6",
    ]


def test_dash_reads_one_message_with_all_its_lines(place: Place) -> None:
    lines = "sort these lines:\npear\nfig\n"
    assert place.run("chat", "-", given=lines) == (0, "fig\npear\n", "")
    code, out, err = place.run("chat", "-", given="\n")
    assert (code, out) == (2, "")
    assert "standard input contains no message" in err


def test_remote_gateway_gets_the_token_of_the_environment(place: Place) -> None:
    place.serve(TORANA_GATEWAY_TOKEN=TOKEN)
    address = read_address(place.data_dir)
    assert address is not None
    elsewhere = {"TORANA_DATA_DIR": str(place.path / "elsewhere")}
    chat = ("chat", "--url", address)
    assert place.run(*chat, "1 + 1", TORANA_CHAT_TOKEN=TOKEN, **elsewhere) == (0, "1 + 1 = 2\n", "")
    named = place.run(*chat, "--token-env", "MINE", "1 + 1", MINE=TOKEN, **elsewhere)
    assert named == (0, "1 + 1 = 2\n", "")
    # The token of the own gateway is not sent to another one.
    refused = place.run(*chat, "1 + 1", TORANA_GATEWAY_TOKEN=TOKEN, **elsewhere)
    assert refused == (1, "", f"the gateway at {address} needs a token; set TORANA_CHAT_TOKEN to it\n")
    wrong = place.run(*chat, "1 + 1", TORANA_CHAT_TOKEN=TOKEN[::-1], **elsewhere)
    assert (wrong[0], wrong[1]) == (1, "")
    assert f"the gateway at {address} " in wrong[2]
    assert not (place.path / "elsewhere").exists()


@pytest.mark.parametrize("url", ["torana.example.org", "ftp://host", "http://me:secret@host", "http://"])
def test_url_of_no_gateway_is_refused(place: Place, url: str) -> None:
    code, out, err = place.run("chat", "--url", url, "hi")
    assert (code, out) == (1, "")
    assert "must look like https://torana.example.org" in err


@pytest.mark.parametrize("fault", ["\n", "é", "\x01"])
def test_token_that_no_header_can_hold_is_not_printed(place: Place, fault: str) -> None:
    chat = ("chat", "--url", "http://127.0.0.1:9", "hi")
    code, out, err = place.run(*chat, TORANA_CHAT_TOKEN=f"se{fault}cret")
    assert (code, out) == (1, "")
    assert "the token contains a character that no token has" in err
    assert "cret" not in err


def test_help_page_needs_no_library_of_the_prompt(place: Place) -> None:
    code = (
        "import sys, torana.cli.commands.chat;"
        "print([name for name in ('prompt_toolkit', 'httpx2', 'torana.app') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=place.environ(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_refused_message_is_one_line_and_the_next_is_answered(place: Place) -> None:
    code, out, err = place.run("chat", given="a" * 10_001 + "\n1 + 1\n")
    assert (code, out) == (1, "1 + 1 = 2\n")
    assert err.startswith("Payload too large: `content` has 10,001 characters")
    assert err.count("\n") == 1


def test_invalid_bytes_are_replaced(place: Place) -> None:
    place.run("chat", given=b"one \xff two\n")
    assert place.run("chat", "what did I say last?")[1] == "You said: one � two\n"


def test_model_failure_is_reported_in_one_line(place: Place) -> None:
    code, out, err = place.run(
        "chat", "hi", TORANA_MODEL="openai-chat:x", TORANA_MODEL_BASE_URL="http://127.0.0.1:9/v1"
    )
    assert (code, out) == (1, "")
    assert err == "Model failed: connection refused to 127.0.0.1:9: is the server running there?\n"


def test_partial_answer_of_a_failure_is_on_its_own_line(place: Place) -> None:
    with OpenAIStandIn(reply=lambda _: "one two three", faults=[Fault(cut_after=3)]) as server:
        model = {"TORANA_MODEL": "openai-chat:x", "TORANA_MODEL_BASE_URL": server.url}
        code, out, err = place.run("chat", "hi", **model)
    assert (code, out) == (1, "one two\n")
    assert err.startswith("Model failed: ")
    assert err.count("\n") == 1


def test_user_without_an_account_name_is_local(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    place.serve()
    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr("sys.argv", ["torana", "chat", "remember that my cat is Tom"])
    for name, value in place.environ().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert capsys.readouterr().out == "Remembered: my cat is Tom\n"
    assert "Tom" in place.run("chat", "--user", "local", "what do you know about my cat")[1]


def test_failed_start_of_its_own_gateway_is_one_line(place: Place) -> None:
    code, out, err = place.run("chat", "hi", TORANA_TOOLS="nowhere_at_all:tool")
    assert (code, out) == (2, "")
    assert err.startswith("TORANA_TOOLS: nowhere_at_all:tool: ")
    assert err.count("\n") == 1


def test_chat_uses_a_running_gateway(place: Place) -> None:
    place.serve(TORANA_GATEWAY_TOKEN=TOKEN)
    code, out, err = place.run(
        "chat", "--user", "bo", "remember that my cat is Tom", TORANA_GATEWAY_TOKEN=TOKEN
    )
    assert (code, out, err) == (0, "Remembered: my cat is Tom\n", "")
    recalled = place.run(
        "chat", "--user=bo", "--channel=other", "what do you know about my cat", TORANA_GATEWAY_TOKEN=TOKEN
    )
    assert "my cat is Tom" in recalled[1]


@pytest.mark.parametrize(
    "settings", [{}, {"TORANA_GATEWAY_TOKEN": TOKEN[::-1]}], ids=["no token", "wrong token"]
)
def test_wrong_token_is_reported(place: Place, settings: dict[str, str]) -> None:
    place.serve(TORANA_GATEWAY_TOKEN=TOKEN)
    address = read_address(place.data_dir)
    line = f"the gateway at {address} has another token; set TORANA_GATEWAY_TOKEN to that token\n"
    assert place.run("chat", "hi", **settings) == (1, "", line)
    assert place.run("approvals", "list", **settings) == (1, "", line)


def test_second_chat_uses_the_gateway_of_the_first(place: Place) -> None:
    first = place.start("chat")
    assert first.stdin
    assert first.stdout
    first.stdin.write("1 + 1\n")
    first.stdin.flush()
    assert first.stdout.readline() == "1 + 1 = 2\n"
    assert place.run("chat", "what did I say last?") == (0, "You said: 1 + 1\n", "")
    first.stdin.close()
    assert first.wait(30) == 0


def test_message_cut_off_by_a_kill_is_answered_after_the_restart(place: Place) -> None:
    gateway = place.serve()
    talk = place.start("chat", "use dawdle")
    place.gate.reached()
    gateway.kill()
    out, err = talk.communicate(timeout=30)
    assert (talk.returncode, out) == (1, "")
    told = "The gateway stopped. It completes the reply after its next start: torana turns show turn_"
    assert err.startswith(told)
    place.gate.open()
    assert place.run("chat", "what is 1 + 1")[:2] == (0, "1 + 1 = 2\n")  # after the stored message
    assert place.run("chat", given="what did I say first?\n")[1] == "You said: use dawdle\n"


def test_scheduling_without_a_running_gateway_prints_a_notice(place: Place) -> None:
    reminder = "remind me tomorrow at 9 to call Ana"
    code, out, err = place.run("chat", reminder)
    assert (code, err) == (0, "Schedules run only while a gateway runs: torana serve\n")
    assert out.startswith("Scheduled: ")
    place.serve()
    assert place.run("chat", reminder)[2] == ""


def test_missing_gateway_is_reported_for_every_message(place: Place) -> None:
    gateway = place.serve()
    address = read_address(place.data_dir)
    talk = place.start("chat")
    assert talk.stdin
    assert talk.stdout
    talk.stdin.write("1 + 1\n")
    talk.stdin.flush()
    assert talk.stdout.readline() == "1 + 1 = 2\n"
    gateway.kill()
    gateway.wait(30)
    _, err = talk.communicate("2 + 2\n3 + 3\n", timeout=30)
    assert talk.returncode == 1
    assert err.splitlines() == [f"no gateway responds at {address}: All connection attempts failed"] * 2


def test_ctrl_c_ends_a_message_quietly(place: Place) -> None:
    talk = place.start("chat", "use dawdle")
    place.gate.reached()
    talk.send_signal(signal.SIGINT)
    out, err = talk.communicate(timeout=30)
    assert (talk.returncode, out, err) == (130, "", "")
    assert read_address(place.data_dir) is None


def test_closed_output_pipe_prints_no_error(place: Place) -> None:
    talk = place.start("chat", "use dawdle")
    place.gate.reached()
    assert talk.stdout
    talk.stdout.close()
    place.gate.open()
    assert talk.stderr
    assert talk.stderr.read() == ""
    assert talk.wait(30) == 1


def test_files_reach_the_model(place: Place) -> None:
    (place.path / "notes.txt").write_text("Call Ana.")
    with OpenAIStandIn(reply=lambda request: str(request.messages[-1]["content"])) as server:
        model = {"TORANA_MODEL": "openai-chat:x", "TORANA_MODEL_BASE_URL": server.url}
        code, out, err = place.run("chat", "--file", "notes.txt", "look", **model)
    assert (code, err) == (0, "")
    assert "look\\n[file: notes.txt, text/plain, 0.0 kB]" in out
    assert "notes.txt:\\nCall Ana." in out


def test_files_that_cannot_be_sent_are_refused(place: Place) -> None:
    (place.path / "large.txt").write_bytes(b"a" * 3_750_001)
    (place.path / "notes.txt").write_text("Call Ana.")
    faults = {
        "missing.txt": "missing.txt: cannot be read (No such file or directory)\n",
        ".": ".: not a file\n",
        "large.txt": "large.txt: has more than 3,750,000 bytes, the maximum of a file\n",
    }
    for path, fault in faults.items():
        assert place.run("chat", "-f", path, "look") == (1, "", fault)
    code, out, err = place.run("chat", "-f", "notes.txt", "look")
    assert (code, out) == (1, "")
    assert "the model receives no files" in err
    assert place.run("chat", "-f", "notes.txt")[0] == 2
