"""Bundle ECMAScript modules into one script, so that the page loads nothing.

Each module becomes a function of its own scope, after the modules that it imports. The modules use one form of
each statement: ``import { a, b as c } from "./file.js";`` and ``import a from "./file.js";`` at the beginning of
a line, and ``export function``, ``export class``, ``export const``, ``export default`` or ``export { a as b }``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

_IMPORT = re.compile(r'^import\s*(?:\{([^}]*)\}|(\w+))\s*from\s*"([^"]+)";?', re.MULTILINE)
_DECLARED = re.compile(r"^export (?=(?:async function\*?|function\*?|class|const) (\w+))", re.MULTILINE)
_LISTED = re.compile(r"\bexport\s*\{([^}]*)\};?")
_DEFAULT = re.compile(r"\bexport default ")


def bundle(read: Callable[[str], str], entry: str) -> str:
    """Return one script of a module and of all that it imports; ``read`` returns a module by its path.

    Raises ``ValueError`` for modules that import each other, and for a text that ends a script element.
    """
    scripts: dict[str, str | None] = {}

    def add(path: str) -> None:
        if path in scripts:
            if scripts[path] is None:
                raise ValueError(f"{path} imports itself, directly or through other modules.")
            return
        scripts[path] = None
        text = read(path)
        folder = posixpath.dirname(path)
        for found in _IMPORT.finditer(text):
            add(posixpath.normpath(posixpath.join(folder, found[3])))
        del scripts[path]
        scripts[path] = _as_function(path, text)

    add(entry)
    script = "const modules = {};\n" + "\n".join(filter(None, scripts.values()))
    if re.search(r"</script|<!--", script, re.IGNORECASE):
        raise ValueError("A module contains </script or <!--, which HTML does not allow in a script element.")
    return script


def _as_function(path: str, text: str) -> str:
    folder = posixpath.dirname(path)
    exported = [(name, name) for name in _DECLARED.findall(text)]
    for listed in _LISTED.findall(text):
        exported += [(name, alias or name) for name, alias in map(_pair, listed.split(",")) if name]
    if _DEFAULT.search(text):
        exported.append(("module_default", "default"))

    def bound(found: re.Match[str]) -> str:
        module = f'modules["{posixpath.normpath(posixpath.join(folder, found[3]))}"]'
        if found[2]:
            return f"const {found[2]} = {module}.default;"
        names = (f"{name}: {alias or name}" for name, alias in map(_pair, found[1].split(",")) if name)
        return f"const {{ {', '.join(names)} }} = {module};"

    body = _IMPORT.sub(bound, text)
    body = _DEFAULT.sub("const module_default = ", _LISTED.sub("", _DECLARED.sub("", body)))
    names = ", ".join(f"{alias}: {name}" for name, alias in exported)
    return f'modules["{path}"] = (() => {{\n{body}\nreturn {{ {names} }};\n}})();'


def _pair(item: str) -> tuple[str, str]:
    name, _, alias = item.strip().partition(" as ")
    return name.strip(), alias.strip()
