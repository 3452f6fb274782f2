"""The generated part of docs/detectors: ``python -m gpucost.service.detector_docs docs/detectors``.

A page is written by hand, but for its settings: the lines between two markers at its end are made of the
code, and a test holds them together.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpucost.detectors.engine.registry import RULES
from gpucost.detectors.findings import WastePattern
from gpucost.service.settings.loader import variable
from gpucost.settings.types import settings_table

BEGIN, END = "<!-- settings -->", "<!-- /settings -->"


def with_settings(page: str, pattern: WastePattern) -> str:
    """A page with its settings as the code has them now; the rest is left alone. Ends in one newline."""
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


def main(folder: Path) -> None:
    for pattern in WastePattern:
        page = folder / f"{pattern.value}.md"
        page.write_text(with_settings(page.read_text(encoding="utf-8"), pattern), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
