"""The runtime of connectors: supervision, incoming messages, the outbox and progress previews."""
