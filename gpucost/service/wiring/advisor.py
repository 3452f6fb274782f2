"""The advisor over the watched cluster, and the loop that foretells waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpucost.advisor.advise import advise
from gpucost.advisor.explain import explain
from gpucost.kube.manifests import manifest_of, reread
from gpucost.kube.manifests.rebuilt import document_of
from gpucost.service.advising import Advising, Engine
from gpucost.service.advising_status import AdvisingStatus
from gpucost.service.foretelling import Foretelling
from gpucost.service.past_runs import History

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from gpucost.attribution.teams import TeamRules
    from gpucost.ledger import Ledger
    from gpucost.pricing.book import PriceBook
    from gpucost.service.advising import Watched
    from gpucost.service.settings import Settings


def build_advising(
    settings: Settings,
    watching: Watched,
    book: PriceBook,
    teams: TeamRules,
    ledger: Ledger,
    status: AdvisingStatus | None = None,
) -> Advising:
    """The advisor over the watched cluster. Nothing is worked out yet: see ``start``. ``status`` is one that
    goes on counting."""
    return Advising(
        watching,
        Engine(advise, explain, manifest_of, reread, document_of),
        teams,
        prices=book,
        run_times=History(ledger, watching.cluster),
        settings=settings.advisor.advisor(),
        has_webhook=settings.webhook.enabled,
        status=status or AdvisingStatus(),
    )


def build_foretelling(
    settings: Settings, advising: Advising, ledger: Ledger, now: Callable[[], int], stop: threading.Event
) -> Foretelling:
    """The loop that foretells waits and looks what came of it, which ends when ``stop`` is set."""

    return Foretelling(
        advising,
        ledger,
        now=now,
        seconds=time.monotonic,
        sleep=stop.wait,
        stopped=stop.is_set,
        with_findings=settings.detectors.enabled,
    )
