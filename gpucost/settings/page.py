"""Settings as a page of Markdown: keys, defaults and docstrings in a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from gpucost.settings.types import Group, groups_in


def table(model: type[Group], variable: Callable[[str], str] | None = None) -> Iterator[str]:
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
        yield f"| {named} | {_default(field)} | {text(field.description)} |"


def text(description: str | None) -> str:
    """A docstring as one line of Markdown."""
    return " ".join((description or "").split()).replace("``", "`").replace("|", "\\|")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if value in (None, "", (), {}, frozenset()):
        return "–"
    return f"`{shown(value)}`"


def shown(value: object) -> str:
    """A value of a setting as it stands in a settings file."""
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, frozenset)):
        return ", ".join(shown(each) for each in (sorted(value) if isinstance(value, frozenset) else value))
    return value if isinstance(value, str) else str(value)


def _duration(value: timedelta) -> str:
    seconds = int(value.total_seconds())
    unit, length = next(
        (u, n) for u, n in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)) if seconds % n == 0
    )
    return f"{seconds // length}{unit}"
