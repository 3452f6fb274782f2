"""What the routes work with, put together by the app factory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from fastapi import Depends, Query, Request
from pydantic.json_schema import SkipJsonSchema

from gpucost.access.authenticator import Authenticator
from gpucost.api.errors import ApiError, not_found
from gpucost.api.metric_teams import TeamRows
from gpucost.api.rates import Gate
from gpucost.api.readiness import Readiness
from gpucost.domain.errors import InputError, shorten
from gpucost.domain.scope import Scope
from gpucost.domain.time import Window
from gpucost.ledger import Ledger
from gpucost.service.advising import Advising
from gpucost.service.advising_status import AdvisingStatus
from gpucost.service.detect_status import DetectStatus
from gpucost.service.operations_status import OperationsStatus
from gpucost.service.reporting import Reporting
from gpucost.service.settings_api import ApiSettings
from gpucost.service.status import LoopStatus
from gpucost.service.telling.status import TellingStatus
from gpucost.settings.types import milliseconds

_MOST_MONTHS = 24


@dataclass(frozen=True)
class Services:
    """``now`` is the clock in ms UTC; ``status`` and ``detectors`` are what the loops say of themselves.
    ``advising`` is None where the service watches no cluster; ``budgets`` are nano-units a month by team.
    ``telling`` is None where nobody is told anything; ``operations`` is of the process. ``named_teams`` are
    those that the team rules name."""

    ledger: Ledger
    reporting: Reporting
    settings: ApiSettings
    authenticator: Authenticator
    now: Callable[[], int]
    status: LoopStatus
    detectors: DetectStatus
    advising: Advising | None = None
    budgets: Mapping[str, int] = field(default_factory=dict)
    telling: TellingStatus | None = None
    operations: OperationsStatus = field(default_factory=OperationsStatus)
    named_teams: frozenset[str] = frozenset()

    @cached_property
    def gate(self) -> Gate:
        """How often who may ask."""
        return Gate(self.settings, self.operations)

    @cached_property
    def readiness(self) -> Readiness:
        """Whether requests should be sent here."""
        return Readiness(
            lambda: self.ledger.currency,
            lambda: self.status.stalled() is not None,
            lambda: self.operations.is_stopping,
        )

    @cached_property
    def team_rows(self) -> TeamRows:
        """Which teams have series of their own on /metrics."""
        of_keys = (key.teams for key in self.settings.keys)
        return TeamRows(self.named_teams.union(self.budgets, *of_keys), self.settings.metrics_teams)

    @property
    def advisor_status(self) -> AdvisingStatus:
        return AdvisingStatus() if self.advising is None else self.advising.status

    def lag_ms(self, cluster: str) -> int | None:
        """How far the settled windows of a cluster are behind now; None before the first of them.

        A ledger may be ahead of the clock, as the demo's is: it is not behind then.
        """
        frontier = self.ledger.frontier(cluster)
        return None if frontier is None else max(0, self.now() - frontier)


async def services(request: Request) -> Services:
    """The services of the app that received the request."""
    found = request.app.state.services
    assert isinstance(found, Services)
    return found


def nothing_held(known: Services, scope: Scope, field: str, value: str) -> ApiError:
    """A time of which the ledger has no window. Names the months it has of the scope's clusters, which tell
    nothing of any team."""
    months = [str(month) for month in known.reporting.months(scope)]
    earlier = f"{len(months) - _MOST_MONTHS} earlier, " if len(months) > _MOST_MONTHS else ""
    held = earlier + ", ".join(months[-_MOST_MONTHS:]) if months else "nothing yet: the ledger is empty"
    return not_found(field, value, f"the ledger holds nothing of {shorten(value)}; it holds: {held}", held)


def check_span(known: Services, window: Window) -> None:
    """Refuse a window that is longer than the settings allow."""
    longest = known.settings.max_span
    if window.length_ms > milliseconds(longest):
        raise InputError("window", str(window), f"at most {longest.days} days")


OneCluster = Annotated[
    str | SkipJsonSchema[None], Query(max_length=253, description="of this cluster only; all of them without")
]
Known = Annotated[Services, Depends(services)]
