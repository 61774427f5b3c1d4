"""Choose a language model, make one real call to it, and change the settings."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import typer

from torana.cli.commands.models.providers import (
    OWN_KEY,
    PROVIDERS,
    Provider,
    find_local_servers,
    list_models,
    other_server,
    provider_of_key,
)
from torana.cli.commands.setup.questions import Questions, known_secret
from torana.cli.terminal import on_one_line
from torana.config import Loaded
from torana.errors import ConfigInvalid, OperatorError
from torana.models.builtin import BuiltinModel
from torana.models.providers import BUILTIN, ProbeResult, open_model, probe

#: The number of models that are listed in a question.
_LISTED = 40

#: Options besides the providers.
_PASTED, _OTHER = "key", "other"

_MODEL, _URL = "TORANA_MODEL", "TORANA_MODEL_BASE_URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenModel:
    """The name of a model, with the address and key that it needs."""

    name: str
    base_url: str | None = None
    #: The variable of the key, and the key.
    key: tuple[str, str] | None = None

    def variables(self, dotenv: Mapping[str, str]) -> dict[str, str | None]:
        """Return the changes to ``.env``. Settings that are in ``.env`` are changed there, because it
        outweighs ``torana.toml``.

        A key of an earlier provider in ``TORANA_MODEL_API_KEY`` is removed: it would be sent to the new
        provider.
        """
        values: dict[str, str | None] = {OWN_KEY: None}
        if _MODEL in dotenv:
            values[_MODEL] = self.name
        if _URL in dotenv:
            values[_URL] = self.base_url
        return values | ({self.key[0]: self.key[1]} if self.key else {})

    def settings(self, dotenv: Mapping[str, str]) -> dict[Sequence[str], str | None]:
        """Return the changes to ``torana.toml``, without the settings that ``variables`` changes."""
        values: dict[Sequence[str], str | None] = {
            ("model_base_url",): None if _URL in dotenv else self.base_url
        }
        return values if _MODEL in dotenv else {("model",): self.name} | values


def choose_model(
    ask: Questions,
    *,
    provider: str | None,
    model: str | None,
    base_url: str | None,
    environ: Mapping[str, str],
    key_from_input: bool,
) -> ChosenModel:
    """Return the chosen model. ``environ`` includes ``.env``.

    Raises ``OperatorError`` for an unknown provider, a refused key or a server that does not respond.
    """
    if base_url and provider not in (None, _OTHER):
        raise OperatorError(
            f"--base-url is only for the provider {_OTHER}, not for {provider!r}; leave one out"
        )
    found: Mapping[str, Sequence[str]] = {}
    if provider is None and base_url is None:
        found = _local_servers(ask)
    name = provider or (_OTHER if base_url else _choose_provider(ask, found, environ))
    if name == BUILTIN:
        return ChosenModel(name=BUILTIN)
    key = sys.stdin.readline().strip() if key_from_input else None
    if name == _PASTED:
        key = key or ask.secret("API key", flag="--key-stdin")
        name = provider_of_key(key) or _choose_provider(ask, {}, environ)
    if name == _OTHER:
        question = "Base URL of the API, such as http://host:8000/v1"
        chosen = other_server(base_url or ask.ask(question, flag="--base-url"))
    elif name in PROVIDERS:
        chosen = PROVIDERS[name]
    else:
        raise OperatorError(f"there is no provider {name!r}; the providers are {', '.join(_options({}))}")
    key = key or _key(ask, chosen, environ)
    models = found.get(name) or list_models(chosen, key=key)
    picked = model or _pick(ask, chosen, models)
    return ChosenModel(
        name=f"{chosen.prefix}:{picked.removeprefix(f'{chosen.prefix}:')}",
        base_url=chosen.url if chosen.names_url else None,
        key=(chosen.key, key) if chosen.key and key else None,
    )


def configured_provider(name: str | None, loaded: Loaded) -> tuple[Provider, str | None]:
    """Return a provider and its key: the named one, or the one of the first model in the settings.

    Raises ``OperatorError`` if its models cannot be listed.
    """
    settings = loaded.settings
    prefix = settings.model[0].partition(":")[0]
    if name is None and settings.model_base_url:
        key = settings.model_api_key
        return other_server(settings.model_base_url), key.get_secret_value() if key else None
    found = [
        one for known, one in PROVIDERS.items() if name in (known, None) and (name or one.prefix == prefix)
    ]
    if not found:
        where = f"the provider {name!r}" if name else f"the provider of {settings.model[0]}"
        raise OperatorError(
            f"the models of {where} cannot be listed; the providers with lists are {', '.join(PROVIDERS)}"
        )
    provider = found[0]
    return provider, loaded.provider_environ.get(provider.key) if provider.key else None


def check_environment(environ: Mapping[str, str]) -> None:
    """Raise ``OperatorError`` if a variable of the process would outweigh the files that are written."""
    if outweighing := sorted({_MODEL, _URL} & environ.keys()):
        names = " and ".join(outweighing)
        raise OperatorError(
            f"{names} in the environment would outweigh the settings files; unset {names}, and try again"
        )


def test_model(chosen: ChosenModel, environ: Mapping[str, str]) -> ProbeResult:
    """Make one real call. Raises ``ConfigInvalid`` or ``ModelFailed`` with the reason and its cure."""
    model = open_model(
        [chosen.name],
        environ={**environ, **(dict([chosen.key]) if chosen.key else {})},
        base_url=chosen.base_url,
        api_key=chosen.key[1] if chosen.key and chosen.key[0] == OWN_KEY else None,
        builtin=_no_builtin,
    )
    return asyncio.run(probe(model))


def _no_builtin() -> BuiltinModel:
    raise ConfigInvalid("the builtin model needs no test")


def _local_servers(ask: Questions) -> Mapping[str, Sequence[str]]:
    if ask.interactive:
        typer.echo("Looking for model servers on this machine …")
    return find_local_servers()


def _options(found: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the providers with descriptions, the servers that were found first."""
    options = {name: f"{PROVIDERS[name].title} on this machine, {len(found[name])} models" for name in found}
    options |= {
        name: f"{provider.title}{', not running here' if provider.local else ''}"
        for name, provider in PROVIDERS.items()
        if name not in options
    }
    return options | {
        _PASTED: "Paste an API key; its provider is recognised",
        _OTHER: "Another server with OpenAI's Chat Completions",
        BUILTIN: "The builtin model: fixed rules, no key, no network",
    }


