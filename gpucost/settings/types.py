"""What settings are made of: durations, secrets, files, and the base of every group.

``settings_table`` documents a group as Markdown: keys, defaults and docstrings in a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SecretStr,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.fields import FieldInfo

from gpucost.domain.configfile import described, wrong
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.time import parse_duration
from gpucost.settings.secret_files import read_small

_PLAIN_URL = re.compile(r"[A-Za-z0-9:/?#\[\]@!$&'()*+,;=%._~-]*")
"""The characters of RFC 3986, section 2."""


def milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def _duration(value: object) -> object:
    if isinstance(value, timedelta):
        return value
    try:
        return timedelta(milliseconds=parse_duration(str(value)))
    except InputError as error:
        raise wrong(value, error.allowed) from None


def _duration_or_zero(value: object) -> object:
    if str(value).strip() in ("0", "0s"):
        return timedelta(0)
    return _duration(value)


def _existing_file(path: Path) -> Path:
    if not path.is_file():
        raise wrong(str(path), "the path of a file that exists")
    return path


def _share(value: object) -> Fraction:
    try:
        share = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share <= 1:
        raise wrong(value, 'a share of a GPU above 0 and at most 1, such as "1" or "1/100"')
    return share


def base_url(url: str) -> str:
    # User info and a query may be secrets, also where a stray character changes how the URL is parsed.
    shown = ErrorRemark("its value, not shown here, is wrong") if {"@", "?"} & set(url) else url
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
    # urlsplit drops line ends, and clients interpret the others differently.
    is_plain = _PLAIN_URL.fullmatch(url) is not None
    if not is_right or not is_plain or parts.query or parts.fragment or "@" in parts.path:
        raise wrong(
            shown, "http:// or https://, a host, and at most a path, of the signs that a URL may have"
        )
    if "@" in parts.netloc:
        raise wrong(
            ErrorRemark("it has user info"),
            "a URL without user info; username and password are settings of their own",
        )
    return url.rstrip("/")


def split_names(text: str) -> tuple[str, ...]:
    """Names separated by commas; blanks around them are dropped."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _names(value: object) -> object:
    if not isinstance(value, str):
        return value
    names = split_names(value)
    for name in names:
        if len(name.split()) > 1:
            raise wrong(name, "names without blanks, with commas between them")
    return names


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def between(least: timedelta, most: timedelta, allowed: str) -> WrapValidator:
    """Bounds of a ``Duration``, both included; ``allowed`` names them in errors."""

    def check(value: object, duration: ValidatorFunctionWrapHandler) -> object:
        if not least <= duration(value) <= most:
            raise wrong(value, allowed)
        return duration(value)

    return WrapValidator(check)


_LARGEST_SECRET = 65_536


Duration = Annotated[timedelta, BeforeValidator(_duration)]
DurationOrZero = Annotated[timedelta, BeforeValidator(_duration_or_zero)]
"""For settings where 0 has a meaning: never, for ever, at once."""
ExistingFile = Annotated[Path, AfterValidator(_existing_file)]
Share = Annotated[Fraction, BeforeValidator(_share)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
"""Separated by commas."""
UrlOrEmpty = Annotated[str, AfterValidator(lambda url: base_url(url) if url else url)]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)]


class SettingsGroup(BaseModel):
    """The settings of one topic. Frozen, so that no part of the program changes another's settings."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        arbitrary_types_allowed=True,
    )


def groups_in(model: type[BaseModel]) -> dict[str, type[SettingsGroup]]:
    """The groups that a model holds, by key. A group in a list, or one that may be missing, does not
    count."""
    found = {name: info.annotation for name, info in model.model_fields.items()}
    return {
        name: kind
        for name, kind in found.items()
        if isinstance(kind, type) and issubclass(kind, SettingsGroup)
    }


def secret(inline: SecretStr | None, file: Path | None, key: str) -> str | None:
    """The secret itself, from the setting or from the first line of its file."""
    if inline is not None and file is not None:
        raise wrong(ErrorRemark("both are given"), f"{key} or {key}_file, not both", key)
    if file is not None:
        return one_line(file, key)
    return None if inline is None else inline.get_secret_value()


def one_line(file: Path, key: str) -> str:
    """The only line of a mounted secret's file. A second line would become part of requests, or be shown in
    an error."""
    lines = read_small(file, _LARGEST_SECRET).decode().strip().splitlines()
    if len(lines) != 1:
        raise wrong(ErrorRemark(f"its file has {len(lines)} lines"), "a file of one line", f"{key}_file")
    return lines[0]


def settings_table(model: type[SettingsGroup], variable: Callable[[str], str] | None = None) -> Iterator[str]:
    """The lines of a table of a group's settings; ``variable`` gives the environment variable of a key.

    Groups within the group are left out: each has a table of its own.
    """
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    inner = groups_in(model)
    for key, field in model.model_fields.items():
        if key in inner:
            continue
        named = f"`{key}`<br>`{variable(key)}`" if variable else f"`{key}`"
        yield f"| {named} | {_default(field)} | {settings_text(described(model, key))} |"


def settings_text(description: str | None) -> str:
    """A docstring as one line of Markdown."""
    return " ".join((description or "").split()).replace("``", "`").replace("|", "\\|")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if value in (None, "", (), {}, frozenset()):
        return "–"
    return f"`{setting_value(value)}`"


def setting_value(value: object) -> str:
    """The value of a setting as it is written in a settings file."""
    if isinstance(value, timedelta):
        return _shown_duration(value)
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, frozenset)):
        return ", ".join(
            setting_value(each) for each in (sorted(value) if isinstance(value, frozenset) else value)
        )
    return value if isinstance(value, str) else str(value)


def _shown_duration(value: timedelta) -> str:
    seconds = int(value.total_seconds())
    unit, length = next(
        (u, n) for u, n in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)) if seconds % n == 0
    )
    return f"{seconds // length}{unit}"
