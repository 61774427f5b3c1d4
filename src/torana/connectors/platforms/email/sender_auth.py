"""Check that the sender of a mail is authentic, and that the mail is not automatic."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torana.connectors.platforms.email.parser import ParsedEmail, header, line

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


def automatic_reason(letter: ParsedEmail) -> str | None:
    """Return the reason why a mail counts as automatic, or None; such mail gets no reply (RFC 3834)."""
    headers = letter.headers
    submitted = header(headers, "auto-submitted").partition(";")[0].strip().lower()
    if submitted not in ("", "no"):
        return f"auto-submitted: {line(submitted, 40)}"
    if header(headers, "precedence").lower() in ("bulk", "list", "junk", "auto_reply"):
        return "precedence"
    if header(headers, "return-path").replace(" ", "") == "<>":
        return "no return path"
    if header(headers, "content-type").lower().startswith("multipart/report"):
        return "delivery report"
    if _MACHINES.match(letter.address):
        return "automatic sender address"
    return next((name for name in _LISTS if name in headers), None)


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[();]|[^"();]+|"')
#: A property. The lookbehind prevents quadratic time for a long name.
_PROPERTY = re.compile(r'(?<![A-Za-z0-9._-])([A-Za-z0-9._-]+)(?:/\d+)?\s*=\s*("(?:[^"\\]|\\.)*"|[^\s"]+)')


@dataclass(frozen=True, slots=True)
class _Result:
    """The result of one authentication method of a server."""

    method: str
    verdict: str
    about: Mapping[str, str]


def authentication_fault(letter: ParsedEmail, server: str) -> str | None:
    """Return the reason why the sender may be forged, or None, by our mail server's results (RFC 8601).

    Only the topmost header of this ``server`` counts, which was added last: a sender can forge all others.
    DMARC must pass or, for domains without DMARC, SPF or DKIM for the sender's domain or a parent of it.
    """
    headers = letter.headers.get("authentication-results", ())
    results = next((found for value in headers if (found := _results(value, server)) is not None), None)
    if results is None:
        return "not checked by the mail server"
    domain = letter.address.rpartition("@")[2]
    dmarc = _of(results, "dmarc")
    if any(result.verdict not in ("none", "temperror", "permerror") for result in dmarc):
        passed = [result.verdict for result in dmarc] == ["pass"]
        return None if passed and dmarc[0].about.get("header.from") == domain else "dmarc did not pass"
    signers = [_signer(one.about) for one in _of(results, "dkim") if one.verdict == "pass"]
    spf = _of(results, "spf")
    if [result.verdict for result in spf] == ["pass"]:
        signers.append(spf[0].about.get("smtp.mailfrom", "").rpartition("@")[2])
    # A domain can sign for its subdomains, but not the reverse.
    if any("." in signer and f".{domain}".endswith(f".{signer}") for signer in signers):
        return None
    return "neither spf nor dkim passed for the sender's domain"


def _signer(about: Mapping[str, str]) -> str:
    """Return the signing domain; some servers report only the signing identity."""
    return about.get("header.d") or about.get("header.i", "").rpartition("@")[2]


def _of(results: Sequence[_Result], method: str) -> Sequence[_Result]:
    return [result for result in results if result.method == method]


def _results(value: str, server: str) -> list[_Result] | None:
    """Return the results of one header; None for the header of another server.

    A malformed header counts as this server's, without results: a sender can cause malformed headers.
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
    """Return the texts between semicolons, without comments; None if a comment or a quotation is not closed."""
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
