"""The state of limits for one message: for response headers and for refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: Responses contain a warning from this percentage of a budget on.
WARNED_FROM = 50

#: The counted unit; headers omit it for messages, the default.
CountedUnit = Literal["messages", "tokens", "usd", "turns"]
_QUOTA_UNITS: dict[CountedUnit, str] = {"tokens": "tokens", "usd": "micro-usd", "turns": "concurrent-requests"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A limit for a message: its name, its amount per window in seconds, and its setting."""

    name: str
    quota: int
    setting: str
    #: The counted subject: a user's id, an account, or '' for the whole gateway.
    key: str
    #: 0 for a limit on concurrency.
    window: int = 60
    counted: CountedUnit = "messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatus:
    """The state of a policy: the remaining amount, and the seconds until more is available."""

    policy: Policy
    remaining: int
    reset: int
    #: Percentage of the budget that is spent; None for limits that recover continuously.
    spent: int | None = None


def headers(statuses: Sequence[LimitStatus]) -> dict[str, str]:
    """Return the rate limit headers of draft-ietf-httpapi-ratelimit-headers; none without limits.

    ``RateLimit`` reports the policy with the smallest remaining share, and ``Torana-Budget-Warning`` every
    budget of which at least half is spent.
    """
    if not statuses:
        return {}
    nearest = min(statuses, key=lambda status: status.remaining / status.policy.quota)
    warnings = [f'"{s.policy.name}";used={s.spent}' for s in statuses if (s.spent or 0) >= WARNED_FROM]
    return {
        "RateLimit-Policy": ", ".join(_policy_label(status.policy) for status in statuses),
        "RateLimit": f'"{nearest.policy.name}";r={nearest.remaining};t={nearest.reset}',
        **({"Torana-Budget-Warning": ", ".join(warnings)} if warnings else {}),
    }


def _policy_label(policy: Policy) -> str:
    window = f";w={policy.window}" if policy.window else ""
    unit = _QUOTA_UNITS.get(policy.counted)
    return f'"{policy.name}";q={policy.quota}{window}' + (f';qu="{unit}"' if unit else "")
