"""Draws the report of the demo's month: ``python docs/pictures/draw_report.py demo-out/config.yaml`` writes
``report.png`` beside this file.

It is what ``gpucost report 2026-10`` prints in a terminal of 118 columns, down to what to do first. Needs
Chromium and the project's development tools.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from PIL import Image  # noqa: E402  # after the path to the project
from rich.console import Console  # noqa: E402
from rich.terminal_theme import MONOKAI  # noqa: E402
from rich.text import Text  # noqa: E402

from gpucost.cli.terminal.context import CommandContext  # noqa: E402
from gpucost.domain.scope import EVERYTHING  # noqa: E402
from gpucost.reports.render.terminal_month import print_month  # noqa: E402
from gpucost.service.wiring.demo_month import DEMO_MONTH  # noqa: E402
from tests.support.browser import running_browser  # noqa: E402

WIDTH, LINES, COLOURS = 118, 46, 64


def main(config: Path) -> None:
    with CommandContext(config, debug=False).reporting() as reporting:
        found = reporting.month(EVERYTHING, DEMO_MONTH)
    assert found is not None
    whole = Console(
        width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor", highlight=False
    )
    print_month(found.report, whole)
    assert isinstance(whole.file, io.StringIO)
    lines = [f"$ gpucost report {DEMO_MONTH}", *whole.file.getvalue().splitlines()[:LINES]]
    shown = Console(width=WIDTH, file=io.StringIO(), record=True, highlight=False)
    for line in lines:
        shown.print(Text.from_ansi(line))
    picture = shown.export_svg(title=f"gpucost report {DEMO_MONTH}", theme=MONOKAI)
    with running_browser() as browser:
        page = browser.new_page(viewport={"width": 1500, "height": 1200})
        page.set_content(f'<body style="margin:0">{picture}</body>')
        shot = Image.open(io.BytesIO(page.locator("svg").screenshot(omit_background=True)))
    file = HERE / "report.png"
    shot.convert("RGB").quantize(COLOURS).save(file, optimize=True)
    print(file.name, f"{file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
