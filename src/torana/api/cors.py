"""Which web pages may call the gateway from a browser (https://fetch.spec.whatwg.org/#http-cors-protocol)."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

#: What a page may send besides what browsers let every page send, and what it may read of an answer: all that
#: the OpenAPI document names.
_SENT_TO_US = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "If-None-Match",
    "Last-Event-ID",
    "Prefer",
)
_SENT_BY_US = (
    "Allow",
    "Content-Disposition",
    "ETag",
    "Idempotency-Replayed",
    "Location",
    "Preference-Applied",
    "RateLimit",
    "RateLimit-Policy",
    "Retry-After",
    "Torana-Budget-Warning",
    "WWW-Authenticate",
    "X-Request-Id",
)


class Cors(CORSMiddleware):
    """Lets the scripts of listed origins read every answer, an error's too, so it stands outside all others.

    Their preflights are answered here, without a token and without a body: browsers send none along. Whoever
    is not listed gets no preflight; what asks for one is a request like any other.
    """

    def __init__(self, app: ASGIApp, *, origins: Collection[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=("DELETE", "GET", "PATCH", "POST"),
            allow_headers=_SENT_TO_US,
            expose_headers=_SENT_BY_US,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the preflight of a listed origin, pass on everything else."""
        if scope["method"] == "OPTIONS" and not self.is_allowed_origin(Headers(scope=scope).get("origin", "")):
            await self.app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def preflight_response(self, request_headers: Headers) -> Response:
        """What is allowed; the browser itself compares that with what its page wants."""
        origin = {"Access-Control-Allow-Origin": request_headers["origin"]}
        return Response(status_code=204, headers=self.preflight_headers | origin)
