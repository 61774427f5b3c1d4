"""The JSON response of the API."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse

NO_STORE = {"Cache-Control": "no-store"}


class NoStoreResponse(JSONResponse):
    """A JSON response that no cache keeps."""

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Add `Cache-Control` to the headers."""
        super().init_headers({**NO_STORE, **(headers or {})})
