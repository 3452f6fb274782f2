"""The demo: the simulator's cluster, recorded to Parquet, through the pipeline of every other run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from gpucost.attribution.conservation import Difference, difference
from gpucost.attribution.teams import TeamRules
from gpucost.domain.errors import InputError
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, Window
from gpucost.ledger import Ledger
from gpucost.pricing.book import PriceBook
from gpucost.reports.model import MonthReport
from gpucost.service.assemble import build_pipeline, build_reporting, build_rules
from gpucost.service.pipeline import OnWindow, Outcome, Pipeline
from gpucost.service.settings import AttributionSettings, IngestSettings
from gpucost.simulator.cluster import DEMO_MONTH
from gpucost.simulator.demo import (
    DEMO_SEED,
    PRICES_NAME,
    TEAMS_NAME,
    demo_frames,
    demo_prices_text,
    demo_teams_text,
)
from gpucost.telemetry.recorded import RecordedSource, record

__all__ = ["DEMO_MONTH", "Demo"]

RECORDING, LEDGER = "recording", "ledger.db"


@dataclass(frozen=True)
class Demo:
    """One run in a folder of its own. The clock stands after the month, so that every window settles."""

    ledger: Ledger
    pipeline: Pipeline
    book: PriceBook
    teams: TeamRules
    cluster: str

    @classmethod
    @contextmanager
    def record(cls, folder: Path, seed: int | None = None) -> Iterator[Demo]:
        """Simulate a cluster and record it in ``folder``, beside a new ledger, its prices and its teams.

        Raises InputError when the folder has the ledger of an earlier run: its numbers are not mixed.
        """
        if (folder / LEDGER).exists():
            raise InputError("--dir", str(folder), f"a folder without a {LEDGER} of an earlier run")
        (folder / PRICES_NAME).write_text(demo_prices_text(), encoding="utf-8")
        (folder / TEAMS_NAME).write_text(demo_teams_text(), encoding="utf-8")
        book = PriceBook.parse(demo_prices_text(), PRICES_NAME)
        teams = TeamRules.parse(demo_teams_text(), TEAMS_NAME)
        record(folder / RECORDING, demo_frames(DEMO_SEED if seed is None else seed))
        rules = build_rules(AttributionSettings(), book, teams)
        with Ledger.open(f"sqlite:///{folder / LEDGER}", now=_after) as ledger:
            source = RecordedSource(folder / RECORDING)
            pipeline = build_pipeline(IngestSettings(), source, ledger, rules, _after)
            (cluster,) = source.clusters()
            yield cls(ledger, pipeline, book, teams, cluster)

    @property
    def currency(self) -> str:
        return self.book.currency

    @property
    def quotas(self) -> Mapping[str, Fraction]:
        return self.teams.quotas

    def now(self) -> int:
        """The last instant of the month, so that "the current month" is the one there is."""
        return DEMO_MONTH.window.end_ms - 1

    def ingest(self, on_window: OnWindow) -> Outcome:
        return self.pipeline.ingest(self.cluster, self.pending(), on_window=on_window)

    def pending(self) -> tuple[Window, ...]:
        """The windows that are to be ingested."""
        return self.pipeline.pending(self.cluster, DEMO_MONTH.window)

    def report(self) -> MonthReport:
        found = build_reporting(self.ledger, self.teams).month(EVERYTHING, DEMO_MONTH)
        if found is None:
            raise InputError("month", str(DEMO_MONTH), "a month that was ingested")
        return found.report

    def difference(self) -> Difference:
        """The ledger's lines against boards x time x price of the recorded nodes, which knows no lines."""
        month = DEMO_MONTH.window
        lines = self.ledger.aggregate(EVERYTHING, month, ("cluster", "node", "model", "bucket"))
        recorded = self.pipeline.source.read(self.cluster, month)
        return difference(lines, recorded, month, self.book.rates)


def _after() -> int:
    return DEMO_MONTH.window.end_ms + DAY_MS
