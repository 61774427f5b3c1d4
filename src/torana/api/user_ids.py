"""User ids in paths: the id itself if a path can contain it, else ``~`` and the base64url of its UTF-8."""

from __future__ import annotations

import base64
import re

from torana.errors import NotFound
from torana.messages import ID_LIMIT

_PLAIN = re.compile(r"[A-Za-z0-9._:@-]+")


def read_user_id(segment: str) -> str:
    """Return the user id of a path segment. Each id has exactly one segment. Raises ``NotFound``."""
    if not segment.startswith("~"):
        if _PLAIN.fullmatch(segment) and segment not in (".", "..") and len(segment) <= ID_LIMIT:
            return segment
        raise NotFound("the user id is invalid in a path; write it as `~` and the base64url of its UTF-8")
    try:
        coded = segment[1:]
        user = base64.b64decode(coded + "=" * (-len(coded) % 4), altchars=b"-_", validate=True).decode()
    except ValueError:
        raise NotFound("the user id is invalid: `~` must be followed by the base64url of UTF-8") from None
    if not 1 <= len(user) <= ID_LIMIT or "\0" in user or write_user_id(user) != segment:
        raise NotFound("the user id is invalid, or must be written in another form in a path")
    return user


def write_user_id(user: str) -> str:
    """Return the path segment of a user id."""
    if _PLAIN.fullmatch(user) and user not in (".", ".."):
        return user
    return "~" + base64.urlsafe_b64encode(user.encode()).decode().rstrip("=")
