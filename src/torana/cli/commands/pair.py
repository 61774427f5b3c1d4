"""``torana pair``: the senders who may talk on chat platforms."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torana.cli.apps import new_app
from torana.cli.flags import CommonOptions
from torana.cli.remote import act_by_hand, run_by_hand, running_gateway
from torana.cli.tables import print_list
from torana.cli.terminal import on_one_line, print_result
from torana.messages import utc_now

if TYPE_CHECKING:
    from torana.api.schemas.connections import SenderBody
    from torana.config import Settings
    from torana.people.pairing import Pairing
    from torana.store.rows.senders import SenderRecord

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
    options: CommonOptions,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of senders.")] = 50,
) -> None:
    """List the senders who asked to talk, the newest first, with the operator's decision."""
    from torana.api.schemas.connections import SenderBody
    from torana.store.rows import senders as rows

    senders = options.read_store(partial(rows.list_senders, limit=limit))
    found = [SenderBody.model_validate(sender) for sender in senders]
    print_list(
        {"items": [sender.model_dump(mode="json") for sender in found]},
        ("sender", "name", "account", "state", "user", "asked"),
        map(_row, found),
        empty="No sender has asked yet. An unknown sender who writes to a connector's account directly "
        "receives a code.",
        texts=("name",),
        as_json=options.as_json,
    )
    waiting = [sender.sender for sender in found if sender.state == "pending"]
    if waiting and not options.as_json:
        typer.echo("\nThese commands approve the waiting senders:")
        for sender in waiting:
            typer.echo(on_one_line(f"  torana pair approve {quote(sender)}"))


@app.command()
def approve(
    options: CommonOptions,
    who: _Who,
    user: Annotated[
        str | None,
        typer.Option(
            help=("The user id of the sender. Several senders can share a user id. Default: the sender's id.")
        ),
    ] = None,
) -> None:
    """Approve a sender."""
    from torana.connectors.registry import sender_prefixes

    body = {"who": who} if user is None else {"who": who, "user": user}
    settings = options.settings
    kinds = sender_prefixes(settings.connectors)
    sender = _decide(
        settings,
        "approve",
        body,
        lambda pairing: pairing.approve(who, user=user, kinds=kinds, act=act_by_hand()),
    )
    line = f"{sender.sender} is approved as user {sender.user}{_unknown_sender_note(sender)}"
    print_result(line, sender.model_dump(mode="json"), as_json=options.as_json)


@app.command()
def deny(
    options: CommonOptions,
    who: _Who,
) -> None:
    """Deny a sender, or revoke an approval."""
    from torana.connectors.registry import sender_prefixes

    settings = options.settings
    kinds = sender_prefixes(settings.connectors)
    sender = _decide(
        settings, "deny", {"who": who}, lambda pairing: pairing.deny(who, kinds=kinds, act=act_by_hand())
    )
    line = f"{sender.sender} may not talk{_unknown_sender_note(sender)}"
    print_result(line, sender.model_dump(mode="json"), as_json=options.as_json)


def _unknown_sender_note(sender: SenderBody) -> str:
    """Return a note for a sender who never asked, because the id may be misspelt."""
    return "" if sender.account else "; no sender with that id has asked for a code, so check the spelling"


def _decide(
    settings: Settings,
    word: str,
    body: Mapping[str, Any],
    by_hand: Callable[[Pairing], Coroutine[Any, Any, SenderRecord]],
) -> SenderBody:
    """Return the sender after the decision. Raises ``OperatorError`` if the decision is refused."""
    from torana.api.schemas.connections import SenderBody
    from torana.people.pairing import Pairing

    gateway = running_gateway(settings)
    if gateway is not None:
        return gateway.ask("POST", f"/v1/pairing/{word}", body=body, read=SenderBody.model_validate)
    paired = run_by_hand(settings, lambda database: by_hand(Pairing(database=database, clock=utc_now)))
    return SenderBody.model_validate(paired)


def _row(sender: SenderBody) -> tuple[str, ...]:
    named = (sender.sender, sender.name or "-", sender.account or "-", sender.state, sender.user or "-")
    return *named, f"{sender.asked_at:%Y-%m-%d %H:%M}"
