"""``torana chat``: chat in the terminal, over the HTTP API.

The modules of the chat are imported when it begins, so that the help page appears quickly.
"""

from __future__ import annotations

from typing import Annotated

import typer

from torana.cli.apps import new_app
from torana.cli.flags import CHAT_VARIABLE, ConfigFlag, DataDirFlag, TokenEnvFlag, UrlFlag, check_one_gateway

app = new_app()


@app.command()
def chat(
    message: Annotated[
        list[str] | None,
        typer.Argument(
            help="Send this message, print the reply, and exit. With -, read it from standard input."
        ),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option("--file", "-f", help="A file to attach to the message; repeat for several files."),
    ] = None,
    channel: Annotated[
        str | None, typer.Option(help="The channel to continue. Default: the user's own channel.")
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(help="The user id. Default: your name on this machine; with --url, the token's user."),
    ] = None,
    url: UrlFlag = None,
    token_env: TokenEnvFlag = CHAT_VARIABLE,
    history: Annotated[
        bool, typer.Option(help="Save typed messages, and offer them again in later chats.")
    ] = True,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Chat with the agent through the running gateway, a temporary gateway or a remote gateway.

    The exit code is 0 if every message received a complete reply, 1 if not, and 2 for a wrong option.
    """
    from torana.cli.chat.attachments import read_file
    from torana.cli.chat.command import ChatCommand

    check_one_gateway(url, config=config, data_dir=data_dir)
    if file and not message:
        raise typer.BadParameter("--file needs a message: torana chat --file cat.png what is this?")
    command = ChatCommand(
        message=message or [],
        files=[read_file(path) for path in file or ()],
        channel=channel,
        user=user,
        keeps_history=history,
    )
    answered = (
        command.run_locally(config=config, data_dir=data_dir)
        if url is None
        else command.run_remotely(url, variable=token_env)
    )
    if not answered:
        raise typer.Exit(1)
