"""The waste ledger's pages say what the code does; the worked example is done again from end to end."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from gpucost.attribution.waste import waste_parts
from gpucost.contract.queue_metrics import NodeAdmission
from gpucost.detectors.engine.evaluation import evaluate
from gpucost.detectors.rule_settings import RuleSettings
from gpucost.domain.buckets import WASTE_WHEN_UNCLAIMED, Bucket, Waste
from gpucost.domain.time import HOUR_MS
from gpucost.ledger.db.digest import waste_digest
from tests.attribution.test_waste import attributed
from tests.detectors.worlds import World, at

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "methodology.md").read_text("utf-8").partition("## Where the waste comes from")[2]
EIGHT = 8 * 60
"""Minutes after midnight."""


def morning(asked: int = 8) -> World:
    """The morning of docs/methodology.md, hour by hour from 8 to 12."""
    world = World(end=12 * 60, seen=[(EIGHT, 12 * 60)]).node("n1", 8, start=EIGHT)
    for gpu in range(4):
        world.work("train", "n1", f"t{gpu}", [0.9] * 48, start=EIGHT)
    for gpu in range(2):
        world.work("forgotten", "n1", f"f{gpu}", [0.0] * 30, start=EIGHT)
    world.pod("train", "n1", EIGHT, 12 * 60, 4).pod("forgotten", "n1", EIGHT, EIGHT + 150, 2)
    return world.waits("large", 11 * 60, 12 * 60, units=asked)


def divided(world: World) -> tuple[dict[Waste, tuple[int, int]], dict[str, list[tuple[int, int]]]]:
    """GPU ms and nano by bucket; and what is idle of the lines of ``forgotten``, hour by hour."""
    found = attributed(world)
    lines = found.flat()
    parts = waste_parts(found, evaluate(world.facts(), RuleSettings()).pieces, world.frames().activity)
    sums: dict[Waste, list[int]] = defaultdict(lambda: [0, 0])
    for bucket, board_ms, nano in zip(lines["bucket"], lines["board_ms"], lines["nano"], strict=True):
        rest = WASTE_WHEN_UNCLAIMED[Bucket(bucket)]
        sums[rest] = [sums[rest][0] + int(board_ms), sums[rest][1] + int(nano)]
    idle: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for line, name, board_ms, nano in zip(*(parts[name] for name in parts), strict=True):
        rest, waste = WASTE_WHEN_UNCLAIMED[Bucket(lines["bucket"].iloc[line])], Waste(name)
        for bucket, sign in ((waste, 1), (rest, -1)):
            sums[bucket] = [sums[bucket][0] + sign * int(board_ms), sums[bucket][1] + sign * int(nano)]
        if waste is Waste.IDLE:
            idle[str(lines["pod_uid"].iloc[line])].append((int(board_ms), int(nano)))
    return {waste: (ms, nano) for waste, (ms, nano) in sums.items() if ms}, dict(idle)


def test_the_table_of_the_morning_is_what_the_code_makes_of_it() -> None:
    sums, _ = divided(morning())
    table = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    assert {name: (float(hours), float(usd)) for name, hours, usd in table} == {
        waste.value: (round(ms / HOUR_MS, 3), round(nano / 1e9, 2)) for waste, (ms, nano) in sums.items()
    }
    whole = tuple(sum(amount) for amount in zip(*sums.values(), strict=True))
    assert whole == (32 * HOUR_MS, 128 * 10**9)
    assert "| sum = capacity | 32.000 | 128.00 |" in PAGE


def test_the_lines_of_the_morning_are_what_the_code_makes_of_them() -> None:
    _, idle = divided(morning())
    rows = [line.split("|") for line in PAGE.splitlines() if re.match(r"\| \d\d:00 – ", line)]
    told = [(float(row[3].split("= ")[1].split(" h")[0]), row[4].strip()) for row in rows]
    assert told == [(round(ms / HOUR_MS, 3), f"{nano / 1e9:.9f} USD") for ms, nano in idle["forgotten"]]
    whole = sum(nano for _, nano in idle["forgotten"])
    assert f"4.667 h | {whole / 1e9:.9f} USD | 0.333 h, {20 - whole / 1e9:.9f} USD |" in PAGE


def test_the_finding_of_the_morning_has_the_episode_of_the_page() -> None:
    found = [each for each in evaluate(morning().facts(), RuleSettings()).findings if each.wasted.counted]
    (idle,) = [each for each in found if each.draft.pattern == "idle_allocation"]
    assert idle.draft.since_ms == at(EIGHT + 10)
    assert sum(episode.end_ms - episode.start_ms for episode in idle.draft.episodes) == 140 * 60_000
    assert {episode.boards for episode in idle.draft.episodes} == {2.0}
    assert "2 × 140 min = 4.667 GPU-hours" in PAGE


def test_had_it_asked_for_four_they_would_be_starved() -> None:
    sums, _ = divided(morning(asked=4))
    assert sums[Waste.STARVED] == (4 * HOUR_MS, 16 * 10**9)
    assert Waste.FRAGMENTED not in sums


def test_the_page_has_the_buckets_in_their_order_and_what_is_waste() -> None:
    page = (DOCS / "waste.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| [\w, ]+ \| (yes|no) \|", page, re.MULTILINE)
    assert [name for name, _, _ in rows] == [waste.value for waste in Waste]
    assert {name for name, _, wasted in rows if wasted == "yes"} == {w.value for w in Waste if w.is_waste}


@pytest.mark.parametrize("value", NodeAdmission)
def test_the_values_of_the_label_nodes_are_explained(value: NodeAdmission) -> None:
    page = (DOCS / "queue-collector.md").read_text("utf-8")
    (row,) = re.findall(r"^\| `nodes` \|.*$", page, re.MULTILINE)
    assert f"`{value}` (" in row


def test_the_digest_of_waste_is_the_one_that_the_decision_describes() -> None:
    row = ("u", "h", "r", "held", "idle", 5, None)
    other = ("a", "h", "r", "held", "idle", 7, 9)
    header = ("c", 0, 3_600_000, "d" * 64)
    texts = sorted(json.dumps(list(each), separators=(",", ":")) for each in (row, other))
    first = json.dumps(["gpucost waste 1", *header, 2], separators=(",", ":"))
    text = "".join(f"{line}\n" for line in (first, *texts))
    assert waste_digest(header, [row, other]) == hashlib.sha256(text.encode()).hexdigest()
    page = (DOCS / "decisions" / "0002-ledger.md").read_text("utf-8")
    assert '`["gpucost waste 1", cluster, start, end, digest of the window, count]`' in page
