"""Plant the faults of ``tests/planted_faults.toml`` one by one, and print which of them the tests find.

Each fault is planted in a copy of the source tree, where its tests run; this tree stays as it is.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

ROOT = Path(__file__).parents[1]
LIST = Path("tests/planted_faults.toml")
COPIED = ("deploy", "docs", "scripts", "src", "tests", "pyproject.toml")

#: The smallest share of the faults that the tests must find.
BOUND = 0.9
#: Seconds for the tests of a fault, for those of all faults without any, and for an interrupted run to end.
_LIMIT, _CLEAN_LIMIT, _GRACE = 120.0, 1_800.0, 10.0

Result = Literal["found", "hangs", "SURVIVED"]


class Unusable(Exception):
    """A fault that cannot be planted, or tests that say nothing about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A change of one file, and the tests that must fail with it."""

    name: str
    file: str
    before: str
    after: str
    tests: Sequence[str]
    #: Whether only tests of the long tier find it.
    long: bool = False

    def check(self, root: Path) -> None:
        """Raise ``Unusable`` if the fault does not fit the tree."""
        missing = [path for path in (self.file, *self.tests) if not (root / path).exists()]
        if missing:
            raise Unusable(f"{self.name!r}: there is no {missing[0]}; correct the path in {LIST}")
        try:
            ast.parse(self.apply(root))
        except SyntaxError as error:
            raise Unusable(f"{self.name!r}: {self.file} does not compile with `after`: {error}") from error

    def apply(self, root: Path) -> str:
        """Return the text of the file with the fault. Raises ``Unusable``."""
        source = (root / self.file).read_text("utf-8")
        count = source.count(self.before)
        if count != 1:
            raise Unusable(
                f"{self.name!r}: `before` occurs {count} times in {self.file}, not once; correct it in {LIST}"
            )
        return source.replace(self.before, self.after)


def read_faults(root: Path, names: Sequence[str] = ()) -> list[Fault]:
    """Return the faults of the list, or those with these names. Raises ``Unusable``."""
    try:
        entries = tomllib.loads((root / LIST).read_text("utf-8"))["faults"]
    except (OSError, ValueError, KeyError) as error:
        raise Unusable(f"{LIST} is not a list of [[faults]]: {error}") from error
    faults = [_fault(entry) for entry in entries]
    for fault in faults:
        fault.check(root)
    unknown = set(names) - {fault.name for fault in faults}
    if unknown:
        raise Unusable(f"{LIST} has no fault {min(unknown)!r}")
    return [fault for fault in faults if not names or fault.name in names]


def _fault(entry: dict[str, Any]) -> Fault:
    try:
        return Fault(**entry)
    except TypeError as error:
        raise Unusable(f"{entry.get('name')!r}: {error}; correct the entry in {LIST}") from None


def plant_all(root: Path, faults: Sequence[Fault], *, long: bool) -> dict[str, Result]:
    """Plant each fault in a copy of the tree, run its tests, print the result, and return all results."""
    if not faults:
        raise Unusable("only tests of the long tier find these faults; add --long")
    with TemporaryDirectory(prefix="faults-") as name:
        copy = Path(name, "tree")
        copy.mkdir()
        for part in filter(Path.exists, map(root.joinpath, COPIED)):
            copy_part = shutil.copytree if part.is_dir() else shutil.copy2
            copy_part(part, copy / part.name)
        tests = sorted({path for fault in faults for path in fault.tests})
        _print("Without faults:")
        if _run(copy, tests, limit=_CLEAN_LIMIT, long=long, output=None) != 0:
            raise Unusable("the tests fail or hang without any fault; correct that first")
        return {fault.name: _plant(copy, fault, long=long) for fault in faults}


def _plant(copy: Path, fault: Fault, *, long: bool) -> Result:
    started = time.monotonic()
    file, original = copy / fault.file, copy / "original"
    text = fault.apply(copy)
    file.rename(original)
    file.write_text(text, "utf-8")
    status = _run(copy, fault.tests, limit=_LIMIT, long=long)
    original.replace(file)
    results: dict[int | None, Result] = {0: "SURVIVED", 1: "found", None: "hangs"}
    if status not in results:
        raise Unusable(f"{fault.name!r}: pytest ended with status {status} instead of running the tests")
    _print(f"{results[status]:8} {time.monotonic() - started:5.1f} s  {fault.name}")
    return results[status]


def _run(
    copy: Path, tests: Sequence[str], *, limit: float, long: bool, output: int | None = subprocess.DEVNULL
) -> int | None:
    """Return the status of pytest in the copy, or None if it exceeds the limit."""
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={copy.with_name('made')}"]
    tier = [] if long else ["-m", "not long"]
    # Compiled modules are copied too, and stay those of the sources without faults.
    surroundings = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    pytest = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tier, *tests],
        cwd=copy,
        env=surroundings,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        return pytest.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(pytest)


def _end(pytest: subprocess.Popen[bytes]) -> None:
    """End pytest and the processes of its tests."""
    for number in (signal.SIGINT, signal.SIGKILL):  # after SIGINT the tests clean up
        if pytest.poll() is None:
            os.killpg(pytest.pid, number)
            with suppress(subprocess.TimeoutExpired):
                pytest.wait(_GRACE)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Return 1 if too few faults are found, and 2 if the list or the tests are not usable."""
    parser = argparse.ArgumentParser(description="Plant faults, and show which of them the tests find.")
    parser.add_argument("names", nargs="*", help="the faults to plant; without a name, all")
    parser.add_argument(
        "--long", action="store_true", help="run the tests of the long tier and plant their faults, too"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the source tree; the default is this one")
    options = parser.parse_args()
    try:
        faults = read_faults(options.root, options.names)
        tier = [fault for fault in faults if options.long or not fault.long]
        results = plant_all(options.root, tier, long=options.long)
    except Unusable as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    survivors = [name for name, result in results.items() if result == "SURVIVED"]
    found = len(results) - len(survivors)
    _print(f"The tests find {found} of {len(results)} faults.")
    for name in survivors:
        _print(f"No test finds: {name}")
    return 1 if found < BOUND * len(results) else 0


if __name__ == "__main__":
    sys.exit(main())
