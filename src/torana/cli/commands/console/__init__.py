"""``torana console``: open the gateway's page in the browser, and sign in with a one-time code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from torana.cli.apps import new_app
from torana.cli.flags import (
    CHAT_VARIABLE,
    ConfigFlag,
    DataDirFlag,
    TokenEnvFlag,
    UrlFlag,
    check_one_gateway,
    settings_from,
)
from torana.messages import SCOPES, Scope

if TYPE_CHECKING:
    from torana.cli.remote import RunningGateway

app = new_app()


def _scopes(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in SCOPES]:
        raise typer.BadParameter(f"{unknown[0]!r} is not a scope; the scopes are {', '.join(get_args(Scope))}")
    return names


@app.command()
def console(
    scopes: Annotated[
        Any,
        typer.Option(
            parser=_scopes,
            metavar="message,read,…",
            help="The scopes of the sign-in. Default: all scopes of the token.",
        ),
    ] = None,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the address instead of opening it.")
    ] = False,
    url: UrlFlag = None,
    token_env: TokenEnvFlag = CHAT_VARIABLE,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Open the page of the running gateway in the browser, and sign in with a one-time code.

    The page asks for confirmation before it uses the code, which is valid once, for 60 seconds. The sign-in
    lasts at most 12 hours.
    """
    from torana.cli.chat.gateways import remote_gateway
    from torana.cli.commands.console.browser import open_browser
    from torana.cli.remote import the_gateway

    check_one_gateway(url, config=config, data_dir=data_dir)
    if url is None:
        gateway = the_gateway(settings_from(config=config, data_dir=data_dir).settings)
    else:
        gateway = remote_gateway(url, token_env)
    page = f"{gateway.address.rstrip('/')}/"
    address = page + _sign_in(gateway, scopes)
    if not print_only and open_browser(address):
        typer.echo(f"Opened {page} in the browser. If no page appears, run torana console --print.", err=True)
        return
    if not print_only:
        typer.echo("No browser was found. Open this address, which is valid once and for 60 seconds:", err=True)
    typer.echo(address)


def _sign_in(gateway: RunningGateway, scopes: list[str] | None) -> str:
    """Return the fragment of an address that signs in; empty for a gateway without a token."""
    principal = gateway.ask("GET", "/v1/me", read=lambda body: body["name"])
    if principal == "local":
        return ""
    body = {} if scopes is None else {"scopes": scopes}
    code = gateway.ask("POST", "/v1/sign-in-codes", body=body, read=lambda made: made["code"])
    return f"#/sign-in?code={code}"
