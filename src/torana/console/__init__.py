"""The console: one self-contained page for people who talk with the agent and for operators."""
