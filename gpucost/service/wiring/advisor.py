"""Builders of the advisor over the watched cluster, and of the loop that predicts waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpucost.advisor.advise import advise
from gpucost.advisor.explanation.job_explanation import explain
from gpucost.kube.manifests import manifest_of, reread
from gpucost.kube.manifests.writer import document_of
from gpucost.service.advisor.advisor_service import AdvisorEngine, AdvisorService
from gpucost.service.advisor.run_history import RunHistory
from gpucost.service.advisor.status import AdvisorStatus
from gpucost.service.advisor.wait_predictor import WaitPredictor

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from gpucost.attribution.teams import TeamRules
    from gpucost.ledger.ledger import Ledger
    from gpucost.pricing.price_book import PriceBook
    from gpucost.service.advisor.advisor_service import ClusterSource
    from gpucost.service.settings.advisor import AdvisingSettings
    from gpucost.service.settings.model import Settings


def build_advising(
    settings: AdvisingSettings,
    watching: ClusterSource,
    book: PriceBook,
    teams: TeamRules,
    ledger: Ledger,
    status: AdvisorStatus | None = None,
    *,
    has_webhook: bool = False,
) -> AdvisorService:
    """The advisor over the watched cluster. Nothing is worked out yet: see ``start``. ``status`` keeps its
    counts across reloads."""
    return AdvisorService(
        watching,
        AdvisorEngine(advise, explain, manifest_of, reread, document_of),
        teams,
        prices=book,
        run_times=RunHistory(ledger, watching.cluster),
        settings=settings.advisor(),
        has_webhook=has_webhook,
        status=status or AdvisorStatus(),
    )


def build_foretelling(
    settings: Settings,
    advising: AdvisorService,
    ledger: Ledger,
    now: Callable[[], int],
    stop: threading.Event,
) -> WaitPredictor:
    """The loop that predicts waits and records what came of them; it ends when ``stop`` is set."""

    return WaitPredictor(
        advising,
        ledger,
        now=now,
        seconds=time.monotonic,
        sleep=stop.wait,
        stopped=stop.is_set,
        with_findings=settings.detectors.enabled,
    )
