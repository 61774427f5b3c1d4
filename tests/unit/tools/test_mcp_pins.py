"""The digests of accepted MCP tools, and which changes they detect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torana.tools.mcp.entries import Server
from torana.tools.mcp.pins import Pins
from torana.tools.mcp.vetting import vet

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"what": {"type": "string"}}}


def digest(name: str = "buy", description: str = "Buy it.", schema: dict[str, Any] = SCHEMA) -> str:
    server = Server(name="shop", command="shop")
    tool = {"name": name, "description": description, "inputSchema": schema}
    (offer,) = vet(server, (tool,), more=False, taken=frozenset()).offers
    return offer.digest


@pytest.mark.parametrize(
    "changed",
    [
        digest(name="sell"),
        digest(description="Buy it all."),
        digest(schema={"type": "object", "properties": {"what": {"type": "integer"}}}),
        digest(schema=SCHEMA | {"required": ["what"]}),
        # The description of an argument is not passed to the model, and still belongs to the definition.
        digest(schema={"type": "object", "properties": {"what": {"type": "string", "description": "x"}}}),
    ],
    ids=["name", "description", "type", "required", "argument description"],
)
def test_each_part_of_a_definition_changes_the_digest(changed: str) -> None:
    assert changed != digest()


def test_the_order_of_keys_does_not_change_the_digest() -> None:
    assert digest(schema=dict(reversed(SCHEMA.items()))) == digest()


def test_digests_are_added_and_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "pins" / "shop.json"
    pins = Pins(path=path, source="shop")
    assert pins.load() is None

    pins.accept({"buy": "1"})
    pins.accept({"sell": "2"})

    assert Pins(path=path, source="shop").load() == {"buy": "1", "sell": "2"}


def test_another_source_accepts_its_first_list(tmp_path: Path) -> None:
    path = tmp_path / "shop.json"
    Pins(path=path, source="shop").accept({"buy": "1"})

    assert Pins(path=path, source="other command").load() is None


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"source": "shop"}', '{"source": "shop", "tools": []}']
)
def test_a_damaged_file_accepts_no_tool(tmp_path: Path, content: str) -> None:
    path = tmp_path / "shop.json"
    path.write_text(content)

    assert Pins(path=path, source="shop").load() == {}
