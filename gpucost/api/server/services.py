"""What the routes work with, put together by the app factory; and the readiness probe.

Any client may call the probe, however often: the ledger is read once a second at most, by one thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from typing import Annotated

from fastapi import Depends, Query, Request
from pydantic.json_schema import SkipJsonSchema

from gpucost.access.authenticator import Authenticator
from gpucost.access.code_flow import LoginWays
from gpucost.api.server.errors import ApiError, not_found
from gpucost.api.server.metric_families import TeamRows
from gpucost.api.server.operations_status import OperationsStatus
from gpucost.api.server.rate_limits import RequestGate
from gpucost.attribution.budgets import BudgetPlan
from gpucost.attribution.teams import TeamRules
from gpucost.charges.policy_file import PolicyBook
from gpucost.cluster.objects.state import ClusterState
from gpucost.domain.errors import InputError, LedgerError, shorten
from gpucost.domain.scope import Scope
from gpucost.domain.time import Window
from gpucost.ledger.ledger import Ledger
from gpucost.pricing.price_book import PriceBook
from gpucost.service.advisor.advisor_service import AdvisorService
from gpucost.service.advisor.live_reports import LiveReports
from gpucost.service.advisor.status import AdvisorStatus
from gpucost.service.detection.loop import DetectorStatus
from gpucost.service.ingest.status import LoopStatus
from gpucost.service.notifications.budgets import BudgetWatch
from gpucost.service.notifications.loop import NotificationStatus
from gpucost.service.reporting.report_service import ReportService
from gpucost.service.settings.api import ApiSettings
from gpucost.service.settings.model import LedgerSettings
from gpucost.service.wiring.inputs import load_book, load_policy
from gpucost.settings.types import milliseconds

logger = logging.getLogger(__name__)

FRESH_S = 1.0
PATIENCE_S = 2.0
"""A ledger that takes longer to answer counts as unavailable."""
_LOOK_S = 0.02


class ReadinessState(StrEnum):
    """Everything that the probe reports."""

    READY = "ready"
    STOPPING = "stopping"
    STALLED = "loop stalled"
    LEDGER = "ledger unavailable"


class ReadinessProbe:
    """``read`` reads the ledger and raises LedgerError; ``stalled`` and ``is_stopping`` read memory only."""

    def __init__(
        self,
        read: Callable[[], object],
        stalled: Callable[[], bool],
        is_stopping: Callable[[], bool],
        *,
        seconds: Callable[[], float] = time.monotonic,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._read, self._stalled, self._is_stopping = read, stalled, is_stopping
        self._seconds, self._patience_s = seconds, patience_s
        self._lock = threading.Lock()
        self._is_readable = False
        self._read_s: float | None = None
        self._since_s: float | None = None

    async def look(self) -> ReadinessState:
        """Never waits longer than ``patience_s``, and takes no thread of those that answer."""
        if self._is_stopping():
            return ReadinessState.STOPPING
        if self._stalled():
            return ReadinessState.STALLED
        self._begin()
        until = time.monotonic() + self._patience_s
        while (since := self._since_s) is not None:
            if self._seconds() - since >= self._patience_s or time.monotonic() >= until:
                return ReadinessState.LEDGER
            await asyncio.sleep(_LOOK_S)
        return ReadinessState.READY if self._is_readable else ReadinessState.LEDGER

    def _begin(self) -> None:
        """Read the ledger, unless a read is under way or recent."""
        with self._lock:
            now = self._seconds()
            if self._since_s is not None or (self._read_s is not None and now - self._read_s < FRESH_S):
                return
            self._since_s = now
        threading.Thread(target=self._work, name="gpucost-readiness", daemon=True).start()

    def _work(self) -> None:
        try:
            self._read()
            is_readable = True
        except LedgerError as error:
            logger.warning("not ready: the ledger cannot be read: %s", shorten(str(error), 500))
            is_readable = False
        except Exception:
            logger.exception("not ready: the ledger cannot be read")
            is_readable = False
        with self._lock:
            self._is_readable, self._read_s, self._since_s = is_readable, self._seconds(), None


_MOST_MONTHS = 24
PLAIN_BOOK = load_policy(None, TeamRules.default())
CLOSE_COVERAGE = Fraction(LedgerSettings().close_coverage)


@dataclass(frozen=True)
class ApiServices:
    """``now`` is the clock in ms UTC; ``status`` and ``detectors`` are the status of the loops. ``advising``
    is None where the service watches no cluster; ``budgets`` are nano-units a month by team. ``telling`` is
    None where there are no notifications; ``operations`` is of the process. ``named_teams`` are those that
    the team rules name. Statements are by ``policy``; ``close_coverage`` is the part of a month that must
    have been observed before it is closed. ``prices`` are those of the settings. ``plans`` are all budgets,
    ``expected`` when teams announced more spending.
    """

    ledger: Ledger
    reporting: ReportService
    settings: ApiSettings
    authenticator: Authenticator
    now: Callable[[], int]
    status: LoopStatus
    detectors: DetectorStatus
    advising: AdvisorService | None = None
    budgets: Mapping[str, int] = field(default_factory=dict)
    telling: NotificationStatus | None = None
    operations: OperationsStatus = field(default_factory=OperationsStatus)
    named_teams: frozenset[str] = frozenset()
    policy: PolicyBook = PLAIN_BOOK
    close_coverage: Fraction = CLOSE_COVERAGE
    prices: PriceBook | None = None
    plans: tuple[BudgetPlan, ...] = ()
    expected: Mapping[str, tuple[Window, ...]] = field(default_factory=dict)
    login: LoginWays = field(kw_only=True)

    @cached_property
    def book(self) -> PriceBook:
        """The price book of the service; without one gpucost's own."""
        return self.prices or load_book(None)

    @cached_property
    def gate(self) -> RequestGate:
        """The limits on requests."""
        return RequestGate(self.settings, self.operations)

    @cached_property
    def readiness(self) -> ReadinessProbe:
        """Whether requests should be sent here."""
        return ReadinessProbe(
            lambda: self.ledger.currency,
            lambda: self.status.stalled() is not None,
            lambda: self.operations.is_stopping,
        )

    @cached_property
    def team_rows(self) -> TeamRows:
        """Which teams have series of their own on /metrics."""
        of_keys = (key.teams for key in self.settings.keys)
        return TeamRows(self.named_teams.union(self.budgets, *of_keys), self.settings.metrics_teams)

    @cached_property
    def live(self) -> LiveReports | None:
        """The watched cluster as it is now; None where the service watches none."""
        advising = self.advising
        if advising is None:
            return None
        return LiveReports(advising, lambda: self.ledger.foretold(advising.watched.cluster, most=1))

    @cached_property
    def budget_watch(self) -> BudgetWatch:
        """How all budgets stand."""
        return BudgetWatch(self.reporting, self.plans)

    @property
    def advisor_status(self) -> AdvisorStatus:
        return AdvisorStatus() if self.advising is None else self.advising.status

    @property
    def cluster_now(self) -> tuple[str, ClusterState | None]:
        """The watched cluster and its current state; no name and None where there is none."""
        return ("", None) if self.advising is None else (self.advising.watched.cluster, self.advising.state)

    def lag_ms(self, cluster: str) -> int | None:
        """How far the settled windows of a cluster are behind now; None before the first of them.

        A ledger may be ahead of the clock, as the demo's is: it is not behind then.
        """
        frontier = self.ledger.frontier(cluster)
        return None if frontier is None else max(0, self.now() - frontier)


async def services(request: Request) -> ApiServices:
    """The services of the app that received the request."""
    found = request.app.state.services
    assert isinstance(found, ApiServices)
    return found


def nothing_held(known: ApiServices, scope: Scope, field: str, value: str) -> ApiError:
    """A time of which the ledger has no window. Names the months it has of the scope's clusters, which reveal
    nothing about any team."""
    months = [str(month) for month in known.reporting.months(scope)]
    earlier = f"{len(months) - _MOST_MONTHS} earlier, " if len(months) > _MOST_MONTHS else ""
    held = earlier + ", ".join(months[-_MOST_MONTHS:]) if months else "nothing yet: the ledger is empty"
    return not_found(field, value, f"the ledger holds nothing of {shorten(value)}; it holds: {held}", held)


def check_span(known: ApiServices, window: Window) -> None:
    """Refuse a window that is longer than the settings allow."""
    longest = known.settings.max_span
    if window.length_ms > milliseconds(longest):
        raise InputError("window", str(window), f"at most {longest.days} days")


OneCluster = Annotated[
    str | SkipJsonSchema[None], Query(max_length=253, description="of this cluster only; all of them without")
]
KnownServices = Annotated[ApiServices, Depends(services)]
