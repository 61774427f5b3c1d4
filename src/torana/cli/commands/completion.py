"""``torana completion``: the completion scripts of shells."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from typer.completion import show_callback

from torana.cli.apps import new_app

app = new_app()


@app.command()
def completion(
    ctx: typer.Context,
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell that loads the script.")],
) -> None:
    """Print the completion script of a shell.

    Load the script in the startup file of the shell. For bash, add `source <(torana completion bash)` to
    ~/.bashrc. For zsh, add `source <(torana completion zsh)` to ~/.zshrc, after `compinit`. For fish, add
    `torana completion fish | source` to ~/.config/fish/config.fish.
    """
    show_callback(ctx, ctx.command.params[0], shell)
