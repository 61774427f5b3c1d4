"""Whether a mail is by whom it says, and whether by a person at all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torana.connectors.letters.parts import Letter, header, line

_MACHINES = re.compile(
    r"(?:mailer-daemon|postmaster|(?:no|do-?not|donot)[-_.]?reply|bounces?)(?:[-+_.=].*)?@", re.IGNORECASE
)
_LISTS = (
    "list-id",
    "list-unsubscribe",
    "list-post",
    "x-auto-response-suppress",
    "x-autoreply",
    "x-autorespond",
)


def machine(letter: Letter) -> str | None:
    """By what it is seen that no person wrote it; such mail must never be answered (RFC 3834)."""
    headers = letter.headers
    submitted = header(headers, "auto-submitted").partition(";")[0].strip().lower()
    if submitted not in ("", "no"):
        return f"auto-submitted: {line(submitted, 40)}"
    if header(headers, "precedence").lower() in ("bulk", "list", "junk", "auto_reply"):
        return "precedence"
    if header(headers, "return-path").replace(" ", "") == "<>":
        return "no return path"
    if header(headers, "content-type").lower().startswith("multipart/report"):
        return "a report"
    if _MACHINES.match(letter.address):
        return "a machine's address"
    return next((name for name in _LISTS if name in headers), None)


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[();]|[^"();]+|"')
#: A name is read from its first letter alone: from each of its letters, a long one would take seconds.
_PROPERTY = re.compile(r'(?<![A-Za-z0-9._-])([A-Za-z0-9._-]+)(?:/\d+)?\s*=\s*("(?:[^"\\]|\\.)*"|[^\s"]+)')


@dataclass(frozen=True, slots=True)
class _Result:
    """What a server found out by one method, and about what."""

    method: str
    verdict: str
    about: Mapping[str, str]


def doubt(letter: Letter, server: str) -> str | None:
    """Why it may be from somebody else than it says, as far as our own mail server found out (RFC 8601).

    Believed is the uppermost header of this ``server`` alone, which was added last, whatever it does not speak
    of: a sender can have written all others. DMARC has to pass, or, for domains without it, SPF or DKIM for the
    very domain.
    """
    headers = letter.headers.get("authentication-results", ())
    told = next((found for value in headers if (found := _results(value, server)) is not None), None)
    if told is None:
        return "the mail server did not check it"
    domain = letter.address.rpartition("@")[2]
    dmarc = _of(told, "dmarc")
    if any(result.verdict not in ("none", "temperror", "permerror") for result in dmarc):
        passed = [result.verdict for result in dmarc] == ["pass"]
        return None if passed and dmarc[0].about.get("header.from") == domain else "dmarc did not pass"
    signers = [_signer(one.about) for one in _of(told, "dkim") if one.verdict == "pass"]
    spf = _of(told, "spf")
    if [result.verdict for result in spf] == ["pass"]:
        signers.append(spf[0].about.get("smtp.mailfrom", "").rpartition("@")[2])
    # A domain speaks for those below it, and not the other way round.
    if any("." in signer and f".{domain}".endswith(f".{signer}") for signer in signers):
        return None
    return "neither spf nor dkim passed for its domain"


def _signer(about: Mapping[str, str]) -> str:
    """The domain that signed; some servers name only for whom."""
    return about.get("header.d") or about.get("header.i", "").rpartition("@")[2]


def _of(told: Sequence[_Result], method: str) -> Sequence[_Result]:
    return [result for result in told if result.method == method]


def _results(value: str, server: str) -> list[_Result] | None:
    """The results of one header, or None where it is another server's.

    One that cannot be read may be this server's, so it has no results: a sender can make it so.
    """
    statements = _statements(value)
    if statements is None:
        return []
    name, *statements = statements
    if name.lower().split()[:1] != [server.lower()]:
        return None
    found = [[(k.lower(), v.lower()) for k, v in _PROPERTY.findall(one)] for one in statements]
    return [_Result(*of[0], dict(reversed(of))) for of in found if of]


def _statements(value: str) -> list[str] | None:
    """What stands between semicolons, without comments; None where a comment or a quotation has no end."""
    statements = [""]
    depth = 0
    for found in _TOKEN.finditer(value):
        piece = found[0]
        if piece in ("(", ")"):
            depth += 1 if piece == "(" else -1
        elif depth == 0:
            statements += [""] if piece == ";" else []
            statements[-1] += "" if piece == ";" else piece
        if depth < 0 or piece == '"':
            return None
    return None if depth else statements
