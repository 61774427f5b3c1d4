"""Rows that people read: lists and times of turns, the words of messages, and usage by its causes."""
