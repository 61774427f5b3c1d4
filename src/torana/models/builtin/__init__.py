"""The model that answers without a language model, by fixed rules.

It picks among the loaded skills, calls their tools through the same loop as a real model would, and says
plainly what it is when nothing fits::

    cards.py     what is known of a skill
    message.py   what was asked, apart from the text that was pasted
    readers/     one rule per tool: message -> arguments, or None
    explicit.py  "use <tool> …": a tool called by its name
    choice.py    which tool, of those on offer
    answers.py   what is said
    telling.py   what tools told the model, said for people
    model.py     the model that pydantic-ai talks to
"""

from torana.models.builtin.model import BuiltinModel

__all__ = ["BuiltinModel"]
