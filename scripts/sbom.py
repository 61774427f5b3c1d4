"""Write the software bill of materials of a release: Torana and every package of ``requirements.lock``.

The format is CycloneDX JSON. ``cyclonedx-py`` knows neither the dynamic version nor the direct dependencies.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import typer
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torana import __version__

ROOT = Path(__file__).parent.parent
COMMAND = ("-m", "cyclonedx_py", "requirements", "requirements.lock")
OPTIONS = ("--pyproject", "pyproject.toml", "--mc-type", "application", "--sv", "1.6", "--output-reproducible")


def bill_of_materials() -> dict[str, Any]:
    """Return the validated document."""
    command = [sys.executable, "-W", "ignore", *COMMAND, *OPTIONS]
    document: dict[str, Any] = json.loads(subprocess.check_output(command, cwd=ROOT))
    component = document["metadata"]["component"]
    component["version"] = __version__
    direct = _direct_dependencies()
    for entry in document["dependencies"]:
        if entry["ref"] == component["bom-ref"]:
            entry["dependsOn"] = [
                part["bom-ref"] for part in document["components"] if canonicalize_name(part["name"]) in direct
            ]
    if fault := JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)):
        raise ValueError(f"the bill of materials is not valid CycloneDX: {fault}")
    return document


def _direct_dependencies() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}


def main(file: Path) -> None:
    """Write the bill of materials to a file."""
    file.write_text(json.dumps(bill_of_materials(), indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
