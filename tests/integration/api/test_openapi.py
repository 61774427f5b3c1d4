"""The OpenAPI document is complete and correct: generated requests get only documented responses."""

import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.standins.addresses import ManyAddresses

from torana.app import App, build
from torana.cli.gateway import Gateway, listen
from torana.config import Loaded, load
from torana.testing import ScriptedModel

TOKEN = "a-token-of-more-than-sixteen-characters"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def build_obliging(loaded: Loaded, *, started: float) -> App:
    """Build a gateway whose model always answers, and which does not delay requests with wrong tokens."""
    app = build(loaded, started=started, model=ScriptedModel(*["yes"] * 10_000))
    return replace(app, asgi=ManyAddresses(app.asgi))


@contextmanager
def serving(directory: Path) -> Generator[str]:
    """The address of a gateway with a token and without limits."""
    environ = {
        "TORANA_DATA_DIR": str(directory),
        "TORANA_GATEWAY_TOKEN": TOKEN,
        "TORANA_RATE_PER_USER": "0",
        "TORANA_RATE_GLOBAL": "0",
    }
    ready = threading.Event()
    loaded = load(flags={}, environ=environ, cwd=directory, user_dir=directory)
    gateway = Gateway(loaded=loaded, on_ready=ready.set, build=build_obliging)
    listener = listen("127.0.0.1", 0)
    thread = threading.Thread(target=gateway.run, args=(listener,))
    thread.start()
    ready.wait()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    gateway.stop()
    thread.join()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with serving(tmp_path_factory.mktemp("data")) as address:
        yield address


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--phases=fuzzing", "--max-examples=1"], id="a request for each operation"),
        pytest.param([], id="all phases", marks=pytest.mark.long),
    ],
)
def test_every_response_matches_openapi_document(address: str, tmp_path: Path, options: list[str]):
    tool = Path(sys.executable).with_name("schemathesis")
    config = Path(__file__).with_name("schemathesis.toml")
    header = f"--header=Authorization: Bearer {TOKEN}"
    ended = subprocess.run(
        [tool, "--no-color", f"--config-file={config}", "run", f"{address}/openapi.json", header, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_openapi_document_is_valid(address: str):
    import schemathesis  # takes a second

    schema = schemathesis.openapi.from_url(f"{address}/openapi.json", headers=BEARER)
    schema.validate()
    assert schema.raw_schema["openapi"].startswith("3.1")
