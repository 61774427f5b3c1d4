"""The builtin model: answers by fixed rules, without a language model.

It chooses among the loaded skills and calls their tools through the same loop as a language model. If no rule
matches, it says that it follows fixed rules::

    cards.py     the properties of a skill
    message.py   the question of a message, and the text pasted with it
    readers/     one rule per tool: message -> arguments, or None
    triggers.py  phrases that run a skill's script
    explicit.py  "use <tool> …": a tool called by its name
    choice.py    the choice of a tool
    smalltalk.py greetings, thanks and questions about the model
    languages.py the same, and the fallback, in other languages
    followups.py messages that refer to an earlier one
    spelling.py  spelling mistakes in the words of the rules
    answers.py   the model's own replies
    rewording.py tool results, reworded for people
    model.py     the model that pydantic-ai calls
"""

from torana.models.builtin.model import BuiltinModel

__all__ = ["BuiltinModel"]
