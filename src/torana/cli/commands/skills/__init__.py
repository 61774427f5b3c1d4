"""``torana skills``: list, show, install and approve skills."""

from torana.cli.apps import new_app
from torana.cli.commands.skills import changing, listing

app = new_app(is_group=True)

app.command("list")(listing.list_)
app.command()(listing.show)
app.command()(changing.install)
app.command()(changing.approve)
app.command()(changing.enable)
app.command()(changing.disable)
app.command()(changing.update)
app.command()(changing.remove)
