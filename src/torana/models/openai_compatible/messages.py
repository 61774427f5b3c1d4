"""Write a conversation as the messages of a chat request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from pydantic_ai._thinking_part import render_replayed_thinking
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.profiles.openai import OpenAIModelProfile

Message = dict[str, Any]

#: The fields in which servers send and expect thoughts.
THINKING_FIELDS = ("reasoning", "reasoning_content")


def write_messages(
    model: Model[Any], messages: Sequence[ModelMessage], instructions: Sequence[InstructionPart]
) -> list[Message]:
    """Return the messages, the instructions first. Raises ``UserError`` for content that cannot be sent."""
    profile = cast("OpenAIModelProfile", model.profile)
    system = profile.get("openai_system_prompt_role") or "system"
    written: list[Message] = []
    for message in messages:
        written += (
            _write_request(message, system)
            if isinstance(message, ModelRequest)
            else _Answer(model, profile, message).write()
        )
    _complete_thinking(profile, written)
    leading = next((i for i, one in enumerate(written) if one["role"] != system), len(written))
    written[leading:leading] = [{"role": system, "content": part.content} for part in instructions]
    leading += len(instructions)
    if (
        leading > 1
        and system != "user"
        and not profile.get("openai_chat_supports_multiple_system_messages", True)
    ):
        joined = "\n\n".join(one["content"] for one in written[:leading])
        written[:leading] = [{"role": system, "content": joined}]
    return written


def _write_request(request: ModelRequest, system: str) -> Iterator[Message]:
    files: list[UserContent] = []
    for part in request.parts:
        match part:
            case SystemPromptPart():
                yield {"role": system, "content": part.content}
            case UserPromptPart():
                yield _from_user(part.content)
            case ToolReturnPart():
                text, of_tool = part.model_response_str_and_user_content()
                files += of_tool
                yield {"role": "tool", "tool_call_id": part.tool_call_id, "content": text}
            case _:
                raise UserError(f"Chat Completions cannot express a {part.part_kind}.")
    # A tool's result is text; its files follow in a user's message.
    if files:
        yield _from_user(files)


def _from_user(content: str | Sequence[UserContent]) -> Message:
    if isinstance(content, str):
        return {"role": "user", "content": content}
    return {"role": "user", "content": [_write_content(one) for one in content]}


def _write_content(content: UserContent) -> Message:
    match content:
        case str():
            return {"type": "text", "text": content}
        case TextContent():
            return {"type": "text", "text": content.content}
        case BinaryContent() if content.is_image:
            return {"type": "image_url", "image_url": {"url": content.data_uri}}
        case BinaryContent(media_type="application/pdf"):
            file = {"file_data": content.data_uri, "filename": f"filename.{content.format}"}
            return {"type": "file", "file": file}
        case _:
            raise UserError(f"Chat Completions cannot express a {content.kind} of this type.")


class _Answer:
    """One of the model's answers, with its thoughts in the field that the server expects."""

    def __init__(self, model: Model[Any], profile: OpenAIModelProfile, response: ModelResponse) -> None:
        self._model = model
        self._profile = profile
        self._response = response
        self._texts: list[str] = []
        self._thoughts: dict[str, list[str]] = {}
        self._thoughts_for_user: list[str] = []
        self._calls: list[Message] = []

    def write(self) -> Iterable[Message]:
        """Yield a user's message with the thoughts, and the assistant's message, unless they are empty."""
        for part in self._response.parts:
            match part:
                case TextPart():
                    self._texts.append(part.content)
                case ThinkingPart():
                    self._add_thought(part)
                case ToolCallPart():
                    self._calls.append(self._write_call(part))
                case _:
                    pass  # Files and results of a provider's own tools are not sent back.
        if self._thoughts_for_user:
            yield {"role": "user", "content": "\n\n".join(self._thoughts_for_user)}
        if self._texts or self._calls:
            written: Message = {"role": "assistant"}
            written |= {field: "\n\n".join(texts) for field, texts in self._thoughts.items()}
            written["content"] = "\n\n".join(self._texts) if self._texts else None
            if self._calls:
                written["tool_calls"] = self._calls
            yield written

    def _write_call(self, part: ToolCallPart) -> Message:
        function = {"name": part.tool_name, "arguments": part.args_as_json_str()}
        written: Message = {"id": part.tool_call_id, "type": "function", "function": function}
        # Gemini's signature of its thought.
        extra = (part.provider_details or {}).get("extra_content")
        if extra and self._model.accepts_stateless_artifacts(self._response, part):
            written["extra_content"] = extra
        return written

    def _add_thought(self, part: ThinkingPart) -> None:
        field = self._field(part)
        if field is not None:
            self._thoughts.setdefault(field, []).append(part.content)
            return
        text, for_user = render_replayed_thinking(part.content, self._profile)
        if not for_user:
            self._texts.append(text)
        elif part.content:
            self._thoughts_for_user.append(text)

    def _field(self, part: ThinkingPart) -> str | None:
        """Return the field in which this server sent a thought; None for a thought from tags in a text."""
        custom = self._profile.get("openai_chat_thinking_field")
        sent = part.id and part.id != "content" and part.provider_name == self._model.system
        return part.id if sent and (not custom or part.id == custom) else None


def _complete_thinking(profile: OpenAIModelProfile, written: Sequence[Message]) -> None:
    """Add empty thoughts to the calls since the last user message, if the server sends thoughts in one field.

    Servers such as DeepSeek's refuse calls without that field.
    """
    custom = profile.get("openai_chat_thinking_field")
    fields = {name for one in written for name in (custom, *THINKING_FIELDS) if name and name in one}
    if len(fields) != 1:
        return
    (field,) = fields
    for one in reversed(written):
        if one["role"] == "user":
            break
        if one.get("tool_calls"):
            one.setdefault(field, "")
