"""``torana setup`` and ``torana models`` with a stand-in for a provider."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path

import httpx2
import pytest
import typer

from torana.cli.commands.models import providers
from torana.cli.commands.models.providers import PROVIDERS, find_local_servers, list_models, provider_of_key
from torana.cli.commands.setup import platforms, steps
from torana.cli.commands.setup.questions import Questions
from torana.cli.init_systems import detection
from torana.config import load
from torana.errors import ConfigInvalid
from torana.testing.openai_server import MODEL_NAME, Fault, OpenAIStandIn

Command = Callable[..., tuple[int, str, str]]

TOML = "# by hand\nport = 18790\n"
DOTENV = "# by hand\nA=1\n"


@pytest.fixture
def server() -> Iterator[OpenAIStandIn]:
    with OpenAIStandIn(api_key="sk-right") as server:
        yield server


@pytest.fixture
def written(place: Path) -> Path:
    """A directory with settings that were written by hand."""
    (place / "torana.toml").write_text(TOML)
    (place / ".env").write_text(DOTENV)
    return place


def is_unchanged(place: Path) -> bool:
    """Return whether the directory holds the same settings as before, and nothing else."""
    names = {file.name for file in place.iterdir()} - {"data"}
    texts = [(place / name).read_text() for name in ("torana.toml", ".env")]
    return (names, texts) == ({"torana.toml", ".env"}, [TOML, DOTENV])


class Answers(Questions):
    """A person who gives these answers to questions that begin so, and otherwise takes the defaults.

    Presses Ctrl-C at the question with the number ``stops_at``, from 0.
    """

    interactive = True

    def __init__(self, answers: Mapping[str, str | bool], *, stops_at: int | None = None) -> None:
        self._answers = answers
        self._stops_at = stops_at
        self._number = count()
        self.asked: list[str] = []

    def choose(self, question: str, options: Mapping[str, str], *, default: str | None, flag: str) -> str:
        answer = self.ask(question, default=default, flag=flag)
        assert answer in options
        return answer

    def ask(self, question: str, *, default: str | None = None, flag: str) -> str:
        del flag
        return str(self._answer(question, default))

    def secret(self, question: str, *, flag: str) -> str:
        return self.ask(question, flag=flag)

    def confirm(self, question: str, *, default: bool) -> bool:
        return bool(self._answer(question, default))

    def _answer(self, question: str, default: str | bool | None) -> str | bool:
        self.asked.append(question)
        if next(self._number) == self._stops_at:
            raise typer.Abort
        found = [answer for begin, answer in self._answers.items() if question.startswith(begin)]
        answer = found[0] if found else default
        assert answer is not None, question
        return answer


def answer(monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, str | bool], **more: int) -> Answers:
    """Answer the questions of the next setup."""
    person = Answers(answers, **more)

    def questions(*, defaults: bool) -> Answers:
        del defaults
        return person

    monkeypatch.setattr(steps, "questions", questions)
    return person


def other_server(server: OpenAIStandIn, key: str = "sk-right") -> dict[str, str | bool]:
    """Return the answers that choose the stand-in."""
    return {"Which language": "other", "Base URL": server.url, "Does the server": True, "API key": key}


def test_script_writes_model_and_key(
    command: Command, written: Path, server: OpenAIStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORANA_MODEL_API_KEY", "sk-right")
    code, out, err = command("setup", "--base-url", server.url, "--yes")
    assert (code, err) == (0, "")
    assert f"{MODEL_NAME} answered in" in out
    assert "sk-right" not in out
    model = f'model = "openai-chat:{MODEL_NAME}"\nmodel_base_url = "{server.url}"\n'
    assert (written / "torana.toml").read_text() == TOML + model
    assert (written / ".env").read_text() == f"{DOTENV}TORANA_MODEL_API_KEY=sk-right\n"
    assert [request.model for request in server.requests] == [MODEL_NAME]


def test_key_is_read_from_standard_input(
    command: Command, written: Path, server: OpenAIStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("sk-right\n"))
    code, _, err = command("setup", "--base-url", server.url, "--key-stdin", "--token", "--yes")
    assert (code, err) == (0, "")
    lines = (written / ".env").read_text().splitlines()
    assert lines[-2:-1] == ["TORANA_MODEL_API_KEY=sk-right"]
    assert len(lines[-1].removeprefix("TORANA_GATEWAY_TOKEN=")) >= 32


def test_result_is_printed_as_json(
    command: Command, written: Path, server: OpenAIStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORANA_MODEL_API_KEY", "sk-right")
    code, out, err = command("setup", "--base-url", server.url, "--yes", "--json")
    files = [str(written / ".env"), str(written / "torana.toml")]
    assert code == 0
    assert json.loads(out) == {
        "written": files,
        "model": f"openai-chat:{MODEL_NAME}",
        "platform": None,
        "service": False,
    }
    assert f"Wrote {' and '.join(files)}." in err
    code, out, _ = command("models", "use", "builtin", "--json")
    assert (code, json.loads(out)) == (0, {"model": "builtin", "written": files})


def test_second_run_changes_nothing(command: Command, place: Path, server: OpenAIStandIn) -> None:
    with OpenAIStandIn() as free:
        assert command("setup", "--base-url", free.url, "--yes")[0] == 0
        before = (place / "torana.toml").read_text()
        code, out, _ = command("setup", "--base-url", free.url, "--yes")
    assert code == 0
    assert "The settings already have these values." in out
    assert (place / "torana.toml").read_text() == before


def test_answers_on_a_terminal_are_written(
    command: Command, written: Path, server: OpenAIStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, other_server(server))
    code, out, err = command("setup")
    assert (code, err) == (0, "")
    assert "Try:" in out
    assert (written / ".env").read_text() == f"{DOTENV}TORANA_MODEL_API_KEY=sk-right\n"


def test_refused_key_can_be_typed_again(
    command: Command, written: Path, server: OpenAIStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = answer(monkeypatch, other_server(server, "sk-wrong") | {"Try again?": False})
    code, _, err = command("setup")
    assert code == 1
    assert "refused the key" in err
    assert "`torana setup` starts again" in err
    assert person.asked[-1] == "Try again?"
    assert is_unchanged(written)


def test_refused_key_in_a_script_changes_nothing(
    command: Command, written: Path, server: OpenAIStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORANA_MODEL_API_KEY", "sk-wrong")
    code, _, err = command("setup", "--base-url", server.url, "--yes")
    assert code == 1
    assert "refused the key" in err
    assert is_unchanged(written)


def test_unreachable_server_changes_nothing(command: Command, written: Path) -> None:
    code, _, err = command("setup", "--base-url", "http://127.0.0.1:1/v1", "--yes")
    assert code == 1
    assert "did not list its models" in err
    assert is_unchanged(written)


def test_failing_model_changes_nothing(command: Command, written: Path) -> None:
    with OpenAIStandIn(faults=[Fault(status=404, message="no such model")] * 3) as server:
        code, _, err = command("setup", "--base-url", server.url, "--yes")
    assert code == 1
    assert "nothing was changed" in err
    assert is_unchanged(written)


def test_missing_key_names_its_variable(command: Command, written: Path) -> None:
    code, _, err = command("setup", "--provider", "anthropic", "--yes")
    assert code == 1
    assert "give ANTHROPIC_API_KEY or --key-stdin" in err
    assert is_unchanged(written)


def test_refused_changes_are_not_written(
    command: Command, written: Path, server: OpenAIStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, other_server(server) | {"Write these": False})
    assert command("setup")[1].endswith("Nothing was changed.\n")
    assert is_unchanged(written)


def test_ctrl_c_at_each_question_changes_nothing(
    command: Command, written: Path, server: OpenAIStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = answer(monkeypatch, other_server(server) | {"Write these": False})
    assert command("setup")[0] == 0
    assert complete.asked[-1] == "Write these changes?"
    for number, question in enumerate(complete.asked):
        answer(monkeypatch, other_server(server), stops_at=number)
        code, _, err = command("setup")
        assert (code, "`torana setup` starts again" in err) == (1, True), question
        assert is_unchanged(written), question


def test_variable_of_the_process_that_outweighs_the_files_is_refused(
    command: Command, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORANA_MODEL", "builtin")
    code, _, err = command("setup", "--provider", "builtin", "--yes")
    assert code == 1
    assert "TORANA_MODEL in the environment" in err
    assert is_unchanged(written)


def test_files_written_by_hand_keep_their_comments(
    command: Command, place: Path, server: OpenAIStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand = """\
