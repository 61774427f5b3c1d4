"""Python snippets: their results and their restrictions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import psutil
import pytest

from torana.tools import ToolError
from torana.tools.builtin.python import PythonTools


@pytest.fixture
async def python() -> AsyncGenerator[PythonTools]:
    tools = PythonTools(seconds=1)
    yield tools
    await tools.close()


def workers() -> list[int]:
    return [child.pid for child in psutil.Process().children() if "monty" in " ".join(child.cmdline())]


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("1 + 1", "result: 2"),
        ("print('a')\nprint('b')", "printed: a\nb"),
        ("print('a')\n[x * x for x in range(4)]", "printed: a\nresult: [0, 1, 4, 9]"),
        ("import math, json, re\nround(math.pi, 2), json.dumps({'a': 1}), re.sub('a', 'b', 'aa')",
         "result: (3.14, '{\"a\": 1}', 'bb')"),
        ("x = 1", "The code printed nothing."),
        ("import time\ntime.sleep(3600)\n'slept'", "result: 'slept'"),
    ],
)  # fmt: skip
async def test_output_and_result_of_a_snippet_are_returned(python: PythonTools, code: str, answer: str) -> None:
    assert await python.run_python(code) == answer


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("while True: pass", " and was stopped; do less in one snippet."),
        ("9**9**9", "MemoryError: memory limit exceeded"),
        ("x = []\nwhile True: x.append('x' * 1000)", "memory"),
        ("while True: print('x' * 1000)", "MemoryError"),
        ("def f(): return f()\nf()", "RecursionError"),
        ("x = []\nfor _ in range(100_000): x = [x]\nx", "recursion"),
        ("10**5000", "Exceeds the limit"),
        ("import socket", "No module named 'socket'"),
        ("import subprocess", "No module named 'subprocess'"),
        ("open('/etc/passwd').read()", "PermissionError"),
        ("from pathlib import Path\nPath('/etc/passwd').read_text()", "PermissionError"),
        ("import os\nos.environ", "not supported"),
        ("import os\nos.getenv('HOME')", "not supported"),
        ("__import__('os').system('true')", "The code failed"),
        ("().__class__.__bases__[0].__subclasses__()", "The code failed"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def (", "Expected an identifier"),
        ("x" * 20_001, "at most 20,000"),
    ],
)
async def test_forbidden_snippet_fails_without_affecting_the_next(
    python: PythonTools, code: str, fault: str
) -> None:
    with pytest.raises(ToolError) as caught:
        await python.run_python(code)

    assert fault in str(caught.value)
    assert await python.run_python("'well'") == "result: 'well'"


async def test_error_includes_the_output_before_it(python: PythonTools) -> None:
    with pytest.raises(ToolError, match="printed: before"):
        await python.run_python("print('before')\nnone")


async def test_long_output_is_cut(python: PythonTools) -> None:
    answer = await python.run_python("'x' * 50_000")

    assert answer.startswith("result (its beginning): 'xxx")
    assert len(answer) < 17_000


@pytest.mark.parametrize("value", ["a", "(a,)", "{1: a}", "[a, {'b': a}]"])
async def test_exponentially_nested_value_is_cut(python: PythonTools, value: str) -> None:
    answer = await python.run_python(f"a = [1]\nfor _ in range(60): a = [a, a]\n{value}")

    assert answer.startswith("result (its beginning): ")
    assert len(answer) < 17_000


@pytest.mark.parametrize(
    "value", ["[1, 'a', None]", "(1,)", "()", "{}", "{'a': [1.5]}", "{1}", "b'x'", "[[], ()]"]
)
async def test_values_are_formatted_like_repr(python: PythonTools, value: str) -> None:
    assert await python.run_python(value) == f"result: {value}"


async def test_snippets_do_not_share_variables(python: PythonTools) -> None:
    await python.run_python("secret = 1")

    with pytest.raises(ToolError, match="name 'secret' is not defined"):
        await python.run_python("secret")


async def test_event_loop_runs_while_all_workers_are_busy(
    python: PythonTools,
) -> None:
    busy = asyncio.gather(*(python.run_python("while True: pass") for _ in range(3)), return_exceptions=True)
    ticks = 0
    while not busy.done():
        await asyncio.sleep(0.01)
        ticks += 1

    assert ticks > 10
    assert all(isinstance(outcome, ToolError) for outcome in await busy)
    assert await python.run_python("1") == "result: 1"


async def test_cancelled_snippet_frees_its_worker(python: PythonTools) -> None:
    running = asyncio.create_task(python.run_python("while True: pass"))
    await python.run_python("1")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert await asyncio.gather(*(python.run_python(str(n)) for n in range(4))) == [
        f"result: {n}" for n in range(4)
    ]


async def test_workers_start_with_the_first_snippet_and_end_on_close() -> None:
    tools = PythonTools()
    before = workers()
    await tools.run_python("1")
    during = workers()
    await tools.close()
    await tools.close()

    assert before == []
    assert len(during) == 1
    assert workers() == []
