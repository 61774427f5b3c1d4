"""Export a user: all of their data as a zip file that is readable without Torana."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import tempfile
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZipFile

from pydantic.alias_generators import to_camel

from torana import __version__
from torana.store.backup.user_data import UserData
from torana.store.engine.database import Database
from torana.store.engine.places import DatabasePlace
from torana.store.rows import audit
from torana.store.rows.approval_questions import call_digest
from torana.store.rows.audit import Act

_Row = Mapping[Any, Any]

#: The estimated parts of the input tokens, and the beginnings of their columns.
_ESTIMATED = {"instructions": "instruction", "tools": "tool", "history": "history"}

_SPENT = ("period", "messages", "inputTokens", "outputTokens", "costUsd")


class Export:
    """Writes a user's data into a temporary file without a name.

    Rows are read one by one, all in one transaction.
    """

    def __init__(self, *, database: Database, place: DatabasePlace, directory: Path) -> None:
        self._database = database
        self._place = place
        self._directory = directory

    async def write(self, user: str, act: Act) -> IO[bytes]:
        """Return a zip file for the caller to read and close. The export is recorded in the audit record.

        It contains ``manifest.json``, ``sessions/<id>.jsonl`` (the user's messages and their replies, one turn
        per line), ``files.jsonl`` and ``files/`` (stored attachments), ``workspace/`` (the files that the agent
        stores for the user), ``memories.jsonl``, ``schedules.jsonl``, ``tokens.jsonl``, ``approvals.jsonl``
        (calls that needed approval), ``accounts.jsonl`` (of chat platforms) and ``usage.csv``. For an unknown
        user these are empty.

        Raises ``OSError`` if there is not enough space.
        """
        file, counts = await asyncio.to_thread(self._spool, user, act)
        await self._database.run(
            partial(audit.record, act=act, action="user.export", target=user, **counts),
        )
        return file

    def _spool(self, user: str, act: Act) -> tuple[IO[bytes], dict[str, int]]:
        # The file is in the data directory, because the disk of this directory has room for this amount of
        # text.
        file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - closed by the sender
        try:
            with ZipFile(file, "w", ZIP_DEFLATED) as out:
                counts = self._place.read(lambda connection: _write(out, UserData(connection, user), user, act))
        except BaseException:
            file.close()
            raise
        file.seek(0)
        return file, counts


def _write(out: ZipFile, holdings: UserData, user: str, act: Act) -> dict[str, int]:
    counts = _write_sessions(out, holdings.turns())
    counts["files"] = _write_files(out, holdings.attachments())
    counts["workspace"] = _write_workspace(out, holdings.workspace())
    counts["memories"] = _write_lines(out, "memories.jsonl", map(_memory, holdings.memories()))
    counts["schedules"] = _write_lines(out, "schedules.jsonl", map(_schedule, holdings.schedules()))
    counts["tokens"] = _write_lines(out, "tokens.jsonl", map(_token, holdings.credentials()))
    counts["approvals"] = _write_lines(out, "approvals.jsonl", map(_approval, holdings.approvals()))
    counts["accounts"] = _write_lines(out, "accounts.jsonl", map(_account, holdings.accounts()))
    _write_usage(out, holdings.spending())
    manifest = {"version": __version__, "user": user, "createdAt": act.at.isoformat(), "counts": counts}
    out.writestr("manifest.json", json.dumps(manifest, indent=1, ensure_ascii=False))
    return counts


def _write_sessions(out: ZipFile, rows: Iterable[_Row]) -> dict[str, int]:
    counts = {"sessions": 0, "turns": 0}
    for session_id, turns in groupby(rows, key=lambda row: row["session_id"]):
        counts["sessions"] += 1
        counts["turns"] += _write_lines(out, f"sessions/{session_id}.jsonl", map(_turn, turns))
    return counts


def _write_files(out: ZipFile, sent: Iterable[_Row]) -> int:
    """Write each file under a generated name, and list the original names. Return the number of files."""
    records: list[dict[str, Any]] = []
    for row in sent:
        member = f"files/{row['turn_id']}/{row['number'] + 1}"
        out.writestr(member, row["body"])
        record = {"file": member, "turnId": row["turn_id"], "name": row["name"], "mediaType": row["media_type"]}
        records.append(record)
    return _write_lines(out, "files.jsonl", records)


def _write_workspace(out: ZipFile, stored: Iterable[_Row]) -> int:
    count = 0
    for row in stored:
        out.writestr(f"workspace/{row['name']}", row["body"])
        count += 1
    return count


def _write_lines(out: ZipFile, name: str, records: Iterable[dict[str, Any]]) -> int:
    """Write one JSON object per line, and return their number."""
    count = 0
    with out.open(name, "w", force_zip64=True) as lines:
        for record in records:
            lines.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            count += 1
    return count


def _write_usage(out: ZipFile, spent: Iterable[_Row]) -> None:
    with out.open("usage.csv", "w") as binary, io.TextIOWrapper(binary, "utf-8", newline="") as text:
        table = csv.writer(text)
        table.writerow(_SPENT)
        for row in spent:
            amounts = (row["messages"], row["input_tokens"], row["output_tokens"], row["microusd"] / 1e6)
            table.writerow((row["period"], *amounts))


def _turn(row: _Row) -> dict[str, Any]:
    failure = row["failure_code"] and {"code": row["failure_code"], "detail": row["failure_detail"]}
    estimated = {name: row[f"{column}_tokens"] for name, column in _ESTIMATED.items()}
    return {
        **_fields(row, "id", "session_id"),
        "channelId": row["channel"],
        "status": row["state"],
        **_fields(row, "content", "reply"),
        "error": failure,
        "model": row["model"],
        "usage": {**_fields(row, "input_tokens", "output_tokens", "cost_usd"), "estimatedInput": estimated},
        **_fields(row, "merged_into", "created_at", "ended_at"),
    }


def _memory(row: _Row) -> dict[str, Any]:
    return _fields(row, "id", "text", "subject", "turn_id", "created_at", "superseded_at", "superseded_by")


def _schedule(row: _Row) -> dict[str, Any]:
    return {
        **_fields(row, "id", "kind", "text"),
        "rule": row["cron"],
        **_fields(row, "timezone", "missed", "state", "due_at", "reason"),
        "channelId": row["channel"],
        **_fields(row, "account", "turn_id", "created_at"),
    }


def _account(row: _Row) -> dict[str, Any]:
    return {
        "sender": f"{row['kind']}:{row['sender']}",
        **_fields(row, "name", "state", "asked_at", "decided_at"),
    }


def _approval(row: _Row) -> dict[str, Any]:
    arguments = json.loads(row["arguments"])
    return {
        "id": row["id"],
        "digest": call_digest(row["tool"], arguments),
        **_fields(row, "turn_id", "call_id", "tool"),
        "arguments": arguments,
        "state": row["state"],
        "edited": row["edited"] and json.loads(row["edited"]),
        **_fields(row, "reason", "created_at", "decided_at"),
    }


def _token(row: _Row) -> dict[str, Any]:
    return _fields(row, "id", "label", "scopes", "created_at", "expires_at", "revoked_at", "used_at")


def _fields(row: _Row, *columns: str) -> dict[str, Any]:
    """Return columns of a row with their names in camelCase, and times in ISO 8601."""
    values = {to_camel(column): row[column] for column in columns}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}
