"""The chat in the terminal: the connection, the conversation over HTTP, its output and its prompt."""
