"""Modules become one script that runs them in the order of their imports."""

from __future__ import annotations

import subprocess

import pytest
from tests.parts import require

from torana.console.bundle import bundle, compact

MODULES = {
    "main.js": 'import { double as twice, add } from "./lib/sums.js";\nimport greet from "./lib/greet.js";\n'
    'console.log(greet("Ana"), add(twice(2), 1));',
    "lib/sums.js": 'import { one } from "../one.js";\n\nexport function add(a, b) {\n  return a + b;\n}\n'
    "const twice = (a) => a * (one + one);\nexport { twice as double };",
    "lib/greet.js": "/** Greet. */\nexport default (name) => `Hello, ${name}!`;",
    "one.js": "export const one = 1;",
}


def test_bundle_runs_like_its_modules() -> None:
    node = require("node", "nodejs")
    script = bundle(MODULES.__getitem__, "main.js")

    assert "import" not in script
    run = subprocess.run([node, "-"], input=script, capture_output=True, text=True, check=True, timeout=30)
    assert run.stdout == "Hello, Ana! 5\n"


def test_module_of_two_importers_is_contained_once() -> None:
    modules = {
        "a.js": 'import { b } from "./b.js";\nimport { c } from "./c.js";',
        "b.js": 'import { c } from "./c.js";\nexport const b = c;',
        "c.js": "export const c = 40_423;",
    }
    assert bundle(modules.__getitem__, "a.js").count("40_423") == 1


def test_modules_that_import_each_other_are_refused() -> None:
    modules = {
        "a.js": 'import { b } from "./b.js";\nexport const a = b;',
        "b.js": 'import { a } from "./a.js";\nexport const b = a;',
    }
    with pytest.raises(ValueError, match=r"a\.js imports itself"):
        bundle(modules.__getitem__, "a.js")


@pytest.mark.parametrize("text", ['"</script>"', "'</SCRIPT '", "'<!--'"])
def test_text_that_ends_the_script_element_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="script element"):
        bundle({"a.js": f"console.log({text});"}.__getitem__, "a.js")


def test_spaces_are_left_out_except_in_strings() -> None:
    text = """if (a) { b({ c, d }, ", { e }", ', { f }');\n}"""
    assert """if(a){b({c,d},", { e }",', { f }')}""" in bundle({"a.js": text}.__getitem__, "a.js")


def test_comments_and_indentation_are_left_out() -> None:
    text = '/** A\n * comment. */\na {\n  b: "//x";\n}\n\n// c\nd  // e\n'
    assert compact(text) == 'a {\nb: "//x";\n}\nd  // e\n'
