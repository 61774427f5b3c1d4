"""Write the pages of ``docs/reference/`` that are made from the code, or check that they are up to date.

A page is a function that returns its text, entered in ``PAGES``.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any, cast

import typer
from pydantic.fields import FieldInfo
from typer.cli import get_docs_for_click

from torana import errors
from torana.api.openapi import BODY_PROBLEMS, COMMON_PROBLEMS
from torana.api.serving.framework import openapi
from torana.cli import app as cli
from torana.config import FLAGS, SECRETS, Settings, describe_allowed_values, flag, variable
from torana.errors import GatewayError
from torana.log_events import EVENTS

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
NOTICE = "<!-- Made by scripts/gen_docs.py; change the code and run `make gen`. -->"

#: Headings of the HTTP interface that are not the name of the resource in paths.
_RESOURCES = {"mcp": "MCP servers", "message": "Messages", "pairing": "Senders", "users": "User data"}

#: Defaults that differ from machine to machine.
DEFAULTS_IN_WORDS = {
    "data_dir": "the user's data directory",
    "skills_dir": "`skills` in the data directory",
    "timezone": "the system's",
}


def config_page() -> str:
    """The settings: names, bounds, defaults and meaning."""
    return f"""\
# Settings

{NOTICE}

Torana takes each setting from the first of these places that names it:

1. the command line of `torana serve`
2. the environment, as `TORANA_…`
3. a file `.env` in the working directory, with the same names
4. the settings file, under the setting's own name: the one named by `--config` or `TORANA_CONFIG`, else
   `torana.toml` in the working directory, else in the user's configuration directory
5. the default

In a variable a list is JSON (`["a", "b"]`) or values between commas (`a,b`). An empty variable counts as not
set, but an empty `TORANA_GATEWAY_TOKEN` is refused. A relative path starts at the working directory, in a
settings file at the file's own directory. `torana config check` reports errors, and `torana config show` shows
every value and its origin.

{_table(("Setting", "Variable", "Flag", "Type", "Default", "Meaning"), map(_setting, Settings.model_fields))}
"""


def errors_page() -> str:
    """The errors: codes, classes and default messages."""
    return f"""\
# Errors

{NOTICE}

An error of the HTTP interface is `application/problem+json` with one of these codes as `code`, and with the
message, or a more exact one, as `detail`. A retryable request may succeed later without being changed. The
errors from `operator_error` on end a command of `torana` with their message on standard error.

{_table(("Code", "Class", "Retryable", "Message"), map(_error, _error_classes()))}
"""


def cli_page() -> str:
    """The commands: their arguments and options, as their help tells them."""
    command = typer.main.get_command(cli)
    # The settings of the context have the short name of --help.
    context = typer.Context(command, **command.context_settings)
    text = get_docs_for_click(obj=command, ctx=context, name="torana", title="Commands")
    return text.replace("\n\n", f"\n\n{NOTICE}\n\n", 1).strip() + "\n"


def http_page() -> str:
    """The HTTP interface: every endpoint, what it takes and what it answers."""
    document = openapi(guarded=True)
    examples = _Examples(document["components"]["schemas"])
    resources: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            text = _operation(f"{method.upper()} {path}", operation, examples)
            resources.setdefault(operation["tags"][0], []).append(text)
    sections = [
        f"## {_RESOURCES.get(name, name.capitalize())}\n\n{''.join(parts)}" for name, parts in resources.items()
    ]
    return f"""\
# HTTP interface

{NOTICE}

{document["info"]["description"]}

For programs: `GET /openapi.json`; for people: `GET /docs`. The codes of problems are in [errors.md](errors.md).

Every endpoint except `GET /health` can answer with these problems. The tables below repeat a problem only
where its meaning is more specific.

{_table(("Status", "Meaning"), _statuses(COMMON_PROBLEMS))}

Every endpoint that reads a JSON body can also answer with these problems.

{_table(("Status", "Meaning"), _statuses(BODY_PROBLEMS))}

{"".join(sections).rstrip()}
"""


def log_events_page() -> str:
    """The log events and their meaning."""
    return f"""\
# Log events

{NOTICE}

Each log line is an event with fields, such as `turn_id`, `account` or `reason`. The lines go to standard error,
and as JSON to `logs/torana.log` in the data directory. `TORANA_LOG_LEVEL` sets the lowest level, and
`TORANA_LOG_FORMAT` the format on standard error. Readable lines have one line for each message, `turn_ended`,
and no ids of requests, sessions and turns below the level `warning`; the log file has everything. Lines with
other events come from libraries.

