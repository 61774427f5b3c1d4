"""``torana token``: create, list, rotate and revoke tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args
from urllib.parse import quote

import typer

from torana.cli.apps import new_app
from torana.cli.flags import CommonOptions
from torana.cli.remote import act_by_hand, run_by_hand, running_gateway
from torana.cli.tables import print_list
from torana.cli.terminal import on_one_line, print_result
from torana.messages import DEFAULT_SCOPES, SCOPES, Scope

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


@app.command()
def create(
    options: CommonOptions,
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
) -> None:
    """Create a token. The token is printed once, alone on standard output; its description goes to standard
    error.
    """
    from torana.people.tokens import NewToken

    scopes = DEFAULT_SCOPES if scope is None else frozenset(cast("list[Scope]", scope))
    new = NewToken(user=user, scopes=scopes, label=label, lifetime=expires)
    body = {
        "user": user,
        "scopes": sorted(new.scopes),
        "label": label,
        "expiresIn": None if expires is None else int(expires.total_seconds()),
    }
    # The token may be needed before the first start of the gateway, which creates the database.
    issued = _issue(
        options.settings,
        "/v1/tokens",
        body,
        lambda tokens: tokens.create(new, act=act_by_hand()),
        making=True,
    )
    _tell_secret(issued, as_json=options.as_json)


@app.command("list")
def list_(
    options: CommonOptions,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of tokens.")] = 50,
) -> None:
    """List the tokens, the newest first, including expired and revoked ones, without their secrets."""
    from torana.api.schemas.people import TokenBody
    from torana.store.rows import tokens as rows

    tokens = options.read_store(partial(rows.list_tokens, before=None, limit=limit))
    found = [TokenBody.from_token(token) for token in tokens]
    print_list(
        {"items": [token.model_dump(mode="json") for token in found]},
        ("token", "user", "scopes", "status", "expires", "last used", "label"),
        map(_row, found),
        empty="There are no tokens besides the gateway token.",
        texts=("label",),
        as_json=options.as_json,
    )


@app.command()
def rotate(
    options: CommonOptions,
    token_id: _TokenId,
    overlap: Annotated[
        timedelta | None,
        typer.Option(
            parser=_duration,
            metavar="1h|30m|0",
            help="The time for which the old token remains valid. Default: an hour. With 0, it ends at once.",
        ),
    ] = None,
) -> None:
    """Replace a token with a new one. The new token is printed once, alone on standard output."""
    from torana.people.tokens import DEFAULT_OVERLAP

    both = DEFAULT_OVERLAP if overlap is None else overlap
    issued = _issue(
        options.settings,
        f"/v1/tokens/{quote(token_id, safe='')}/rotate",
        {"overlap": int(both.total_seconds())},
        lambda tokens: tokens.rotate(token_id, overlap=both, act=act_by_hand()),
    )
    _tell_secret(issued, as_json=options.as_json)


@app.command()
def revoke(
    options: CommonOptions,
    token_id: _TokenId,
) -> None:
    """Revoke a token. The next request with it is refused."""
    from torana.api.schemas.people import TokenBody
    from torana.people.tokens import Tokens

    settings = options.settings
    if gateway := running_gateway(settings):
        path = f"/v1/tokens/{quote(token_id, safe='')}"
        revoked = gateway.ask("DELETE", path, read=TokenBody.model_validate)
    else:
        token = run_by_hand(
            settings, lambda database: Tokens(database=database).revoke(token_id, act=act_by_hand())
        )
        revoked = TokenBody.from_token(token)
    print_result(f"{revoked.id} is {revoked.status}", revoked.model_dump(mode="json"), as_json=options.as_json)


def _issue(
    settings: Settings,
    path: str,
    body: Mapping[str, Any],
    by_hand: Callable[[Tokens], Coroutine[Any, Any, Issued]],
    *,
    making: bool = False,
) -> IssuedTokenBody:
    """Return a new token, made by the running gateway or by hand. Raises ``OperatorError``."""
    from torana.api.schemas.people import IssuedTokenBody
    from torana.people.tokens import Tokens

    if gateway := running_gateway(settings):
        return gateway.ask("POST", path, body=body, read=IssuedTokenBody.model_validate)
    issued = run_by_hand(settings, lambda database: by_hand(Tokens(database=database)), making=making)
    return IssuedTokenBody.from_token(issued.token, token=issued.secret)


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
