"""CORS for the listed origins (https://fetch.spec.whatwg.org/#http-cors-protocol)."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

#: The request headers that a page may send, and the response headers that it may read: all headers that the
#: OpenAPI document names.
_REQUEST_HEADERS = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "If-None-Match",
    "Last-Event-ID",
    "Prefer",
)
_RESPONSE_HEADERS = (
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
    """Lets scripts of the listed origins read every response.

    It is the outermost middleware, so that scripts can read errors too. It answers the preflight requests of
    listed origins, which have no token. A preflight of another origin is handled like any other request.
    """

    def __init__(self, app: ASGIApp, *, origins: Collection[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=("DELETE", "GET", "PATCH", "POST"),
            allow_headers=_REQUEST_HEADERS,
            expose_headers=_RESPONSE_HEADERS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the preflight of a listed origin, and pass on every other request."""
        if scope["method"] == "OPTIONS" and not self.is_allowed_origin(Headers(scope=scope).get("origin", "")):
            await self.app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def preflight_response(self, request_headers: Headers) -> Response:
        """Return the allowed origins, methods and headers; the browser compares them with its request."""
        origin = {"Access-Control-Allow-Origin": request_headers["origin"]}
        return Response(status_code=204, headers=self.preflight_headers | origin)
