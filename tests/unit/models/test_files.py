"""The file kinds that a model accepts."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.profiles import ModelProfile

from torana.messages import FileKind
from torana.models.builtin import BuiltinModel
from torana.models.files import files_taken
from torana.models.providers import open_model
from torana.testing import ScriptedModel

ALL: Sequence[FileKind] = ("text", "image", "pdf")


def builtin() -> BuiltinModel:
    return BuiltinModel(cards=lambda: ())


def open_configured(*names: str) -> Model:
    environ = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}
    return open_model(names, environ=environ, base_url=None, api_key=None, builtin=builtin)


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (["builtin"], set[str]()),
        (["openai:gpt-5"], {*ALL}),
        (["openai-chat:gpt-5"], {*ALL}),
        (["anthropic:claude-sonnet-4-5"], {*ALL}),
        (["anthropic:claude-sonnet-4-5", "builtin"], {*ALL}),
        (["vllm:llava"], {"text", "image"}),
        (["openai:gpt-5", "vllm:llava"], {"text", "image"}),
    ],
)
def test_unsupported_file_kinds_of_an_interface_are_not_sent(names: list[str], taken: set[str]) -> None:
    assert files_taken(open_configured(*names), ALL) == taken


def test_only_configured_file_kinds_are_sent() -> None:
    assert files_taken(ScriptedModel(), ["image"]) == {"image"}
    assert files_taken(ScriptedModel(), []) == set()


def test_unsupported_configured_kind_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    blind = ScriptedModel()
    blind._profile = ModelProfile(supports_image_input=False)  # pyright: ignore[reportPrivateUsage]

    assert files_taken(FallbackModel(ScriptedModel(), blind), ALL) == {"text", "pdf"}
    assert [(record.getMessage(), vars(record)["kind"]) for record in caplog.records] == [
        ("model_rejects_file_kind", "image")
    ]
