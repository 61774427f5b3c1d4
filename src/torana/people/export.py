"""Export a user: all of their data as a zip file that is readable without Torana."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import tempfile
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZipFile

from torana import __version__
from torana.store.backup.user_data import UserData
from torana.store.engine.database import Database
from torana.store.engine.places import DatabasePlace
from torana.store.rows import audit
from torana.store.rows.approval_questions import call_digest
from torana.store.rows.audit import Act

_Row = Mapping[Any, Any]

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


def _write_sessions(out: ZipFile, said: Iterable[_Row]) -> dict[str, int]:
    counts = {"sessions": 0, "turns": 0}
    for session_id, turns in groupby(said, key=lambda row: row["session_id"]):
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
    return {
        "id": row["id"],
        "sessionId": row["session_id"],
        "channelId": row["channel"],
        "status": row["state"],
        "content": row["content"],
        "reply": row["reply"],
        "error": failure,
        "model": row["model"],
        "usage": {
            "inputTokens": row["input_tokens"],
            "outputTokens": row["output_tokens"],
            "costUsd": row["cost_usd"],
            "estimatedInput": {
                "instructions": row["instruction_tokens"],
                "tools": row["tool_tokens"],
                "history": row["history_tokens"],
            },
        },
        "mergedInto": row["merged_into"],
        "createdAt": row["created_at"].isoformat(),
        "endedAt": row["ended_at"] and row["ended_at"].isoformat(),
    }


def _memory(row: _Row) -> dict[str, Any]:
    return {
        "id": row["id"],
        "text": row["text"],
        "subject": row["subject"],
        "turnId": row["turn_id"],
        "createdAt": row["created_at"].isoformat(),
        "supersededAt": row["superseded_at"] and row["superseded_at"].isoformat(),
        "supersededBy": row["superseded_by"],
    }


def _schedule(row: _Row) -> dict[str, Any]:
    return {
        "id": row["id"],
        "kind": row["kind"],
        "text": row["text"],
        "rule": row["cron"],
        "timezone": row["timezone"],
        "missed": row["missed"],
        "state": row["state"],
        "dueAt": row["due_at"] and row["due_at"].isoformat(),
        "reason": row["reason"],
        "channelId": row["channel"],
        "account": row["account"],
        "turnId": row["turn_id"],
        "createdAt": row["created_at"].isoformat(),
    }


def _account(row: _Row) -> dict[str, Any]:
    return {
        "sender": f"{row['kind']}:{row['sender']}",
        "name": row["name"],
        "state": row["state"],
        "askedAt": row["asked_at"].isoformat(),
        "decidedAt": row["decided_at"] and row["decided_at"].isoformat(),
    }


def _approval(row: _Row) -> dict[str, Any]:
    arguments = json.loads(row["arguments"])
    return {
        "id": row["id"],
        "digest": call_digest(row["tool"], arguments),
        "turnId": row["turn_id"],
        "callId": row["call_id"],
        "tool": row["tool"],
        "arguments": arguments,
        "state": row["state"],
        "edited": row["edited"] and json.loads(row["edited"]),
        "reason": row["reason"],
        "createdAt": row["created_at"].isoformat(),
        "decidedAt": row["decided_at"] and row["decided_at"].isoformat(),
    }


def _token(row: _Row) -> dict[str, Any]:
    times = {
        name: row[column] and row[column].isoformat()
        for name, column in (
            ("createdAt", "created_at"),
            ("expiresAt", "expires_at"),
            ("revokedAt", "revoked_at"),
            ("usedAt", "used_at"),
        )
    }
    return {"id": row["id"], "label": row["label"], "scopes": row["scopes"], **times}
