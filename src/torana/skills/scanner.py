"""Patterns of suspicious lines in a skill, for a reviewer. A match is no proof.

Every repetition is bounded, and a pattern is tried only on lines with one of its words: 2 MiB of plain text
take about a second, and no text takes longer than ten.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torana.characters import BIDI, JOINERS, TAGS, ZERO_WIDTH

#: The kinds of findings, the most severe first, with their descriptions.
KINDS: Mapping[str, str] = {
    "replaces-core": "replaces a skill of the package",
    "pipes-to-shell": "runs content that it fetched just before",
    "injection": "addresses the model as its operator, or against its user",
    "hidden-unicode": "contains characters that are invisible to people and readable by models",
    "credentials": "accesses places with keys and passwords",
    "dynamic-code": "runs text as code, or shell commands",
    "encoded": "contains or decodes unreadable data, such as base64",
    "binary": "is not text",
    "network": "connects to other machines",
    "long-line": "has a line that is too long to review",
    "not-searched": "is larger than the scanned size",
}


#: Shorter ASCII lines are not searched: nothing in them but a control character can match.
_SHORTEST = 4


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A pattern. A line is searched if it contains one of the words, or if there are no words."""

    kind: str
    words: tuple[str, ...]
    found: re.Pattern[str]


def find_suspicious(line: str) -> Iterator[tuple[str, int]]:
    """Yield the kind and position of each match in a line."""
    if len(line) < _SHORTEST and line.isascii():
        return
    folded = line.casefold()
    for pattern in _PATTERNS:
        if not pattern.words or any(word in folded for word in pattern.words):
            for found in pattern.found.finditer(line):
                yield pattern.kind, found.start()


def _pattern(kind: str, words: str, *patterns: str) -> _Pattern:
    return _Pattern(kind, tuple(words.split()), re.compile("|".join(patterns), re.IGNORECASE))


_FETCH = r"\b(?:curl|wget|iwr|irm|invoke-webrequest|invoke-restmethod)\b"
_FETCHERS = "curl wget iwr irm invoke-"
_SHELL = r"(?:(?:ba|z|da|k|fi)?sh|python[\d.]{0,4}|perl|ruby|node|php|iex|pwsh)\b"
#: Tried only after another pattern has matched: at each slash of a long run of slashes it would be slow.
_PATH_OF_SHELL = r"(?:sudo\s{1,3})?(?:/[\w/]{1,40}/)?"
_WANTED = (
    r"(?:system\s{1,3}prompts?|api[\s_-]{0,2}keys?|credentials?|secrets?|passwords?|private\s{1,3}keys?"
    r"|env(?:ironment)?\s{1,3}variables?)"
)
_PEOPLE = r"(?:the\s{1,9})?(?:user|human|operator|anyone|anybody)"

