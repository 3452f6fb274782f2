"""The page of what was run for real names what is recorded."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()


def test_every_recording_is_named_with_its_version_and_a_date() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    for folder in sorted((ROOT / "tests" / "data" / "recorded").iterdir()):
        # kubernetes-1.36-kueue-0.19.2: names and versions take turns.
        for name, version in re.findall(r"([a-z-]+?)-(\d[\d.]*)", folder.name):
            component = {"kubernetes": "kube-apiserver"}.get(name.strip("-"), name.strip("-"))
            (row,) = [row for row in rows if row.lower().startswith(f"| {component}")]
            assert f"| {version}" in row, (component, version)
            assert "recorded" in row
            assert re.search(r"\| \d{4}-\d{2}-\d{2} \|", row), row
