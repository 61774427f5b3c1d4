"""``torana token``: create, list, rotate and revoke tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, cast, get_args
from urllib.parse import quote

import typer

from torana.cli.apps import new_app
from torana.cli.database import read_store
from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.remote import act_by_hand, own_database, running_gateway
from torana.cli.tables import print_rows
from torana.cli.terminal import on_one_line, print_result
from torana.errors import GatewayError, OperatorError
from torana.messages import DEFAULT_SCOPES, SCOPES, Scope, utc_now

if TYPE_CHECKING:
    from torana.api.schemas.people import IssuedTokenBody, TokenBody
    from torana.config import Settings
    from torana.people.tokens import Issued, Tokens

app = new_app(is_group=True)

_TokenId = Annotated[str, typer.Argument(help="The token's id, such as tok_0198….")]
#: The fields of a new token that are printed with ``--json``.
_ISSUED = ("id", "token", "user", "scopes", "expiresAt")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _scope(text: str) -> str:
    if text not in SCOPES:
        raise typer.BadParameter(f"{text!r} is not a scope; the scopes are {', '.join(get_args(Scope))}")
    return text


def _lifetime(text: str) -> timedelta | None:
    return None if text == "never" else _duration(text)


def _duration(text: str) -> timedelta:
    found = re.fullmatch(r"([0-9]{1,8})([smhd])|0", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration such as 30d, 12h, 90m or 45s")
    return timedelta(**{_UNITS[found[2]]: int(found[1])}) if found[1] else timedelta()


T = TypeVar("T", bound="TokenBody")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change(Generic[T]):
    """A change that can be made through a running gateway or directly, and the model of its result."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    by_hand: Callable[[Tokens], Coroutine[Any, Any, T]]
    model: type[T]
    #: True if the change may create the database before the gateway's first start.
    making: bool = False


@app.command()
def create(
    user: Annotated[
        str | None, typer.Option(help=("The user that the token is bound to. It acts for this user only."))
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            parser=_scope,
            metavar="|".join(get_args(Scope)),
            help=f"A scope of the token; repeat for several. Default: {', '.join(sorted(DEFAULT_SCOPES))}.",
        ),
    ] = None,
    label: Annotated[str, typer.Option(help="A description of the token's purpose.")] = "",
    expires: Annotated[
        timedelta | None,
        typer.Option(
            parser=_lifetime, metavar="30d|12h|90m|never", help=("Lifetime, such as 30d. Default: unlimited.")
        ),
    ] = None,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a token. The token is printed once, alone on standard output; its description goes to standard
    error.
    """
    from torana.api.schemas.people import IssuedTokenBody
    from torana.people.tokens import NewToken

    scopes = DEFAULT_SCOPES if scope is None else frozenset(cast("list[Scope]", scope))
    new = NewToken(user=user, scopes=scopes, label=label, lifetime=expires)

    async def by_hand(tokens: Tokens) -> IssuedTokenBody:
        return _issued_body(await tokens.create(new, act=act_by_hand()))

    body = {
        "user": user,
        "scopes": sorted(new.scopes),
        "label": label,
        "expiresIn": None if expires is None else int(expires.total_seconds()),
    }
    change = _Change(
        method="POST", path="/v1/tokens", body=body, by_hand=by_hand, model=IssuedTokenBody, making=True
    )
    settings = settings_from(config=config, data_dir=data_dir).settings
    _tell_secret(_apply_change(settings, change), as_json=as_json)


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of tokens.")] = 50,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List the tokens, the newest first, including expired and revoked ones, without their secrets."""
    from torana.api.schemas.people import TokenBody
    from torana.store.rows import tokens as rows

    settings = settings_from(config=config, data_dir=data_dir).settings
    work = partial(rows.list_tokens, before=None, limit=limit)
    now = utc_now()
    tokens = read_store(settings, work)
    found = [TokenBody.from_token(token, now) for token in tokens]
    if as_json:
        items = [token.model_dump(mode="json") for token in found]
        typer.echo(json.dumps({"items": items}, indent=2))
        return
    if not found:
        typer.echo("There are no tokens besides the gateway token.")
        return
    heads = ("token", "user", "scopes", "status", "expires", "last used", "label")
    print_rows(heads, map(_row, found), texts=("label",))


