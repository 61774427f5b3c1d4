"""``torana user``: export or erase a user's data."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from zipfile import ZipFile

import typer

from torana.cli.apps import new_app
from torana.cli.flags import CommonOptions
from torana.cli.remote import the_gateway
from torana.cli.terminal import print_result, printable
from torana.errors import OperatorError

app = new_app(is_group=True)

_UserId = Annotated[str, typer.Argument(help="The user's id: the value of `userId` in requests.")]
#: Seconds. The gateway rewrites its whole database.
_ERASURE_TIMEOUT = 600


@app.command()
def export(
    options: CommonOptions,
    user_id: _UserId,
    output: Annotated[Path, typer.Option("--output", "-o", help="The zip file to write.")],
) -> None:
    """Write all data of a user into a new zip file. A user without data is an error."""
    from torana.api.user_ids import write_user_id

    if output.exists():
        raise OperatorError(f"{output} already exists; name another file")
    settings = options.settings
    gateway = the_gateway(settings)
    # A new file that only its owner can read, also in a directory of other users.
    handle, name = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
    partial = Path(name)
    try:
        place = f"/v1/users/{write_user_id(user_id)}/export"
        with os.fdopen(handle, "wb") as out, gateway.stream("GET", place, timeout=_ERASURE_TIMEOUT) as answer:
            for chunk in answer.iter_bytes():
                out.write(chunk)
        with ZipFile(partial) as archive:
            counts = json.loads(archive.read("manifest.json"))["counts"]
        if not any(counts.values()):
            raise OperatorError(f"there is no data of a user {user_id!r}; check the spelling of the id")
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)
    holds = ", ".join(f"{name} {count}" for name, count in counts.items())
    size = output.stat().st_size
    written = {"file": str(output), "bytes": size, "counts": counts}
    print_result(f"{output} ({size:,} bytes): {holds}", written, as_json=options.as_json)


@app.command()
def erase(
    options: CommonOptions,
    user_id: _UserId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Erase all data of a user, and list what was erased and kept. This cannot be undone."""
    from torana.api.user_ids import write_user_id

    settings = options.settings
    if not yes:
        question = f"Permanently erase all data of {printable(user_id)!r}?"
        typer.confirm(question, abort=True, err=options.as_json)
    place = f"/v1/users/{write_user_id(user_id)}"
    with the_gateway(settings).stream("DELETE", place, timeout=_ERASURE_TIMEOUT) as answer:
        receipt = json.loads(answer.read())
    if options.as_json:
        typer.echo(json.dumps(receipt, indent=2))
    else:
        typer.echo(printable(_format_receipt(receipt)))


def _format_receipt(receipt: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{name} {count}" for name, count in receipt["counts"].items() if count)
    lines = [f"Erased {receipt['user']!r} at {receipt['erasedAt']}: {counts or 'no data'}"]
    lines += ["", "Kept:", *(f"- {kind}" for kind in receipt["kept"])]
    lines += ["", "Out of reach of the gateway:", *(f"- {kind}" for kind in receipt["outOfReach"])]
    return "\n".join(lines)
