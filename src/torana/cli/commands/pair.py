"""``torana pair``: the senders who may talk on chat platforms."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torana.cli.apps import new_app
from torana.cli.database import read_store
from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.remote import act_by_hand, own_database, running_gateway
from torana.cli.tables import print_rows
from torana.cli.terminal import on_one_line, print_result
from torana.errors import GatewayError, OperatorError
from torana.messages import utc_now

if TYPE_CHECKING:
    from torana.api.schemas.connections import SenderBody
    from torana.config import Settings
    from torana.people.pairing import Pairing
    from torana.store.rows.senders import Paired

app = new_app(is_group=True)

_Who = Annotated[
    str,
    typer.Argument(
        metavar="code_or_id",
        help="The code that the sender received, or the sender's id, such as telegram:12345.",
    ),
]


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of senders.")] = 50,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List the senders who asked to talk, the newest first, with the operator's decision."""
    from torana.api.schemas.connections import SenderBody
    from torana.store.rows import senders as rows

    settings = settings_from(config=config, data_dir=data_dir).settings
    work = partial(rows.list_senders, state=None, limit=limit)
    found = [SenderBody.from_paired(sender) for sender in read_store(settings, work)]
    if as_json:
        items = [sender.model_dump(mode="json") for sender in found]
        typer.echo(json.dumps({"items": items}, indent=2))
        return
    if not found:
        typer.echo(
            "No sender has asked yet. An unknown sender who writes to a connector's account "
            "directly receives a code."
        )
        return
    print_rows(("sender", "name", "account", "state", "user", "asked"), map(_row, found), texts=("name",))
    if waiting := [sender.sender for sender in found if sender.state == "pending"]:
        typer.echo("\nThese commands approve the waiting senders:")
        for sender in waiting:
            typer.echo(on_one_line(f"  torana pair approve {quote(sender)}"))


@app.command()
def approve(
    who: _Who,
    user: Annotated[
        str | None,
        typer.Option(
            help=("The user id of the sender. Several senders can share a user id. Default: the sender's id.")
        ),
    ] = None,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Approve a sender."""
    from torana.connectors.registry import sender_prefixes

    body = {"who": who} if user is None else {"who": who, "user": user}
    settings = settings_from(config=config, data_dir=data_dir).settings
    kinds = sender_prefixes(settings.connectors)
    sender = _decide(
        settings,
        "approve",
        body,
        lambda pairing: pairing.approve(who, user=user, kinds=kinds, act=act_by_hand()),
    )
    line = f"{sender.sender} is approved as user {sender.user}{_unknown_sender_note(sender)}"
    print_result(line, sender.model_dump(mode="json"), as_json=as_json)


@app.command()
def deny(who: _Who, config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False) -> None:
    """Deny a sender, or revoke an approval."""
    from torana.connectors.registry import sender_prefixes

    settings = settings_from(config=config, data_dir=data_dir).settings
    kinds = sender_prefixes(settings.connectors)
    sender = _decide(
        settings, "deny", {"who": who}, lambda pairing: pairing.deny(who, kinds=kinds, act=act_by_hand())
    )
    line = f"{sender.sender} may not talk{_unknown_sender_note(sender)}"
    print_result(line, sender.model_dump(mode="json"), as_json=as_json)


def _unknown_sender_note(sender: SenderBody) -> str:
    """Return a note for a sender who never asked, because the id may be misspelt."""
    return "" if sender.account else "; no sender with that id has asked for a code, so check the spelling"


def _decide(
    settings: Settings,
    word: str,
    body: Mapping[str, Any],
    by_hand: Callable[[Pairing], Awaitable[Paired]],
) -> SenderBody:
    """Return the sender after the decision. Raises ``OperatorError`` if the decision is refused."""
    import asyncio

    from torana.api.schemas.connections import SenderBody
    from torana.people.pairing import Pairing

    gateway = running_gateway(settings)
    if gateway is not None:
        return gateway.ask("POST", f"/v1/pairing/{word}", body=body, read=SenderBody.model_validate)
    with own_database(settings) as database:
        try:

            async def decide() -> Paired:
                return await by_hand(Pairing(database=database, clock=utc_now))

            return SenderBody.from_paired(asyncio.run(decide()))
        except GatewayError as error:
            raise OperatorError(error.detail) from error


def _row(sender: SenderBody) -> tuple[str, ...]:
    named = (sender.sender, sender.name or "-", sender.account or "-", sender.state, sender.user or "-")
    return *named, f"{sender.asked_at:%Y-%m-%d %H:%M}"
