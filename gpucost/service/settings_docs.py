"""docs/settings.md, from the settings: ``python -m gpucost.service.settings_docs > docs/settings.md``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from gpucost.service.settings import ProgressSettings, Settings
from gpucost.service.settings_api import ApiKey
from gpucost.service.settings_load import CONFIG_ENV, variable
from gpucost.service.settings_types import Group

_HEAD = f"""# Settings

Generated from `gpucost/service/settings.py`; a test holds this page and the code together.

Settings stand in a YAML file, named by `--config FILE` or `{CONFIG_ENV}`, and in the environment, which
wins: `ingest: {{window: 15m}}` and `{variable("ingest", "window")}=15m` are the same. Lists and maps in the
environment are JSON. Durations are a whole number and a unit: `ms`, `s`, `m`, `h`, `d` or `w`. Unknown keys,
duplicate keys and unknown `GPUCOST_` variables stop the start, with the file and line, the key, the value
(never a secret's) and what is allowed. A secret may stand in a file of its own: `…_file`.
"""


def render() -> str:
    """The page, ending in one newline."""
    parts = [_HEAD]
    for name, model in Settings.groups().items():
        parts.append(f"## {name}\n\n{_text(model.__doc__)}\n\n" + "\n".join(_table(name, model)) + "\n")
    for name, model in (("api.keys", ApiKey), ("prometheus.progress", ProgressSettings)):
        parts.append(
            f"## Entries of {name}\n\n{_text(model.__doc__)}\n\n" + "\n".join(_table("", model)) + "\n"
        )
    return "\n".join(parts)


def _table(group: str, model: type[Group]) -> Iterator[str]:
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    for key, field in model.model_fields.items():
        named = f"`{key}`<br>`{variable(group, key)}`" if group else f"`{key}`"
        yield f"| {named} | {_default(field)} | {_text(field.description)} |"


def _text(text: str | None) -> str:
    return " ".join((text or "").split()).replace("``", "`").replace("|", "\\|")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if value in (None, "", (), {}, frozenset()):
        return "–"
    return f"`{_shown(value)}`"


def _shown(value: object) -> str:
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else str(value)


def _duration(value: timedelta) -> str:
    seconds = int(value.total_seconds())
    unit, length = next(
        (u, n) for u, n in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)) if seconds % n == 0
    )
    return f"{seconds // length}{unit}"


if __name__ == "__main__":
    print(render(), end="")
