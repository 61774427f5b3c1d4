"""``torana setup``: choose a model, connect a chat platform, and write the settings."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from typing import Annotated

import typer

from torana.cli.apps import new_app
from torana.cli.flags import ConfigFlag, JsonFlag
from torana.errors import OperatorError

app = new_app()


@dataclass(frozen=True, kw_only=True)
class SetupOptions:
    """The options of ``torana setup``; None where the operator is asked."""

    provider: Annotated[
        str | None,
        typer.Option(
            help="The provider of the model: ollama, lm-studio, llama.cpp, vllm, openai, anthropic, google, "
            "openrouter, groq, deepseek, other or builtin."
        ),
    ] = None
    model: Annotated[str | None, typer.Option(help="The model, by the provider's name for it.")] = None
    base_url: Annotated[
        str | None, typer.Option(help="The base URL of a Chat Completions API. Only for the provider other.")
    ] = None
    key_from_input: Annotated[
        bool, typer.Option("--key-stdin", help="Read the provider's key from standard input.")
    ] = False
    token: Annotated[
        bool | None, typer.Option("--token/--no-token", help="Require a token for HTTP requests.")
    ] = None
    platform: Annotated[
        str | None, typer.Option(help="The chat platform to connect, such as telegram, or none.")
    ] = None
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            help="A setting of the chat platform, as NAME=VALUE; repeat for several. Do not give secrets here.",
        ),
    ] = None
    service: Annotated[
        bool | None, typer.Option("--service/--no-service", help="Install the gateway as a service.")
    ] = None
    defaults: Annotated[
        bool, typer.Option("--yes", "-y", help="Use the default answer if no option answers a question.")
    ] = False
    config: ConfigFlag = None
    #: Standard output is for one document: programs of the system must not write to it.
    as_json: JsonFlag = False


@app.command()
def setup(options: SetupOptions) -> None:
    """Choose a language model, connect a chat platform, and write .env and torana.toml.

    Each question can be answered with an option. Secrets are read from their variables, such as
    OPENAI_API_KEY or TELEGRAM_BOT_TOKEN, from standard input, or from a hidden prompt. Nothing
    is written before all checks have passed and you have seen the changes. Run the command again at any time.
    """
    # Imported here so that the help of the command is printed at once.
    from torana.cli.commands.setup.steps import run_setup

    try:
        # With --json, standard output has the result only.
        with redirect_stdout(sys.stderr) if options.as_json else nullcontext():
            result = run_setup(options)
    except (typer.Abort, KeyboardInterrupt):
        raise OperatorError("\nstopped; `torana setup` starts again, and keeps what is written") from None
    if options.as_json:
        typer.echo(json.dumps(result, indent=2))
