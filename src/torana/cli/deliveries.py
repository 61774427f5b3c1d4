"""``torana deliveries``: what is to be said on chat platforms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

import typer

from torana.api.connections import delivery_body
from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.remote import the_gateway
from torana.cli.terminal import on_one_line, print_rows
from torana.messages import EVERYONE
from torana.store import deliveries as rows
from torana.store.backup import DATABASE_NAME
from torana.store.deliveries import DELIVERY_STATES, DeliveryState
from torana.store.reading import read_database

app = typer.Typer(help="List, try again and drop deliveries to chat platforms.", no_args_is_help=True)

_Id = Annotated[str, typer.Argument(help="The delivery's id, such as dlv_0198….")]


def _state(text: str) -> DeliveryState:
    for state in DELIVERY_STATES:
        if text == state:
            return state
    raise typer.BadParameter(f"{text!r} is none of {', '.join(DELIVERY_STATES)}")


@app.command("list")
def list_(
    state: Annotated[
        DeliveryState | None,
        typer.Option(parser=_state, metavar="|".join(DELIVERY_STATES), help="Only those in this state."),
    ] = None,
    account: Annotated[str | None, typer.Option(help="Only those of this account.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List deliveries, the newest first: sent, under way, and those that wait for you."""
    settings = settings_from(config=config, data_dir=data_dir).settings
    work = partial(rows.listed, owner=EVERYONE, state=state, account=account, limit=limit)
    found = [delivery_body(delivery) for delivery in read_database(settings.data_dir / DATABASE_NAME, work)]
    if as_json:
        typer.echo(json.dumps({"items": found}, indent=2))
        return
    if not found:
        typer.echo("There are none.")
        return
    print_rows(("delivery", "account", "state", "tries", "created", "turn", "reason"), map(_row, found))


@app.command()
def retry(delivery_id: _Id, config: ConfigFlag = None, data_dir: DataDirFlag = None) -> None:
    """Try one again that was refused, came too late, or may have arrived; it may be shown twice then."""
    _ask(delivery_id, "retry", config, data_dir)


@app.command()
def drop(delivery_id: _Id, config: ConfigFlag = None, data_dir: DataDirFlag = None) -> None:
    """Give one up that is not being sent at this moment."""
    _ask(delivery_id, "drop", config, data_dir)


def _ask(delivery_id: str, what: str, config: ConfigFlag, data_dir: DataDirFlag) -> None:
    gateway = the_gateway(settings_from(config=config, data_dir=data_dir).settings)
    path = f"/v1/deliveries/{quote(delivery_id, safe='')}/{what}"
    state = gateway.ask("POST", path, read=lambda document: str(document["state"]))
    typer.echo(on_one_line(f"{delivery_id} is {state}"))


def _row(delivery: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        delivery["id"],
        delivery["account"],
        delivery["state"],
        str(delivery["tries"]),
        delivery["createdAt"][:16].replace("T", " "),
        delivery["turnId"] or "-",
        delivery["reason"] or "-",
    )
