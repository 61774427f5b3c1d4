"""How limits stand for one message: in the headers of its answer, and in the words of a refusal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: From so many percent of a budget on its answers carry a warning.
WARNED_FROM = 50

#: How the headers call what is counted; messages are what a limit counts that says nothing.
Counted = Literal["messages", "tokens", "usd", "turns"]
_QUOTA_UNITS: dict[Counted, str] = {"tokens": "tokens", "usd": "micro-usd", "turns": "concurrent-requests"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A limit in force for a message: its name, how much in how many seconds, and the setting that says so."""

    name: str
    quota: int
    setting: str
    #: What is counted together: a user's id, an account, or '' for all.
    key: str
    #: 0 for what is limited at once, and not in a time.
    window: int = 60
    counted: Counted = "messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a policy stands: what is left of it, and in how many seconds more of it is free."""

    policy: Policy
    remaining: int
    reset: int
    #: Percent that are spent for good; None for what frees itself by and by.
    spent: int | None = None


def headers(standings: Sequence[Standing]) -> dict[str, str]:
    """``RateLimit-Policy`` and ``RateLimit`` (draft-ietf-httpapi-ratelimit-headers) of the standings.

    ``RateLimit`` tells of the policy nearest to its end, ``Torana-Budget-Warning`` of every budget that is half
    spent. No limits, no headers.
    """
    if not standings:
        return {}
    nearest = min(standings, key=lambda standing: standing.remaining / standing.policy.quota)
    warnings = [f'"{s.policy.name}";used={s.spent}' for s in standings if (s.spent or 0) >= WARNED_FROM]
    return {
        "RateLimit-Policy": ", ".join(_described(standing.policy) for standing in standings),
        "RateLimit": f'"{nearest.policy.name}";r={nearest.remaining};t={nearest.reset}',
        **({"Torana-Budget-Warning": ", ".join(warnings)} if warnings else {}),
    }


def _described(policy: Policy) -> str:
    window = f";w={policy.window}" if policy.window else ""
    unit = _QUOTA_UNITS.get(policy.counted)
    return f'"{policy.name}";q={policy.quota}{window}' + (f';qu="{unit}"' if unit else "")
