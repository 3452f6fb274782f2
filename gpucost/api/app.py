"""The app factory of the HTTP API. Nothing is global: two apps in one process share nothing.

``create_app`` is given everything that routes need, already built: the ledger, the report service, the
advisor, who may ask (``Authenticator``), what the loops say of themselves, and the clock (``now``, ms UTC).
It puts them into one ``ApiServices`` on ``app.state``, where the modules of ``api.routes`` find them, adds
the registry of ``/metrics``, and includes the routers. A route parses and checks what is asked, calls a
service with the caller's scope, and encodes the answer; what is computed, is computed below, so that a
command says the same.

Around the app is one more layer, ``OuterMiddleware``: what holds for every answer, also for those that the
framework gives by itself (a 404, a 413, a crash), is done there: limits, headers, the log. Errors become
one JSON form in ``server.errors``.

Built anew rather than changed: when the configuration is read again, ``api.runtime`` makes a new app, and
requests in flight end on the old one. Hence no globals, no singletons, no import with effects.

The framework's own pages are off, since they would need no principal; ``GET /v1/openapi.json`` is a route
like others. Unknown parameters are refused by name. Money is decimal text beside whole nano-units, and a
number that could not be computed is null.

``api.runtime`` calls it for ``gpucost serve``, ``gpucost demo`` for the demo. A new route goes into a module
of ``api.routes``; a new module there is included here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType

from fastapi import FastAPI
from starlette.types import ASGIApp

import gpucost
from gpucost.access.authenticator import Authenticator, FixedKeys
from gpucost.access.code_flow import LoginWays
from gpucost.access.grants import GroupGrants
from gpucost.access.sessions import SessionAuthority
from gpucost.api.metrics import collector
from gpucost.api.pages import (
    advise_pages,
    data_pages,
    finding_pages,
    job_pages,
    live_pages,
    login_pages,
    method_pages,
    month_pages,
    page_layout,
    preview_pages,
    search_pages,
    team_pages,
    what_if_pages,
)
from gpucost.api.routes import (
    advisor,
    alerts,
    allocations,
    findings,
    focus,
    keys,
    lists,
    live,
    months,
    replays,
    reports,
    service,
    sessions,
)
from gpucost.api.server import errors
from gpucost.api.server.middleware import OuterMiddleware
from gpucost.api.server.operations_status import OperationsStatus
from gpucost.api.server.services import CLOSE_COVERAGE, PLAIN_BOOK, ApiServices
from gpucost.api.tools import tool_route
from gpucost.attribution.budgets import BudgetPlan, monthly_budgets
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.time import HOUR_MS, Window
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.api_keys import LedgerKeys
from gpucost.pricing.price_book import PriceBook
from gpucost.reports.month.inputs import TeamAccount
from gpucost.service.advisor.advisor_service import AdvisorService
from gpucost.service.detection.loop import DetectorStatus
from gpucost.service.ingest.status import LoopStatus
from gpucost.service.notifications.loop import NotificationStatus
from gpucost.service.reporting.budget_reports import budgeting_of
from gpucost.service.reporting.charge_reports import PolicyCharging
from gpucost.service.reporting.report_service import ReportService
from gpucost.service.settings.api import ApiSettings

_NO_QUOTAS: Mapping[str, Fraction] = MappingProxyType({})
_NO_BUDGETS: Mapping[str, int] = MappingProxyType({})


class GpuCostApi(FastAPI):
    """FastAPI inside one more layer, which also sees the framework's own responses."""

    def build_middleware_stack(self) -> ASGIApp:
        known = self.state.services
        return OuterMiddleware(super().build_middleware_stack(), known.settings, known.operations)


