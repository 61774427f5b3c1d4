"""``torana skills``: list, show, install and approve skills."""

import typer

from torana.cli.commands.skills import changing, listing

app = typer.Typer(help="List, show, install and approve skills.", no_args_is_help=True)

app.command("list")(listing.list_)
app.command()(listing.show)
app.command()(changing.install)
app.command()(changing.approve)
app.command()(changing.enable)
app.command()(changing.disable)
app.command()(changing.update)
app.command()(changing.remove)
