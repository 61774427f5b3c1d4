"""``torana deliveries``: the replies to chat platforms."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from torana.cli.apps import new_app
from torana.cli.flags import CommonOptions
from torana.cli.tables import print_list
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
    options: CommonOptions,
    state: Annotated[
        DeliveryState | None,
        typer.Option(parser=_state, metavar="|".join(DELIVERY_STATES), help=("Only deliveries in this state.")),
    ] = None,
    account: Annotated[str | None, typer.Option(help="Only deliveries of this account.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of deliveries.")] = 50,
) -> None:
    """List deliveries, the newest first: sent, in progress, and held for the operator."""
    from torana.api.schemas.connections import DeliveryBody
    from torana.store.rows import deliveries as rows

    work = partial(rows.list_deliveries, owner=EVERYONE, state=state, account=account, limit=limit)
    found = options.read_store(work)
    items = [DeliveryBody.model_validate(delivery).model_dump(mode="json") for delivery in found]
    heads = ("delivery", "account", "state", "tries", "created", "turn", "reason")
    empty = "There are no deliveries."
    print_list(
        {"items": items}, heads, map(_row, found), empty=empty, texts=("reason",), as_json=options.as_json
    )


@app.command()
def retry(
    options: CommonOptions,
    delivery_id: _Id,
) -> None:
    """Retry a held delivery. The message may then appear twice.

    A delivery is held if the platform refused it, if it was too late, or if its outcome is unknown.
    """
    _ask(delivery_id, "retry", options)


@app.command()
def drop(
    options: CommonOptions,
    delivery_id: _Id,
) -> None:
    """Drop a delivery that is not being sent."""
    _ask(delivery_id, "drop", options)


def _ask(delivery_id: str, what: str, options: CommonOptions) -> None:
    path = f"/v1/deliveries/{quote(delivery_id, safe='')}/{what}"
    line, delivery = options.gateway().ask(
        "POST", path, read=lambda delivery: (f"{delivery_id} is {delivery['state']}", delivery)
    )
    print_result(line, delivery, as_json=options.as_json)


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
