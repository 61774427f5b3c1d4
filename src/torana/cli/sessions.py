"""``torana sessions``: what was said, read from the database beside a running gateway or without one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from sqlalchemy.engine import Connection

from torana.cli.flags import ConfigFlag, DataDirFlag, JsonFlag, settings_from
from torana.cli.terminal import print_fields, print_rows, printable
from torana.errors import OperatorError
from torana.messages import EVERYONE
from torana.paging import LARGEST_PAGE
from torana.sessions.export import Format, head, record, told
from torana.sessions.listing import Message, Session, messages_of, session_of
from torana.store import sessions as rows
from torana.store.backup import DATABASE_NAME
from torana.store.reading import read_database

app = typer.Typer(help="List, show and export sessions.", no_args_is_help=True)

_SessionId = Annotated[str, typer.Argument(help="The session's id, such as ses_0198….")]
_SHOWN = 60


@app.command("list")
def list_(
    channel: Annotated[str | None, typer.Option(help="Only those of this channel.")] = None,
    user: Annotated[str | None, typer.Option(help="Only those in which this user spoke.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List the sessions, the last used first."""
    database = _database(config, data_dir)
    work = partial(rows.listed, owner=EVERYONE, channel=channel, user=user, before=None, limit=limit)
    found = [session_of(row) for row in read_database(database, work)]
    if as_json:
        typer.echo(json.dumps({"items": [_record(session) for session in found]}, indent=2))
        return
    if not found:
        typer.echo("There are no such sessions.")
        return
    print_rows(("session", "channel", "turns", "last used", "title"), map(_row, found))


@app.command()
def show(
    session_id: _SessionId,
    turns: Annotated[int, typer.Option(min=1, max=1000, help="How many of its newest turns.")] = 20,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Show one session with what was said last."""

    def read(connection: Connection) -> tuple[Session, list[Message]]:
        session = _found(connection, session_id)
        first = session.turns - turns + 1
        said = rows.said(connection, EVERYONE, session_id, from_seq=first, limit=turns)
        return session, [message for row in said for message in messages_of(row)]

    session, messages = read_database(_database(config, data_dir), read)
    if as_json:
        document = _record(session) | {"messages": [record(message) for message in messages]}
        typer.echo(json.dumps(document, indent=2))
        return
    print_fields(_record(session))
    for message in messages:
        typer.echo(printable(told(message, "markdown")), nl=False)


@app.command()
def export(
    session_id: _SessionId,
    form: Annotated[
        Format, typer.Option("--format", help="A JSON object per message and line, or Markdown to read.")
    ] = "jsonl",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; standard output without it.")
    ] = None,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Write down all that was said in a session, as it is at this moment."""

    def write(connection: Connection) -> None:
        session = _found(connection, session_id)
        shown = printable if output is None and sys.stdout.isatty() else str
        with _opened(output) as file:
            file.write(shown(head(session, form)))
            for message in _every_message(connection, session_id):
                file.write(shown(told(message, form)))

    read_database(_database(config, data_dir), write)


def _opened(output: Path | None) -> Any:
    """A new file of its owner's alone, or standard output. Raises ``OperatorError`` where there is a file."""
    if output is None:
        return nullcontext[TextIO](sys.stdout)
    try:
        output.touch(mode=0o600, exist_ok=False)
    except FileExistsError as error:
        raise OperatorError(f"{output} exists already; name another file") from error
    return output.open("w", encoding="utf-8", newline="\n")


def _every_message(connection: Connection, session_id: str) -> Iterator[Message]:
    seq = 0
    while said := rows.said(connection, EVERYONE, session_id, from_seq=seq + 1, limit=LARGEST_PAGE):
        for row in said:
            yield from messages_of(row)
        seq = said[-1]["seq"]


def _database(config: Path | None, data_dir: Path | None) -> Path:
    return settings_from(config=config, data_dir=data_dir).settings.data_dir / DATABASE_NAME


def _found(connection: Connection, session_id: str) -> Session:
    row = rows.get(connection, EVERYONE, session_id)
    if row is None:
        raise OperatorError(f"there is no session {session_id}; `torana sessions list` names the newest")
    return session_of(row)


def _row(session: Session) -> tuple[str, ...]:
    channel, title = (" ".join(text.split())[:_SHOWN] for text in (session.channel, session.title or "-"))
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
