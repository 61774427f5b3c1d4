"""``torana sessions``: the conversations, read from the database with or without a running gateway."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from torana.cli.apps import new_app
from torana.cli.flags import CommonOptions, ConfigFlag, DataDirFlag
from torana.cli.tables import excerpt, print_list
from torana.cli.terminal import print_fields, printable
from torana.errors import OperatorError
from torana.messages import EVERYONE, ExportFormat

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from torana.sessions.listing import Session, SessionMessage

app = new_app(is_group=True)

_SessionId = Annotated[str, typer.Argument(help="The session's id, such as ses_0198….")]


@app.command("list")
def list_(
    options: CommonOptions,
    channel: Annotated[str | None, typer.Option(help="Only sessions of this channel.")] = None,
    user: Annotated[str | None, typer.Option(help="Only sessions in which this user sent a message.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of sessions.")] = 20,
) -> None:
    """List the sessions, the most recently used first."""
    from torana.sessions.listing import session_of
    from torana.store.rows import sessions as rows

    work = partial(rows.list_sessions, owner=EVERYONE, channel=channel, user=user, before=None, limit=limit)
    found = [session_of(row) for row in options.read_store(work)]
    document = {"items": list(map(_record, found))}
    heads = ("session", "channel", "turns", "last used", "title")
    empty = "There are no matching sessions."
    print_list(document, heads, map(_row, found), empty=empty, texts=("title",), as_json=options.as_json)


@app.command()
def show(
    options: CommonOptions,
    session_id: _SessionId,
    turns: Annotated[int, typer.Option(min=1, max=1000, help="The number of the session's newest turns.")] = 20,
) -> None:
    """Show a session with its newest messages."""
    from torana.api.schemas.turns import MessageItem
    from torana.api.session_export import format_message
    from torana.sessions.listing import messages_of
    from torana.store.rows import sessions as rows

    def read(connection: Connection) -> tuple[Session, list[SessionMessage]]:
        session = _find_session(connection, session_id)
        first = session.turns - turns + 1
        page = rows.list_turns(connection, EVERYONE, session_id, from_seq=first, limit=turns)
        return session, [message for row in page for message in messages_of(row)]

    session, messages = options.read_store(read)
    if options.as_json:
        items = [MessageItem.model_validate(message).model_dump(mode="json") for message in messages]
        typer.echo(json.dumps(_record(session) | {"messages": items}, indent=2))
        return
    print_fields(_record(session))
    for message in messages:
        typer.echo(printable(format_message(message, "markdown")), nl=False)


@app.command()
def export(
    session_id: _SessionId,
    form: Annotated[
        ExportFormat, typer.Option("--format", help=("One JSON object per line for each message, or Markdown."))
    ] = "jsonl",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help=("The file to write. Default: standard output."))
    ] = None,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Export all messages of a session."""
    from torana.api.session_export import format_message, head

    def write(connection: Connection) -> None:
        session = _find_session(connection, session_id)
        shown = printable if output is None and sys.stdout.isatty() else str
        with _open_output(output) as file:
            file.write(shown(head(session, form)))
            for message in _every_message(connection, session_id):
                file.write(shown(format_message(message, form)))

    CommonOptions(config=config, data_dir=data_dir).read_store(write)


def _open_output(output: Path | None) -> Any:
    """Open a new file that only its owner can read, or standard output.

    Raises ``OperatorError`` if the file exists.
    """
    if output is None:
        return nullcontext[TextIO](sys.stdout)
    try:
        output.touch(mode=0o600, exist_ok=False)
    except FileExistsError as error:
        raise OperatorError(f"{output} already exists; name another file") from error
    return output.open("w", encoding="utf-8", newline="\n")


def _every_message(connection: Connection, session_id: str) -> Iterator[SessionMessage]:
    from torana.paging import LARGEST_PAGE
    from torana.sessions.listing import messages_of
    from torana.store.rows import sessions as rows

    seq = 0
    while page := rows.list_turns(connection, EVERYONE, session_id, from_seq=seq + 1, limit=LARGEST_PAGE):
        for row in page:
            yield from messages_of(row)
        seq = page[-1]["seq"]


def _find_session(connection: Connection, session_id: str) -> Session:
    from torana.sessions.listing import session_of
    from torana.store.rows import sessions as rows

    row = rows.get(connection, EVERYONE, session_id)
    if row is None:
        raise OperatorError(f"there is no session {session_id}; `torana sessions list` names the newest")
    return session_of(row)


def _row(session: Session) -> tuple[str, ...]:
    channel, title = excerpt(session.channel), excerpt(session.title or "-")
    return session.id, channel, str(session.turns), f"{session.updated_at:%Y-%m-%d %H:%M:%S}", title


def _record(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "channel": session.channel,
        "owner": session.owner,
        "title": session.title,
        "turns": session.turns,
        "created": session.created_at.isoformat(),
        "updated": session.updated_at.isoformat(),
    }
