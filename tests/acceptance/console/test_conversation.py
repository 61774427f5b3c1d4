"""A person talks with the agent: streams, tools, approvals, branches, files and search."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect
from tests.acceptance.console.conftest import OPERATOR, PHONE, Models, Visit, client, new_token

from torana.testing.openai_server import Answer, Call, ChatRequest, Fault, Reply, Rule

if TYPE_CHECKING:
    from tests.acceptance.conftest import Gateway

Serve = Callable[..., "Gateway"]
Visits = Callable[..., Visit]

#: A rule of permissions that asks before this tool runs.
ASKS = {"TORANA_PERMISSIONS": '[{"tool": "calculate", "permission": "ask"}]'}

MARKDOWN = """Here is a table:

| City | Sales |
|---|---|
| Rome | 20 |

```python
print(1)
```

It needs `MAX_SIZE` and OPENAI_API_KEY."""


class Gate:
    """Pieces of a stream, the second half of which waits until the gate is opened."""

    def __init__(self) -> None:
        self._opened = threading.Event()

    def open(self) -> None:
        self._opened.set()

    def pieces(self, *texts: str) -> Iterator[str]:
        yield texts[0]
        self._opened.wait(30)
        yield from texts[1:]


def calculates(request: ChatRequest) -> Answer:
    """Call the calculator once, and answer with its result."""
    return " ".join(request.results) or [Call("calculate", {"expression": "6 * 7"})]


def pauses_once(gate: Gate) -> Rule:
    """Return a rule whose first answer pauses until the gate is opened."""
    numbers = count()

    def reply(request: ChatRequest) -> Reply:
        first = next(numbers) == 0
        return Reply(pieces=gate.pieces("One more", " two")) if first else Reply(answer=f"Then {request.text}")

    return reply


def test_answer_streams_as_formatted_markdown(serve: Serve, visit: Visits, model: Models) -> None:
    gate = Gate()
    first, second = MARKDOWN.split("```", 1)
    visited = visit(
        serve(model(lambda _: Reply(pieces=gate.pieces(first, f"```{second}")))).url, token=OPERATOR
    )
    visited.send("show me")

    expect(visited.turn().get_by_role("columnheader", name="City")).to_be_visible()
    expect(visited.turn().locator("pre code")).to_have_count(0)
    gate.open()
    expect(visited.turn().locator("pre code")).to_have_text("print(1)\n")
    expect(visited.turn().get_by_role("cell", name="Rome")).to_be_visible()
    expect(visited.turn()).to_contain_text("OPENAI_API_KEY")


def test_tool_calls_are_folded_with_arguments_and_result(serve: Serve, visit: Visits, model: Models) -> None:
    visited = visit(serve(model(calculates)).url, token=OPERATOR)
    visited.send("what is 6 * 7?")
    expect(visited.turn()).to_contain_text("= 42")

    calls = visited.turn().locator("details.tools")
    expect(calls.get_by_text("6 * 7").first).to_be_hidden()
    calls.locator("summary").click()
    expect(calls).to_contain_text("calculate")
    expect(calls.locator("pre").first).to_contain_text('"expression": "6 * 7"')
    expect(calls.locator("pre").last).to_contain_text("6 * 7 = 42")


def test_approval_is_decided_once_from_two_browsers(serve: Serve, visit: Visits, model: Models) -> None:
    gateway = serve(model(calculates), **ASKS)
    here, there = visit(gateway.url, token=OPERATOR), visit(gateway.url, token=OPERATOR)
    here.send("what is 6 * 7?")
    card = here.turn().locator(".approval")
    expect(card).to_contain_text('"expression": "6 * 7"')
    there.open_view("approvals")
    other = there.page.locator(".approval")
    expect(other.get_by_role("button", name="Allow")).to_be_visible()

    card.get_by_role("button", name="Allow").click()
    expect(here.turn()).to_contain_text("6 * 7 = 42")
    expect(card.get_by_role("button", name="Allow")).to_have_count(0)
    expect(card).to_contain_text("approved")
    expect(other).to_have_count(0)


#: Returns whether the buttons of the approvals take clicks.
CLICKABLE = """[...document.querySelectorAll(".approval .action button")]
  .map((button) => getComputedStyle(button).pointerEvents)"""
#: ``window.changed`` resolves to ``CLICKABLE`` at the moment at which the number of approvals changes.
WATCH = f"""() => {{
  const count = () => document.querySelectorAll(".approval.is-open").length;
  const before = count();
  window.changed = new Promise((resolve) => {{
    const look = () => count() === before || resolve({CLICKABLE});
    new MutationObserver(look).observe(document.body, {{ attributes: true, childList: true, subtree: true }});
  }});
}}"""


def asks_twice(request: ChatRequest) -> Answer:
    """Call the calculator twice at once, and answer with the results."""
    calls = [Call("calculate", {"expression": f"{number} * 7"}) for number in (1, 2)]
    return " ".join(request.results) or calls


@pytest.mark.parametrize("view", ["conversation", "approvals"])
def test_second_click_of_a_double_click_does_not_approve_the_next_call(
    serve: Serve, visit: Visits, model: Models, view: str
) -> None:
    """The card of the next call moves to the place of the card that was decided."""
    visited = visit(serve(model(asks_twice), **ASKS).url, token=OPERATOR)
    visited.send("two products?")
    expect(visited.turn().locator(".approval")).to_have_count(2)
    if view == "approvals":
        visited.open_view(view)
        expect(visited.page.locator(".cards .approval")).to_have_count(2)
    allow = visited.page.locator(".approval").first.get_by_role("button", name="Allow")
    visited.page.evaluate(WATCH)

    allow.click()

    assert visited.page.evaluate("window.changed") == ["none", "none"]


def test_clicks_in_a_row_do_not_approve_a_call_that_appears(serve: Serve, visit: Visits, model: Models) -> None:
    """Another site can ask for many clicks, and then show the console in its place."""
    visited = visit(serve(model(calculates), **ASKS).url, token=OPERATOR)
    visited.page.evaluate(WATCH)
    visited.send("what is 6 * 7?")
    assert visited.page.evaluate("window.changed") == ["none", "none"]
    allow = visited.turn().locator(".approval").get_by_role("button", name="Allow")
    expect(allow).to_have_css("pointer-events", "auto")

    visited.page.evaluate("document.body.dispatchEvent(new PointerEvent('pointerdown', { bubbles: true }))")

    assert visited.page.evaluate(CLICKABLE) == ["none", "none"]
    allow.click()
    expect(visited.turn()).to_contain_text("6 * 7 = 42")


def test_input_after_a_return_to_the_page_does_not_approve(serve: Serve, visit: Visits, model: Models) -> None:
    """A page over the console can ask for clicks and keys, and then close itself."""
    visited = visit(serve(model(calculates), **ASKS).url, token=OPERATOR)
    page = visited.page
    visited.send("what is 6 * 7?")
    allow = visited.turn().locator(".approval").get_by_role("button", name="Allow")
    expect(allow).to_have_css("pointer-events", "auto")
    allow.evaluate("element => element.focus()")

    page.evaluate("window.returning = setInterval(() => dispatchEvent(new Event('focus')), 50)")
    expect(allow).to_have_css("pointer-events", "none")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(allow).to_be_focused()
    expect(visited.turn().locator(".approval")).to_contain_text("open")

    page.evaluate("clearInterval(window.returning)")
    expect(allow).to_have_css("pointer-events", "auto")
    page.keyboard.press("Enter")
    expect(visited.turn()).to_contain_text("6 * 7 = 42")


def test_written_yes_does_not_approve(serve: Serve, visit: Visits, model: Models) -> None:
    visited = visit(serve(model(calculates), **ASKS).url, token=OPERATOR)
    visited.send("what is 6 * 7?")
    expect(visited.turn().get_by_role("button", name="Allow")).to_be_visible()
    visited.send("yes")

    expect(visited.turn()).to_contain_text("The question is still open")
    visited.page.get_by_role("button", name="Allow").click()
    expect(visited.turn(0)).to_contain_text("6 * 7 = 42")


def test_arguments_of_an_approval_can_be_edited(serve: Serve, visit: Visits, model: Models) -> None:
    visited = visit(serve(model(calculates), **ASKS).url, token=OPERATOR)
    visited.send("what is 6 * 7?")
    card = visited.turn().locator(".approval")
    card.get_by_role("button", name="Edit").click()
    card.get_by_label("Arguments").fill('{"expression": "6 * ')
    card.get_by_role("button", name="Allow").click()
    expect(card.get_by_role("alert")).to_be_visible()

    card.get_by_label("Arguments").fill('{"expression": "6 * 8"}')
    card.get_by_role("button", name="Allow").click()
    expect(visited.turn()).to_contain_text("6 * 8 = 48")


def test_large_numbers_are_shown_and_sent_exactly(serve: Serve, visit: Visits, model: Models) -> None:
    def reply(request: ChatRequest) -> Answer:
        return " ".join(request.results) or [Call("pick_random", {"low": 2**53 + 1, "high": 2**53 + 1})]

    asks = {"TORANA_PERMISSIONS": '[{"tool": "pick_random", "permission": "ask"}]'}
    visited = visit(serve(model(reply), **asks).url, token=OPERATOR)
    visited.send("pick one")
    card = visited.turn().locator(".approval")
    expect(card).to_contain_text('"low": 9007199254740993')
    visited.open_view("approvals")
    expect(visited.page.locator(".approval")).to_contain_text('"low": 9007199254740993')

    visited.page.go_back()
    card.get_by_role("button", name="Edit").click()
    card.get_by_label("Arguments").fill('{"low": 9007199254740995, "high": 9007199254740995}')
    card.get_by_role("button", name="Allow").click()
    expect(card).to_contain_text("approved")
    expect(card).to_contain_text('"low": 9007199254740995')


def test_denied_call_does_not_run(serve: Serve, visit: Visits, model: Models) -> None:
    visited = visit(serve(model(calculates), **ASKS).url, token=OPERATOR)
    visited.send("what is 6 * 7?")
    visited.turn().get_by_role("button", name="Deny").click()

    expect(visited.turn().locator(".approval")).to_contain_text("denied")
    expect(visited.turn()).not_to_contain_text("= 42")


def test_running_answer_is_stopped(serve: Serve, visit: Visits, model: Models) -> None:
    gate = Gate()
    visited = visit(serve(model(lambda _: Reply(pieces=gate.pieces("One more", " two")))).url, token=OPERATOR)
    visited.send("count")
    expect(visited.turn()).to_contain_text("One")
    visited.page.get_by_role("button", name="Stop").click()

    expect(visited.turn()).to_contain_text("was cancelled")
    gate.open()
    expect(visited.page.get_by_role("button", name="Stop")).to_have_count(0)


def test_message_waits_behind_a_running_turn(serve: Serve, visit: Visits, model: Models) -> None:
    gate = Gate()
    visited = visit(serve(model(pauses_once(gate))).url, token=OPERATOR)
    visited.send("count")
    expect(visited.turn()).to_contain_text("One")
    visited.send("three")
    expect(visited.turn()).to_contain_text("waits for the one before")
    gate.open()
    expect(visited.turn(0)).to_contain_text("One more two")
    expect(visited.turn(1)).to_contain_text("Then three")


def test_message_steers_a_running_turn(serve: Serve, visit: Visits, model: Models) -> None:
    gate = Gate()

    def reply(request: ChatRequest) -> Reply:
        if not request.results:
            return Reply(answer=[Call("calculate", {"expression": "6 * 7"})], pieces=gate.pieces("", ""))
        return Reply(answer=f"You added: {request.text}")

    visited = visit(serve(model(reply)).url, token=OPERATOR)
    visited.send("what is 6 * 7?")
    choice = visited.page.get_by_label("While the agent is busy")
    choice.select_option("steer")
    expect(choice).to_have_value("steer")
    visited.send("and in words")
    expect(visited.turn(1)).to_contain_text("waits for the one before")
    gate.open()
    expect(visited.turn(0)).to_contain_text("You added: and in words")
    expect(visited.turn(1)).to_contain_text("The running turn took in this message.")
    expect(visited.turn(1)).not_to_contain_text("You added")


def test_last_character_is_shown_while_the_answer_pauses(serve: Serve, visit: Visits, model: Models) -> None:
    gate = Gate()
    visited = visit(serve(model(lambda _: Reply(pieces=gate.pieces("Shall I?", " Yes.")))).url, token=OPERATOR)
    visited.send("ask")
    expect(visited.turn().locator(".markdown")).to_have_text("Shall I?")
    gate.open()
    expect(visited.turn().locator(".markdown")).to_have_text("Shall I? Yes.")


def test_message_interrupts_a_running_turn(serve: Serve, visit: Visits, model: Models) -> None:
    gate = Gate()
    visited = visit(serve(model(pauses_once(gate))).url, token=OPERATOR)
    visited.send("count")
    expect(visited.turn()).to_contain_text("One")
    visited.page.get_by_label("While the agent is busy").select_option("interrupt")
    visited.send("three")
    expect(visited.turn(1)).to_contain_text("Then three")
    gate.open()
    expect(visited.turn(0)).to_contain_text("was cancelled")


def test_edited_message_continues_in_a_branch(serve: Serve, visit: Visits) -> None:
    visited = visit(serve().url, token=OPERATOR)
    visited.send("what is 17 % of 2,340")
    expect(visited.turn()).to_contain_text("397.8")
    visited.send("12 km in miles")
    expect(visited.turn()).to_contain_text("7.45")
    before = visited.page.url

    visited.turn().get_by_role("button", name="Edit").click()
    box = visited.page.get_by_role("textbox", name="Message")
    expect(box).to_have_value("12 km in miles")
    expect(visited.page.locator("article.turn")).to_have_count(1)
    assert visited.page.url != before
    visited.send("14 km in miles")
    expect(visited.turn()).to_contain_text("8.69")
    visited.page.goto(before)
    expect(visited.turn()).to_contain_text("7.45")


def test_failed_turn_is_tried_again(serve: Serve, visit: Visits, model: Models) -> None:
    server = model(lambda _: "Recovered.", faults=[Fault(status=400)])
    visited = visit(serve(server).url, token=OPERATOR)
    visited.send("hello")
    visited.turn().get_by_role("button", name="Retry").click()
    expect(visited.turn()).to_contain_text("Recovered.")
    expect(visited.page.locator("article.turn")).to_have_count(1)


def test_files_are_attached_shown_and_sent(serve: Serve, visit: Visits, model: Models) -> None:
    server = model(lambda request: str(request.messages[-1]["content"]))
    visited = visit(serve(server).url, token=OPERATOR)
    page = visited.page
    notes: Any = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"Call Ana."}
    page.locator("input[type=file]").set_input_files([notes])
    chip = page.get_by_role("listitem").filter(has_text="notes.txt")
    expect(chip).to_be_visible()
    page.get_by_role("button", name="Remove notes.txt").click()
    expect(chip).to_have_count(0)

    page.evaluate(
        """() => {
            const data = new DataTransfer();
            data.items.add(new File(["Buy milk."], "list.txt", { type: "text/plain" }));
            const drop = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
            document.querySelector(".composer").dispatchEvent(drop);
        }"""
    )
    visited.send("read this")
    expect(visited.turn()).to_contain_text("Buy milk.")
    expect(visited.turn().locator(".message.user")).to_contain_text("list.txt")


def test_limits_of_files_are_said_before_sending(serve: Serve, visit: Visits) -> None:
    visited = visit(serve().url, token=OPERATOR)
    page = visited.page
    large: Any = {"name": "large.bin", "mimeType": "text/plain", "buffer": b"x" * 3_750_001}
    page.locator("input[type=file]").set_input_files([large])
    page.get_by_role("textbox", name="Message").fill("look")

    expect(page.get_by_role("alert")).to_contain_text("large.bin is larger than")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()


def test_session_is_renamed_archived_and_deleted(serve: Serve, visit: Visits) -> None:
    visited = visit(serve().url, token=OPERATOR)
    page = visited.page
    visited.send("what is 17 % of 2,340")
    expect(visited.turn()).to_contain_text("397.8")
    sessions = page.get_by_role("navigation", name="Conversations")

    page.get_by_role("main").get_by_role("button", name="Actions for").click()
    page.get_by_label("Title").fill("Percentages")
    page.get_by_role("button", name="Rename").click()
    expect(sessions.get_by_role("link", name="Percentages")).to_be_visible()

    sessions.get_by_role("button", name="Actions for").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export Markdown").click()
    assert "397.8" in download.value.path().read_text()
    page.get_by_role("button", name="Archive", exact=True).click()
    expect(page.get_by_role("link", name="Percentages")).to_have_count(0)
    page.get_by_role("button", name="Archived conversations").click()
    expect(sessions.get_by_role("link", name="Percentages")).to_be_visible()

    sessions.get_by_role("button", name="Actions for").click()
    page.get_by_role("button", name="Delete conversation").click()
    page.get_by_role("dialog", name="Delete conversation").get_by_role(
        "button", name="Delete conversation"
    ).click()
    expect(page.get_by_role("link", name="Percentages")).to_have_count(0)


def test_search_opens_a_hit_at_its_message(serve: Serve, visit: Visits) -> None:
    gateway = serve()
    with client(gateway) as operator:
        for number in range(60):
            content = "the zebra number 3" if number == 3 else f"{number} km in miles"
            body = {"content": content, "channelId": "kitchen", "userId": "ana"}
            operator.post("/message", json=body).raise_for_status()
    visited = visit(gateway.url, token=OPERATOR)
    page = visited.page
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.get_by_role("searchbox").fill("zebra")
    page.get_by_role("dialog").get_by_role("link").first.click()

    marked = page.locator("article.is-marked")
    expect(marked).to_contain_text("the zebra number 3")
    expect(marked).to_be_in_viewport()


def test_memories_are_viewed_edited_and_forgotten(serve: Serve, visit: Visits) -> None:
    gateway = serve()
    visited = visit(gateway.url, token=new_token(gateway, "message", "read", "memory", user="ana"))
    page = visited.page
    visited.send("remember that my sister is called Ondine")
    expect(visited.turn()).to_contain_text("Remembered")
    page.get_by_role("link", name="Memories").click()
    row = page.get_by_role("row").filter(has_text="Ondine")
    row.get_by_role("button", name="Edit").click()
    page.get_by_label("Memory", exact=True).fill("My sister is called Undine")
    page.get_by_role("button", name="Save").click()
    row = page.get_by_role("row").filter(has_text="Undine")
    row.get_by_role("button", name="Forget").click()
    page.get_by_role("dialog").get_by_role("button", name="Forget").click()

    expect(page.get_by_role("row").filter(has_text="dine")).to_have_count(0)


def test_shortcuts_work_and_are_listed(serve: Serve, visit: Visits) -> None:
    visited = visit(serve().url, token=OPERATOR)
    page = visited.page
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("s")
    page.keyboard.type("what is 17 % of 2,340")
    page.keyboard.press("Enter")

    expect(visited.turn()).to_contain_text("397.8")


def test_keys_typed_into_the_page_before_are_ignored(
    new_gateway: Callable[..., Gateway], visit: Visits
) -> None:
    gateway = new_gateway()
    gateway.start()
    page = visit(gateway.url).page
    page.add_init_script(
        "window.typing = setInterval(() => dispatchEvent(new KeyboardEvent('keydown', { key: 'x' })), 50)"
    )
    page.reload()
    box = page.get_by_role("textbox", name="Message")
    expect(box).to_be_focused()
    page.keyboard.type("yes")
    page.keyboard.press("Enter")
    stopped = page.evaluate("() => { clearInterval(window.typing); return performance.now(); }")
    page.wait_for_function("stopped => performance.now() > stopped + 1000", arg=stopped)
    page.keyboard.press("s")
    page.keyboard.type("hello")

    expect(box).to_have_value("hello")
    expect(page.locator("article.turn")).to_have_count(0)


def test_box_stays_visible_above_the_keyboard_of_a_phone(serve: Serve, visit: Visits) -> None:
    visited = visit(serve().url, token=OPERATOR, size=PHONE)
    page = visited.page
    visited.send("what is 17 % of 2,340")
    expect(visited.turn()).to_contain_text("397.8")
    page.get_by_role("textbox", name="Message").focus()
    page.set_viewport_size({"width": PHONE[0], "height": 360})  # the keyboard takes the rest

    expect(page.get_by_role("textbox", name="Message")).to_be_in_viewport(ratio=1)
    expect(page.get_by_role("button", name="Send")).to_be_in_viewport(ratio=1)
    expect(visited.turn().locator(".markdown")).to_be_in_viewport()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE[0]


def test_long_conversation_holds_few_elements(serve: Serve, visit: Visits) -> None:
    gateway = serve()
    with client(gateway) as operator:
        for number in range(200):
            body = {"content": f"{number} km in miles", "channelId": "kitchen", "userId": "ana"}
            operator.post("/message", json=body).raise_for_status()
        (session,) = operator.get("/v1/sessions").json()["items"]
    visited = visit(gateway.url, token=OPERATOR)
    page = visited.page
    visited.open_view(f"chat/{session['id']}")
    expect(visited.turn()).to_contain_text("199 km")

    first = page.locator("article.turn").first
    while not (first.text_content() or "").startswith("0 km"):
        before = first.get_attribute("data-turn")
        page.get_by_role("log").evaluate("element => { element.scrollTop = 0 }")
        expect(first).not_to_have_attribute("data-turn", before or "")
        assert page.locator("article.turn").count() <= 150
    page.get_by_role("button", name="Jump to the newest messages").click()
    expect(visited.turn()).to_contain_text("199 km")
