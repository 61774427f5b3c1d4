"""The examples of the OpenAPI document are valid bodies."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from torana.api.schemas.base import RequestBody, Wire
from torana.api.schemas.contract import HealthBody
from torana.api.serving.framework import openapi

DOCUMENT = openapi(guarded=True)
SCHEMAS: dict[str, dict[str, Any]] = DOCUMENT["components"]["schemas"]
EXAMPLES = {name: schema["examples"][0] for name, schema in SCHEMAS.items() if "examples" in schema}
#: Resources without a JSON body.
BARE = {"events", "metrics"}


def models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        yield model
        yield from models(model)


MODELS = {"HealthBody": HealthBody} | {model.__name__: model for model in models(Wire)}
REQUESTS = {model.__name__ for model in models(RequestBody)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_valid(name: str):
    body = MODELS[name].model_validate(EXAMPLES[name])
    document = body.model_dump(mode="json", by_alias=True, exclude_unset=name in REQUESTS)
    assert document == EXAMPLES[name]


def test_request_bodies_have_examples():
    assert REQUESTS - EXAMPLES.keys() == set()


def test_resources_have_example_responses():
    resources: dict[str, set[str]] = {}
    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            shown = resources.setdefault(operation["tags"][0], set())
            for status, response in operation["responses"].items():
                schema = response.get("content", {}).get("application/json", {}).get("schema", {})
                if status.startswith("2"):
                    shown.add(schema.get("items", schema).get("$ref", "").rpartition("/")[2])
    assert {name for name, shown in resources.items() if shown.isdisjoint(EXAMPLES)} == BARE
