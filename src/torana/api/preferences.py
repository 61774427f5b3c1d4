"""The request headers ``Prefer`` (RFC 7240) and ``Idempotency-Key``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.request import parse_http_list

from torana.errors import InvalidField

_QUOTED_KEY = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_BARE_KEY = re.compile(r"[!#-~]+")
_ESCAPED = re.compile(r"\\(.)")
_KEY_LIMIT = 255

#: Maximum characters of all ``Prefer`` headers that are read.
_PREFER_LIMIT = 8_000
#: The maximum of ``wait``, in seconds.
_WAIT_LIMIT = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """The supported preferences of ``Prefer``; unknown ones are ignored, as the standard requires."""

    respond_async: bool = False
    #: Seconds; None if the request has no ``wait``.
    wait: int | None = None
    cancel_on_disconnect: bool = False
    #: True if the client shows approval questions itself, so that a yes in words approves nothing.
    decide_by_id: bool = False

    @property
    def applied_header(self) -> dict[str, str]:
        """The header ``Preference-Applied`` of a 202 response."""
        wait = "" if self.wait is None else f", wait={self.wait}"
        return {"Preference-Applied": f"respond-async{wait}"}


def read_preferences(values: Sequence[str]) -> Preferences:
    """Return the preferences of all ``Prefer`` headers. The first of several equal names applies."""
    named: dict[str, str] = {}
    for part in parse_http_list(",".join(values)[:_PREFER_LIMIT]):
        name, _, value = part.partition(";")[0].partition("=")
        named.setdefault(name.strip().lower(), value.strip().strip('"'))
    wait = named.get("wait", "")
    return Preferences(
        respond_async="respond-async" in named,
        wait=min(int(wait), _WAIT_LIMIT) if re.fullmatch("[0-9]{1,9}", wait) else None,
        cancel_on_disconnect="cancel-on-disconnect" in named,
        decide_by_id="decide-by-id" in named,
    )


def read_key(values: Sequence[str]) -> str | None:
    """Return the client's id for the message, quoted or bare. Raises ``InvalidField`` for an invalid one."""
    if not values:
        return None
    key = _unquote(values[0].strip()) if len(values) == 1 else ""
    if not 1 <= len(key) <= _KEY_LIMIT:
        raise InvalidField(
            f"Idempotency-Key must be one string of 1 to {_KEY_LIMIT} visible ASCII characters, "
            "quoted if it contains a space or a quotation mark."
        )
    return key


def _unquote(text: str) -> str:
    """Return the content of a string (RFC 9651, 3.3.3) or of a bare token; empty for any other text."""
    if quoted := _QUOTED_KEY.fullmatch(text):
        return _ESCAPED.sub(r"\1", quoted[1])
    return text if _BARE_KEY.fullmatch(text) else ""
