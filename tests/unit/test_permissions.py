"""The permission rule that applies to a call, and the default without one."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from torana.permissions import Calling, Rule, Rules, promised_by
from torana.tools import Permission


def calling(
    tool: str = "web_fetch",
    promised: Permission | None = "ask",
    *,
    user: str | None = None,
    token: str | None = None,
    skills: Collection[str] = (),
) -> Calling:
    return Calling(tool=tool, promised=promised, user=user, token=token, skills=frozenset(skills))


@pytest.mark.parametrize(
    ("promised", "permission", "why"),
    [
        ("allow", "allow", "the tool's default"),
        ("ask", "ask", "the tool's default"),
        ("deny", "deny", "the tool's default"),
        (None, "deny", "no rule of [[permissions]], and the tool has no default"),
    ],
)
def test_tool_default_applies_without_a_rule_and_no_default_denies(
    promised: Permission | None, permission: Permission, why: str
) -> None:
    verdict = Rules().verdict(calling(promised=promised))

    assert (verdict.permission, verdict.why) == (permission, why)


def test_first_matching_rule_applies() -> None:
    rules = Rules(
        [
            Rule(tool="web_fetch", user="ana", permission="allow"),
            Rule(tool="web_*", permission="deny"),
            Rule(tool="*", permission="ask"),
            Rule(tool="web_fetch", user="bob", permission="allow"),
        ]
    )

    told = {user: rules.verdict(calling(user=user)) for user in ("ana", "bob", None)}
    assert {user: verdict.permission for user, verdict in told.items()} == {
        "ana": "allow",
        "bob": "deny",
        None: "deny",
    }
    assert told["bob"].why == "rule 2 of [[permissions]]"
    assert rules.verdict(calling("calculate", "allow")).why == "rule 3 of [[permissions]]"


@pytest.mark.parametrize(
    ("rule", "fitting", "strange"),
    [
        (Rule(tool="web_?etch", permission="deny"), calling(), calling("web_search")),
        (Rule(tool="Web_fetch", permission="deny"), calling("Web_fetch"), calling()),
        (
            Rule(tool="*", user="telegram:*", permission="deny"),
            calling(user="telegram:4"),
            calling(user="irc:x"),
        ),
        (Rule(tool="*", user="*", permission="deny"), calling(user="ana"), calling(user=None)),
        (Rule(tool="*", token="tok_1", permission="deny"), calling(token="tok_1"), calling(token=None)),
        (Rule(tool="*", token="*", permission="deny"), calling(token="*"), calling(token="tok_1")),
        (
            Rule(tool="*", skill="pdf", permission="deny"),
            calling(skills=["pdf", "x"]),
            calling(skills=["pdfs"]),
        ),
        (
            Rule(tool="*", user="ana", skill="pdf", permission="deny"),
            calling(user="ana", skills=["pdf"]),
            calling(user="ana"),
        ),
    ],
)
def test_rule_applies_only_when_all_its_fields_match(rule: Rule, fitting: Calling, strange: Calling) -> None:
    assert Rules([rule]).verdict(fitting).permission == "deny"
    assert Rules([rule]).verdict(strange).why == "the tool's default"


def test_user_name_of_a_call_is_not_a_pattern() -> None:
    rules = Rules([Rule(tool="web_fetch", user="ana", permission="allow")])

    assert rules.verdict(calling(user="*")).permission == "ask"


def test_tool_is_out_of_reach_only_if_denied_for_all_arguments() -> None:
    rules = Rules(
        [
            Rule(tool="*", skill="pdf", permission="allow"),
            Rule(tool="*", permission="deny"),
        ]
    )

    assert rules.is_always_denied(calling())
    assert not rules.is_always_denied(calling(skills=["pdf"]))
    assert not rules.is_always_denied(calling("run_skill_script"))  # the call may run that skill's script
    assert Rules([Rule(tool="*", permission="deny")]).is_always_denied(calling("run_skill_script"))
    assert not Rules().is_always_denied(calling(promised="ask"))


def test_unknown_tool_names_are_reported_and_patterns_are_not() -> None:
    rules = Rules([Rule(tool=tool, permission="ask") for tool in ("web_fetsch", "mcp_*", "calculate")])

    assert rules.unknown_tools(["calculate", "web_fetch"]) == ["web_fetsch"]


@pytest.mark.parametrize(
    "metadata", [None, {}, {"idempotent": True}, {"permission": "maybe"}, {"permission": 1}]
)
def test_metadata_without_a_permission_has_no_default(metadata: dict[str, object] | None) -> None:
    assert promised_by(metadata) is None
