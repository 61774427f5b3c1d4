"""``torana audit``: the actions of operators."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from torana.cli.apps import new_app
from torana.cli.flags import CommonOptions
from torana.cli.tables import print_list

if TYPE_CHECKING:
    from torana.store.rows.audit import AuditEntry

app = new_app()


@app.command()
def audit(
    options: CommonOptions,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of entries.")] = 50,
) -> None:
    """List the newest administrative actions with their time, principal, object and source."""
    from torana.api.schemas.people import AuditEntryBody
    from torana.store.rows import audit as rows

    found = options.read_store(partial(rows.list_entries, before=None, limit=limit))
    document = {"items": [AuditEntryBody.model_validate(entry).model_dump(mode="json") for entry in found]}
    heads = ("at", "who", "from", "action", "target", "detail")
    empty = "There are no recorded actions yet."
    print_list(document, heads, map(_row, found), empty=empty, texts=("detail",), as_json=options.as_json)


def _row(entry: AuditEntry) -> tuple[str, ...]:
    detail = ", ".join(f"{name}: {_format_value(value)}" for name, value in entry.detail.items())
    act = entry.act
    return f"{act.at:%Y-%m-%d %H:%M:%S}", act.principal, act.source, entry.action, entry.target, detail


def _format_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