def create_app(
    ledger: Ledger,
    settings: ApiSettings,
    *,
    now: Callable[[], int],
    status: LoopStatus | None = None,
    detectors: DetectorStatus | None = None,
    quotas: Mapping[str, Fraction] = _NO_QUOTAS,
    budgets: Mapping[str, int] = _NO_BUDGETS,
    plans: Sequence[BudgetPlan] | None = None,
    expected: Mapping[str, tuple[Window, ...]] | None = None,
    accounts: Mapping[str, TeamAccount] | None = None,
    advising: AdvisorService | None = None,
    telling: NotificationStatus | None = None,
    authenticator: Authenticator | None = None,
    login: LoginWays | None = None,
    operations: OperationsStatus | None = None,
    named_teams: frozenset[str] = frozenset(),
    policy: PolicyBook = PLAIN_BOOK,
    close_coverage: Fraction = CLOSE_COVERAGE,
    prices: PriceBook | None = None,
) -> FastAPI:
    """The API over ``ledger``. ``now`` is the clock in ms UTC; ``quotas`` are GPUs per team, ``budgets``
    nano-units of money per team and month, ``plans`` all budgets (else those of ``budgets``), ``expected``
    when teams announced more spending, ``accounts`` what reports say of teams.

    ``status`` and ``detectors`` are the status of the service's loops; ``advising`` answers for the watched
    cluster, None where none is watched. ``telling`` is the status of the notification loop, None where there
    is no channel. ``authenticator`` identifies the caller; without one, the keys of ``settings`` and of the
    ledger do. ``login`` is how people log in to the pages; without it by a key, for eight hours at most.
    ``operations`` is the status of the process. ``named_teams`` are those that the team rules name.
    Statements are by ``policy``; ``close_coverage`` is the part of a month that must have been observed
    before it is closed; ``prices`` is the price book, else gpucost's own.
    """
    if authenticator is None:
        fixed = FixedKeys([key.record() for key in settings.keys])
        authenticator = Authenticator([fixed, LedgerKeys(ledger, now)], [], now)
    app = GpuCostApi(
        title="gpucost",
        summary="Who held which GPU, what it cost, and proof that the numbers add up.",
        version=gpucost.__version__,
        # The framework's own pages would need no principal; /v1/openapi.json does.
        openapi_url=None,
        redirect_slashes=False,
        max_body_size=settings.max_body_bytes,
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
    )
    sharing, charging = settings.team_idle_sharing, PolicyCharging(policy)
    plans = tuple(monthly_budgets(budgets) if plans is None else plans)
    reporting = ReportService(
        *(ledger, gpucost.__version__, quotas, sharing, accounts or {}, charging),
        budgeting_of(plans, budgets),
    )
    app.state.services = ApiServices(
        ledger,
        reporting,
        settings,
        authenticator,
        now,
        status or LoopStatus(),
        detectors or DetectorStatus(),
        advising,
        budgets,
        telling,
        operations or OperationsStatus(),
        named_teams,
        policy,
        close_coverage,
        prices,
        plans=plans,
        expected=expected or {},
        login=login or _login_by_key(ledger, authenticator, now),
    )
    app.state.registry = collector.registry(app.state.services)
    errors.install(app, page_layout.is_page, page_layout.error_page)
    for router in (
        page_layout.public,
        login_pages.router,
        month_pages.router,  # before the index, which a browser is not shown
        team_pages.router,
        job_pages.router,
        search_pages.router,
        advise_pages.router,
        method_pages.router,
        finding_pages.router,
        data_pages.router,
        preview_pages.router,
        what_if_pages.router,
        live_pages.router,
        reports.router,
        allocations.router,
        focus.router,
        focus.changes,
        months.router,
        months.changes,
        replays.router,
        service.public,
        service.router,
        findings.router,
        findings.changes,
        advisor.router,
        advisor.questions,
        live.router,
        lists.router,
        alerts.router,
        keys.router,
        keys.changes,
        tool_route.router,
        sessions.router,
        sessions.changes,
    ):
        # As their modules made them: ``include_router`` makes all routes anew, in an app's first request.
        app.router.routes += router.routes
    return app


def _login_by_key(ledger: Ledger, authenticator: Authenticator, now: Callable[[], int]) -> LoginWays:
    return LoginWays(SessionAuthority(ledger, authenticator, GroupGrants(), "", 8 * HOUR_MS, now))
