"""A model that speaks OpenAI's Chat Completions, without the OpenAI client.

Requests and streamed answers are those of pydantic-ai's ``OpenAIChatModel``; a contract test compares both.
``docs/decisions/0054`` has the reason.
"""

from torana.models.openai_compatible.model import ChatModel
from torana.models.openai_compatible.provider import ChatProvider

__all__ = ["ChatModel", "ChatProvider"]
