"""``torana pair``: who may talk on chat platforms."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any

import typer

from torana.api.connections import sender_body
from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.remote import act_by_hand, own_database, running_gateway
from torana.cli.terminal import on_one_line, print_rows
from torana.config import Settings
from torana.connectors.registry import kinds_of_people
from torana.errors import GatewayError, OperatorError
from torana.messages import utc_now
from torana.people.pairing import Pairing
from torana.store import senders as rows
from torana.store.backup import DATABASE_NAME
from torana.store.reading import read_database
from torana.store.senders import Paired

app = typer.Typer(help="List, let in and turn away who asks to talk on chat platforms.", no_args_is_help=True)

_Who = Annotated[str, typer.Argument(help="The code that they got, or an id such as telegram:12345.")]


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List who asked, the newest first, and the operator's word on them."""
    settings = settings_from(config=config, data_dir=data_dir).settings
    work = partial(rows.listed, state=None, limit=limit)
    found = [sender_body(paired) for paired in read_database(settings.data_dir / DATABASE_NAME, work)]
    if as_json:
        typer.echo(json.dumps({"items": found}, indent=2))
        return
    if not found:
        typer.echo("Nobody asked yet. A stranger who writes to a connector's account directly gets a code.")
        return
    print_rows(("sender", "name", "account", "state", "user", "asked"), map(_row, found))


@app.command()
def approve(
    who: _Who,
    user: Annotated[
        str | None, typer.Option(help="Who they are here; several ids may be one user. Default: their id.")
    ] = None,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Let somebody talk."""
    body = {"who": who} if user is None else {"who": who, "user": user}
    settings = settings_from(config=config, data_dir=data_dir).settings
    kinds = kinds_of_people(settings.connectors)
    paired = _decided(
        settings,
        "approve",
        body,
        lambda pairing: pairing.approve(who, user=user, kinds=kinds, act=act_by_hand()),
    )
    typer.echo(on_one_line(f"{paired['sender']} may talk, as {paired['user']}{_unasked(paired)}"))


@app.command()
def deny(who: _Who, config: ConfigFlag = None, data_dir: DataDirFlag = None) -> None:
    """Let somebody not talk, or not any more."""
    settings = settings_from(config=config, data_dir=data_dir).settings
    kinds = kinds_of_people(settings.connectors)
    paired = _decided(
        settings, "deny", {"who": who}, lambda pairing: pairing.deny(who, kinds=kinds, act=act_by_hand())
    )
    typer.echo(on_one_line(f"{paired['sender']} may not talk{_unasked(paired)}"))


def _unasked(paired: Mapping[str, Any]) -> str:
    """The end of a line about somebody whom only the operator named: a slip would go unnoticed."""
    return "" if paired["account"] else "; nobody of that id has asked for a code, so check the spelling"


def _decided(
    settings: Settings,
    word: str,
    body: Mapping[str, Any],
    by_hand: Callable[[Pairing], Awaitable[Paired]],
) -> Mapping[str, Any]:
    """The sender after the operator's word. Raises ``OperatorError`` where it is refused."""

    def chosen(document: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: document[name] for name in ("sender", "user", "account")}

    gateway = running_gateway(settings)
    if gateway is not None:
        return gateway.ask("POST", f"/v1/pairing/{word}", body=body, read=chosen)
    with own_database(settings) as database:
        try:

            async def decide() -> Paired:
                return await by_hand(Pairing(database=database, clock=utc_now))

            return chosen(sender_body(asyncio.run(decide())))
        except GatewayError as error:
            raise OperatorError(error.detail) from error


def _row(sender: Mapping[str, Any]) -> tuple[str, ...]:
    named = (sender[name] or "-" for name in ("sender", "name", "account", "state", "user"))
    return *named, sender["askedAt"][:16].replace("T", " ")
