"""Email: receive by IMAP, send by SMTP."""

from torana.connectors.platforms.email.connector import Email

__all__ = ["Email"]
