"""Settings from environment variables; an error stops the start and names the variable."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TypeVar

from pydantic import ValidationError

from gpucost.domain.configfile import config_error
from gpucost.domain.errors import ConfigError, ErrorRemark, InputError
from gpucost.domain.text import did_you_mean
from gpucost.settings.types import SettingsGroup

G = TypeVar("G", bound=SettingsGroup)

ENVIRONMENT = "environment"
# Kubernetes sets variables with the address of each service of its namespace in every pod, as Docker's links
# did.
_SERVICE_ADDRESS = re.compile(r"[0-9a-fA-F.:]+")
_SERVICE_PORT = re.compile(r"\d+")
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://\S+")
_OF_A_SERVICE = (
    (re.compile(r"[^_]_SERVICE_HOST\Z"), _SERVICE_ADDRESS),
    (re.compile(r"[^_]_SERVICE_PORT(_\w+)?\Z"), _SERVICE_PORT),
    (re.compile(r"[^_]_PORT(_\d+_(TCP|UDP|SCTP))?\Z"), _SERVICE_URL),
    (re.compile(r"[^_]_PORT_\d+_(TCP|UDP|SCTP)_PROTO\Z"), re.compile(r"tcp|udp|sctp")),
    (re.compile(r"[^_]_PORT_\d+_(TCP|UDP|SCTP)_PORT\Z"), _SERVICE_PORT),
    (re.compile(r"[^_]_PORT_\d+_(TCP|UDP|SCTP)_ADDR\Z"), _SERVICE_ADDRESS),
)


def from_environment(model: type[G], prefix: str, environ: Mapping[str, str], page: str) -> G:
    """A flat group of settings: the key ``listen_port`` is the variable ``{prefix}LISTEN_PORT``.

    Raises ConfigError naming the variable, its value and what is allowed, and for a variable that begins
    with ``prefix`` and is none of them. ``page`` is where the settings are documented.
    """
    names = {variable(prefix, key): key for key in model.model_fields}
    refuse_unknown(environ, prefix, tuple(names), page)
    try:
        return model.model_validate({key: environ[name] for name, key in names.items() if name in environ})
    except ValidationError as error:
        found = config_error(error, ENVIRONMENT, model)
        key = found.field.split("[")[0]
        raise ConfigError(ENVIRONMENT, variable(prefix, key), found.value, brief(found.allowed)) from None


def variable(prefix: str, key: str) -> str:
    """The environment variable of a setting."""
    return f"{prefix}{key}".upper()


def named_by_variable(error: InputError, model: type[SettingsGroup], prefix: str) -> InputError:
    """``error`` with the environment variable in place of the key: for an error that a part found in a
    setting."""
    is_key = error.field in model.model_fields
    return InputError(variable(prefix, error.field), error.value, error.allowed) if is_key else error


def without_empty(environ: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """``environ`` without those of ``names`` that are empty: a manifest's way to leave a setting at its
    default."""
    return {name: value for name, value in environ.items() if value or name not in names}


def refuse_unknown(environ: Mapping[str, str], prefix: str, known: Collection[str], page: str) -> None:
    """Raise ConfigError for a variable that begins with ``prefix`` and is not ``known``."""
    for name in sorted(environ):
        ours = name.upper().startswith(prefix) and not _is_of_a_service(name, environ)
        if ours and name.upper() not in known:
            allowed = did_you_mean(name.upper(), known, cutoff=0.8) or f"a name from {page}"
            raise ConfigError(ENVIRONMENT, name, ErrorRemark("unknown setting"), allowed)


def _is_of_a_service(name: str, environ: Mapping[str, str]) -> bool:
    """Whether Kubernetes set the variable for a service whose name begins like ours, by its name and its
    value. A port alone may be set by a person: Kubernetes sets the service's address beside it."""
    value = environ[name]
    if not any(known.search(name) and shape.fullmatch(value) for known, shape in _OF_A_SERVICE):
        return False
    service, is_port, _ = name.partition("_SERVICE_PORT")
    return not is_port or f"{service}_SERVICE_HOST" in environ


def brief(description: str) -> str:
    """The first sentence of a setting's description says what it may be; the rest is documentation."""
    return " ".join(description.replace("``", "").split()).split(". ")[0].removesuffix(".")
