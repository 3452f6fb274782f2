"""The app factory. Nothing is global: two apps in one process share nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType

from fastapi import FastAPI
from starlette.types import ASGIApp

import gpucost
from gpucost.api import (
    errors,
    metrics,
    routes_advisor,
    routes_alerts,
    routes_allocations,
    routes_findings,
    routes_jobs,
    routes_reports,
    routes_service,
    routes_waste,
)
from gpucost.api.outermost import Outermost
from gpucost.api.services import Services
from gpucost.domain.errors import ConfigError, Remark
from gpucost.ledger import Ledger
from gpucost.service.advising import Advising
from gpucost.service.detect_status import DetectStatus
from gpucost.service.reporting import Reporting
from gpucost.service.settings_api import ApiSettings
from gpucost.service.status import LoopStatus
from gpucost.service.telling.status import TellingStatus

_NO_QUOTAS: Mapping[str, Fraction] = MappingProxyType({})
_NO_BUDGETS: Mapping[str, int] = MappingProxyType({})


class GpuCostApi(FastAPI):
    """FastAPI inside one more layer, which also sees what the framework answers by itself."""

    def build_middleware_stack(self) -> ASGIApp:
        return Outermost(super().build_middleware_stack(), self.state.services.settings)


def create_app(
    ledger: Ledger,
    settings: ApiSettings,
    *,
    now: Callable[[], int],
    status: LoopStatus | None = None,
    detectors: DetectStatus | None = None,
    quotas: Mapping[str, Fraction] = _NO_QUOTAS,
    budgets: Mapping[str, int] = _NO_BUDGETS,
    advising: Advising | None = None,
    telling: TellingStatus | None = None,
) -> FastAPI:
    """The API over ``ledger``. ``now`` is the clock in ms UTC; ``quotas`` are boards per team, ``budgets``
    nano-units of money per team and month.

    ``status`` and ``detectors`` are what the loops of the service say of themselves; ``advising`` answers for
    the watched cluster, None where nobody watches one. ``telling`` is what the loop of news says of itself,
    None where there is no channel to tell them on.

    Raises ConfigError when keys are asked for and none is configured: nobody could ever ask.
    """
    if settings.auth == "keys" and not settings.keys:
        raise ConfigError(
            "settings", "api.keys", Remark("none"), "at least one key, or api.auth: off on loopback"
        )
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
    reporting = Reporting(ledger, gpucost.__version__, quotas, settings.team_idle_sharing)
    app.state.services = Services(
        ledger,
        reporting,
        settings,
        now,
        status or LoopStatus(),
        detectors or DetectStatus(),
        advising,
        budgets,
        telling,
    )
    app.state.registry = metrics.registry(app.state.services)
    errors.install(app)
    for router in (
        routes_service.public,
        routes_service.router,
        routes_reports.router,
        routes_allocations.router,
        routes_jobs.router,
        routes_findings.router,
        routes_findings.changes,
        routes_waste.router,
        routes_advisor.router,
        routes_advisor.questions,
        routes_alerts.router,
    ):
        app.include_router(router)
    return app
