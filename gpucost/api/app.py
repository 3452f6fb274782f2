"""The app factory. Nothing is global: two apps in one process share nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType

from fastapi import FastAPI
from starlette.types import ASGIApp

import gpucost
from gpucost.access.authenticator import Authenticator, FixedKeys
from gpucost.api.metrics import collector
from gpucost.api.routes import (
    advisor,
    alerts,
    allocations,
    findings,
    jobs,
    keys,
    reports,
    service,
    waste,
)
from gpucost.api.server import errors
from gpucost.api.server.middleware import OuterMiddleware
from gpucost.api.server.operations_status import OperationsStatus
from gpucost.api.server.services import ApiServices
from gpucost.ledger import Ledger
from gpucost.ledger.stores.api_keys import LedgerKeys
from gpucost.reports.month.inputs import TeamAccount
from gpucost.service.advisor.advisor_service import AdvisorService
from gpucost.service.detection.loop import DetectorStatus
from gpucost.service.ingest.status import LoopStatus
from gpucost.service.notifications.loop import NotificationStatus
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
    accounts: Mapping[str, TeamAccount] | None = None,
    advising: AdvisorService | None = None,
    telling: NotificationStatus | None = None,
    authenticator: Authenticator | None = None,
    operations: OperationsStatus | None = None,
    named_teams: frozenset[str] = frozenset(),
) -> FastAPI:
    """The API over ``ledger``. ``now`` is the clock in ms UTC; ``quotas`` are GPUs per team, ``budgets``
    nano-units of money per team and month, ``accounts`` what reports say of teams.

    ``status`` and ``detectors`` are the status of the service's loops; ``advising`` answers for the watched
    cluster, None where none is watched. ``telling`` is the status of the notification loop, None where there
    is no channel. ``authenticator`` identifies the caller; without one, the keys of ``settings`` and of the
    ledger do. ``operations`` is the status of the process. ``named_teams`` are those that the team rules
    name.
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
    reporting = ReportService(ledger, gpucost.__version__, quotas, settings.team_idle_sharing, accounts or {})
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
    )
    app.state.registry = collector.registry(app.state.services)
    errors.install(app)
    for router in (
        reports.router,
        allocations.router,
        waste.router,
        service.public,
        service.router,
        jobs.router,
        findings.router,
        findings.changes,
        advisor.router,
        advisor.questions,
        alerts.router,
        keys.router,
        keys.changes,
    ):
        app.include_router(router)
    return app
