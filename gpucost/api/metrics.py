"""/metrics: built anew for each scrape; the costs of the month only when the ledger has changed."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from pydantic import ValidationError

import gpucost
from gpucost.api.families import Sample, family, money
from gpucost.api.metrics_advisor import advisor_families
from gpucost.api.metrics_detectors import FindingFamilies, WasteFamilies, detector_families
from gpucost.api.metrics_notify import NotifyFamilies
from gpucost.api.metrics_operations import operations_families
from gpucost.api.metrics_recent import RecentFamilies
from gpucost.api.services import Services
from gpucost.domain.errors import LedgerError, shorten
from gpucost.domain.money import NANO
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import Month
from gpucost.service import metrics as m

logger = logging.getLogger(__name__)

_JOB_DIMS = ("cluster", "namespace", "job_kind", "job", "job_uid", "team")


@dataclass(frozen=True, slots=True)
class _Costs:
    """Costs of a month, as of one version of it."""

    key: tuple[Month, int, str]
    teams: tuple[Sample, ...]
    jobs: tuple[Sample, ...]


class ServiceCollector(Collector):
    """The families of one scrape. A ledger that cannot be read costs its own families, not the scrape."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = threading.Lock()
        self._costs: _Costs | None = None
        self._findings = FindingFamilies(services)
        self._waste = WasteFamilies(services.ledger, services.team_rows)
        self._recent = RecentFamilies(services)
        self._notify = NotifyFamilies(services)

    def collect(self) -> Iterator[Metric]:
        status = self._services.status
        yield family(m.BUILD, [((gpucost.__version__,), 1.0)])
        clusters = status.clusters()
        pending = [((name,), c.pending) for name, c in clusters.items() if c.pending is not None]
        yield family(m.PENDING, pending)
        yield family(m.LOST, [((name,), c.lost) for name, c in clusters.items() if c.lost is not None])
        refused = [((name,), c.refused) for name, c in clusters.items() if c.refused is not None]
        yield family(m.REFUSED, refused)
        yield family(m.INGESTED, [((name,), n) for name, n in status.ingested().items()])
        up = [((name,), float(c.up)) for name, c in clusters.items() if c.up is not None]
        yield family(m.SOURCE_UP, up)
        successes = [
            ((name,), c.last_success_ms / 1000)
            for name, c in clusters.items()
            if c.last_success_ms is not None
        ]
        yield family(m.SOURCE_SUCCESS, successes)
        yield family(m.SOURCE_ERRORS, list(status.source_errors().items()))
        yield family(m.ERRORS, [((kind,), n) for kind, n in status.other_errors().items()])
        last_turn_ms = status.last_turn_ms()
        yield family(m.LAST_TURN, [] if last_turn_ms is None else [((), last_turn_ms / 1000)])
        yield from detector_families(self._services.detectors)
        yield from advisor_families(self._services.advisor_status)
        yield from operations_families(self._services.operations)
        yield from self._ledger_families()
        of_ledger = (self._findings, self._waste, self._recent, self._notify)
        for collect in (each.collect for each in of_ledger):
            try:
                yield from list(collect())
            except (LedgerError, ValidationError) as error:
                # A finding that another version of gpucost wrote may be one that this one cannot read.
                logger.warning("ledger not readable for a scrape: %s", shorten(str(error), 500))
        yield family(m.OTHER_TEAMS, [((), self._services.team_rows.folded)])

    def _ledger_families(self) -> Iterable[Metric]:
        try:
            lags, costs, currency = self._lags(), self._current_costs(), self._services.ledger.currency
        except LedgerError as error:
            logger.warning("ledger unavailable for a scrape: %s", error)
            return [family(m.LEDGER_UP, [((), 0.0)])]
        rows = self._services.team_rows
        return [
            family(m.LEDGER_UP, [((), 1.0)]),
            family(m.LEDGER_LAG, lags),
            money(m.TEAM_COST, rows.fold(costs.teams, 1), currency),
            money(m.JOB_COST, rows.fold(costs.jobs, 5), currency),
        ]

    def _lags(self) -> list[Sample]:
        lags = ((name, self._services.lag_ms(name)) for name in self._services.ledger.clusters())
        return [((name,), lag_ms / 1000) for name, lag_ms in lags if lag_ms is not None]

    def _current_costs(self) -> _Costs:
        month = Month.of(self._services.now())
        ledger = self._services.ledger
        stand = self._services.reporting.stand(EVERYTHING, month.window)
        key = (month, stand.windows, stand.digest)
        with self._lock:
            if self._costs is None or self._costs.key != key:
                frame = ledger.aggregate(EVERYTHING, month.window, _JOB_DIMS)
                held_ms = frame.groupby("team")["board_ms"].sum()
                self._services.team_rows.weigh({str(team): int(held) for team, held in held_ms.items()})
                rows = [
                    (tuple(str(part) for part in labels), int(nano))
                    for *labels, nano in frame[frame["nano"].notna()][[*_JOB_DIMS, "nano"]].itertuples(
                        index=False
                    )
                ]
                self._costs = _Costs(key, _teams(rows), _jobs(rows, self._services.settings.metrics_jobs))
            return self._costs


def registry(services: Services) -> CollectorRegistry:
    """A registry of its own, so that nothing of the process leaks in and tests do not share one."""
    found = CollectorRegistry(auto_describe=False)
    found.register(ServiceCollector(services))
    return found


def _teams(rows: Sequence[tuple[tuple[str, ...], int]]) -> tuple[Sample, ...]:
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for labels, nano in rows:
        sums[labels[0], labels[-1]] += nano
    return tuple((labels, nano / NANO) for labels, nano in sorted(sums.items()))


def _jobs(rows: Sequence[tuple[tuple[str, ...], int]], most: int) -> tuple[Sample, ...]:
    """The costliest jobs by themselves; the others as one job without a name per cluster and team."""
    ranked = sorted((row for row in rows if row[0][4]), key=lambda row: (-row[1], row[0]))
    sums: dict[tuple[str, ...], int] = defaultdict(int)
    for position, (labels, nano) in enumerate(ranked):
        named = labels if position < most else (labels[0], "", "", "", "", labels[-1])
        sums[named] += nano
    return tuple((labels, nano / NANO) for labels, nano in sorted(sums.items()))
