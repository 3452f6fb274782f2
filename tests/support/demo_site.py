"""``gpucost demo`` as a user starts it, until it serves its pages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]


class DemoSite(NamedTuple):
    """The running demo: its address, and the folder with its files."""

    base: str
    folder: Path

    def api(self, path: str) -> Any:
        """The answer of the API, parsed."""
        with urllib.request.urlopen(f"{self.base}{path}", timeout=120) as answer:
            return json.load(answer)


@contextmanager
def running_demo(folder: Path) -> Iterator[DemoSite]:
    """Its files are in ``folder``, which is empty. The address is the one that the demo prints."""
    command = [sys.executable, "-c", "from gpucost.cli import main; main()", "demo", "--dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        said, base = [], ""
        try:
            for line in process.stdout:
                said.append(line)
                found = re.search(r"http://[^/\s]+(?=/month/)", line)
                base = found[0] if found else base
                if line.startswith("Ctrl-C"):
                    break
            assert base, f"the demo does not say where its pages are: {''.join(said)[-2000:]}"
            yield DemoSite(base, folder)
        finally:
            process.terminate()
