"""The pages of settings: ``python -m gpucost.service.settings_docs > docs/settings.md``, and with the folder
docs/detectors the settings of every detector on its page.

A detector's page is written by hand, but for its settings: the lines between two markers at its end are made
of the code, and a test holds them together.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from gpucost.detectors.engine.registry import RULES
from gpucost.detectors.findings import WastePattern
from gpucost.service.settings.advisor import PoolSettings
from gpucost.service.settings.api import ApiKey
from gpucost.service.settings.channels import ChannelSettings
from gpucost.service.settings.detectors import ExemptionSettings, OverrideSettings
from gpucost.service.settings.inner_schedulers import InnerSchedulerSettings
from gpucost.service.settings.loader import CONFIG_ENV, variable
from gpucost.service.settings.model import ProgressSettings, ServingSettings, Settings
from gpucost.service.settings.notifications import EscalationSettings, QuietSettings, RouteSettings
from gpucost.settings.types import SettingsGroup, groups_in, settings_table, settings_text

_HEAD = f"""# Settings

Generated from `gpucost/service/settings`; a test holds this page and the code together.

Settings stand in a YAML file, named by `--config FILE` or `{CONFIG_ENV}`, and in the environment, which
wins: `ingest: {{window: 15m}}` and `{variable("ingest", "window")}=15m` are the same. Lists and maps in the
environment are JSON. Durations are a whole number and a unit: `ms`, `s`, `m`, `h`, `d` or `w`. Unknown keys,
duplicate keys and unknown `GPUCOST_` variables stop the start, with the file and line, the key, the value
(never a secret's) and what is allowed. A secret may stand in a file of its own: `…_file`.
"""

_ENTRIES: tuple[tuple[str, type[SettingsGroup]], ...] = (
    ("api.keys", ApiKey),
    ("source.inner_schedulers", InnerSchedulerSettings),
    ("prometheus.progress", ProgressSettings),
    ("prometheus.serving", ServingSettings),
    ("detectors.overrides", OverrideSettings),
    ("detectors.exemptions", ExemptionSettings),
    ("advisor.pools", PoolSettings),
    ("notify.channels", ChannelSettings),
    ("notify.routes", RouteSettings),
    ("notify.routes[].quiet", QuietSettings),
    ("notify.routes[].escalate", EscalationSettings),
)

_DETECTORS = """Each detector has a group of its own: `detectors: {idle_allocation: {batch: 2h}}`. What they
look for, overrides and exemptions with examples: [detectors](detectors/README.md).
"""


def render() -> str:
    """The page, ending in one newline."""
    parts = [_HEAD]
    for name, model in Settings.groups().items():
        parts.append(_section("##", name, model, partial(variable, name)))
        if name == "detectors":
            parts.extend([_DETECTORS, *_inner(name, model, "[{0}](detectors/{0}.md)")])
        else:
            parts.extend(_inner(name, model, "{}"))
    for name, model in _ENTRIES:
        parts.append(
            f"## Entries of {name}\n\n{settings_text(model.__doc__)}\n\n"
            + "\n".join(settings_table(model))
            + "\n"
        )
    return "\n".join(parts)


def _inner(above: str, model: type[SettingsGroup], title: str) -> Iterator[str]:
    """The groups within a group; ``title`` is how their names stand in headings."""
    for name, inner in groups_in(model).items():
        yield _section("###", f"{above}.{title.format(name)}", inner, partial(variable, above, name))


def _section(mark: str, title: str, model: type[SettingsGroup], named: partial[str]) -> str:
    return (
        f"{mark} {title}\n\n{settings_text(model.__doc__)}\n\n"
        + "\n".join(settings_table(model, named))
        + "\n"
    )


BEGIN, END = "<!-- settings -->", "<!-- /settings -->"


def with_settings(page: str, pattern: WastePattern) -> str:
    """A detector's page with its settings as the code has them now; the rest is left alone. Ends in one
    newline."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before.rstrip()}\n\n{_block(pattern)}{after.rstrip()}\n"


def _block(pattern: WastePattern) -> str:
    said = (
        f"In the group `detectors.{pattern.value}` of the settings file, or in the environment: "
        f"`{variable('detectors', pattern.value, 'enabled')}` and so on.\n"
        "Other settings for some namespaces or queues: [overrides](README.md#other-settings-for-some)."
    )
    rows = "\n".join(settings_table(RULES[pattern].settings))
    return f"{BEGIN}\n\n## Settings\n\n{said}\n\n{rows}\n\n{END}"


def main(folder: Path | None) -> None:
    """Print the page of all settings, or write those of every detector into its page in ``folder``."""
    if folder is None:
        print(render(), end="")
        return
    for pattern in WastePattern:
        page = folder / f"{pattern.value}.md"
        page.write_text(with_settings(page.read_text(encoding="utf-8"), pattern), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
