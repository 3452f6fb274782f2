"""The demo: the simulator's cluster, recorded to Parquet, through the pipeline of every other run; and the
month before, of which only the ledger is left."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

from gpucost.attribution.conservation import ConservationDifference, difference
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.detectors.findings import WastePattern
from gpucost.domain.errors import InputError
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, MINUTE_MS, Window
from gpucost.ledger.db.records import WindowInfo
from gpucost.ledger.ledger import Ledger
from gpucost.pricing.price_book import PriceBook
from gpucost.reports.month.model import MonthReport
from gpucost.service.advisor.advisor_service import AdvisorService
from gpucost.service.advisor.cluster_watcher import DumpedCluster
from gpucost.service.detection.runner import DetectorRun
from gpucost.service.detection.waste_accounting import AssessmentOutcome as AssessOutcome
from gpucost.service.detection.waste_accounting import WasteAccounting
from gpucost.service.ingest.pipeline import OnWindow, Pipeline, PipelineOutcome
from gpucost.service.settings.advisor import AdvisingSettings
from gpucost.service.settings.detectors import DetectorsSettings
from gpucost.service.settings.model import AttributionSettings, IngestSettings
from gpucost.service.wiring.advisor import build_advising
from gpucost.service.wiring.demo_dump import dump_text
from gpucost.service.wiring.detection import build_assessing, build_detecting
from gpucost.service.wiring.ledger import build_reporting
from gpucost.service.wiring.pipeline import build_pipeline, build_rules
from gpucost.simulator.cluster import (
    DEMO_MONTH,
    DEMO_SEED,
    PRICES_NAME,
    TEAMS_NAME,
    SimulatedCluster,
    demo_cluster,
    demo_prices_text,
    demo_teams_text,
    frames_before,
)
from gpucost.simulator.state import cluster_state
from gpucost.telemetry.recorded_source import RecordedSource, record

__all__ = ["DEMO_MONTH", "DemoMonth"]

RECORDING, LEDGER, CONFIG, REPORT = "recording", "ledger.db", "config.yaml", "report.html"
STATE = "cluster.json"
"""The cluster's objects at the end of the month, as a dump."""
REPLAYS = "replays"
"""Where ``gpucost replay --keep`` puts them, once somebody asks."""
WRITTEN = (LEDGER, CONFIG, PRICES_NAME, TEAMS_NAME, RECORDING, REPORT, STATE)


_DETECTORS = DetectorsSettings()
_LOOKS_BEFORE_MS = (2 * DAY_MS, DAY_MS, 10 * MINUTE_MS, 5 * MINUTE_MS, 0)


