"""A recorded day of a small cluster with something wrong in it, and a ledger that detectors have looked at.

On the node ``n1`` with 8 H100 at 4 USD, from 00:00 to 24:00 on 6 October 2026:

- ``train`` of team nlp waited an hour, then held 4 GPUs from 01:00 on, all of them busy;
- ``forgotten`` of team vision held 2 GPUs from 01:00 on, and no kernel ever ran on them;
- 2 GPUs were free all day, and so were 6 before 01:00.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.detectors.engine.lifecycle import FindingLifeState
from gpucost.domain.time import HOUR_MS, Window, parse_instant
from gpucost.ledger.ledger import Ledger
from gpucost.service.settings.loader import load_settings
from gpucost.service.wiring.detection import build_assessing, build_detecting
from gpucost.service.wiring.inputs import load_book, load_teams
from gpucost.service.wiring.pipeline import build_pipeline, build_rules
from gpucost.service.wiring.source import open_source
from gpucost.telemetry.recorded_source import record
from tests.detectors.worlds import CLUSTER, World, at

Run = Callable[..., Result]
DAY_MINUTES = 24 * 60
STEPS = 23 * 12
NOW_MS = parse_instant("2026-10-07T00:10:00Z")
PRICES = """
version: 1
currency: USD
prices:
  - {model: H100, per_hour: "4.00", source: a test, retrieved: 2026-10-01}
"""


def world(name: str = "forgotten") -> World:
    found = World(end=DAY_MINUTES).node("n1")
    found.waits("train", 0, 60, units=4, team="nlp", queue="lq", cluster_queue="cq", reason="no quota\x1b[2J")
    found.pod("p-train", "n1", 60, units=4, job="train", team="nlp", queue="lq", cluster_queue="cq")
    found.pod("p-idle", "n1", 60, units=2, job=name, team="vision")
    for n in range(4):
        found.work("p-train", "n1", f"GPU-{n}", [0.9] * STEPS, start=60)
    for n in (4, 5):
        found.work("p-idle", "n1", f"GPU-{n}", [0.0] * STEPS, start=60, memory=2**30)
    for pod, boards, busy in (("p-train", 4, 0.9), ("p-idle", 2, 0.0)):
        seen = boards * 23 * HOUR_MS
        found.add(
            "signals", node="n1", pod_uid=pod, start_ms=at(60), end_ms=at(DAY_MINUTES), observed_ms=seen,
            busy_ms=seen * busy, sm_observed_ms=seen, sm_active_ms=seen * busy / 2, tensor_active_ms=nan,
        )  # fmt: skip
    return found


def prepare(folder: Path, recorded: World | None = None, detectors: str = "{}") -> Run:
    """Settings, prices and a recording in ``folder``; a function that runs gpucost with them."""
    record(folder / "recording", (recorded or world()).frames())
    return furnish(folder, detectors)


def copied(day: Path, folder: Path) -> Run:
    """The recording and the ledger of ``day`` in another folder, for who changes them."""
    shutil.copytree(day, folder, dirs_exist_ok=True)
    return furnish(folder)


def furnish(folder: Path, detectors: str = "{}") -> Run:
    """Settings and prices beside a recording; a function that runs gpucost with them."""
    (folder / "prices.yaml").write_text(PRICES, encoding="utf-8")
    (folder / "settings.yaml").write_text(
        f"""
ledger: {{url: "sqlite:///{folder / "ledger.db"}"}}
source: {{kind: recorded, path: {folder / "recording"}}}
pricing: {{book: {folder / "prices.yaml"}}}
detectors: {detectors}
""",
        encoding="utf-8",
    )

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, ["--config", str(folder / "settings.yaml"), *words])

    return run


def ingest(run: Run) -> None:
    result = run("ingest", "--from", "2026-10-06", "--to", "2026-10-07")
    assert result.exit_code == ExitCode.OK, result.stderr


def detect(folder: Path, *, live: bool = True) -> None:
    """One turn of the detectors of ``gpucost serve``, ten minutes after the day; the windows only without
    ``live``: then there is waste, and no finding."""
    settings = load_settings(folder / "settings.yaml")
    book = load_book(settings.pricing.book)
    rules = build_rules(settings.attribution, book, load_teams(None))

    def now() -> int:
        return NOW_MS

    with Ledger.open(settings.ledger.database_url(), now=now) as ledger:
        source = open_source(settings, book, now)
        pipeline = build_pipeline(settings.ingest, source, ledger, rules, now)
        detecting = build_detecting(settings.detectors, pipeline)
        assert not live or detecting.once(CLUSTER, NOW_MS) is not None
        assessing = build_assessing(settings.detectors, pipeline, detecting)
        day = Window(parse_instant("2026-10-06T00:00:00Z"), parse_instant("2026-10-07T00:00:00Z"))
        assert not assessing.assess(CLUSTER, assessing.pending(CLUSTER, day)).failures


def resolve(folder: Path) -> None:
    """As if the evaluations of the last minutes had found nothing any more."""
    settings = load_settings(folder / "settings.yaml")
    with Ledger.open(settings.ledger.database_url(), now=lambda: NOW_MS) as ledger:
        live = ledger.live_findings(CLUSTER)
        assert live
        over = [replace(record, state=FindingLifeState.RESOLVED, closed_at_ms=NOW_MS) for record in live]
        ledger.save_findings(CLUSTER, over)


@pytest.fixture(scope="module")
def looked_at(day_looked_at: Path) -> Run:
    """A ledger with the day in it, which the detectors have looked at. For tests that only read."""
    return furnish(day_looked_at)


@pytest.fixture
def changing(day_looked_at: Path, tmp_path: Path) -> Run:
    """The same for a test that changes it."""
    return copied(day_looked_at, tmp_path)
