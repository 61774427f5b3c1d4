"""The steps of ``torana setup``: ask, check, show the changes, write them, and say what to try."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import typer

from torana.cli import app
from torana.cli.commands.models.choice import ChosenModel, check_environment, choose_model, test_model
from torana.cli.commands.setup import SetupOptions, files, platforms
from torana.cli.commands.setup.platforms import ConnectedPlatform, FirstSender
from torana.cli.commands.setup.questions import Questions, questions
from torana.cli.remote import act_by_hand, run_by_hand, running_gateway
from torana.cli.terminal import on_one_line, printable
from torana.config import Loaded, load
from torana.config.loading import FILE_NAME
from torana.config.sources import read_dotenv
from torana.errors import GatewayError, OperatorError
from torana.messages import utc_now
from torana.models.providers import BUILTIN
from torana.people.pairing import Pairing
from torana.store.engine.database import Database

T = TypeVar("T")

_TOKEN = "TORANA_GATEWAY_TOKEN"  # noqa: S105 - the name of a variable


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFiles:
    """The files that hold the settings, and their variables before a change."""

    dotenv: Path
    toml: Path
    variables: Mapping[str, str]
    #: The variables of the process, which outweigh ``.env``.
    environ: Mapping[str, str]

    @property
    def all_variables(self) -> Mapping[str, str]:
        return {**self.variables, **self.environ}


def settings_files(config: Path | None) -> SettingsFiles:
    """Return the files that ``torana serve`` reads in this directory."""
    here = Path.cwd()
    variables = read_dotenv(here / ".env").variables
    named = config or Path(os.environ.get("TORANA_CONFIG") or variables.get("TORANA_CONFIG") or FILE_NAME)
    return SettingsFiles(
        dotenv=here / ".env", toml=here / named.expanduser(), variables=variables, environ=dict(os.environ)
    )


def run_setup(wishes: SetupOptions) -> dict[str, Any]:
    """Ask, check, write, and return what was set up.

    Raises ``OperatorError``; nothing is written before all checks have passed.
    """
    ask = questions(defaults=wishes.defaults)
    place = settings_files(wishes.config)
    # Faults of the files are reported before any question.
    files.change_toml(place.toml, {})
    check_environment(place.environ)
    if ask.interactive:
        typer.echo("Torana setup: nothing is written before you have seen the changes. Ctrl-C stops.")
    model = _retry(ask, lambda: _choose_model(ask, wishes, place))
    token = _new_token(ask, wishes, place)
    platform = _retry(ask, lambda: _connect(ask, wishes, place))
    written = write_settings(
        ask, place, _variables(model, token, platform, place), _settings(model, platform, place)
    )
    if written is None:
        return {"written": []}
    loaded = load(flags={"config": wishes.config}, environ=dict(os.environ), cwd=Path.cwd())
    if platform:
        platforms.show_link(platform)
        approve_first_sender(ask, platform, loaded)
    service = _install_service(ask, wishes)
    _say_what_to_try(loaded, platform)
    return {
        "written": list(map(str, written)),
        "model": model.name,
        "platform": platform and {"kind": platform.kind, "account": platform.account, "link": platform.link},
        "service": service,
    }


def _retry(ask: Questions, step: Callable[[], T]) -> T:
    """Return the result of a step; after an error, ask whether to try it again."""
    while True:
        try:
            return step()
        except OperatorError as error:
            if not ask.interactive:
                raise
            typer.echo(printable(error.detail), err=True)
            if not ask.confirm("Try again?", default=True):
                raise OperatorError("Nothing was changed; `torana setup` starts again.") from error


def _connect(ask: Questions, wishes: SetupOptions, place: SettingsFiles) -> ConnectedPlatform | None:
    return platforms.connect(
        ask,
        kind=wishes.platform,
        options=wishes.options or (),
        environ=place.all_variables,
        current=_accounts(place),
    )


def _choose_model(ask: Questions, wishes: SetupOptions, place: SettingsFiles) -> ChosenModel:
    """Choose a model, and make one real call to it."""
    model = choose_model(
        ask,
        provider=wishes.provider,
        model=wishes.model,
        base_url=wishes.base_url,
        environ=place.all_variables,
        key_from_input=wishes.key_from_input,
    )
    if model.name == BUILTIN:
        return model
    typer.echo(on_one_line(f"Calling {model.name} …"))
    try:
        result = test_model(model, place.all_variables)
    except GatewayError as error:
        raise OperatorError(f"{error.detail}\nnothing was changed; correct this, and try again") from error
    typer.echo(on_one_line(f"{result.model} answered in {result.latency_ms:.0f} ms."))
    return model


def write_settings(
    ask: Questions,
    place: SettingsFiles,
    variables: Mapping[str, str | None],
    settings: Mapping[Any, Any],
) -> list[Path] | None:
    """Show the changes, ask, write them, and return the files. Return None if the operator refuses."""
    changes = changes_of(place, variables, settings)
    if not changes:
        typer.echo("The settings already have these values.")
        return []
    for change in changes:
        typer.echo(f"\n{printable(files.difference(change))}")
    typer.echo()
    if not ask.confirm("Write these changes?", default=True):
        typer.echo("Nothing was changed.")
        return None
    files.write_changes(changes)
    typer.echo(on_one_line(f"Wrote {' and '.join(str(change.path) for change in changes)}."))
    return [change.path for change in changes]


def changes_of(
    place: SettingsFiles, variables: Mapping[str, str | None], settings: Mapping[Any, Any]
) -> list[files.FileChange]:
    """Return the changes of the files that differ afterwards."""
    changes = [files.change_dotenv(place.dotenv, variables), files.change_toml(place.toml, settings)]
    return [change for change in changes if change.before != change.after]


def _accounts(place: SettingsFiles) -> Mapping[str, Any]:
    document: dict[str, Any] = files.parse_toml(place.toml).unwrap()
    tables: object = document.get("connectors")
    return cast("dict[str, Any]", tables) if isinstance(tables, dict) else {}


def _new_token(ask: Questions, wishes: SetupOptions, place: SettingsFiles) -> str | None:
    if _TOKEN in place.all_variables:
        return None
    wanted = wishes.token
    if wanted is None:
        wanted = ask.confirm(
            "Require a token for HTTP requests (needed if other machines connect)?", default=False
        )
    return secrets.token_urlsafe(32) if wanted else None


def _variables(
    model: ChosenModel, token: str | None, platform: ConnectedPlatform | None, place: SettingsFiles
) -> dict[str, str | None]:
    variables = model.variables(place.variables)
    if token:
        variables[_TOKEN] = token
    return variables | (dict(platform.variables) if platform else {})


def _settings(model: ChosenModel, platform: ConnectedPlatform | None, place: SettingsFiles) -> dict[Any, Any]:
    values: dict[Any, Any] = dict(model.settings(place.variables))
    if platform:
        values |= {("connectors", platform.kind, name): value for name, value in platform.table.items()}
    return values


def approve_first_sender(ask: Questions, platform: ConnectedPlatform, loaded: Loaded) -> None:
    """Wait for the first message on Telegram, and approve its sender if the operator agrees."""
    if not ask.interactive or platform.kind != "telegram":
        typer.echo("A new sender receives a code; `torana pair approve CODE` approves the sender.")
        return
    if running_gateway(loaded.settings):
        typer.echo("Restart the gateway, so that it reads these settings.")
        return
    typer.echo("Waiting for the first message … (Ctrl-C continues without it)")
    try:
        sender = next(found for found in platforms.first_messages(platform) if found is not None)
    except KeyboardInterrupt:
        typer.echo()
        return
    # The id comes first, because the sender chooses the rest.
    name = sender.name[:40] or "without a name"
    typer.echo(on_one_line(f"{platform.kind}:{sender.id} ({name}) wrote: {sender.text[:60]}"))
    # The default is no, because Enter may have been pressed while the command waited.
    if ask.confirm("Let this sender talk to the agent?", default=False):
        _approve(platform, sender, loaded)


def _approve(platform: ConnectedPlatform, sender: FirstSender, loaded: Loaded) -> None:
    who = f"{platform.kind}:{sender.id}"

    async def approve(database: Database) -> None:
        pairing = Pairing(database=database, clock=utc_now)
        await pairing.approve(who, user=None, kinds=frozenset({platform.kind}), act=act_by_hand())

    run_by_hand(loaded.settings, approve, making=True)
    typer.echo(on_one_line(f"{who} is approved. The gateway answers the message after it starts."))


def _install_service(ask: Questions, wishes: SetupOptions) -> bool:
    wanted = wishes.service
    if wanted is None:
        wanted = ask.interactive and ask.confirm("Install the gateway as a service?", default=False)
    if wanted:
        app(("service", "install", *(("--json",) if wishes.as_json else ())), standalone_mode=False)
    return wanted


def _say_what_to_try(loaded: Loaded, platform: ConnectedPlatform | None) -> None:
    lines = ["", "Try:"]
    if running_gateway(loaded.settings):
        lines.append("  restart the gateway, so that it reads these settings")
    else:
        lines.append("  torana serve            runs the gateway")
    lines += [
        "  torana chat             talks with the agent",
        "  torana doctor           checks the installation",
    ]
    if platform:
        lines.append("  torana connectors list  shows whether the chat platform is connected")
    typer.echo("\n".join(lines))
