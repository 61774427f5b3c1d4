"""``torana chat``: chat in the terminal, over the HTTP API.

The modules of the chat are imported when it begins, so that the help page appears quickly.
"""

from __future__ import annotations

from typing import Annotated

import typer

from torana.cli.apps import new_app
from torana.cli.flags import ConfigFlag, DataDirFlag

app = new_app()

_VARIABLE = "TORANA_CHAT_TOKEN"


@app.command()
def chat(
    message: Annotated[
        list[str] | None,
        typer.Argument(help="Send this message, print the answer, and exit; - reads it from standard input."),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option("--file", "-f", help="Attach this file to the message; repeat for several."),
    ] = None,
    channel: Annotated[
        str | None, typer.Option(help="The channel to continue. Default: the user's own channel.")
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(help="The user id. Default: your name on this machine; with --url, the token's user."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Chat with this gateway, such as https://torana.example.org.")
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(
            help="With --url: the environment variable that contains the token. Default: TORANA_CHAT_TOKEN; if "
            "it is not set, the command asks for a required token."
        ),
    ] = None,
    history: Annotated[bool, typer.Option(help="Keep the messages that you type for the next chat.")] = True,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Chat with the agent, through the running gateway, a temporary one or a remote one.

    The exit code is 0 if all messages were answered, 1 if one was not, and 2 for a wrong option.
    """
    from torana.cli.chat.attachments import read_file
    from torana.cli.chat.command import ChatCommand

    if url is not None and (config is not None or data_dir is not None):
        raise typer.BadParameter("--url cannot be combined with --config and --data-dir")
    if file and not message:
        raise typer.BadParameter("--file needs a message: torana chat --file cat.png what is this?")
    talk = ChatCommand(
        message=message or [],
        files=[read_file(path) for path in file or ()],
        channel=channel,
        user=user,
        keeps_history=history,
    )
    answered = (
        talk.run_locally(config=config, data_dir=data_dir)
        if url is None
        else talk.run_remotely(url, variable=token_env or _VARIABLE)
    )
    if not answered:
        raise typer.Exit(1)