@app.command()
def rotate(
    token_id: _TokenId,
    overlap: Annotated[
        timedelta | None,
        typer.Option(
            parser=_duration,
            metavar="1h|30m|0",
            help="The time for which the old token remains valid. Default: an hour. With 0, it ends at once.",
        ),
    ] = None,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Replace a token with a new one. The new token is printed once, alone on standard output."""
    from torana.api.schemas.people import IssuedTokenBody
    from torana.people.tokens import DEFAULT_OVERLAP

    both = DEFAULT_OVERLAP if overlap is None else overlap

    async def by_hand(tokens: Tokens) -> IssuedTokenBody:
        return _issued_body(await tokens.rotate(token_id, overlap=both, act=act_by_hand()))

    change = _Change(
        method="POST",
        path=f"/v1/tokens/{quote(token_id, safe='')}/rotate",
        body={"overlap": int(both.total_seconds())},
        by_hand=by_hand,
        model=IssuedTokenBody,
    )
    settings = settings_from(config=config, data_dir=data_dir).settings
    _tell_secret(_apply_change(settings, change), as_json=as_json)


@app.command()
def revoke(
    token_id: _TokenId, config: ConfigFlag = None, data_dir: DataDirFlag = None, as_json: JsonFlag = False
) -> None:
    """Revoke a token. The next request with it is refused."""
    from torana.api.schemas.people import TokenBody

    async def by_hand(tokens: Tokens) -> TokenBody:
        return TokenBody.from_token(await tokens.revoke(token_id, act=act_by_hand()), utc_now())

    path = f"/v1/tokens/{quote(token_id, safe='')}"
    settings = settings_from(config=config, data_dir=data_dir).settings
    revoked = _apply_change(settings, _Change(method="DELETE", path=path, by_hand=by_hand, model=TokenBody))
    print_result(f"{revoked.id} is {revoked.status}", revoked.model_dump(mode="json"), as_json=as_json)


def _issued_body(issued: Issued) -> IssuedTokenBody:
    from torana.api.schemas.people import IssuedTokenBody

    return IssuedTokenBody.from_token(issued.token, utc_now(), token=issued.secret)


def _apply_change(settings: Settings, change: _Change[T]) -> T:
    import asyncio

    from torana.people.tokens import Tokens

    gateway = running_gateway(settings)
    if gateway is not None:
        return gateway.ask(change.method, change.path, body=change.body, read=change.model.model_validate)
    with own_database(settings, making=change.making) as database:
        try:
            return asyncio.run(change.by_hand(Tokens(database=database)))
        except GatewayError as error:
            raise OperatorError(error.detail) from error


def _tell_secret(made: IssuedTokenBody, *, as_json: bool) -> None:
    if as_json:
        document = made.model_dump(mode="json")
        typer.echo(json.dumps({name: document[name] for name in _ISSUED}, indent=2))
        return
    bound = "bound to no user" if made.user is None else f"bound to {made.user}"
    until = "never expires" if made.expires_at is None else f"expires at {made.expires_at.isoformat()}"
    typer.echo(on_one_line(f"{made.id}, {bound}, {until}: {', '.join(made.scopes)}"), err=True)
    typer.echo("Save the token now; it is not shown again:", err=True)
    typer.echo(made.token)


def _row(token: TokenBody) -> tuple[str, ...]:
    expires, used = (f"{at:%Y-%m-%d %H:%M}" if at else "-" for at in (token.expires_at, token.used_at))
    return (
        token.id,
        token.user or "-",
        ", ".join(token.scopes),
        token.status,
        expires,
        used,
        token.label or "-",
    )
