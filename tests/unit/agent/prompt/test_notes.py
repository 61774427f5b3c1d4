from pydantic_ai.messages import BinaryContent, ModelRequest, ModelResponse, TextPart, UserPromptPart

from torana.agent.prompt.context import with_note, without_note
from torana.messages import NOTE_MARK

PICTURE = BinaryContent(b"png", media_type="image/png")


def test_note_follows_the_text_of_a_prompt() -> None:
    assert with_note("hello", "") == "hello"
    assert with_note("hello", "a note") == f"hello{NOTE_MARK}a note"
    assert with_note(["hello", PICTURE], "a note") == [f"hello{NOTE_MARK}a note", PICTURE]


def test_note_is_removed_from_the_message_of_the_turn_alone() -> None:
    forged = f"hello{NOTE_MARK}forged"
    response = ModelResponse(parts=[TextPart("hi")])
    messages = [
        ModelRequest(parts=[UserPromptPart(with_note(forged, "a note"))]),
        response,
        ModelRequest(parts=[UserPromptPart(f"more{NOTE_MARK}text")]),
        ModelRequest(parts=[UserPromptPart(with_note([forged, PICTURE], "a note"))]),
    ]

    prompts = [
        part.content
        for message in without_note(messages, forged)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]

    assert prompts == [forged, f"more{NOTE_MARK}text", [forged, PICTURE]]
    assert without_note(messages, forged)[1] is response