@dataclass(frozen=True)
class DemoMonth:
    """One run in a folder of its own. The clock stands after the month, so that every window settles."""

    ledger: Ledger
    pipeline: Pipeline
    book: PriceBook
    teams: TeamRules
    cluster: str
    simulated: SimulatedCluster
    folder: Path

    @classmethod
    @contextmanager
    def record(cls, folder: Path, seed: int | None = None) -> Iterator[DemoMonth]:
        """Simulate a cluster and record it in ``folder``, beside a new ledger, its prices, its teams, its
        objects at the end of the month, and settings that name them all.

        Raises InputError when the folder has any of the names: numbers are not mixed, nothing is replaced.
        """
        for name in WRITTEN:
            # A dangling link exists too: it would be written through.
            if os.path.lexists(folder / name):
                raise InputError("--dir", str(folder), f"a folder without a {name}, such as an empty one")
        folder = folder.absolute()
        (folder / PRICES_NAME).write_text(demo_prices_text(), encoding="utf-8")
        (folder / TEAMS_NAME).write_text(demo_teams_text(), encoding="utf-8")
        book = PriceBook.parse(demo_prices_text(), PRICES_NAME)
        teams = TeamRules.parse(demo_teams_text(), TEAMS_NAME)
        simulated = demo_cluster(DEMO_SEED if seed is None else seed)
        record(folder / RECORDING, simulated.frames)
        dump = dump_text(cluster_state(simulated, DEMO_MONTH.window.end_ms - 1))
        (folder / STATE).write_text(dump, encoding="ascii")
        rules = build_rules(AttributionSettings(), book, teams)
        with Ledger.open(f"sqlite:///{folder / LEDGER}", now=_after) as ledger:
            source = RecordedSource(folder / RECORDING)
            pipeline = build_pipeline(IngestSettings(), source, ledger, rules, _after)
            (cluster,) = source.clusters()
            (folder / CONFIG).write_text(_config_text(folder, cluster), encoding="utf-8")
            yield cls(ledger, pipeline, book, teams, cluster, simulated, folder)

    @property
    def currency(self) -> str:
        return self.book.currency

    @property
    def quotas(self) -> Mapping[str, Fraction]:
        return self.teams.quotas

    def now(self) -> int:
        """The last instant of the month, so that "the current month" is the one there is."""
        return DEMO_MONTH.window.end_ms - 1

    def ingest(self, on_window: OnWindow) -> PipelineOutcome:
        """The month before by day, with the answers to what was found then; and the month by hour. A
        recording has no names of machines: the cloud's invoice is found by what the cluster would say."""
        windows = self.pending()
        before = [window for window in windows if window.end_ms <= DEMO_MONTH.window.start_ms]
        past = self._remember(before, on_window) if before else PipelineOutcome()
        done = self.pipeline.ingest(self.cluster, windows[len(before) :], on_window=on_window)
        machines = [(node.name, node.provider_id) for node in self.simulated.nodes]
        self.ledger.identify_nodes(self.cluster, machines)
        return PipelineOutcome(
            past.ingested + done.ingested, past.changed + done.changed, past.failures + done.failures
        )

    def pending(self) -> tuple[Window, ...]:
        """The windows that are to be ingested, of the month before whole days."""
        before = replace(self.pipeline, window_ms=DAY_MS).pending(self.cluster, DEMO_MONTH.previous().window)
        return (*before, *self.pipeline.pending(self.cluster, DEMO_MONTH.window))

    def _remember(self, windows: Sequence[Window], on_window: OnWindow) -> PipelineOutcome:
        """The month before, as a ledger knows what its source has forgotten. At its end somebody answers for
        each of its servers that nobody called, and ends it."""
        end_ms = windows[-1].end_ms
        with (
            TemporaryDirectory(prefix="gpucost-") as folder,
            Ledger.open(f"sqlite:///{self.folder / LEDGER}", now=lambda: end_ms) as ledger,
        ):
            record(Path(folder), frames_before(self.simulated))
            pipeline = replace(self.pipeline, source=RecordedSource(Path(folder)), ledger=ledger)
            done = pipeline.ingest(self.cluster, windows, on_window=on_window)
            only = _DETECTORS.rules.only({WastePattern.IDLE_ALLOCATION})
            replace(build_detecting(_DETECTORS, pipeline), detectors=only).once(self.cluster, end_ms)
            for found in ledger.findings(EVERYTHING):
                if found.id is not None:
                    ledger.acknowledge(EVERYTHING, found.id, found.team, "nobody calls it: it is deleted")
        return done

    def unassessed(self) -> tuple[WindowInfo, ...]:
        """The windows that detectors are to assess."""
        return self._assessing().pending(self.cluster, DEMO_MONTH.window)

    def assess(self, on_window: OnWindow) -> AssessOutcome:
        """Where the capacity of every window went."""
        return self._assessing().assess(self.cluster, self.unassessed(), on_window=on_window)

    def advising(self) -> AdvisorService:
        """The advisor over the cluster at the end of the month. Nothing is worked out yet: see ``start``."""
        catalog = self.pipeline.rules.catalog
        watched = DumpedCluster.of(self.cluster, self.folder / STATE, catalog, OwnerKeys(), self.now())
        return build_advising(AdvisingSettings(), watched, self.book, self.teams, self.ledger)

    def detect(self, end_ms: int = DEMO_MONTH.window.end_ms) -> DetectorRun:
        """Findings as of ``end_ms``, by default the month's end: a few evaluations in its last days."""
        detecting = build_detecting(_DETECTORS, self.pipeline)
        for before_ms in _LOOKS_BEFORE_MS:
            at_ms = end_ms - before_ms
            state = cluster_state(self.simulated, at_ms - 1)
            found = detecting.once(self.cluster, at_ms, ClusterOverview(state, self.pipeline.rules.catalog))
        if found is None:
            raise InputError("month", str(DEMO_MONTH), "a month that was recorded")
        return found

    def _assessing(self) -> WasteAccounting:
        return build_assessing(_DETECTORS, self.pipeline)

    def report(self) -> MonthReport:
        found = build_reporting(self.ledger, self.teams).month(EVERYTHING, DEMO_MONTH)
        if found is None:
            raise InputError("month", str(DEMO_MONTH), "a month that was ingested")
        return found.report

    def difference(self) -> ConservationDifference:
        """The ledger's lines against GPUs x time x price of the recorded nodes, computed without lines."""
        month = DEMO_MONTH.window
        lines = self.ledger.aggregate(EVERYTHING, month, ("cluster", "node", "model", "bucket"))
        recorded = self.pipeline.source.read(self.cluster, month)
        return difference(lines, recorded, month, self.book.rates)


def _config_text(folder: Path, cluster: str) -> str:
    """Settings for the other commands. JSON's strings are YAML's too, whatever stands in a path."""
    url, recording, prices, teams, state, replays, name = (
        json.dumps(text, ensure_ascii=False)
        for text in (
            f"sqlite:///{folder / LEDGER}",
            *(str(folder / name) for name in (RECORDING, PRICES_NAME, TEAMS_NAME, STATE, REPLAYS)),
            cluster,
        )
    )
    return f"""# The settings of this demo: export GPUCOST_CONFIG=THIS_FILE, or gpucost --config THIS_FILE …
ledger:
  url: {url}
source:
  kind: recorded
  path: {recording}
pricing:
  book: {prices}
teams:
  rules: {teams}
detectors:
  state: dump  # advice and state without a cluster: its objects as they were when the month ended
  dump: {state}
  cluster: {name}
api:
  auth: "off"  # allowed on loopback only
  replays: {replays}
"""


def _after() -> int:
    return DEMO_MONTH.window.end_ms + DAY_MS
