"""What can go wrong with an address of the web; each message says what, for people and for the model.

::

    WebFault
    ├── NotAllowed      the address leads where the gateway does not go
    ├── Unreachable     no such name, nobody answers, or not with the right certificate
    ├── TooSlow         not done within the time
    ├── TooLarge        more bytes than are taken
    ├── WrongType       not a kind of content that is taken
    └── AnsweredBadly   the server says no, or does not speak HTTP
"""

from __future__ import annotations


class WebFault(Exception):
    """The address could not be fetched."""


class NotAllowed(WebFault):
    """The address is malformed, not of http or https, or leads to what is not on the public internet."""


class Unreachable(WebFault):
    """No connection: the name is unknown, nobody listens, or the certificate is not that of the name."""


class TooSlow(WebFault):
    """It took longer than the time that was given, the looking up of the name and all redirects included."""


class TooLarge(WebFault):
    """The body is larger than was asked for, counted as it is after unpacking."""


class WrongType(WebFault):
    """The content is of a type that was not asked for."""


class AnsweredBadly(WebFault):
    """The server answered with an error, or with what is not HTTP."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        #: The HTTP status, where there was one.
        self.status = status
