"""Settings from a YAML file and the environment; an error stops the start and names its place."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_settings import SettingsError

from gpucost.domain.configfile import config_error, model_in, read_yaml
from gpucost.domain.errors import ConfigError, ErrorRemark, InputError
from gpucost.service.settings.model import ENV_DELIMITER, ENV_PREFIX, Settings
from gpucost.settings.environment import ENVIRONMENT, brief, refuse_unknown
from gpucost.settings.secret_files import MOST_BYTES, read_small
from gpucost.settings.types import SettingsGroup, groups_in

G = TypeVar("G", bound=SettingsGroup)

CONFIG_ENV = "GPUCOST_CONFIG"
CLIENT_ENVS = ("GPUCOST_SERVER", "GPUCOST_TOKEN_FILE", "GPUCOST_CA_FILE")
"""Variables of the command line as a client of a server; no settings."""
_HIDDEN = ErrorRemark("its value, not shown here, is wrong")
_HIDDEN_KEY = "(a key that is not shown here)"
# A URL, whose path may be a secret; a token of Slack; or a long run of letters and digits, unlike any name.
_LIKE_A_SECRET = re.compile(
    r":/|(?i:xox[a-z]|xapp)-"
    r"|(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{16}|[A-Za-z0-9]{24}"
)
_KEY = re.compile(r"[a-z_]{1,40}(\[\d+\])*")


def load_settings(file: Path | None = None) -> Settings:
    """The settings of this process: ``file`` (else the one GPUCOST_CONFIG names), then the environment.

    Raises ConfigError naming the file and line or the environment variable, the key, the value (never a
    secret's) and what is allowed.
    """
    if file is None and os.environ.get(CONFIG_ENV):
        file = Path(os.environ[CONFIG_ENV])
    refuse_unknown(
        os.environ, ENV_PREFIX, (CONFIG_ENV, *CLIENT_ENVS, *environment_names()), "docs/settings.md"
    )
    origin = ENVIRONMENT if file is None else str(file)
    values, lines = ({}, {}) if file is None else read_yaml(read_config(file), origin)
    if not isinstance(values, Mapping):
        raise ConfigError(origin, "(top level)", _HIDDEN, f"a mapping of {', '.join(Settings.groups())}")
    try:
        return Settings(**values)
    except ValidationError as error:
        raise _named(config_error(error, origin, Settings, lines)) from None
    except SettingsError:
        names = ", ".join(sorted(name for name in os.environ if name.upper() in environment_names()))
        raise ConfigError(ENVIRONMENT, names, _HIDDEN, "JSON for lists and maps") from None


def read_config(file: Path) -> str:
    """The text of a configuration file. Raises ConfigError when it is missing or not UTF-8 text."""
    try:
        return read_small(file).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = ErrorRemark((isinstance(error, OSError) and error.strerror) or "not UTF-8")
        allowed = f"a readable file of UTF-8 text, at most {MOST_BYTES} bytes"
        raise ConfigError(str(file), "file", reason, allowed) from None


def environment_names() -> tuple[str, ...]:
    """Every environment variable that is a setting, those of groups within groups among them."""
    return tuple(
        variable(*path) for group, model in Settings.groups().items() for path in _paths(model, (group,))
    )


def variable(*path: str) -> str:
    """The environment variable of a setting: its group, or groups, and its key."""
    return f"{ENV_PREFIX}{ENV_DELIMITER.join(path)}".upper()


def _paths(model: type[SettingsGroup], above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    inner = groups_in(model)
    for key in model.model_fields:
        path = (*above, key)
        yield from _paths(inner[key], path) if key in inner else (path,)


def checked(model: type[G], values: Mapping[str, object], prefix: str) -> G:
    """A group of settings from the command line. Raises InputError; ``prefix`` leads its field."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        found = config_error(error, "", model)
        raise InputError(f"{prefix}{found.field}", found.value, brief(found.allowed)) from None


def _named(error: ConfigError) -> ConfigError:
    """``error`` under the name that the user wrote, short, and without a secret's value."""
    group, _, rest = error.field.partition(".")
    key = rest.split(".")[0].split("[")[0]
    names = _variables(error.field)
    by_environment = next((found for found in os.environ if found.upper() in names), None)
    is_told = error.value is None or isinstance(error.value, ErrorRemark)
    is_hidden = not is_told and _is_secret(group, key, rest, error.value)
    value = _HIDDEN if is_hidden else error.value
    allowed = brief(error.allowed)
    if by_environment is not None:
        return ConfigError(ENVIRONMENT, by_environment, value, allowed)
    field = _shown(error.field) if group == "notify" else error.field
    return ConfigError(error.file, field, value, allowed, error.line)


def _shown(field: str) -> str:
    """The path of a key; where the key itself may be a secret, the path of its group."""
    if not _LIKE_A_SECRET.search(field):
        return field
    return ".".join((*takewhile(_KEY.fullmatch, field.split(".")), _HIDDEN_KEY))


def _variables(field: str) -> frozenset[str]:
    """The variables that a wrong key may come from: its own, or that of the list or map that holds it."""
    parts = field.split("[")[0].split(".")
    return frozenset(variable(*parts[:n]) for n in range(2, len(parts) + 1)) & {*environment_names()}


def _is_secret(group: str, key: str, path: str, value: object) -> bool:
    """Whether a value may be or hold a secret: also one that stands where a group or a list should."""
    if not key or (group == "prometheus" and key == "url"):
        return True
    if group == "api" and key == "keys":
        if path == key and isinstance(value, list):
            return False  # the ids of keys that are well-formed
        return path.rpartition(".")[2] not in ("role", "teams", "expires")
    if group == "notify" and (path.endswith("_file") or _LIKE_A_SECRET.search(str(value))):
        return True  # put where the path of its file, a room or a name should stand
    model = Settings.groups().get(group)
    if group == "notify" and path == "channels" and isinstance(value, list):
        return False  # the names of channels that are well-formed
    return model is not None and _may_hold_secret(model, path)


def _may_hold_secret(model: type[BaseModel], path: str) -> bool:
    """Whether the field at the end of ``path`` is a secret, or a group it should hold has one."""
    keys = [part for part in re.split(r"[.\[\]]+", path) if part and not part.isdecimal()]
    for n, key in enumerate(keys):
        field = model.model_fields.get(key)
        if field is None:
            return False
        inner = model_in(field.annotation)
        if inner is None or n == len(keys) - 1:
            return _has_secret(field.annotation)
        model = inner
    return False


def _has_secret(annotation: object) -> bool:
    inner = model_in(annotation)
    if inner is None:
        return SecretStr.__name__ in str(annotation)
    return any(_has_secret(field.annotation) for field in inner.model_fields.values())
