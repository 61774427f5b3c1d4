"""``torana token``: who else may reach the gateway."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, cast, get_args
from urllib.parse import quote

import typer

from torana.api.tokens import issued_body, token_body
from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.remote import act_by_hand, own_database, running_gateway
from torana.cli.terminal import on_one_line, print_rows
from torana.config import Settings
from torana.errors import GatewayError, OperatorError
from torana.messages import SCOPES, Scope, utc_now
from torana.people.tokens import DEFAULT_OVERLAP, DEFAULT_SCOPES, NewToken, Tokens
from torana.store import tokens as rows
from torana.store.backup import DATABASE_NAME
from torana.store.reading import read_database

app = typer.Typer(help="Make, list, rotate and revoke tokens.", no_args_is_help=True)

_TokenId = Annotated[str, typer.Argument(help="The token's id, such as tok_0198….")]
#: What is told of a token that was made.
_ISSUED = ("id", "token", "user", "scopes", "expiresAt")
#: What the list shows of a token besides its id, and the heads of the columns.
_SHOWN = {
    "user": "user",
    "scopes": "scopes",
    "status": "status",
    "expiresAt": "expires",
    "usedAt": "last used",
    "label": "label",
}
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _scope(text: str) -> str:
    if text not in SCOPES:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(get_args(Scope))}")
    return text


def _lifetime(text: str) -> timedelta | None:
    return None if text == "never" else _duration(text)


def _duration(text: str) -> timedelta:
    found = re.fullmatch(r"([0-9]{1,8})([smhd])|0", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no time such as 30d, 12h, 90m or 45s")
    return timedelta(**{_UNITS[found[2]]: int(found[1])}) if found[1] else timedelta()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """One change, in the two ways it can be made: by a running gateway's HTTP, or on the tokens themselves."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    by_hand: Callable[[Tokens], Coroutine[Any, Any, Mapping[str, Any]]]
    #: Whether it may come before the first start of the gateway.
    making: bool = False


@app.command()
def create(
    user: Annotated[
        str | None, typer.Option(help="Whom the token is bound to: it speaks for this user alone.")
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            parser=_scope,
            metavar="|".join(get_args(Scope)),
            help=f"What it may do; give it once for each. Default: {', '.join(sorted(DEFAULT_SCOPES))}.",
        ),
    ] = None,
    label: Annotated[str, typer.Option(help="What it is for.")] = "",
    expires: Annotated[
        timedelta | None,
        typer.Option(parser=_lifetime, metavar="30d|12h|90m|never", help="When it expires; never by default."),
    ] = None,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a token. It is printed this once, alone on standard output; what it is, on standard error."""
    scopes = DEFAULT_SCOPES if scope is None else frozenset(cast("list[Scope]", scope))
    new = NewToken(user=user, scopes=scopes, label=label, lifetime=expires)

    async def by_hand(tokens: Tokens) -> Mapping[str, Any]:
        return issued_body(await tokens.create(new, act=act_by_hand()), utc_now())

    body = {
        "user": user,
        "scopes": sorted(new.scopes),
        "label": label,
        "expiresIn": None if expires is None else int(expires.total_seconds()),
    }
    change = _Change(method="POST", path="/v1/tokens", body=body, by_hand=by_hand, making=True)
    settings = settings_from(config=config, data_dir=data_dir).settings
    _tell_secret(_made(settings, change, _ISSUED), as_json=as_json)


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List the tokens, the newest first, also those that have ended; never their secrets."""
    settings = settings_from(config=config, data_dir=data_dir).settings
    work = partial(rows.listed, before=None, limit=limit)
    now = utc_now()
    found = [token_body(token, now) for token in read_database(settings.data_dir / DATABASE_NAME, work)]
    if as_json:
        typer.echo(json.dumps({"items": found}, indent=2))
        return
    if not found:
        typer.echo("There are no tokens but the gateway's own.")
        return
    print_rows(("token", *_SHOWN.values()), map(_row, found))


@app.command()
def rotate(
    token_id: _TokenId,
    overlap: Annotated[
        timedelta | None,
        typer.Option(
            parser=_duration,
            metavar="1h|30m|0",
            help="How long the old one is still taken, an hour by default; 0 ends it at once.",
        ),
    ] = None,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a token in the place of another one. Printed like that of `create`."""
    both = DEFAULT_OVERLAP if overlap is None else overlap

    async def by_hand(tokens: Tokens) -> Mapping[str, Any]:
        return issued_body(await tokens.rotate(token_id, overlap=both, act=act_by_hand()), utc_now())

    change = _Change(
        method="POST",
        path=f"/v1/tokens/{quote(token_id, safe='')}/rotate",
        body={"overlap": int(both.total_seconds())},
        by_hand=by_hand,
    )
    settings = settings_from(config=config, data_dir=data_dir).settings
    _tell_secret(_made(settings, change, _ISSUED), as_json=as_json)


@app.command()
def revoke(token_id: _TokenId, config: ConfigFlag = None, data_dir: DataDirFlag = None) -> None:
    """Revoke a token: from the next request on it is not taken."""

    async def by_hand(tokens: Tokens) -> Mapping[str, Any]:
        return token_body(await tokens.revoke(token_id, act=act_by_hand()), utc_now())

    change = _Change(method="DELETE", path=f"/v1/tokens/{quote(token_id, safe='')}", by_hand=by_hand)
    settings = settings_from(config=config, data_dir=data_dir).settings
    revoked = _made(settings, change, ("id", "status"))
    typer.echo(f"{revoked['id']} is {revoked['status']}")


def _made(settings: Settings, change: _Change, fields: Sequence[str]) -> Mapping[str, Any]:
    """What the change leaves, by these fields. Raises ``OperatorError`` where it is refused."""

    def chosen(body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: body[name] for name in fields}

    gateway = running_gateway(settings)
    if gateway is not None:
        return gateway.ask(change.method, change.path, body=change.body, read=chosen)
    with own_database(settings, making=change.making) as database:
        try:
            return chosen(asyncio.run(change.by_hand(Tokens(database=database))))
        except GatewayError as error:
            raise OperatorError(error.detail) from error


def _tell_secret(made: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(made, indent=2))
        return
    bound = "bound to nobody" if made["user"] is None else f"bound to {made['user']}"
    until = "never expires" if made["expiresAt"] is None else f"expires at {made['expiresAt']}"
    typer.echo(on_one_line(f"{made['id']}, {bound}, {until}: {', '.join(made['scopes'])}"), err=True)
    typer.echo("Keep it now, it is not shown again:", err=True)
    typer.echo(made["token"])


def _row(token: Mapping[str, Any]) -> tuple[str, ...]:
    told = {**token, "scopes": ", ".join(token["scopes"])}
    for name in ("expiresAt", "usedAt"):
        told[name] = token[name] and token[name][:16].replace("T", " ")
    return token["id"], *(told[name] or "-" for name in _SHOWN)
