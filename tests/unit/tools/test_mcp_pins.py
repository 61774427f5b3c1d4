"""The digests of accepted MCP tools, and which changes they detect."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from torana.store.engine.database import Database
from torana.store.engine.tables import mcp_pins
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


@pytest.fixture
def open_pins(database: Database, tmp_path: Path) -> Callable[..., Pins]:
    """``open_pins(source="shop", place="home")`` opens the pins of a server as a new process does."""

    def make(*, source: str = "shop", place: str = "home", database: Database = database) -> Pins:
        return Pins(database=database, path=tmp_path / place / "shop.json", server="shop", source=source)

    return make


def write_file(path: Path, content: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)


async def test_digests_are_added_and_survive_a_restart(
    open_pins: Callable[..., Pins], open_database: Callable[[], Database]
) -> None:
    pins = open_pins()
    assert await pins.load(first={"buy": "1"}) == {"buy": "1"}
    assert await pins.load(first={"buy": "2"}) == {"buy": "1"}

    assert await pins.accept({"sell": "2"}) == {"buy": "1", "sell": "2"}

    again = open_pins(place="without files", database=open_database())
    assert await again.load(first={}) == {"buy": "1", "sell": "2"}


async def test_each_source_accepts_its_first_list(open_pins: Callable[..., Pins]) -> None:
    await open_pins().load(first={"buy": "1"})

    assert await open_pins(source="other command").load(first={"buy": "2"}) == {"buy": "2"}
    assert await open_pins().load(first={}) == {"buy": "1"}


async def test_file_does_not_contain_the_source(open_pins: Callable[..., Pins], tmp_path: Path) -> None:
    file = tmp_path / "home" / "shop.json"
    await open_pins(source="shop --key secret").load(first={"buy": "1"})
    assert "secret" not in file.read_text()

    write_file(file, '{"source": "shop --key secret", "tools": {"buy": "1"}}')
    assert await open_pins(source="shop --key secret").load(first={"buy": "2"}) == {"buy": "1"}
    assert "secret" not in file.read_text()


async def test_source_of_any_length_is_stored(open_pins: Callable[..., Pins]) -> None:
    source = "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=100_000)) + "\udcff"

    assert await open_pins(source=source).load(first={"buy": "1"}) == {"buy": "1"}


async def test_file_of_an_earlier_version_is_imported_once(
    open_pins: Callable[..., Pins], tmp_path: Path
) -> None:
    file = tmp_path / "home" / "shop.json"
    write_file(file, '{"source": "shop", "tools": {"buy": "1"}}')
    assert await open_pins().load(first={"buy": "2"}) == {"buy": "1"}

    write_file(file, '{"source": "shop", "tools": {"buy": "3"}}')

    assert await open_pins().load(first={"buy": "2"}) == {"buy": "1"}


async def test_copy_in_the_file_counts_where_the_row_is_missing(
    open_pins: Callable[..., Pins], database: Database
) -> None:
    await open_pins().load(first={"buy": "1"})
    await open_pins(place="other replica").load(first={})
    await open_pins().accept({"buy": "2"})
    await database.run(lambda connection: connection.execute(sa.delete(mcp_pins)))

    assert await open_pins(place="other replica").load(first={"buy": "3"}) == {"buy": "1"}
    assert await open_pins().load(first={"buy": "3"}) == {"buy": "1"}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"source": "shop"}', '{"source": "shop", "tools": []}', "[" * 100_000]
)
async def test_damaged_file_accepts_no_tool(
    open_pins: Callable[..., Pins], tmp_path: Path, content: str
) -> None:
    write_file(tmp_path / "home" / "shop.json", content)

    assert await open_pins().load(first={"buy": "1"}) == {}


@pytest.mark.parametrize("content", ["", "[]", "3", "[" * 100_000])
async def test_damaged_row_accepts_no_tool(
    open_pins: Callable[..., Pins], database: Database, content: str
) -> None:
    await open_pins().load(first={"buy": "1"})
    await database.run(lambda connection: connection.execute(sa.update(mcp_pins).values(tools=content)))

    assert await open_pins().load(first={"buy": "1"}) == {}


async def test_approval_is_stored_although_the_file_cannot_be_written(
    open_pins: Callable[..., Pins], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "home").write_text("a file in the place of the directory")

    assert await open_pins().accept({"buy": "1"}) == {"buy": "1"}

    assert [one.message for one in caplog.records] == ["mcp_pins_not_copied"]
    assert await open_pins(place="other").load(first={"buy": "2"}) == {"buy": "1"}
