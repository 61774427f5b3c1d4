"""Errors of web addresses. Their messages are shown to users and to the model.

::

    WebFault
    ├── NotAllowed      the address is invalid or not allowed
    ├── Unreachable     unknown name, no connection, or a wrong certificate
    ├── TooSlow         not finished before the timeout
    ├── PageTooLarge    more bytes than allowed
    ├── WrongType       a media type that is not accepted
    └── BadResponse     an error status, too many redirects, a broken body, or not HTTP
"""

from __future__ import annotations


class WebFault(Exception):
    """The address could not be fetched."""


class NotAllowed(WebFault):
    """The address is malformed, not HTTP or HTTPS, or not on the public internet."""


class Unreachable(WebFault):
    """No connection: the name is unknown, no server listens, or the certificate does not match the name."""


class TooSlow(WebFault):
    """The request took longer than allowed, including the name lookup and all redirects."""


class PageTooLarge(WebFault):
    """The decompressed body is larger than allowed."""


class WrongType(WebFault):
    """The content has a media type that is not accepted."""


class BadResponse(WebFault):
    """The response has an error status, too many redirects or a broken body, or is not HTTP."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        #: The HTTP status, if there is one.
        self.status = status
