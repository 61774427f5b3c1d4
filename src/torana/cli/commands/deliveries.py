"""``torana deliveries``: the replies to chat platforms."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from torana.cli.apps import new_app
from torana.cli.database import read_store
from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.remote import the_gateway
from torana.cli.tables import print_rows
from torana.cli.terminal import print_result
from torana.messages import DELIVERY_STATES, EVERYONE, DeliveryState

if TYPE_CHECKING:
    from torana.store.rows.deliveries import Delivery

app = new_app(is_group=True)

_Id = Annotated[str, typer.Argument(help="The delivery's id, such as dlv_0198….")]


def _state(text: str) -> DeliveryState:
    for state in DELIVERY_STATES:
        if text == state:
            return state
    raise typer.BadParameter(f"{text!r} is not a state; the states are {', '.join(DELIVERY_STATES)}")


@app.command("list")
def list_(
    state: Annotated[
        DeliveryState | None,
        typer.Option(parser=_state, metavar="|".join(DELIVERY_STATES), help=("Only deliveries in this state.")),
    ] = None,
    account: Annotated[str | None, typer.Option(help="Only deliveries of this account.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of deliveries.")] = 50,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List deliveries, the newest first: sent, in progress, and held for the operator."""
    from torana.api.schemas.connections import DeliveryBody
    from torana.store.rows import deliveries as rows

    settings = settings_from(config=config, data_dir=data_dir).settings
    work = partial(rows.list_deliveries, owner=EVERYONE, state=state, account=account, limit=limit)
    found = read_store(settings, work)
    if as_json:
        items = [DeliveryBody.model_validate(delivery).model_dump(mode="json") for delivery in found]
        typer.echo(json.dumps({"items": items}, indent=2))
        return
    if not found:
        typer.echo("There are no deliveries.")
        return
    print_rows(
        ("delivery", "account", "state", "tries", "created", "turn", "reason"),
        map(_row, found),
        texts=("reason",),
    )


@app.command()
def retry(
    delivery_id: _Id, config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False
) -> None:
    """Retry a held delivery. The message may then appear twice.

    A delivery is held if the platform refused it, if it was too late, or if its outcome is unknown.
    """
    _ask(delivery_id, "retry", config, data_dir, as_json=as_json)


@app.command()
def drop(
    delivery_id: _Id, config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False
) -> None:
    """Drop a delivery that is not being sent."""
    _ask(delivery_id, "drop", config, data_dir, as_json=as_json)


def _ask(delivery_id: str, what: str, config: ConfigFlag, data_dir: DataDirFlag, *, as_json: bool) -> None:
    gateway = the_gateway(settings_from(config=config, data_dir=data_dir).settings)
    path = f"/v1/deliveries/{quote(delivery_id, safe='')}/{what}"
    line, delivery = gateway.ask(
        "POST", path, read=lambda delivery: (f"{delivery_id} is {delivery['state']}", delivery)
    )
    print_result(line, delivery, as_json=as_json)


def _row(delivery: Delivery) -> tuple[str, ...]:
    return (
        delivery.id,
        delivery.account,
        delivery.state,
        str(delivery.tries),
        f"{delivery.created_at:%Y-%m-%d %H:%M}",
        delivery.turn_id or "-",
        delivery.reason or "-",
    )
