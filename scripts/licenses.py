"""List the runtime dependencies with license, purpose, size and import time, and check the licenses.

``dependencies.toml`` has the purposes and the allowed licenses. Sizes and import times differ between machines,
so ``--check`` does not compare them with the page.
"""

from __future__ import annotations

import importlib.metadata as metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "dependencies.md"
TABLE = Path(__file__).with_name("dependencies.toml")

#: Licenses as metadata without SPDX identifiers names them.
_NAMES = {
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "BSD": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The BSD 2-Clause License": "BSD-2-Clause",
    "The Unlicense (Unlicense)": "Unlicense",
}
_CLASSIFIER = "License :: OSI Approved :: "
_SPDX = re.compile(r"[\w.+-]+(?: (?:AND|OR) [\w.+-]+)*")
#: The version of Python whose packages the page lists.
_PYTHON = (3, 11)
#: The number of columns of the page's tables that are compared.
_COMPARED = {6: 4, 3: 2}
_HEAD = """\
# Dependencies

<!-- Made by scripts/licenses.py; change scripts/dependencies.toml and run `make dependencies`. -->

`make check` refuses a dependency without a purpose or with a license that is not allowed. Versions are in
`requirements.lock`. A size is that of the package alone. An import time includes what the package imports
itself, in a new process. Both were measured on one machine, for orders of magnitude.

## Direct dependencies

"""
_REST = """
## Indirect dependencies

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The contents of ``dependencies.toml``."""

    allowed: frozenset[str]
    exceptions: Mapping[str, str]
    licenses: Mapping[str, str]
    imports: Mapping[str, str]
    purposes: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> Table:
        found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        named = {
            name: _canonical(found.get(name, {})) for name in ("exceptions", "licenses", "imports", "purposes")
        }
        return cls(allowed=frozenset(found["allowed"]), **named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    name: str
    license: str
    #: ``base`` and the extras for which Torana itself requires it; none if only other packages require it.
    installs: tuple[str, ...]


def dependencies(pyproject: Path, table: Table) -> list[Dependency]:
    """Return what the base install and all extras need on this machine, by name."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    installs = {"base": project["dependencies"], **project["optional-dependencies"]}
    direct: dict[str, list[str]] = {}
    found: set[str] = set()
    # The extra `all` names the other extras, whose requirements are in the table already.
    del installs["all"]
    for install, lines in installs.items():
        requirements = [Requirement(line) for line in lines]
        base = {name for name, places in direct.items() if "base" in places}
        for name in _own(requirements, base):
            direct.setdefault(name, []).append(install)
        found |= _closure(requirements)
    return [
        Dependency(name=name, license=_license(name, table), installs=tuple(direct.get(name, ())))
        for name in sorted(found)
    ]


def problems(found: Sequence[Dependency], table: Table) -> list[str]:
    """Return a line for each license that is not allowed, and for each purpose that is missing or left over."""
    known = {one.name for one in found if one.installs}
    refused = [one for one in found if not _is_allowed(one.license, table.allowed)]
    return [
        *(
            f"{one.name}: the license {one.license or '(none)'} is not allowed; replace the package, or give a "
            f"reason in {TABLE.name} under [exceptions]"
            for one in refused
            if one.name not in table.exceptions
        ),
        *(f"{name}: no purpose; add it to {TABLE.name}" for name in sorted(known - table.purposes.keys())),
        *(
            f"{name}: not a dependency; remove its purpose from {TABLE.name}"
            for name in sorted(table.purposes.keys() - known)
            if _is_installed(name)
        ),
    ]


def page(found: Sequence[Dependency], table: Table) -> str:
    """Return the page, with sizes and import times of this machine."""
    direct = [
        (*_direct_cells(one, table), _size(one.name), _import_time(one.name, table))
        for one in found
        if one.installs
    ]
    rest = [(one.name, one.license, _size(one.name)) for one in found if not one.installs]
    heads = ("Package", "Install", "License", "Purpose", "MB", "Import, CPU s"), ("Package", "License", "MB")
    return f"{_HEAD}{_lines(heads[0], direct)}\n{_REST}{_lines(heads[1], rest)}\n"


def stale_rows(text: str, found: Sequence[Dependency], table: Table) -> list[str]:
    """Return the rows that differ from the page.

    A package for another system may be on the page too. A package for a newer Python is not.
    """
    rows = {cells[0]: cells for line in text.splitlines() if (cells := _compared(line))}
    current = {
        one.name: _direct_cells(one, table) if one.installs else (one.name, one.license) for one in found
    }
    if sys.version_info[:2] != _PYTHON:
        current = {name: cells for name, cells in current.items() if name in rows}
    changed = [name for name, cells in current.items() if rows.get(name) != cells]
    return [*changed, *(name for name in rows.keys() - current.keys() if _is_installed(name))]


def _canonical(names: Mapping[str, str]) -> dict[str, str]:
    return {canonicalize_name(name): value for name, value in names.items()}


def _own(requirements: Iterable[Requirement], base: set[str]) -> list[str]:
    """Return the required packages; an extra of a package of the base stands for what it adds."""
    names: list[str] = []
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if name in base:
            names += _extra_needs(name, requirement.extras)
        elif _applies(requirement, [""]):
            names.append(name)
    return names


def _closure(requirements: Iterable[Requirement]) -> set[str]:
    seen: dict[str, set[str]] = {}
    waiting = [one for one in requirements if _applies(one, [""])]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        extras = {"", *requirement.extras}
        if extras <= seen.get(name, set()):
            continue
        seen[name] = seen.get(name, set()) | extras
        waiting += _needs(name, requirement.extras)
    return set(seen)


def _needs(name: str, extras: Iterable[str]) -> list[Requirement]:
    return [one for line in metadata.requires(name) or [] if _applies(one := Requirement(line), ["", *extras])]


def _extra_needs(name: str, extras: Iterable[str]) -> list[str]:
    """Return what the extras of a package need, without what the package itself needs."""
    return [canonicalize_name(one.name) for one in _needs(name, extras) if not _applies(one, [""])]


def _applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


def _license(name: str, table: Table) -> str:
    """Return the license as an SPDX expression, as far as the metadata or the table names it."""
    if name in table.licenses:
        return table.licenses[name]
    # In the standard library's stubs the metadata has fewer methods than at run time.
    fields = cast("Message", metadata.metadata(name))
    if expression := fields.get("License-Expression"):
        return expression
    given = (fields.get("License") or "").strip()
    classifiers = [
        line.removeprefix(_CLASSIFIER)
        for line in fields.get_all("Classifier", [])
        if line.startswith(_CLASSIFIER)
    ]
    texts = [_NAMES.get(text, text) for text in (given, *classifiers)]
    named = [text for text in texts if text not in ("UNKNOWN", "Dual License") and _SPDX.fullmatch(text)]
    precise = [text for text in named if text != "BSD"]
    return (precise or named or [""])[0]


def _is_allowed(expression: str, allowed: frozenset[str]) -> bool:
    return any(all(part in allowed for part in choice.split(" AND ")) for choice in expression.split(" OR "))


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _direct_cells(one: Dependency, table: Table) -> tuple[str, ...]:
    return (one.name, ", ".join(one.installs), one.license, table.purposes.get(one.name, ""))


def _compared(line: str) -> tuple[str, ...]:
    cells = tuple(cell.strip() for cell in line.strip("| ").split("|"))
    is_row = line.startswith("| ") and cells[0] not in ("Package", "---")
    return cells[: _COMPARED.get(len(cells), 0)] if is_row else ()


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _size(name: str) -> str:
    files = metadata.files(name) or []
    paths = [Path(str(file.locate())) for file in files if file.suffix != ".pyc"]
    return f"{sum(path.stat().st_size for path in paths if path.is_file()) / 1e6:.1f}"


def _import_time(name: str, table: Table) -> str:
    module = table.imports.get(name) or _module(name)
    command = f"import time; start = time.process_time(); import {module}; print(time.process_time() - start)"
    seconds = subprocess.check_output([sys.executable, "-c", command], text=True)
    return f"{float(seconds):.2f}"


def _module(name: str) -> str:
    """Return the module of a package: the one with its name, else the first one that is public."""
    owners = _owners()
    modules = sorted(module for module, names in owners.items() if name in names and not module.startswith("_"))
    same = [module for module in modules if canonicalize_name(module) == name]
    return (same or modules or [name.replace("-", "_")])[0]


@cache
def _owners() -> Mapping[str, list[str]]:
    found = metadata.packages_distributions()
    return {module: [canonicalize_name(name) for name in names] for module, names in found.items()}


def main(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if the page is stale.")] = False,
) -> None:
    """Write docs/reference/dependencies.md."""
    table = Table.read(TABLE)
    found = dependencies(ROOT / "pyproject.toml", table)
    faults = problems(found, table)
    if not check and not faults:
        PAGE.write_text(page(found, table), encoding="utf-8")
    elif check:
        text = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
        page_name = PAGE.relative_to(ROOT)
        faults += [
            f"{name}: {page_name} is stale; run `make dependencies`" for name in stale_rows(text, found, table)
        ]
    for fault in faults:
        typer.echo(fault, err=True)
    sys.exit(bool(faults))


if __name__ == "__main__":
    typer.run(main)
