"""Charts as PNG and as bars of text."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from PIL import Image

from gpucost.domain.buckets import Bucket, Waste
from gpucost.notify import pictures
from gpucost.notify.message import ChartBar, MessageChart
from tests.support.hostile_messages import charts, unseen
from tests.support.sample_messages import DIGEST, MONTH

DAYS, CAUSES = (section.chart for section in DIGEST.sections[1:])
CLUSTERS = MONTH.sections[0].chart
PLAIN = MessageChart(
    "Use",
    "GPU-hours",
    ("idle", "productive"),
    ("idle", "productive"),
    (ChartBar("a", (30, 10)), ChartBar("b", (0, 20)), ChartBar("c", (10, None))),
)


def image(chart: MessageChart, scale: int = 2) -> Image.Image:
    return Image.open(io.BytesIO(pictures.png(chart, scale=scale))).convert("RGB")


def area(chart: MessageChart, key: str) -> int:
    """Pixels in the colour of ``key``."""
    wanted = tuple(int(pictures.colour(key)[at : at + 2], 16) for at in (1, 3, 5))
    found = image(chart).getcolors(1 << 20)
    assert found is not None
    return sum(count for count, seen in found if seen == wanted)


@pytest.mark.parametrize("upright", [False, True])
def test_parts_are_drawn_in_proportion(upright: bool) -> None:
    chart = MessageChart(
        "T", "u", ("idle",), ("idle",), (ChartBar("a", (100,)), ChartBar("b", (0,))), upright
    )
    whole = area(chart, "idle")
    for other, ratio in ((100, 2.0), (50, 1.5), (25, 1.25)):
        both = replace(chart, bars=(ChartBar("a", (100,)), ChartBar("b", (other,))))
        assert area(both, "idle") / whole == pytest.approx(ratio, rel=0.05)


def test_what_is_not_known_is_hatched_and_named() -> None:
    known = replace(PLAIN, bars=(ChartBar("a", (30, 10)), ChartBar("b", (0, 20)), ChartBar("c", (10, 0))))
    assert area(PLAIN, "unknown") > 300 > area(known, "unknown")
    assert pictures.described(PLAIN).endswith("a: 40 GPU-hours; b: 20 GPU-hours; c: unknown")


def test_every_bucket_has_the_colour_of_the_reports() -> None:
    colours = [pictures.colour(waste.value) for waste in Waste if waste is not Waste.UNKNOWN]
    assert len(set(colours)) == len(colours)
    assert pictures.colour("idle") == pictures.palette()["w-idle"] == "#e8ae2e"
    for bucket in Bucket:
        if bucket.is_capacity:
            assert bucket.value in pictures.palette()
    assert pictures.colour("accent") == pictures.colour("held")
    assert pictures.colour("nothing of ours") == pictures.palette()["others"]


@pytest.mark.parametrize("chart", [DAYS, CAUSES, CLUSTERS])
def test_the_same_chart_is_the_same_bytes(chart: MessageChart) -> None:
    assert pictures.png(chart) == pictures.png(chart)
    assert image(chart, 1).width == 640
    assert len(pictures.png(chart)) < 20_000


def test_text_bars() -> None:
    assert pictures.text_bars(PLAIN, width=40) == "\n".join(
        [
            "a ███████████████████▓▓▓▓▓▓ 40 GPU-hours",
            "b ▓▓▓▓▓▓▓▓▓▓▓▓              20 GPU-hours",
            "c ██████?                        unknown",
            "█ idle  ▓ productive  ? unknown",
        ]
    )


def test_bars_beyond_the_most_are_counted() -> None:
    many = replace(PLAIN, bars=PLAIN.bars * 20)
    assert pictures.text_bars(many).endswith("\n… and 29 more, not drawn.")
    assert image(many).height < 2 * 1100


@pytest.mark.fault(63)
@given(chart=charts)
@settings(max_examples=12, deadline=None)
def test_hostile_charts_are_drawn(chart: MessageChart) -> None:
    assert pictures.png(chart, scale=1) == pictures.png(chart, scale=1)
    bars = pictures.text_bars(chart, width=60)
    assert not unseen(bars)
    assert max(map(len, bars.split("\n"))) <= 60
    assert not unseen(pictures.described(chart))


def test_renderers_need_no_pillow() -> None:
    """Where Pillow is missing, charts are bars of text."""
    script = """
import sys
sys.modules["PIL"] = None
from gpucost.notify.render import email, mattermost, plain, slack, teams
from tests.support.sample_messages import DIGEST
for module in (mattermost, plain, slack):
    module.render(DIGEST)
kinds = [part["type"] for part in teams.render(DIGEST)["attachments"][0]["content"]["body"]]
assert kinds.count("CodeBlock") == 2, kinds
mail = email.render(DIGEST)
assert not mail.pictures and mail.html.count("<pre") == 2
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
