"""Tokens, pairing, the audit record, export and erasure."""
