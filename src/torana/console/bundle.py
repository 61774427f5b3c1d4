"""Bundle ECMAScript modules into one script, so that the page loads nothing.

Each module becomes a function of its own scope, after the modules that it imports. The modules use one form of
each statement: ``import { a, b as c } from "./file.js";`` and ``import a from "./file.js";`` at the beginning
of a line, and ``export function``, ``export class``, ``export const``, ``export default`` or
``export { a as b }``.

To make the page smaller, comments (on lines of their own), the indentation, semicolons before a brace, and
spaces around operators, after commas and inside braces are left out. The modules therefore have no string with
an operator between spaces, and no template of several lines with such a space.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

_IMPORT = re.compile(r'^import\s*(?:\{([^}]*)\}|(\w+))\s*from\s*"([^"]+)";?', re.MULTILINE)
_DECLARED = re.compile(r"^export (?=(?:async function\*?|function\*?|class|const) (\w+))", re.MULTILINE)
_LISTED = re.compile(r"\bexport\s*\{([^}]*)\};?")
_DEFAULT = re.compile(r"\bexport default ")
_COMMENT = re.compile(r"^[ \t]*(?:/\*.*?\*/|//[^\n]*)[ \t]*\n", re.MULTILINE | re.DOTALL)
_OPERATOR = re.compile(r" (=>|={1,3}|!==|&&|\|\||<=|>=|\?\?|[-?:+*/%<>]|[-+]=) ")
#: A line break inside braces or after a comma, and the end of the last statement of a block.
_BREAK = re.compile(r"(?<=[{,])\n|;[ \n](?=})")
_BLANK = re.compile(r"^\s+", re.MULTILINE)
#: A string literal, which is kept, or a space that is removed: after a comma or the name of a field, inside
#: braces, or before a parenthesis or a block.
_SPACE = re.compile(
    r"""("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|(?<!html)`(?:[^`\\\n{}]|\$\{[^`{}\n]*\})*`)"""
    r"|(?<=[,{])[ ]|[ ](?=})|(?<=\bif)[ ](?=\()|(?<=\))[ ](?={)|(?<=\w:)[ ](?=[\w\"'`({[])"
)


#: A line break in a template before an element or a value, which htm leaves out; no statement begins so.
_TEMPLATE_BREAK = re.compile(r"\n(?=<|\$\{)")


def bundle(read: Callable[[str], str], entry: str) -> str:
    """Return one script of a module and of all that it imports; ``read`` returns a module by its path.

    Raises ``ValueError`` for modules that import each other, and for a text that ends a script element.
    """
    #: The constant that holds the exports of a module, by its path; None while its imports are added.
    names: dict[str, str | None] = {}
    functions: list[str] = []

    def add(path: str) -> str:
        if path in names:
            name = names[path]
            if name is None:
                raise ValueError(f"{path} imports itself, directly or through other modules.")
            return name
        names[path] = None
        folder = posixpath.dirname(path)
        text = _IMPORT.sub(
            lambda found: _bind(found, add(posixpath.normpath(posixpath.join(folder, found[3])))), read(path)
        )
        names[path] = name = f"m{len(functions)}"
        functions.append(_as_function(name, text))
        return name

    add(entry)
    script = _OPERATOR.sub(r"\1", compact("\n".join(functions)))
    script = _SPACE.sub(lambda found: found[1] or "", _BREAK.sub("", script))
    if re.search(r"</script|<!--", script, re.IGNORECASE):
        raise ValueError("A module contains </script or <!--, which HTML does not allow in a script element.")
    return script


def compact(text: str) -> str:
    """Return a script or a style sheet without indentation, empty lines, and comments on lines of their own."""
    return _TEMPLATE_BREAK.sub("", _BLANK.sub("", _COMMENT.sub("", text)))


def _bind(imported: re.Match[str], module: str) -> str:
    """Return the statement that binds the names of an import."""
    if imported[2]:
        return f"const {imported[2]} = {module}.default;"
    return f"const {{{_fields(imported[1])}}} = {module};"


def _as_function(name: str, text: str) -> str:
    fields = _DECLARED.findall(text)
    for listed in _LISTED.findall(text):
        # An export has the name of the field last, and an object has it first.
        fields.append(_fields(",".join(" as ".join(item.split(" as ")[::-1]) for item in listed.split(","))))
    if _DEFAULT.search(text):
        fields.append("default: module_default")
    body = _DEFAULT.sub("const module_default = ", _LISTED.sub("", _DECLARED.sub("", text)))
    return f"const {name} = (() => {{\n{body}\nreturn {{{','.join(fields)}}};\n}})();"


def _fields(listed: str) -> str:
    """Return the names of an import, such as ``a, b as c``, as the fields of an object: ``a,b:c``."""
    items = (item.strip() for item in listed.split(","))
    return ",".join(re.sub(r"\s+as\s+", ":", item) for item in items if item)
