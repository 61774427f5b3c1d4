"""``make faults``: the planted faults fit the source, and the script tells found faults from survivors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.plant_faults import LIST, ROOT, Unusable, read_faults

SCRIPT = ROOT / "scripts/plant_faults.py"

SOURCE = "def is_adult(age: int) -> bool:\n    return age >= 18\n"
TEST = "from people import is_adult\n\n\ndef test_child_is_no_adult():\n    assert not is_adult(17)\n"


def entry(*, name: str, before: str = ">= 18", after: str, tests: str = "tests/test_people.py") -> str:
    values = {"name": name, "file": "src/people.py", "before": before, "after": after}
    return "\n".join(
        ["[[faults]]", *(f'{key} = "{text}"' for key, text in values.items()), f'tests = ["{tests}"]']
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {"src/people.py": SOURCE, "tests/test_people.py": TEST, "pyproject.toml": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def plant(tree: Path, *entries: str) -> subprocess.CompletedProcess[str]:
    (tree / LIST).write_text("\n".join(entries))
    command = [sys.executable, str(SCRIPT), "--root", str(tree)]
    bare = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # pytest starts faster
    return subprocess.run(command, env=bare, capture_output=True, text=True, timeout=120, check=False)


def test_every_fault_of_the_list_fits_the_source() -> None:
    faults = read_faults(ROOT)

    assert len({fault.name for fault in faults}) == len(faults) == 50


def test_fault_that_no_test_finds_is_named(tree: Path) -> None:
    planted = plant(
        tree,
        entry(name="children are adults", after=">= 17"),
        entry(name="adults of 18 are none", after="> 18"),
    )

    assert planted.returncode == 1, planted.stderr
    assert "found" in planted.stdout
    assert planted.stdout.endswith("find 1 of 2 faults.\nNo test finds: adults of 18 are none\n")
    assert (tree / "src/people.py").read_text() == SOURCE


def test_fault_of_the_long_tier_is_planted_with_its_option_only(tree: Path) -> None:
    planted = plant(
        tree,
        entry(name="children are adults", after=">= 17"),
        entry(name="adults of 18 are none", after="> 18") + "\nlong = true",
    )

    assert planted.returncode == 0, planted.stderr
    assert planted.stdout.endswith("find 1 of 1 faults.\n")


def test_failure_without_a_fault_is_no_result(tree: Path) -> None:
    (tree / "tests/test_people.py").write_text("def test_of_nothing():\n    assert False\n")

    planted = plant(tree, entry(name="children are adults", after=">= 17"))

    assert planted.returncode == 2
    assert "fail or hang without any fault" in planted.stderr


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (entry(name="one", before="a", after="b"), "`before` occurs 3 times"),
        (entry(name="one", before=">= 21", after="> 21"), "`before` occurs 0 times"),
        (entry(name="one", after=">= 18 ("), "does not compile"),
        (entry(name="one", after="> 18", tests="tests/test_places.py"), "there is no tests/test_places.py"),
        ('[[faults]]\nname = "one"', "missing .* 'file'"),
    ],
)
def test_entry_that_does_not_fit_the_source_is_named(tree: Path, wrong: str, told: str) -> None:
    (tree / LIST).write_text(wrong)

    with pytest.raises(Unusable, match=f"(?s)'one'.*{told}"):
        read_faults(tree)


@pytest.mark.parametrize("text", ["[[faults]", "[[mistakes]]"])
def test_file_without_faults_is_refused(tree: Path, text: str) -> None:
    (tree / LIST).write_text(text)

    with pytest.raises(Unusable, match="is not a list of"):
        read_faults(tree)
