"""The environment variables and programs that a skill requires.

The skill format has no field for them. Existing skills declare them under ``metadata``, in a block named after
an agent (``openclaw``, ``clawdbot``, …), as a mapping or as a JSON string; all such blocks are read alike.
``bins`` and ``secrets`` of the block ``torana`` (see ``manifest``) are required too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torana.skills.format.front_matter import Fields, Value, mapping_of, names_of, text_of

BLOCK = "torana"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Names of environment variables and programs. One program of ``any_bins`` is enough."""

    env: tuple[str, ...]
    bins: tuple[str, ...]
    any_bins: tuple[str, ...]
    #: The variable with the skill's main credential. It is declared, but not always required.
    primary_env: str | None


def requirements_of(metadata: Fields) -> Requirements:
    """Return the requirements of all blocks of ``metadata`` and of ``metadata`` itself."""
    blocks = [metadata, *(mapping_of(value) for value in metadata.values())]
    own = mapping_of(metadata.get(BLOCK))
    requires = [mapping_of(block.get("requires")) for block in blocks]
    primary = (text_of(block.get("primaryEnv")) for block in blocks)
    env = [*(need.get("env") for need in requires), *(list(_required_variables(block)) for block in blocks)]
    return Requirements(
        env=_union([*env, own.get("secrets")]),
        bins=_union([*(need.get("bins") for need in requires), own.get("bins")]),
        any_bins=_union(need.get("anyBins") for need in requires),
        primary_env=next((name for name in primary if name), None),
    )


def _required_variables(block: Fields) -> Iterator[Value]:
    """Yield the names in ``envVars: [{name: …, required: …}]``. The default of ``required`` is true."""
    variables = block.get("envVars")
    for variable in variables if isinstance(variables, list) else []:
        fields = mapping_of(variable)
        if fields.get("required") != "false":
            yield fields.get("name", "")


def _union(values: Iterable[Value | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for value in values for name in names_of(value)))
