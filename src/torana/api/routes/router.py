"""The router of a module of handlers."""

from __future__ import annotations

from fastapi import APIRouter

from torana.api.responses import NoStoreResponse


def new_router() -> APIRouter:
    """Return an empty router. The name of a handler is the id of its operation in the OpenAPI document."""
    return APIRouter(
        default_response_class=NoStoreResponse, generate_unique_id_function=lambda route: route.name
    )
