"""The application: the frequent endpoints at once, and all others from their first request."""
