"""Read flags, environment, ``.env`` and the settings file into one ``Settings``."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import ValidationError

from torana.config import safety, spending, validation_messages
from torana.config.settings import Settings
from torana.config.sources import (
    Source,
    from_dotenv,
    from_environment,
    from_file,
    from_flags,
    path_exists,
    read_dotenv,
)
from torana.errors import ConfigInvalid

#: The name of a settings file that is read without being named.
FILE_NAME = "torana.toml"


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The settings, their origins and warnings about them."""

    settings: Settings
    #: The origin of each setting: "default", ".env", "file …", "environment TORANA_PORT", "flag --port".
    origins: Mapping[str, str]
    #: Lines for the operator about values that were ignored, reinterpreted or are unsafe.
    warnings: tuple[str, ...]
    #: The process's environment over the variables of ``.env``, for the keys of providers. Never print it.
    provider_environ: Mapping[str, str] = field(repr=False)
    #: Reads the same sources again. Raises ``ConfigInvalid``.
    again: Callable[[], Loaded] = field(repr=False, compare=False)
    #: Adds the origin of a setting to a line about it.
    placed: Callable[[str], str] = field(repr=False, compare=False)
    #: The settings whose values are invalid and have been replaced by defaults; see ``load_with_faults``.
    wrong: frozenset[str] = frozenset()

    @contextmanager
    def annotate_errors(self) -> Generator[None]:
        """Add the origin of the setting to each line of a ``ConfigInvalid`` that is raised inside."""
        try:
            yield
        except ConfigInvalid as error:
            raise ConfigInvalid("\n".join(map(self.placed, error.detail.splitlines()))) from error


def load(
    *,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    cwd: Path,
    user_dir: Path | None = None,
) -> Loaded:
    """Read the settings. If several sources have a setting, the strongest source counts.

    From strong to weak: ``flags``, the ``TORANA_*`` variables of ``environ``, those of ``.env`` in ``cwd``, the
    settings file, the defaults. The settings file is the one named by the flag ``config`` or by
    ``TORANA_CONFIG``, else ``torana.toml`` in ``cwd``, else in ``user_dir`` (the user's configuration
    directory).

    A relative path starts at ``cwd``, or in a settings file at the file's directory. Flags that are None and
    variables that are empty count as not given, except an empty token, which is refused. Raises
    ``ConfigInvalid`` with a line for each fault.
    """
    loaded, found = load_with_faults(flags=flags, environ=environ, cwd=cwd, user_dir=user_dir)
    if found:
        raise ConfigInvalid("\n".join(found))
    return loaded


def load_with_faults(
    *,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    cwd: Path,
    user_dir: Path | None = None,
) -> tuple[Loaded, list[str]]:
    """Read the settings as ``load`` does, and return them with a line for each fault.

    Invalid values are replaced by defaults, to find more faults; such settings must not be served. Raises
    ``ConfigInvalid`` for a file that cannot be read.
    """
    given = {name: value for name, value in flags.items() if value not in (None, (), [])}
    dotenv = read_dotenv(cwd / ".env")
    variables = {**dotenv.variables, **environ}
    sources = [
        from_flags({name: value for name, value in given.items() if name != "config"}, cwd=cwd),
        from_environment(environ, cwd=cwd),
        from_dotenv(dotenv, cwd=cwd),
        *_settings_file(given.get("config"), variables=variables, cwd=cwd, user_dir=user_dir),
    ]
    settings, wrong, found = _validate_settings(sources)
    found = [*dotenv.faults, *found]
    where = partial(validation_messages.where, sources=sources)
    as_read = settings.model_copy(update={"model": models_as_read(settings)})
    if not found:  # checks of several settings are not meaningful with an invalid one
        found = safety.refusals(settings, where=where) or spending.find_unpriced_models(as_read, where=where)
    loaded = Loaded(
        settings=as_read,
        origins={name: _origin(name, sources) for name in Settings.model_fields},
        warnings=(
            *validation_messages.unknown_variables(variables),
            *([] if found else safety.cautions(settings, where=where)),
            *_rereadings(settings, where),
        ),
        provider_environ=variables,
        again=partial(load, flags=flags, environ=environ, cwd=cwd, user_dir=user_dir),
        placed=partial(validation_messages.add_origin, sources=sources),
        wrong=wrong,
    )
    return loaded, found


def models_as_read(settings: Settings) -> tuple[str, ...]:
    """Return the model names, with ``openai:x`` as ``openai-chat:x`` if a base URL is set.

    ``openai:`` means the Responses API. Few other servers offer it; they offer Chat Completions.
    """
    if settings.model_base_url is None:
        return settings.model
    return tuple(
        name.replace("openai:", "openai-chat:", 1) if name.startswith("openai:") else name
        for name in settings.model
    )


def _settings_file(
    named: object, *, variables: Mapping[str, str], cwd: Path, user_dir: Path | None
) -> list[Source]:
    if named:
        return [from_file(_at(cwd, named), cwd=cwd, named_by="--config ")]
    if variables.get("TORANA_CONFIG"):
        return [from_file(_at(cwd, variables["TORANA_CONFIG"]), cwd=cwd, named_by="TORANA_CONFIG=")]
    candidates = (cwd / FILE_NAME, (user_dir or platformdirs.user_config_path("torana")) / FILE_NAME)
    # A directory with this name is an error too: a container creates one in place of a missing file.
    return [from_file(path, cwd=cwd) for path in candidates if path_exists(path)][:1]


def _at(cwd: Path, named: object) -> Path:
    try:
        return cwd / Path(str(named)).expanduser()
    except RuntimeError:  # the home directory of an unknown user counts as a missing file
        return cwd / str(named)


def _validate_settings(sources: Sequence[Source]) -> tuple[Settings, frozenset[str], list[str]]:
    """Return the settings without invalid values, the names of invalid settings, and a line for each fault."""
    values = dict(ChainMap(*(dict(source.values) for source in sources)))
    try:
        return Settings.model_validate(values), frozenset(), []
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        wrong = frozenset(str(fault["loc"][0]) for fault in found)
        right = {name: value for name, value in values.items() if name not in wrong}
        return Settings.model_validate(right), wrong, validation_messages.fault_lines(error, sources=sources)


def _origin(name: str, sources: Sequence[Source]) -> str:
    source = validation_messages.source_of(name, sources=sources)
    return source.origin(name) if source else "default"


def _rereadings(settings: Settings, where: Callable[[str], str]) -> list[str]:
    read = zip(settings.model, models_as_read(settings), strict=True)
    return [
        f'{where("model")}: "{written}" is read as "{meant}", because TORANA_MODEL_BASE_URL is set'
        for written, meant in read
        if written != meant
    ]