_PATTERNS = (
    _pattern(
        "pipes-to-shell",
        f"{_FETCHERS} urlopen .get( fetch(",
        rf"{_FETCH}[^|\n]{{0,300}}\|\s{{0,9}}(?:tee\s[^|\n]{{0,99}}\|\s{{0,9}})?{_PATH_OF_SHELL}{_SHELL}",
        rf"{_SHELL}\s{{0,9}}(?:-c\s{{0,9}})?[\"']?(?:<\(|\$\(|`)\s{{0,9}}{_FETCH}",
        rf"\b(?:eval|source|iex)\s{{0,9}}[\"'(]{{0,3}}(?:<\(|\$\(|`)?\s{{0,9}}{_FETCH}",
        r"\b(?:exec|eval)\s{0,3}\([^\n]{0,99}(?:urlopen|requests\.get|httpx\.get|fetch\()",
    ),
    _pattern(
        "injection",
        "ignore disregard forget override bypass",
        r"\b(?:ignore|disregard|forget|override|bypass)\s{1,9}"
        r"(?:(?:all|any|of|the|your|my|these|those|every)\s{1,9}){0,4}"
        r"(?:previous|prior|above|earlier|preceding|existing|system|safety|security|other)\s{1,9}"
        r"(?:instruction|prompt|rule|message|direction|guideline|context|polic|restriction|check)",
    ),
    _pattern(
        "injection",
        "user human operator anyone anybody",
        r"\b(?:do\s{1,3}not|don[’']t|never|without)\s{1,9}"
        r"(?:tell|inform|mention|ask|alert|notify|show|reveal|warn)(?:ing)?\s{1,9}"
        rf"(?:(?:this|it|that|about)\s{{1,9}}){{0,2}}(?:to\s{{1,9}})?{_PEOPLE}\b",
    ),
    _pattern(
        "injection",
        "prompt key credential secret password variable",
        r"\b(?:reveal|print|send|leak|exfiltrate|upload|forward|disclose)\s{1,9}"
        rf"(?:[\w'’]{{1,20}}\s{{1,9}}){{0,4}}?{_WANTED}",
    ),
    _pattern(
        "injection",
        "are < instructions",
        r"\byou\s{1,3}are\s{1,3}(?:now|no\s{1,3}longer)\s{1,3}(?:a|an|the|in|bound|restricted|dan)\b",
        r"<\s{0,3}/?\s{0,3}(?:system|assistant|admin)(?:[-_]\w{1,20})?\s{0,3}>",
        r"\b(?:new|updated|real|hidden|secret)\s{1,3}(?:system\s{1,3})?instructions\s{0,3}:",
    ),
    _pattern(
        "hidden-unicode",
        "",
        # Bidirectional controls, zero-width characters, invisible operators, tags, variation selectors except
        # those of emoji, and control characters. Joiners are reported only between ASCII characters.
        f"[{BIDI}{ZERO_WIDTH}{TAGS}]",
        rf"(?<=[\x21-\x7e])[{JOINERS}](?=[\x21-\x7e])",
        r"[\x01-\x08\x0e-\x1f\x7f]",
    ),
    _pattern(
        "credentials",
        ".ssh id_ .aws .netrc .pgpass .git-credentials .gnupg .kube .docker /etc/ keychain gcloud torana_ "
        "_api_key environ",
        r"\.ssh/|\bid_(?:rsa|ed25519|ecdsa)\b|\.aws/|\.netrc\b|\.pgpass\b|\.git-credentials|\.gnupg\b",
        r"\.kube/config|\.docker/config|/etc/(?:passwd|shadow)|\bkeychain\b|\.config/gcloud",
        r"\bTORANA_\w{0,30}(?:TOKEN|KEY)\b|\b(?:OPENAI|ANTHROPIC)_API_KEY\b",
        r"/proc/(?:self|\d{1,9}|\*)/environ",
    ),
    _pattern(
        "dynamic-code",
        "eval exec __import__ os. shell function child_process load",
        r"(?<![.\w])(?:eval|exec|execfile|__import__)\s{0,3}\(",
        r"\bos\.(?:system|popen|exec\w{1,3})\s{0,3}\(",
        r"\bshell\s{0,3}=\s{0,3}True\b",
        r"\bnew\s{1,3}Function\s{0,3}\(|\bchild_process\b",
        r"\b(?:pickle|marshal|dill)\.loads?\b",
        r"(?:^|[;&|])\s{0,99}eval\s{1,9}[\"'$`]",
    ),
    _pattern("encoded", "", r"[A-Za-z0-9+/]{200,2000}={0,2}", r"(?:\\x[0-9a-f]{2}){30,300}"),
    _pattern(
        "encoded",
        "base64 decode atob fromhex",
        r"\bbase64\s{1,9}(?:-\w{0,9}d|--decode|-D)",
        r"\bb(?:ase)?(?:16|32|64|85)_?decode\b|\batob\s{0,3}\(|\bfromhex\s{0,3}\(|\bFromBase64String\b",
    ),
    _pattern("network", _FETCHERS, rf"{_FETCH}\s{{1,9}}\S"),
    _pattern(
        "network",
        "scp sftp rsync socat ncat netcat telnet nc ssh /dev/ import from fetch axios url xmlhttp ://",
        r"\b(?:scp|sftp|rsync|socat|ncat|netcat|telnet)\s{1,9}\S|\b(?:nc|ssh)\s{1,9}-?[\w.-]{0,80}[@.\d]",
        r"/dev/(?:tcp|udp)/",
        r"\b(?:import|from)\s{1,9}"
        r"(?:requests|httpx|aiohttp|urllib\d?|http\.client|socket|smtplib|ftplib|paramiko|websockets?)\b",
        r"\b(?:fetch|axios(?:\.\w{1,9})?|urlopen|urlretrieve|XMLHttpRequest)\s{0,3}\(",
        r"\b(?:wss?|ftp)://[^\s\"'<>)\]]{1,200}",
    ),
)
