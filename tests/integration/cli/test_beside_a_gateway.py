"""Other commands while a gateway runs, and interrupted starts."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import httpx2
import pytest
from tests.standins.servers import free_port

from torana import __version__
from torana.store.engine.lock import read_address
from torana.testing import OpenAIStandIn

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place


def _say(place: Place, content: str) -> str:
    body = {"content": content, "channelId": "a", "userId": "ana"}
    answer = httpx2.post(f"{read_address(place.data_dir)}/message", json=body, timeout=30, trust_env=False)
    return answer.raise_for_status().json()["reply"]


def test_backup_beside_a_running_gateway_restores_its_state(place: Place) -> None:
    gateway = place.serve(TORANA_RATE_PER_USER="0", TORANA_RATE_GLOBAL="0")
    _say(place, "remember that my cat is Tom")
    backup = place.start("backup", "mine.zip")
    while backup.poll() is None:
        _say(place, "what is 1 + 1")
    assert backup.communicate(timeout=30)[1] == ""
    _say(place, "remember that my dog is Rex")
    refused = place.run("restore", "mine.zip")
    assert refused[:2] == (1, "")
    assert refused[2].startswith(f"already running at {read_address(place.data_dir)} ")
    gateway.send_signal(signal.SIGTERM)
    assert gateway.wait(30) == 0
    assert place.run("restore", "mine.zip")[0] == 0
    place.serve()
    assert "Tom" in _say(place, "what do you know about my cat")
    assert _say(place, "what do you know about my dog") == "No memory matches that."
    assert "my cat is Tom" in _say(place, "what did I say first?")


def test_builtin_model_creates_and_cancels_schedules(place: Place) -> None:
    place.serve(TORANA_TIMEZONE="Europe/Berlin")
    assert "reminder “call Ben”" in _say(place, "Remind me tomorrow at 9 to call Ben")
    told = _say(place, "every weekday at 17:00 tell me the time in Tokyo")
    assert told.startswith("Scheduled: task “tell me the time in Tokyo”, ")
    assert " at 17:00 (Europe/Berlin), then every weekday at 17:00" in told
    assert told.endswith("for example in `torana chat`.")
    assert _say(place, "list my reminders").count("sch_") == 2
    assert _say(place, "cancel the reminder to call Ben") == "Cancelled: call Ben"
    assert _say(place, "list my reminders").count("sch_") == 1
    assert "is in the past" in _say(place, "remind me on 2020-01-01 at 9 to call Ben")


def test_schedules_are_added_listed_and_changed_beside_a_gateway(place: Place) -> None:
    place.serve()
    code, out, err = place.run(
        "schedules",
        "add",
        "call Ana",
        "--rule",
        "every day at 9",
        "--timezone",
        "UTC",
        "--user",
        "ana",
        "--json",
    )
    made = json.loads(out)
    assert (code, err, made["rule"], made["userId"]) == (0, "", "0 9 * * *", "ana")
    assert json.loads(place.run("schedules", "list", "--json")[1]) == {"items": [made]}
    assert json.loads(place.run("schedules", "show", made["id"], "--json")[1]) == made
    assert place.run("schedules", "pause", made["id"])[:2] == (0, f"{made['id']} is paused\n")
    line = place.run("schedules", "list")[1].splitlines()[1]
    assert line.split()[:3] == [made["id"], "paused", "ana"]
    assert place.run("schedules", "resume", made["id"])[1] == f"{made['id']} is due at {made['dueAt']}\n"
    assert place.run("schedules", "run", made["id"])[1] == f"{made['id']} runs now\n"
    assert place.run("schedules", "remove", made["id"])[0] == 0
    assert place.run("schedules", "list")[1] == "There are no schedules.\n"
    refused = place.run("schedules", "add", "call Ana", "--at", "yesterday at 9")
    assert (refused[0], "is in the past" in refused[2]) == (1, True)
    assert place.run("schedules", "show", made["id"])[0] == 1


def test_doctor_finds_a_running_gateway(place: Place) -> None:
    place.serve()
    code, out, err = place.run("doctor", "--json")
    findings = {item["check"]: item["detail"] for item in json.loads(out)}
    assert (code, err) == (0, "")
    address = read_address(place.data_dir)
    assert findings["gateway"].splitlines()[:2] == [
        f"running at {address}, version {__version__}, with the data directory of this folder",
        "model builtin; connectors: none",
    ]
    assert findings["database"].startswith("intact, at revision ")
    assert findings["tools"] == "dawdle"


def test_doctor_compares_the_gateway_with_this_folder(place: Place) -> None:
    place.serve(TORANA_PERSONA="Be kind.")
    address = read_address(place.data_dir)
    assert address is not None
    port = address.rpartition(":")[2]
    code, out, err = place.run("doctor", "--json", TORANA_PERSONA="Be brief.", TORANA_PORT=port)
    (gateway,) = (item for item in json.loads(out) if item["check"] == "gateway")
    assert (code, err, gateway["ok"]) == (0, "", True)
    assert gateway["detail"].splitlines()[2:] == [
        "warning: it differs from this folder; a restart here would change:",
        "persona: Be kind. (environment TORANA_PERSONA) there, Be brief. (environment TORANA_PERSONA) here",
    ]


def test_doctor_finds_a_gateway_with_another_data_directory(place: Place) -> None:
    place.serve()
    address = read_address(place.data_dir)
    assert address is not None
    other = place.path / "other"
    code, out, _ = place.run(
        "doctor", "--json", "--data-dir", str(other), TORANA_PORT=address.rpartition(":")[2]
    )
    (gateway,) = (item for item in json.loads(out) if item["check"] == "gateway")
    assert (code, gateway["ok"]) == (1, False)
    expected = f"a gateway at {address} uses the data directory {place.data_dir}, and this folder uses {other};"
    assert gateway["detail"].startswith(expected)


@pytest.mark.parametrize("arguments", [("serve",), ("chat", "hi"), ("doctor",)])
def test_ctrl_c_during_the_start_prints_no_traceback(place: Place, arguments: tuple[str, ...]) -> None:
    (place.path / "dawdling.py").write_text(place.gate.slow_import)
    command = place.start(*arguments, TORANA_PORT=str(free_port()))
    place.gate.reached()
    command.send_signal(signal.SIGINT)
    place.gate.open()
    _, err = command.communicate(timeout=30)
    assert "Traceback" not in err
    assert command.returncode in (0, 130)


def test_control_characters_of_an_answer_are_escaped(place: Place) -> None:
    with OpenAIStandIn(reply=lambda _: "red \x1b[31malert\x9b, two\u2028lines\u0085 and\ttabs\n") as server:
        model = {"TORANA_MODEL": "openai-chat:x", "TORANA_MODEL_BASE_URL": server.url}
        code, out, err = place.run("chat", "hi", **model)
    assert (code, err) == (0, "")
    assert out == "red \\x1b[31malert\\x9b, two\\u2028lines\\x85 and\ttabs\n\n"


def test_gateway_on_all_addresses_prints_a_usable_url(place: Place) -> None:
    token = {"TORANA_GATEWAY_TOKEN": "kR7v2mXq9LwB4tZs8JcN1yHdE5gFuA3p"}
    gateway = place.start("serve", "--host", "0.0.0.0", "--port", str(port := free_port()), **token)
    assert gateway.stdout is not None
    assert gateway.stdout.readline().endswith(f"listens on http://127.0.0.1:{port}\n")
    assert place.run("approvals", "list", **token) == (0, "No tool call waits for approval.\n", "")
