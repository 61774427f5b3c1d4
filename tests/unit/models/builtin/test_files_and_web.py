"""Messages about files and web pages that the rules match, and messages that they ignore."""

from __future__ import annotations

import pytest

from torana.models.builtin.choice import Chooser
from torana.models.builtin.explicit import ExplicitCall, Unclear


def fetch_call(url: str) -> ExplicitCall:
    return ExplicitCall("web_fetch", {"url": url})


def write_call(name: str, text: str) -> ExplicitCall:
    return ExplicitCall("write_file", {"name": name, "text": text})


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("Fetch https://example.org/a?b=c", fetch_call("https://example.org/a?b=c")),
        ("fetch the page at http://example.org.", fetch_call("http://example.org")),
        ("Please open <https://example.org/>, thanks!", fetch_call("https://example.org/")),
        ("What does https://example.org/faq say?", fetch_call("https://example.org/faq")),
        ("could you read https://Example.org/Path please", fetch_call("https://Example.org/Path")),
        (
            "search the web for cheap flights to Oslo",
            ExplicitCall("web_search", {"query": "cheap flights to Oslo"}),
        ),
        ('Look up "torana gates" on the internet', ExplicitCall("web_search", {"query": "torana gates"})),
        ("List my files", ExplicitCall("list_files", {})),
        ("Which files do I have?", ExplicitCall("list_files", {})),
        ("Read notes.txt", ExplicitCall("read_file", {"name": "notes.txt"})),
        ("what is in the file trips/oslo.md?", ExplicitCall("read_file", {"name": "trips/oslo.md"})),
        ("delete the file notes.txt", ExplicitCall("delete_file", {"name": "notes.txt"})),
        ("Save milk, eggs and bread to shopping.txt", write_call("shopping.txt", "milk, eggs and bread")),
        ('write "call Ana" into todo.md', write_call("todo.md", "call Ana")),
        ('write "my shopping list" to list.txt', write_call("list.txt", "my shopping list")),
        ("save buy milk to notes.txt", write_call("notes.txt", "buy milk")),
        ("Save this to notes.txt: Buy milk.", write_call("notes.txt", "Buy milk.")),
        ("save x to a/b/../c.txt", write_call("a/b/../c.txt", "x")),
        ("read /etc/hosts.txt", ExplicitCall("read_file", {"name": "/etc/hosts.txt"})),
        ("Save to a new file called a.csv:\na,b\n1,2\n", write_call("a.csv", "a,b\n1,2")),
    ],
)
def test_file_and_web_messages_are_matched(chooser: Chooser, text: str, call: ExplicitCall) -> None:
    assert chooser.choose(text) == call


@pytest.mark.parametrize(
    "text",
    [
        "fetch me a coffee",
        "fetch file:///etc/passwd",
        "fetch https://a.example and https://b.example",
        "do not fetch https://example.org",
        "how do I save something to notes.txt?",
        "save me some cake",
        "save that to notes.txt",
        "put the kettle on in example.com",
        "put milk in shopping.txt",
        'put "milk" in shopping.txt',
        "put in shopping.txt: milk",
        "save a.txt to b.txt",
        "save copy of a.txt to b.txt",
        "save milk to a.txt and bread to b.txt",
        "save my shopping list to list.txt",
        "save the report to report.txt",
        "save our plan to plan.md",
        "save some jokes to jokes.txt",
        "write a poem to poem.txt",
        "write me a poem to poem.txt",
        "write instructions for baking bread to bread.txt",
        "write down milk in shopping.txt",
        'save "milk" and "bread" to list.txt',
        "delete all my files",
        "delete notes.txt and todo.txt",
        "read between the lines",
        "search for my keys",
        "What is node.js?",
        "what's package.json",
    ],
)
def test_other_messages_are_not_matched(chooser: Chooser, text: str) -> None:
    chosen = chooser.choose(text)
    assert not (
        isinstance(chosen, ExplicitCall)
        and chosen.tool.rpartition("_")[2] in {"fetch", "search", "file", "files"}
    )


def test_missing_text_is_requested(chooser: Chooser) -> None:
    assert isinstance(chooser.choose("save this to notes.txt"), Unclear)
