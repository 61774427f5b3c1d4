"""Build the language models and the embedding model from the settings."""

from __future__ import annotations

from pydantic_ai.models import Model

from torana.config import Loaded
from torana.models.builtin import BuiltinModel
from torana.models.builtin.cards import Card
from torana.models.embeddings import ProviderEmbedder
from torana.models.providers import open_embedder, open_model
from torana.skills import Skill, Skills
from torana.skills.grants import InstalledSkills, not_approved_message


def choose_model(loaded: Loaded, skills: Skills, installed: InstalledSkills | None = None) -> Model:
    """Return the model that the settings name. Raises ``ConfigInvalid`` if it is not available.

    ``installed`` tells which skills' scripts may run.
    """
    settings = loaded.settings
    return open_model(
        settings.model,
        environ=loaded.provider_environ,
        base_url=settings.model_base_url,
        api_key=settings.model_api_key.get_secret_value() if settings.model_api_key else None,
        builtin=lambda: BuiltinModel(cards=lambda: _cards(skills, installed)),
        max_response_bytes=settings.max_response_bytes,
    )


def choose_embedder(loaded: Loaded) -> ProviderEmbedder | None:
    """Return the embedding model of the settings, or None. Raises ``ConfigInvalid`` if it is not available."""
    settings = loaded.settings
    if settings.embedding_model is None:
        return None
    return open_embedder(
        settings.embedding_model,
        models=settings.model,
        environ=loaded.provider_environ,
        base_url=settings.model_base_url,
        api_key=settings.model_api_key.get_secret_value() if settings.model_api_key else None,
    )


def _cards(skills: Skills, installed: InstalledSkills | None) -> list[Card]:
    return [
        Card(
            slug=skill.slug,
            title=skill.title,
            description=skill.description,
            examples=skill.examples,
            tools=skill.tools,
            triggers=skill.triggers,
            refusal=_refusal(skill, installed) if skill.triggers else "",
        )
        for skill in skills.catalogue().loaded
    ]


def _refusal(skill: Skill, installed: InstalledSkills | None) -> str:
    return "" if installed and installed.granted_as_read(skill) else not_approved_message(skill.slug)
