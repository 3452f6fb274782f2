"""docs/settings.md, from the settings: ``python -m gpucost.service.settings_docs > docs/settings.md``."""

from __future__ import annotations

from functools import partial

from gpucost.service.settings import ProgressSettings, Settings
from gpucost.service.settings_api import ApiKey
from gpucost.service.settings_load import CONFIG_ENV, variable
from gpucost.settings.page import table, text

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
        parts.append(
            f"## {name}\n\n{text(model.__doc__)}\n\n"
            + "\n".join(table(model, partial(variable, name)))
            + "\n"
        )
    for name, model in (("api.keys", ApiKey), ("prometheus.progress", ProgressSettings)):
        parts.append(f"## Entries of {name}\n\n{text(model.__doc__)}\n\n" + "\n".join(table(model)) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(render(), end="")
