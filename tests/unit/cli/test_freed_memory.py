from __future__ import annotations

import sys

import pytest

from torana.cli.freed_memory import return_memory
from torana.health import resident_memory

_SIZE, _NUMBER = 100_000, 2_000


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc returns memory on request")
def test_memory_between_objects_in_use_is_returned() -> None:
    held = [b"x" * (_SIZE if number % 2 else 1_000) for number in range(2 * _NUMBER)]
    in_use = [one for one in held if len(one) < _SIZE]
    held.clear()
    before = resident_memory()

    return_memory()

    assert before - resident_memory() > _NUMBER * _SIZE / 2
    assert len(in_use) == _NUMBER
