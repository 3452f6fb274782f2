"""/metrics: families of the process, the ledger, the advisor, the webhook and notifications, for one scrape.

They are built anew for each scrape; the costs of the month only when the ledger has changed. A reader that is
bound to some clusters gets the samples of these.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import ValidationError

import gpucost
from gpucost.api.metrics.detectors import FindingFamilies, WasteFamilies, detector_families
from gpucost.api.metrics.recent import RecentFamilies
from gpucost.api.server.metric_families import FamilySample, family, money
from gpucost.api.server.operations_status import OperationsStatus
from gpucost.api.server.services import ApiServices
from gpucost.api.webhook.admission_review import ReviewResult
from gpucost.domain.errors import LedgerError, shorten
from gpucost.domain.money import NANO
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import SECOND_MS, Month
from gpucost.notify.notices import NoticeKind
from gpucost.notify.routes import HoldReason
from gpucost.notify.sending.delivery import DeliveryOutcome
from gpucost.service import metrics as m
from gpucost.service.advisor.advisor_cache import PredictionOutcome
from gpucost.service.advisor.status import BUCKETS_S, AdvisorStatus, DurationHistogram

_ALL = (
    *(m.NOTIFY_POSTS, m.NOTIFY_WAITING, m.NOTIFY_OLDEST, m.NOTIFY_DEAD),
    *(m.NOTIFY_SUPPRESSED, m.NOTIFY_SUCCESS, m.NOTIFY_ERRORS),
)


class NotifyFamilies:
    """Metrics of notifications: sent, waiting, given up, held back. Where notifications are off, families
    without samples."""

    def __init__(self, services: ApiServices) -> None:
        self._services = services

    def collect(self) -> Iterable[Metric]:
        """Raises LedgerError."""
        telling, now_ms = self._services.telling, self._services.now()
        if telling is None:
            return [family(metric, []) for metric in _ALL]
        sent = telling.sending()
        waiting = self._services.ledger.waiting_posts()
        dead = dict.fromkeys(telling.channels, 0) | self._services.ledger.count_dead_posts()
        # From 0, so that the first one is an increase.
        posts = {
            (channel, kind.value, outcome.value): 0
            for channel in telling.channels
            for kind in NoticeKind
            for outcome in DeliveryOutcome
        } | sent.posts
        held = {(kind, reason): 0 for kind in NoticeKind for reason in HoldReason} | telling.suppressed()
        counts: list[FamilySample] = []
        oldest: list[FamilySample] = []
        for channel in sorted({*telling.channels, *waiting}):
            found = waiting.get(channel)
            counts.append(((channel,), 0 if found is None else found.count))
            age_ms = 0 if found is None else max(0, now_ms - found.oldest_ms)
            oldest.append(((channel,), age_ms / SECOND_MS))
        return [
            family(m.NOTIFY_POSTS, sorted(posts.items())),
            family(m.NOTIFY_WAITING, counts),
            family(m.NOTIFY_OLDEST, oldest),
            family(m.NOTIFY_DEAD, (((channel,), count) for channel, count in sorted(dead.items()))),
            family(m.NOTIFY_SUPPRESSED, sorted(((k.value, r.value), n) for (k, r), n in held.items())),
            family(
                m.NOTIFY_SUCCESS,
                (((name,), at_ms / SECOND_MS) for name, at_ms in sorted(sent.last_success_ms.items())),
            ),
            family(m.NOTIFY_ERRORS, sorted(((kind,), n) for kind, n in telling.errors().items())),
        ]


def advisor_families(status: AdvisorStatus) -> Iterator[Metric]:
    """Where the service watches no cluster, families without samples."""
    yield family(m.ADVISOR_ANSWERS, sorted(status.answers().items()))
    seconds = HistogramMetricFamily(
        m.ADVISOR_SECONDS.name, m.ADVISOR_SECONDS.help, labels=m.ADVISOR_SECONDS.labels
    )
    for face, found in sorted(status.durations().items()):
        seconds.add_metric([face], _buckets(found), sum_value=found.sum_s)
    yield seconds
    # From 0 once there was a review, so that the first without advice is an increase.
    reviews = status.reviews()
    if reviews:
        reviews = {result.value: 0 for result in ReviewResult} | reviews
    yield family(m.WEBHOOK_REVIEWS, [((result,), count) for result, count in sorted(reviews.items())])
    ends_ms = status.certificate_end_ms()
    yield family(m.WEBHOOK_CERTIFICATE_EXPIRY, [] if ends_ms is None else [((), ends_ms / 1000)])
    failed = status.certificate_errors()
    yield family(m.WEBHOOK_CERTIFICATE_ERRORS, [((kind,), count) for kind, count in sorted(failed.items())])
    scores = status.scores()
    if scores:
        scores = {outcome.value: 0 for outcome in PredictionOutcome} | scores
    yield family(m.WAIT_PREDICTIONS, [((outcome,), count) for outcome, count in sorted(scores.items())])
    errors = status.foretelling_errors()
    yield family(m.WAIT_PREDICTION_ERRORS, [((kind,), count) for kind, count in sorted(errors.items())])


def _buckets(found: DurationHistogram) -> list[tuple[str, float]]:
    """Cumulative, as Prometheus stores them."""
    bounds = (*map(str, BUCKETS_S), "+Inf")
    return list(zip(bounds, accumulate(map(float, found.counts)), strict=True))


def operations_families(status: OperationsStatus) -> Iterable[Metric]:
    config = status.config()
    yield family(m.CONFIG_GOOD, [] if config is None else [((), float(config.is_good))])
    yield family(m.CONFIG_LOADED, [] if config is None else [((), config.loaded_ms / SECOND_MS)])
    yield family(m.CONFIG_HASH, [] if config is None else [((config.hash,), 1.0)])
    answers = sorted(status.answers().items())
    yield family(m.API_REQUESTS, [((how, route, str(code)), n) for (how, route, code), n in answers])
    yield family(m.API_REFUSED, [((why.value,), n) for why, n in sorted(status.refusals().items())])


logger = logging.getLogger(__name__)

_JOB_DIMS = ("cluster", "namespace", "job_kind", "job", "job_uid", "team")


@dataclass(frozen=True, slots=True)
class _Costs:
    """Costs of a month, as of one version of its windows."""

    key: tuple[Month, int, str]
    teams: tuple[FamilySample, ...]
    jobs: tuple[FamilySample, ...]


class ServiceCollector(Collector):
    """The families of one scrape. A ledger that cannot be read costs its own families, not the scrape."""

    def __init__(self, services: ApiServices) -> None:
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
                # A finding that another version of gpucost wrote may be unreadable for this one.
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

    def _lags(self) -> list[FamilySample]:
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


def registry(services: ApiServices) -> CollectorRegistry:
    """A registry of its own, so that nothing of the process leaks in and tests do not share one."""
    found = CollectorRegistry(auto_describe=False)
    found.register(ServiceCollector(services))
    return found


def _teams(rows: Sequence[tuple[tuple[str, ...], int]]) -> tuple[FamilySample, ...]:
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for labels, nano in rows:
        sums[labels[0], labels[-1]] += nano
    return tuple((labels, nano / NANO) for labels, nano in sorted(sums.items()))


def _jobs(rows: Sequence[tuple[tuple[str, ...], int]], most: int) -> tuple[FamilySample, ...]:
    """The costliest jobs by themselves; the others as one job without a name per cluster and team."""
    ranked = sorted((row for row in rows if row[0][4]), key=lambda row: (-row[1], row[0]))
    sums: dict[tuple[str, ...], int] = defaultdict(int)
    for position, (labels, nano) in enumerate(ranked):
        named = labels if position < most else (labels[0], "", "", "", "", labels[-1])
        sums[named] += nano
    return tuple((labels, nano / NANO) for labels, nano in sorted(sums.items()))


_CLUSTER = "gpu_cluster"
# Of the process and of the ledger as a whole. Other samples without a cluster are of all clusters together,
# or of the watched one (the advisor's), which the reader may not see.
_OF_NO_CLUSTER = frozenset(
    each.name.removesuffix("_total") for each in (m.BUILD, m.LEDGER_UP, m.LAST_TURN, m.MONTH_CLOSED)
)


class _Bounded(Collector):
    def __init__(self, whole: CollectorRegistry, scope: Scope) -> None:
        self._whole, self._scope = whole, scope

    def collect(self) -> Iterator[Metric]:
        for whole in self._whole.collect():
            seen = copy(whole)
            if whole.name not in _OF_NO_CLUSTER:
                seen.samples = [each for each in whole.samples if self._sees(each.labels)]
            yield seen

    def _sees(self, labels: dict[str, str]) -> bool:
        return _CLUSTER in labels and self._scope.sees_cluster(labels[_CLUSTER])


def registry_of_clusters(whole: CollectorRegistry, scope: Scope) -> CollectorRegistry:
    """The samples of ``whole`` that are of the clusters of ``scope``, or of no cluster. All families are
    there."""
    found = CollectorRegistry(auto_describe=False)
    found.register(_Bounded(whole, scope))
    return found