def _choose_provider(ask: Questions, found: Mapping[str, Sequence[str]], environ: Mapping[str, str]) -> str:
    usable = [name for name, models in found.items() if models]
    usable += [
        name for name, one in PROVIDERS.items() if one.key and one.key != OWN_KEY and environ.get(one.key)
    ]
    default = usable[0] if usable else BUILTIN if not ask.interactive else "openai"
    return ask.choose("Which language model?", _options(found), default=default, flag="--provider")


def _key(ask: Questions, provider: Provider, environ: Mapping[str, str]) -> str | None:
    if provider.key is None:
        return None
    if key := known_secret(ask, provider.key, environ):
        return key
    if provider.url not in {one.url for one in PROVIDERS.values()}:
        needed = ask.confirm("Does the server need a key?", default=False)
        return ask.secret("API key", flag="--key-stdin") if needed else None
    return ask.secret(f"API key of {provider.title}", flag=f"{provider.key} or --key-stdin")


def _pick(ask: Questions, provider: Provider, models: Sequence[str]) -> str:
    if not models:
        raise OperatorError(f"{provider.title} offers no models; load one there first, or name it with --model")
    listed = models[:_LISTED]
    if len(models) > len(listed):
        typer.echo(on_one_line(f"{len(models)} models are offered; --model names one that is not listed."))
    return ask.choose(
        f"Which model of {provider.title}?", dict.fromkeys(listed, ""), default=listed[0], flag="--model"
    )
