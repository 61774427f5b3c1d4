"""The fakes that Torana's own tests use, shipped for yours.

``ScriptedModel`` plays given answers inside the process; ``OpenAIStandIn`` is a server that speaks OpenAI's
Chat Completions and needs no language model; ``Faults`` and ``MortalDatabase`` let a process die at any place.
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
