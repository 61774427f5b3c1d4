"""``torana models``: the provider's models, a test call, and the model in the settings."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from torana.cli.apps import new_app
from torana.cli.flags import ConfigFlag, JsonFlag, settings_from
from torana.cli.terminal import on_one_line, print_result
from torana.errors import OperatorError

if TYPE_CHECKING:
    from torana.cli.commands.models.choice import ChosenModel
    from torana.config import Loaded
    from torana.models.providers import ProbeResult

app = new_app(is_group=True)

_NAME = "The model, such as openai:gpt-5 or ollama:qwen3:8b."
Name = Annotated[str, typer.Argument(help=_NAME)]


@app.command("list")
def list_(
    provider: Annotated[
        str | None,
        typer.Option(
            help="A provider, such as openai or ollama. Default: the provider of the model in the settings."
        ),
    ] = None,
    config: ConfigFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List the models that a provider offers."""
    from torana.cli.commands.models.choice import configured_provider
    from torana.cli.commands.models.providers import list_models

    loaded = settings_from(config=config)
    offering, key = configured_provider(provider, loaded)
    names = [f"{offering.prefix}:{name}" for name in list_models(offering, key=key)]
    if as_json:
        typer.echo(json.dumps({"items": names}, indent=2))
        return
    typer.echo("\n".join(map(on_one_line, names)) or f"{offering.title} offers no models.")


@app.command("test")
def call(
    name: Annotated[str | None, typer.Argument(help=f"{_NAME} Default: the model in the settings.")] = None,
    config: ConfigFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Make one real call to a model."""
    from torana.models.providers import BUILTIN

    loaded = settings_from(config=config)
    chosen = _chosen(name or loaded.settings.model[0], loaded)
    if chosen.name == BUILTIN:
        raise OperatorError("the builtin model needs no test; name another model, or run `torana setup`")
    result = _test(chosen, loaded)
    print_result(_answer(result), asdict(result), as_json=as_json)


@app.command()
def use(
    name: Name,
    no_test: Annotated[bool, typer.Option("--no-test", help="Do not call the model first.")] = False,
    config: ConfigFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Test a model, and write it into the settings."""
    from torana.cli.commands.models.choice import check_environment
    from torana.cli.commands.setup.files import write_changes
    from torana.cli.commands.setup.steps import changes_of, settings_files
    from torana.models.providers import BUILTIN

    loaded = settings_from(config=config)
    place = settings_files(config)
    check_environment(place.environ)
    chosen = _chosen(name, loaded)
    if not no_test and chosen.name != BUILTIN:
        result = _test(chosen, loaded)
        typer.echo(on_one_line(_answer(result)), err=as_json)
    # Keys stay where they are: only lines that .env has already are changed.
    lines = {
        line: value for line, value in chosen.variables(place.variables).items() if line in place.variables
    }
    changes = changes_of(place, lines, chosen.settings(place.variables))
    write_changes(changes)
    written = [str(change.path) for change in changes]
    line = (
        f"Wrote {' and '.join(written)}. Restart the gateway, so that it uses the model."
        if written
        else "The settings name this model already."
    )
    print_result(line, {"model": chosen.name, "written": written}, as_json=as_json)


def _chosen(name: str, loaded: Loaded) -> ChosenModel:
    """Return the model with the address and key of the settings, if they belong to its provider."""
    from torana.cli.commands.models.choice import ChosenModel
    from torana.cli.commands.models.providers import OWN_KEY

    settings = loaded.settings
    if name.partition(":")[0] != settings.model[0].partition(":")[0]:
        return ChosenModel(name=name)
    key = settings.model_api_key
    return ChosenModel(
        name=name,
        base_url=settings.model_base_url,
        key=(OWN_KEY, key.get_secret_value()) if key else None,
    )


def _test(chosen: ChosenModel, loaded: Loaded) -> ProbeResult:
    from torana.cli.commands.models.choice import test_model
    from torana.errors import GatewayError

    try:
        return test_model(chosen, loaded.provider_environ)
    except GatewayError as error:
        raise OperatorError(error.detail) from error


def _answer(result: ProbeResult) -> str:
    return f"{result.model} answered in {result.latency_ms:.0f} ms"