{_table(("Event", "Meaning"), ((f"`{name}`", meaning) for name, meaning in EVENTS.items()))}
"""


PAGES: Mapping[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "config.md": config_page,
    "errors.md": errors_page,
    "log-events.md": log_events_page,
    "http-api.md": http_page,
}


def stale_pages(directory: Path) -> list[Path]:
    """The pages whose file differs from what the code says now, or is missing."""
    return [directory / name for name, page in PAGES.items() if _text(directory / name) != page()]


def write_pages(directory: Path) -> None:
    """Write every page, whether it changed or not."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (directory / name).write_text(page(), encoding="utf-8")


def main(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 1 where a page is stale.")
    ] = False,
) -> None:
    """Write the generated pages of docs/reference/."""
    if not check:
        write_pages(REFERENCE)
        return
    stale = stale_pages(REFERENCE)
    for path in stale:
        typer.echo(f"{path.relative_to(REFERENCE.parent.parent)} is stale; run `make gen`", err=True)
    sys.exit(bool(stale))


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def _setting(name: str) -> tuple[str, ...]:
    field = Settings.model_fields[name]
    return (
        f"`{name}`",
        f"`{variable(name)}`",
        f"`{flag(name)}`" if name in FLAGS else "",
        f"{describe_allowed_values(name)}; secret" if name in SECRETS else describe_allowed_values(name),
        DEFAULTS_IN_WORDS.get(name) or _default(field),
        descriptions()[name],
    )


@cache
def descriptions() -> dict[str, str]:
    """Return the description of each setting: the docstring below it in the source."""
    (settings,) = ast.parse(inspect.getsource(Settings)).body
    found: dict[str, str] = {}
    for statement, following in pairwise(cast("ast.ClassDef", settings).body):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                found[name] = " ".join(text.split())
            case _:
                pass
    return found


def _default(field: FieldInfo) -> str:
    match field.default:
        case None | ():
            return "none"
        case bool(value):
            return f"`{str(value).lower()}`"
        case tuple():
            return ", ".join(f"`{item}`" for item in cast("tuple[str, ...]", field.default))
        case str(value) if " " in value:
            return f"“{value}”"
        case value:
            return f"`{value}`"


class _Examples:
    """The examples of bodies. Each is shown once, where its schema is first used."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._left = {name: schema["examples"][0] for name, schema in schemas.items() if "examples" in schema}

    def take(self, title: str, content: Mapping[str, Any]) -> str:
        """Return the example of a body under its title, or nothing for a body without one."""
        schema = content.get("application/json", {}).get("schema", {})
        reference = schema.get("items", schema).get("$ref", "")
        example = self._left.pop(reference.rpartition("/")[2], None)
        if example is None:
            return ""
        shown = [example] if "items" in schema else example
        return f"{title}:\n\n```json\n{_json(shown)}\n```\n\n"


def _json(value: Any, width: int = 90) -> str:
    """Return a value as JSON, on one line if it fits."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) <= width or not isinstance(value, dict | list):
        return line
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        parts, (left, right) = [f"{json.dumps(name)}: {_json(item)}" for name, item in fields.items()], "{}"
    else:
        parts, (left, right) = [_json(item) for item in cast("list[Any]", value)], "[]"
    inner = indent(",\n".join(parts), "  ")
    return f"{left}\n{inner}\n{right}"


def _operation(title: str, operation: Mapping[str, Any], examples: _Examples) -> str:
    responses = operation["responses"]
    known = {*_statuses(COMMON_PROBLEMS), *_statuses(BODY_PROBLEMS)}
    rows = [(status, answer["description"]) for status, answer in responses.items()]
    table = _table(("Status", "Meaning"), [row for row in rows if row not in known])
    description = f"{operation['description']}\n\n" if "description" in operation else ""
    request = examples.take("Request", operation.get("requestBody", {}).get("content", {}))
    success = next(answer for status, answer in responses.items() if status.startswith("2"))
    response = examples.take("Response", success.get("content", {}))
    return f"### `{title}`\n\n{operation['summary']}.\n\n{description}{table}\n\n{request}{response}"


def _statuses(problems: Mapping[int, str]) -> list[tuple[str, str]]:
    return [(str(status), description) for status, description in sorted(problems.items())]


def _error(error: type[GatewayError]) -> tuple[str, ...]:
    return (f"`{error.code}`", error.__name__, "yes" if error.retryable else "no", error().detail)


def _error_classes() -> list[type[GatewayError]]:
    """In the order of ``torana.errors``, which is that of its tree."""
    found = vars(errors).values()
    return [entry for entry in found if isinstance(entry, type) and issubclass(entry, GatewayError)]


if __name__ == "__main__":
    typer.run(main)