# Written by hand.
port = 18790 # not the usual one

  [connectors.irc] # our network
host = 'irc.example.org'
nick = "torana"
"""
    dotenv = "# Written by hand.\n\nexport OTHER='a b' # kept\n"
    (place / "torana.toml").write_text(by_hand)
    (place / ".env").write_text(dotenv)
    monkeypatch.setenv("TORANA_MODEL_API_KEY", "sk-right")
    code, _, err = command("setup", "--base-url", server.url, "--yes")
    assert (code, err) == (0, "")
    model = f'model = "openai-chat:{MODEL_NAME}"\nmodel_base_url = "{server.url}"\n'
    assert (place / "torana.toml").read_text() == by_hand.replace("usual one\n", f"usual one\n{model}")
    assert (place / ".env").read_text() == f"{dotenv}TORANA_MODEL_API_KEY=sk-right\n"


@pytest.mark.parametrize("name", [".env", "torana.toml"])
def test_directory_in_place_of_a_file_is_reported(command: Command, place: Path, name: str) -> None:
    (place / name).mkdir()
    code, _, err = command("setup", "--provider", "builtin", "--yes")
    assert code != 0
    assert f"{name}: cannot be read (Is a directory)" in err
    assert not list((place / name).iterdir())


def test_model_in_dotenv_is_changed_there(command: Command, place: Path) -> None:
    (place / ".env").write_text("TORANA_MODEL=openai:gpt-5 # chosen\nTORANA_MODEL_API_KEY=sk-old\n")
    assert command("setup", "--provider", "builtin", "--yes")[0] == 0
    assert (place / ".env").read_text() == "TORANA_MODEL=builtin\n"
    assert not (place / "torana.toml").exists()


def test_service_without_an_init_system_names_the_next_step_and_keeps_the_settings(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detection, "BOOTED", place / "none")
    code, out, err = command("setup", "--provider", "builtin", "--service", "--yes")
    assert (code, "Wrote " in out) == (1, True)
    assert err.startswith("this machine runs neither systemd nor launchd; run `torana serve`")
    assert (place / "torana.toml").read_text() == 'model = "builtin"\n'


def test_invalid_settings_file_is_reported_before_any_question(command: Command, place: Path) -> None:
    (place / "torana.toml").write_text("model = openai:x\n")
    code, _, err = command("setup", "--provider", "builtin", "--yes")
    assert code == 2
    assert "a text needs quotes" in err


def test_unknown_provider_is_refused(command: Command, written: Path) -> None:
    code, _, err = command("setup", "--provider", "acme", "--yes")
    assert code == 1
    assert "there is no provider 'acme'; the providers are ollama" in err


def test_address_for_a_provider_with_its_own_is_refused(command: Command, written: Path) -> None:
    url = "http://127.0.0.1:1/v1"
    code, _, err = command("setup", "--provider", "openai", "--base-url", url, "--yes")
    assert code == 1
    assert "--base-url is only for the provider other, not for 'openai'" in err


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("sk-proj-1", "openai"),
        ("sk-ant-api03-1", "anthropic"),
        ("sk-or-v1-1", "openrouter"),
        ("gsk_1", "groq"),
        ("AIzaSy1", "google"),
        ("1234", None),
    ],
)
def test_provider_of_a_key_is_recognised(key: str, name: str | None) -> None:
    assert provider_of_key(key) == name


def test_local_servers_are_on_this_machine() -> None:
    addresses = [provider.url for provider in PROVIDERS.values() if provider.local]
    assert addresses == [f"http://127.0.0.1:{port}/v1" for port in (11434, 1234, 8080, 8000)]


def test_local_server_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIStandIn() as server:
        nearby = providers.Provider(title="Near", prefix="ollama", url=server.url, local=True)
        closed = providers.Provider(title="Closed", prefix="vllm", url="http://127.0.0.1:1/v1", local=True)
        monkeypatch.setattr(providers, "PROVIDERS", {"near": nearby, "closed": closed})
        assert find_local_servers() == {"near": [MODEL_NAME]}


GOOGLE = {
    "models": [
        {"name": "models/gemini-pro", "supportedGenerationMethods": ["generateContent"]},
        {"name": "models/aqa", "supportedGenerationMethods": ["generateAnswer"]},
    ]
}
LIST = {"data": [{"id": "big"}, {"id": "text-embedding-3"}, {"id": "small"}]}


@pytest.mark.parametrize(
    ("name", "header", "document", "models"),
    [
        ("anthropic", "x-api-key", LIST, ["big", "small"]),
        ("google", "x-goog-api-key", GOOGLE, ["gemini-pro"]),
        ("openai", "authorization", LIST, ["big", "small"]),
    ],
)
def test_models_are_listed_in_the_form_of_each_provider(
    monkeypatch: pytest.MonkeyPatch, name: str, header: str, document: object, models: list[str]
) -> None:
    def respond(request: httpx2.Request) -> httpx2.Response:
        assert request.headers[header].endswith("the-key")
        assert str(request.url) == f"{PROVIDERS[name].url}/models"
        return httpx2.Response(200, json=document)

    client = partial(httpx2.Client, transport=httpx2.MockTransport(respond))
    monkeypatch.setattr(providers.httpx2, "Client", client)
    assert list_models(PROVIDERS[name], key="the-key") == models


def test_models_are_listed_tested_and_chosen(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OpenAIStandIn() as server:
        (place / "torana.toml").write_text(f'model = "openai-chat:old"\nmodel_base_url = "{server.url}"\n')
        assert command("models", "list") == (0, f"openai-chat:{MODEL_NAME}\n", "")
        code, out, _ = command("models", "test", f"openai-chat:{MODEL_NAME}")
        assert (code, out.startswith(f"{MODEL_NAME} answered in")) == (0, True)
        assert command("models", "use", f"openai-chat:{MODEL_NAME}")[0] == 0
    text = (place / "torana.toml").read_text()
    assert text == f'model = "openai-chat:{MODEL_NAME}"\nmodel_base_url = "{server.url}"\n'


def test_model_that_fails_is_not_chosen(command: Command, written: Path) -> None:
    code, _, err = command("models", "use", "openai:gpt-5")
    assert code == 1
    assert "OPENAI_API_KEY" in err
    assert is_unchanged(written)


@pytest.mark.parametrize("fault", ["\x01", "\n", "é"])
def test_invalid_key_is_not_in_an_error(server: OpenAIStandIn, fault: str) -> None:
    key = f"se{fault}cret"
    provider = providers.other_server(server.url)
    environ = {"DISCORD_BOT_TOKEN": key}
    calls: list[Callable[[], object]] = [
        partial(list_models, provider, key=key),
        partial(platforms.connect, Answers({}), kind="discord", options=(), environ=environ, current={}),
    ]
    for call in calls:
        with pytest.raises(ConfigInvalid, match="the key is not ASCII") as raised:
            call()
        assert "cret" not in raised.value.detail


def test_first_sender_is_not_let_in_by_enter(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Enter may have been pressed while the command waited, and the sender chooses the name."""
    stranger = platforms.FirstSender(id="666", name="Ana (telegram:1) " + "x" * 99, text="hello")

    def first_messages(_: platforms.ConnectedPlatform) -> Iterator[platforms.FirstSender | None]:
        yield from (None, stranger)

    monkeypatch.setattr(platforms, "first_messages", first_messages)
    loaded = load(flags={"data_dir": place / "data"}, environ={}, cwd=place)
    steps.approve_first_sender(
        Answers({}), platforms.ConnectedPlatform(kind="telegram", table={}, variables={}), loaded
    )
    assert "telegram:666 (Ana (telegram:1) " in capsys.readouterr().out
    assert not loaded.settings.data_dir.exists()
