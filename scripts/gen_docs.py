"""Write the pages of ``docs/reference/`` that are made from the code, or check that they are up to date.

A page is a function that returns its text, entered in ``PAGES``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from pydantic.fields import FieldInfo
from typer.cli import get_docs_for_click

from torana import errors
from torana.api import openapi
from torana.cli import app as cli
from torana.config import FLAGS, SECRETS, Settings, allowed, flag, variable
from torana.errors import GatewayError

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
NOTICE = "<!-- Made by scripts/gen_docs.py; change the code and run `make gen`. -->"

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
settings file at the file's own directory. `torana config check` finds mistakes, `torana config show` tells
every value and where it came from.

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
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="torana", title="Commands")
    return text.replace("\n\n", f"\n\n{NOTICE}\n\n", 1).strip() + "\n"


def http_page() -> str:
    """The HTTP interface: every endpoint, what it takes and what it answers."""
    document = openapi(guarded=True)
    operations = [
        _operation(f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return f"""\
# HTTP interface

{NOTICE}

{document["info"]["description"]}

For programs: `GET /openapi.json`; for people: `GET /docs`. The codes of problems are in [errors.md](errors.md).

{"".join(operations).rstrip()}
"""


PAGES: Mapping[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "config.md": config_page,
    "errors.md": errors_page,
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
        f"{allowed(name)}; secret" if name in SECRETS else allowed(name),
        DEFAULTS_IN_WORDS.get(name) or _default(field),
        field.description or "",
    )


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


def _operation(title: str, operation: Mapping[str, Any]) -> str:
    rows = [(status, answer["description"]) for status, answer in operation["responses"].items()]
    table = _table(("Status", "Meaning"), rows)
    return f"## `{title}`\n\n{operation['summary']}.\n\n{table}\n\n"


def _error(error: type[GatewayError]) -> tuple[str, ...]:
    return (f"`{error.code}`", error.__name__, "yes" if error.retryable else "no", error().detail)


def _error_classes() -> list[type[GatewayError]]:
    """In the order of ``torana.errors``, which is that of its tree."""
    found = vars(errors).values()
    return [entry for entry in found if isinstance(entry, type) and issubclass(entry, GatewayError)]


if __name__ == "__main__":
    typer.run(main)
