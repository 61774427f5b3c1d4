"""Look up every locked package in the OSV database of known vulnerabilities.

Without a connection to the database, the audit is SKIPPED: standard error says so, and ``--require`` makes it a
failure.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).parent.parent
LOCKS = ("requirements.lock", "requirements-dev.lock")
UNREACHABLE = re.compile(
    r"^(requests\.exceptions\.(ConnectionError|ConnectTimeout|ReadTimeout)): (.*)", re.MULTILINE
)


def audit(lock: Path, *options: str) -> list[str] | None:
    """Return a line for each vulnerability, or None if the database cannot be reached."""
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--requirement",
        str(lock),
        "--disable-pip",
        "--require-hashes",
    ]
    command += ["--vulnerability-service", "osv", "--format", "json", "--progress-spinner", "off", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.stdout:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
        if not packages or any("skip_reason" in package for package in packages):
            raise SystemExit(f"{lock.name}: not every package was looked up\n{done.stdout}{done.stderr}")
        typer.echo(f"{lock.name}: {len(packages)} packages")
        return [_describe(package, fault) for package in packages for fault in package["vulns"]]
    if UNREACHABLE.search(done.stderr):
        return None
    raise SystemExit(done.stderr)


def _describe(package: dict[str, Any], fault: dict[str, Any]) -> str:
    cure = (
        f"fixed in {', '.join(fault['fix_versions'])}" if fault["fix_versions"] else "without a fixed version"
    )
    return f"{package['name']} {package['version']}: {fault['id']}, {cure}"


def main(
    require: Annotated[bool, typer.Option("--require", help="Fail if the database cannot be reached.")] = False,
    osv_url: Annotated[str, typer.Option(help="Another OSV database.")] = "",
) -> None:
    """Look up the packages of the lock files; exit with 1 if one has a known vulnerability."""
    faults: set[str] = set()
    for name in LOCKS:
        found = audit(ROOT / name, *(("--osv-url", osv_url) if osv_url else ()))
        if found is None:
            typer.echo("SKIPPED: the OSV database cannot be reached, so nothing was audited.", err=True)
            raise SystemExit(int(require))
        faults.update(found)
    typer.echo("\n".join(sorted(faults)) or "No known vulnerabilities.")
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    typer.run(main)
