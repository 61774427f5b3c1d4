"""Open the export of traces that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torana.config import Loaded
from torana.errors import ConfigInvalid
from torana.installation import this_installation

if TYPE_CHECKING:
    from torana.otel import OtelTracer


def open_traces(loaded: Loaded) -> OtelTracer | None:
    """Return the tracer; None if no endpoint is set. Raises ``ConfigInvalid`` without the library."""
    settings = loaded.settings
    if settings.trace_endpoint is None:
        return None
    return load_tracer()(
        endpoint=settings.trace_endpoint, content=settings.trace_content, environ=loaded.provider_environ
    )


def load_tracer() -> type[OtelTracer]:
    """Import the tracer. Raises ``ConfigInvalid`` if its library, an extra, is not installed."""
    try:
        from torana.otel import OtelTracer
    except ImportError as error:
        raise ConfigInvalid(
            "TORANA_TRACE_ENDPOINT: the library for traces is not installed; run: "
            f"{this_installation().extra_command('otel')}"
        ) from error
    return OtelTracer
