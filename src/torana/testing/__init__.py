"""Test doubles that Torana's own tests use, for other tests too.

``ScriptedModel`` returns given answers inside the process; ``OpenAIStandIn`` is a server with OpenAI's Chat
Completions API and without a language model; ``Faults`` and ``MortalDatabase`` simulate crashes.
"""

from torana.testing.faults import Faults, MortalDatabase
from torana.testing.openai_server import Answer, Call, ChatRequest, Fault, OpenAIStandIn, Rule
from torana.testing.scripted import Asked, Piece, ScriptedModel

__all__ = [
    "Answer",
    "Asked",
    "Call",
    "ChatRequest",
    "Fault",
    "Faults",
    "MortalDatabase",
    "OpenAIStandIn",
    "Piece",
    "Rule",
    "ScriptedModel",
]
