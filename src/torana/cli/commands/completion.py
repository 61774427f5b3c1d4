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

    Load the script in the startup file of the shell:
    in ~/.bashrc `source <(torana completion bash)`,
    in ~/.zshrc, after `compinit`, `source <(torana completion zsh)`,
    in ~/.config/fish/config.fish `torana completion fish | source`.
    """
    show_callback(ctx, ctx.command.params[0], shell)
