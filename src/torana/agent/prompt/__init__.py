"""The parts of a model request: instructions, tools, history, the message and its note."""
