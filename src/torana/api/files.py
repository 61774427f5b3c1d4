"""Read the files of a message from its body."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, cast

from torana.api.request_body import wrong
from torana.message_files import FILE_LIMIT, FILES_LIMIT, detect_content, file_line, noun_of, shown_name
from torana.messages import File, FileKind, file_kind

#: Maximum size of a body with files. Base64 makes a file larger by a third.
BODY_LIMIT = 8 * 1024 * 1024


def parse_files(document: dict[str, Any], takes: frozenset[FileKind]) -> tuple[File, ...]:
    """Return the files of a body. Raises ``InvalidField``, also if the kind of a file is not in ``takes``."""
    given = document.get("files")
    if given is None:
        return ()
    if not isinstance(given, list):
        raise wrong("files", "must be a list")
    items = cast("list[object]", given)
    if len(items) > FILES_LIMIT:
        raise wrong("files", f"must have at most {FILES_LIMIT} items")
    return tuple(_file(item, number, takes) for number, item in enumerate(items))


def name_files(content: str, files: Sequence[File]) -> str:
    """Return the text of a message with a line for each of its files."""
    lines = (
        file_line(
            noun_of(file_kind(file.media_type)),
            name=file.name,
            media_type=file.media_type,
            size=len(file.body),
        )
        for file in files
    )
    return "\n".join((content, *lines))


def _file(item: object, number: int, takes: frozenset[FileKind]) -> File:
    fields = cast("dict[str, object]", item) if isinstance(item, dict) else {}
    name, data = fields.get("name"), fields.get("data")
    if not isinstance(name, str) or not isinstance(data, str):
        raise wrong("files", f"item {number} must have a `name` and `data`, which are strings")
    try:
        body = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise wrong("files", f"item {number} must have `data` in base64") from None
    if len(body) > FILE_LIMIT:
        raise wrong("files", f"item {number} has {len(body):,} bytes; the maximum is {FILE_LIMIT:,}")
    media_type, body = detect_content(body)
    if (kind := file_kind(media_type)) not in takes:
        accepted = ", ".join(sorted(takes)) or "no files"
        found = f"is of the kind {kind}" if kind else "is neither a text, nor a picture, nor a PDF file"
        raise wrong(
            "files",
            f"item {number} {found}; the model receives {accepted} (setting `model_files`)",
        )
    return File(name=shown_name(name), media_type=media_type, body=body)
