"""Draws the page What if: ``python docs/pictures/draw_what_if.py demo-out/config.yaml lend`` writes
``page-what-if.png`` beside this file, of the replay of the demo's month that was kept by that name
(docs/what-if.md has the changes, and the command).

Needs Chromium and the project's development tools.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from draw_pages import drawn  # noqa: E402  # after the path to the project

from gpucost.service.wiring.demo_month import DEMO_MONTH  # noqa: E402
from tests.support.browser import running_browser, visit  # noqa: E402
from tests.support.ports import free_port  # noqa: E402
from tests.support.programs import answers  # noqa: E402


def main(config: str, name: str) -> None:
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    run = [sys.executable, "-c", "from gpucost.cli import main; main()", "--config", config]
    with subprocess.Popen([*run, "serve", "--port", str(port)], stdout=subprocess.DEVNULL) as process:
        try:
            while not answers(f"{base}/healthz"):
                time.sleep(1)
            with running_browser() as browser, visit(browser, base, width=1280, height=1500) as person:
                drawn(person, f"/month/{DEMO_MONTH}/what-if?replay={name}", HERE / "page-what-if.png")
        finally:
            process.terminate()


if __name__ == "__main__":
    main(*sys.argv[1:])
