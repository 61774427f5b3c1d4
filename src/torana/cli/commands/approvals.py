"""``torana approvals``: tool calls that wait for approval."""

from __future__ import annotations

import json
import sys
import termios
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from torana.cli.apps import new_app
from torana.cli.flags import CommonOptions
from torana.cli.remote import RunningGateway
from torana.cli.tables import print_list
from torana.cli.terminal import marked, print_result
from torana.errors import OperatorError

app = new_app(is_group=True)

_Approval = Annotated[
    str,
    typer.Argument(
        help="The approval's id, such as apr_0198…, or the id of a turn with a single open approval.",
    ),
]
_CallId = Annotated[
    str | None,
    typer.Argument(help="The call's id. It is needed with the id of a turn that has several open approvals."),
]

#: The prefix of approvals' ids.
_PREFIX = "apr_"


@app.command("list")
def list_(options: CommonOptions) -> None:
    """List the tool calls that wait for approval, the newest first."""
    items = list(_open_approvals(options.gateway()))
    print_list(
        {"items": items, "next": None},
        ("approval", "tool", "until (UTC)", "turn", "call", "arguments"),
        map(_row, items),
        empty="No tool call waits for approval.",
        texts=("arguments",),
        as_json=options.as_json,
    )


@app.command()
def approve(
    options: CommonOptions,
    approval: _Approval,
    call_id: _CallId = None,
    arguments: Annotated[
        str | None,
        typer.Option(help=("Run the call with these arguments, a JSON object, instead of the model's.")),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", help=("Do not ask for confirmation. Requires the id of an approval or of a call.")
        ),
    ] = False,
) -> None:
    """Show a tool call, ask for confirmation, and approve it."""
    body: dict[str, Any] = {"decision": "approve"}
    if arguments is not None:
        body["arguments"] = _object(arguments)
    gateway = options.gateway()
    item = _open_approval(gateway, approval, call_id)
    _show(item, instead=body.get("arguments"), as_json=options.as_json)
    if item["state"] == "open":
        _confirm(item, yes=yes, named=call_id is not None or approval == item["id"])
    _decide(gateway, item, body, as_json=options.as_json)


@app.command()
def deny(
    options: CommonOptions,
    approval: _Approval,
    call_id: _CallId = None,
    reason: Annotated[str | None, typer.Option(help="The reason that the model receives.")] = None,
) -> None:
    """Show a tool call, and deny it."""
    body = {"decision": "deny"} | ({"reason": reason} if reason else {})
    gateway = options.gateway()
    item = _open_approval(gateway, approval, call_id)
    _show(item, as_json=options.as_json)
    _decide(gateway, item, body, as_json=options.as_json)


def _open_approvals(gateway: RunningGateway) -> Iterator[dict[str, Any]]:
    """Yield all open approvals, the newest first. The gateway returns them in pages."""
    after = ""
    while True:
        query = urlencode({"limit": 200, "after": after})
        page: dict[str, Any] = gateway.ask("GET", f"/v1/approvals?{query}", read=dict)
        yield from page["items"]
        if page["next"] is None:
            return
        after = page["next"]


def _open_approval(gateway: RunningGateway, name: str, call_id: str | None) -> dict[str, Any]:
    """Return the approval with this id, or the only open approval of the turn with this id.

    Raises ``OperatorError`` if there is none, or more than one.
    """
    if name.startswith(_PREFIX):
        if call_id is not None:
            raise OperatorError(f"{name} is the id of an approval, which needs no call id; omit {call_id}")
        return gateway.ask("GET", f"/v1/approvals/{quote(name, safe='')}", read=dict)
    turn: dict[str, Any] = gateway.ask("GET", f"/v1/turns/{quote(name, safe='')}", read=dict)
    asked = [item for item in turn["approvals"] if call_id in (None, item["callId"])]
    if not asked:
        what = "no open approval" if call_id is None else f"no open approval for the call {call_id}"
        raise OperatorError(f"{name} has {what}; `torana approvals list` shows the open approvals")
    if len(asked) > 1:
        ids = ", ".join(item["id"] for item in asked)
        raise OperatorError(f"{name} has {len(asked)} open approvals; name one of them: {ids}")
    return asked[0]


def _show(item: dict[str, Any], *, instead: dict[str, Any] | None = None, as_json: bool) -> None:
    """Print a call with all of its arguments, and the replacing arguments (``instead``).

    With ``as_json`` it goes to standard error, because standard output is for programs.
    """
    from torana.store.rows.approval_questions import arguments_text, escape_invisible

    on_terminal = (sys.stderr if as_json else sys.stdout).isatty()

    def mark(arguments: dict[str, Any]) -> str:
        return marked(arguments_text(arguments)) if on_terminal else arguments_text(arguments)

    lines = [f"{item['id']}  {escape_invisible(item['tool'])}", mark(item["arguments"])]
    if instead is not None:
        lines += ["approved with these arguments instead:", mark(instead)]
    typer.echo("\n".join(lines), err=as_json)


def _confirm(item: dict[str, Any], *, yes: bool, named: bool) -> None:
    """Ask whether the printed call may run, unless ``yes`` is given for a ``named`` call.

    Exits if the answer is no. Raises ``OperatorError`` if there is no terminal to ask on.
    """
    again = f"review the call above, then run `torana approvals approve {item['id']} --yes`"
    if yes and not named:
        raise OperatorError(f"nothing was approved: with --yes a turn's id is not enough; {again}")
    if not yes and not sys.stdin.isatty():
        raise OperatorError(f"nothing was approved: there is no terminal to ask on; {again}")
    if not yes:
        # Keys that were pressed before the call was printed do not answer.
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
        typer.confirm("Approve?", abort=True, err=True)


def _decide(gateway: RunningGateway, item: dict[str, Any], body: dict[str, Any], *, as_json: bool) -> None:
    """Send the decision with the digest of the printed call, so that it applies only to that call."""
    path = f"/v1/approvals/{quote(item['id'], safe='')}"
    decided: dict[str, Any] = gateway.ask("POST", path, body=body | {"digest": item["digest"]}, read=dict)
    print_result(f"{decided['tool']} is {decided['state']}", decided, as_json=as_json)


def _object(text: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"--arguments is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter('--arguments must be a JSON object such as {"amount": 5}')
    return value  # pyright: ignore[reportUnknownVariableType]


def _row(item: dict[str, Any]) -> tuple[str, ...]:
    from torana.store.rows.approval_questions import escape_invisible

    until = item["expiresAt"][:16].replace("T", " ")
    arguments = escape_invisible(json.dumps(item["arguments"], ensure_ascii=False))
    return item["id"], escape_invisible(item["tool"]), until, item["turnId"], item["callId"], arguments
