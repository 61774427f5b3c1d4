"""``torana skills``: what the agent can do, what of it is broken, and what else is to be installed."""

import typer

from torana.cli.skills import changing, listing

app = typer.Typer(help="List, show, install and approve skills.", no_args_is_help=True)

app.command("list")(listing.list_)
app.command()(listing.show)
app.command()(changing.install)
app.command()(changing.approve)
app.command()(changing.enable)
app.command()(changing.disable)
app.command()(changing.update)
app.command()(changing.remove)
