"""The descriptions of the bodies' fields: the texts below them in the source.

Pydantic can read them too (``use_attribute_docstrings``), but as each class is created. That takes half of the
time in which the framework loads, for texts that only the OpenAPI document shows.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

from torana.api.schemas.base import Wire
from torana.tools.builtin.arithmetic import PARSING


def describe_fields(schemas: Mapping[str, dict[str, Any]], bodies: Collection[type[Wire]]) -> None:
    """Add the descriptions to the properties of JSON schemas, which have the names of their bodies."""
    texts = {place: text for module in {body.__module__ for body in bodies} for place, text in _texts(module)}
    for body in bodies:
        properties = schemas.get(body.__name__, {}).get("properties", {})
        for name, field in body.model_fields.items():
            places = ((parent.__name__, name) for parent in body.__mro__)
            found = next((texts[place] for place in places if place in texts), None)
            shown = properties.get(field.alias or name)
            if found is not None and shown is not None:
                shown.setdefault("description", found)


def _texts(module: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the texts below the fields of a module's classes, by class and field."""
    source = inspect.getsource(sys.modules[module])
    with PARSING:
        statements = ast.parse(source).body
    for statement in statements:
        if not isinstance(statement, ast.ClassDef):
            continue
        for field, below in pairwise(statement.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    yield (statement.name, name), " ".join(text.split())
                case _:
                    pass
