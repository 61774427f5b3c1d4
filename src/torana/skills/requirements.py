"""What a skill declares to need before it can work: environment variables and programs.

The format itself has no field for it. In the wild it stands under ``metadata``, in a block named after some
agent (``openclaw``, ``clawdbot``, …), as a mapping or as JSON in a string; every such block is read alike. What
the block ``torana`` says shorter, as ``bins`` and ``secrets`` (``needs``), is required too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torana.skills.front_matter import Fields, Value, mapping_of, names_of, text_of

BLOCK = "torana"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Names of environment variables and programs; one of ``any_bins`` is enough."""

    env: tuple[str, ...]
    bins: tuple[str, ...]
    any_bins: tuple[str, ...]
    #: The variable that holds the skill's main credential; declared, not always required.
    primary_env: str | None


def requirements_of(metadata: Fields) -> Requirements:
    """What the blocks of ``metadata``, and ``metadata`` itself, declare together."""
    blocks = [metadata, *(mapping_of(value) for value in metadata.values())]
    own = mapping_of(metadata.get(BLOCK))
    requires = [mapping_of(block.get("requires")) for block in blocks]
    primary = (text_of(block.get("primaryEnv")) for block in blocks)
    env = [*(need.get("env") for need in requires), *(list(_required(block)) for block in blocks)]
    return Requirements(
        env=_union([*env, own.get("secrets")]),
        bins=_union([*(need.get("bins") for need in requires), own.get("bins")]),
        any_bins=_union(need.get("anyBins") for need in requires),
        primary_env=next((name for name in primary if name), None),
    )


def _required(block: Fields) -> Iterator[Value]:
    """The names in ``envVars: [{name: …, required: …}]``; a variable is required unless it says no."""
    variables = block.get("envVars")
    for variable in variables if isinstance(variables, list) else []:
        fields = mapping_of(variable)
        if fields.get("required") != "false":
            yield fields.get("name", "")


def _union(values: Iterable[Value | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for value in values for name in names_of(value)))
