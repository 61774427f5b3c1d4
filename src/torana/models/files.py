"""Which files the language model can be handed."""

from __future__ import annotations

import logging
from collections.abc import Collection

from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel

from torana.messages import FileKind
from torana.models.builtin import BuiltinModel

_log = logging.getLogger(__name__)


def files_taken(model: Model, wanted: Collection[FileKind]) -> frozenset[FileKind]:
    """Those of the wanted kinds that can be sent to a model, whichever of a list answers; to builtin none.

    pydantic-ai knows for certain what an interface cannot carry. What it does not rule out may still be
    refused by the model itself, and with it the whole request: that the operator knows, who names the kinds.
    """
    members = model.models if isinstance(model, FallbackModel) else [model]
    models = [member for member in members if not isinstance(member, BuiltinModel)]
    if not models:
        return frozenset()
    taken = frozenset[FileKind](kind for kind in wanted if all(_carries(model, kind) for model in models))
    for kind in set(wanted) - taken:
        _log.warning("%s files are only named to the model: there is no way to send it any", kind)
    return taken


def _carries(model: Model, kind: FileKind) -> bool:
    profile = model.profile
    if kind == "image":
        return profile.get("supports_image_input", True)
    if kind == "pdf":
        documents = profile.get("supported_document_media_types", {"application/pdf"})
        return profile.get("supports_document_input", True) and "application/pdf" in documents
    return True
