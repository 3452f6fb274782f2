"""Draws the pages of the demo: ``python docs/pictures/draw_pages.py [NAME...]`` writes PNGs beside this file.

Each page at 500, 1,280 and 2,560 pixels, light and dark: what a person sees on the first screen, and of
``month`` at 1,280 the whole page. Needs Chromium and the project's development tools.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from PIL import Image  # noqa: E402  # after the path to the project

from tests.support.browser import BrowserVisit, running_browser, visit  # noqa: E402
from tests.support.demo_site import running_demo  # noqa: E402

COLOURS = 128
SIZES = {500: 1000, 1280: 900, 2560: 1300}
PAGES = {
    "month": "/month/2026-10",
    "team": "/month/2026-10/team?team=vision",
    "job": "/job?job=finetune-00095",
    "queues": "/queues",
    "nodes": "/nodes",
    "findings": "/findings",
    "advise": "/advise",
    "data": "/month/2026-10/data",
}


def drawn(person: BrowserVisit, path: str, file: Path, *, whole: bool = False) -> None:
    """``path`` in few colours: these are flat pictures."""
    person.go(path)
    shot = Image.open(io.BytesIO(person.page.screenshot(full_page=whole)))
    shot.convert("RGB").quantize(COLOURS).save(file, optimize=True)
    print(file.name, f"{file.stat().st_size:,} bytes")


def main(names: list[str]) -> None:
    wanted = {name: path for name, path in PAGES.items() if name in names or not names}
    with (
        tempfile.TemporaryDirectory(prefix="gpucost-pages-") as folder,
        running_demo(Path(folder) / "demo") as site,
        running_browser() as browser,
    ):
        for width, height in SIZES.items():
            for dark in (False, True):
                with visit(browser, site.base, width=width, height=height, dark=dark) as person:
                    for name, path in wanted.items():
                        look = "dark" if dark else "light"
                        drawn(person, path, HERE / f"page-{name}-{width}-{look}.png")
        if "month" in wanted:
            with visit(browser, site.base, width=1280) as person:
                drawn(person, PAGES["month"], HERE / "page-month.png", whole=True)


if __name__ == "__main__":
    main(sys.argv[1:])
