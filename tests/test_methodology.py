"""The worked example of docs/methodology.md is arithmetic: it is done again here."""

from __future__ import annotations

from pathlib import Path

from gpucost.attribution.attribute import attribute
from gpucost.domain.time import HOUR_MS, parse_instant
from tests.support.frames import START, FlatRates, NamespaceTeams, build, hours, node, pod, units

PAGE = (Path(__file__).parents[1] / "docs" / "methodology.md").read_text("utf-8")


def test_the_worked_example_holds() -> None:
    start, end = parse_instant("2026-10-05T17:06:41Z"), parse_instant("2026-10-05T22:22:38Z")
    exact_ms, exact_nano = (end - start) * 2 / 7, (end - start) * 2 / 7 / HOUR_MS * 6.88e9
    for figure in (f"{end - start:,} ms", f"{exact_ms:,.2f} ms", f"{exact_nano / 1e9:.9f} USD"):
        assert figure in PAGE
    notebook = pod("notebook", (0, 0), resource="nvidia.com/mig-2g.20gb") | {"start_ms": start, "end_ms": end}
    frames = build([notebook], [node(boards=1)], [units(3, "nvidia.com/mig-2g.20gb")])
    first = (start - START) // HOUR_MS
    windows = list(hours(first, first + 6).split(HOUR_MS))
    lines = attribute(frames, windows, rates=FlatRates(("6.88", 0)), teams=NamespaceTeams()).flat()
    held = lines[lines["bucket"] == "held"]
    assert len(held) == 6
    assert abs(held["board_ms"].sum() - exact_ms) < 2
    assert abs(held["nano"].sum() - exact_nano) < 2
