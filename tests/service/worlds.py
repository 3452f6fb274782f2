"""A small cluster for tests of the edges: four teams' pods on two nodes, in October 2026, and its ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract.frames import PROGRESS
from gpucost.domain.errors import SourceError
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window
from gpucost.ledger.ledger import Ledger
from gpucost.service.ingest.batch_reader import AttributionRules
from gpucost.service.ingest.pipeline import Pipeline
from tests.support.frames import (
    START,
    FlatRates,
    NamespaceTeams,
    _frame,
    build,
    hours,
    node,
    pod,
    signal,
    units,
)
from tests.support.ledgers import new_ledger

DAY = hours(0, 24)
NOW_MS = DAY.end_ms + HOUR_MS


def frames() -> ClusterFrames:
    """Two nodes of 8 H100: research and vision share one, the other stands idle; an hour is not observed."""
    found = build(
        pods=[
            pod("train", (1, 9), count=4, namespace="research", user="ada", project="llm"),
            pod("tune", (2.5, 3.25), count=1, namespace="research", user="bob"),
            pod("detect", (0, 20), count=3, namespace="vision", queue="batch", cluster_queue="cq"),
        ],
        nodes=[node("n1"), node("n2")],
        capacity=[units(name="n1"), units(name="n2")],
        observed=[(0, 10), (11, 24)],
        signals=[signal("train", (1, 9), observed=30, busy=20)],
    )
    window = hours(1, 2)
    steps = {"cluster": "c", "pod_uid": "uid-train", "name": "steps", "amount": 500.0}
    progress = [{**steps, "start_ms": window.start_ms, "end_ms": window.end_ms}]
    return replace(found, progress=_frame(progress, PROGRESS))


@dataclass
class MemorySource:
    """A source over frames. ``fail`` may return the error that reading a window shall end in."""

    held: ClusterFrames
    fail: Callable[[Window], SourceError | None] = lambda _: None
    reads: list[Window] = field(default_factory=list)
    extent: Window = DAY
    name: str = "memory"

    def clusters(self) -> tuple[str, ...]:
        return ("c",)

    def covered(self, cluster: str) -> Window | None:
        del cluster
        return self.extent

    def read(self, cluster: str, window: Window) -> ClusterFrames:
        del cluster
        self.reads.append(window)
        error = self.fail(window)
        if error is not None:
            raise error
        return self.held


@dataclass
class Clock:
    """A clock that tests set."""

    now_ms: int = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


RULES = AttributionRules(FlatRates(("2.50", 0)), NamespaceTeams(), ResourceCatalog(), ShareBasis.COMPUTE)


def pipeline(ledger: Ledger, source: MemorySource, clock: Clock) -> Pipeline:
    return Pipeline(
        source=source,
        ledger=ledger,
        rules=RULES,
        window_ms=HOUR_MS,
        batch_ms=6 * HOUR_MS,
        lateness_ms=15 * MINUTE_MS,
        now=clock,
        code_version="test",
    )


def filled_ledger(folder: Path, clock: Clock) -> Ledger:
    """A ledger that holds the first day of October 2026."""
    ledger = Ledger.open(new_ledger(folder / "ledger.db"), now=clock)
    lines = pipeline(ledger, MemorySource(frames()), clock)
    outcome = lines.ingest("c", lines.pending("c", DAY))
    assert outcome.ingested == 24
    return ledger


__all__ = ["DAY", "NOW_MS", "START", "Clock", "MemorySource", "filled_ledger", "frames", "pipeline"]
