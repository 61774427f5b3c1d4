"""An OpenAI-compatible server without a language model: instant, deterministic, able to fail on demand.

``python -m torana.testing.openai_server`` runs it by itself.
"""

from torana.testing.openai_server.rules import Rule, fixed_phrases
from torana.testing.openai_server.server import MODEL_NAME, Fault, OpenAIStandIn
from torana.testing.openai_server.wire import Answer, Call, ChatRequest, RawReply, Reply

__all__ = [
    "MODEL_NAME",
    "Answer",
    "Call",
    "ChatRequest",
    "Fault",
    "OpenAIStandIn",
    "RawReply",
    "Reply",
    "Rule",
    "fixed_phrases",
]
