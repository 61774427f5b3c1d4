"""The kinds of files that each language model accepts."""

from __future__ import annotations

import logging
from collections.abc import Collection

from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel

from torana.messages import FileKind
from torana.models.builtin import BuiltinModel

_log = logging.getLogger(__name__)


def files_taken(model: Model, wanted: Collection[FileKind]) -> frozenset[FileKind]:
    """Return those of the wanted kinds that every model of a list accepts; none for the builtin model.

    This checks only what pydantic-ai knows about an interface. The model itself may still refuse a request with
    such a file; the operator chooses the kinds.
    """
    members = model.models if isinstance(model, FallbackModel) else [model]
    models = [member for member in members if not isinstance(member, BuiltinModel)]
    if not models:
        return frozenset()
    taken = frozenset[FileKind](kind for kind in wanted if all(_carries(model, kind) for model in models))
    for kind in set(wanted) - taken:
        _log.warning("model_rejects_file_kind", extra={"kind": kind})
    return taken


def _carries(model: Model, kind: FileKind) -> bool:
    profile = model.profile
    if kind == "image":
        return profile.get("supports_image_input", True)
    if kind == "pdf":
        documents = profile.get("supported_document_media_types", {"application/pdf"})
        return profile.get("supports_document_input", True) and "application/pdf" in documents
    return True
