"""The service in one process: its loops, each in a thread of its own, and the app that answers for them."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from fastapi import FastAPI

from gpucost.api.app import create_app
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.overview import Overview
from gpucost.ledger import Ledger
from gpucost.pricing.book import PriceBook
from gpucost.service.advising import Advising, Watched
from gpucost.service.advising_status import AdvisingStatus
from gpucost.service.detect_status import DetectStatus
from gpucost.service.loop import Loop
from gpucost.service.operations_status import OperationsStatus
from gpucost.service.retaining import Retaining, RetainingLoop
from gpucost.service.settings import Settings
from gpucost.service.status import LoopStatus
from gpucost.service.wiring.access import build_authenticator
from gpucost.service.wiring.advisor import build_advising, build_foretelling
from gpucost.service.wiring.detection import build_detect_loop
from gpucost.service.wiring.ledger import accounts_of
from gpucost.service.wiring.notifications import build_news
from gpucost.service.wiring.pipeline import build_pipeline, rules_of
from gpucost.service.wiring.source_checks import build_strangers
from gpucost.telemetry.source import Source

logger = logging.getLogger(__name__)

# With all else that a stop waits for (docs/operations.md), below the grace period of the chart's pod.
_GRACE_S = 15


class Followed(Watched, Protocol):
    """A cluster whose state is followed from ``start`` to ``close``."""

    def start(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Parts:
    """What the service works with, opened by whoever runs it.

    ``source`` opens the telemetry; once its event is set, nothing that failed is asked again. Without
    ``watching`` nobody knows how a cluster stands now, and there is no advisor. ``operations`` and
    ``advisor_status`` are of the process: what is reloaded goes on with them.
    """

    settings: Settings
    book: PriceBook
    teams: TeamRules
    ledger: Ledger
    source: Callable[[threading.Event], Source]
    now: Callable[[], int]
    watching: Followed | None = None
    operations: OperationsStatus = field(default_factory=OperationsStatus)
    advisor_status: AdvisingStatus = field(default_factory=AdvisingStatus)


@dataclass
class Running:
    """``app`` answers from the start; the loops run from ``start`` to ``close``, each called once."""

    app: FastAPI
    advising: Advising | None
    stop: threading.Event
    _watching: Followed | None
    _watches: bool = False
    _threads: list[threading.Thread] = field(default_factory=list)
    _closing: list[Callable[[], object]] = field(default_factory=list)
    _discarding: list[Callable[[], object]] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Parts) -> Running:
        """Nothing runs yet. Raises InputError for settings that do not fit together."""
        settings, ledger, now, stop = parts.settings, parts.ledger, parts.now, threading.Event()
        status, detect_status = LoopStatus(), DetectStatus()
        advising = None
        if parts.watching is not None:
            advising = build_advising(
                settings, parts.watching, parts.book, parts.teams, ledger, parts.advisor_status
            )
        news = build_news(settings, ledger, parts.teams, advising, now, stop)
        authenticator = build_authenticator(settings, ledger, now)
        app = create_app(
            ledger,
            settings.api,
            now=now,
            status=status,
            quotas=parts.teams.quotas,
            budgets=parts.teams.budgets,
            accounts=accounts_of(parts.teams),
            detectors=detect_status,
            advising=advising,
            telling=None if news is None else news.status,
            authenticator=authenticator,
            operations=parts.operations,
            named_teams=parts.teams.names,
        )
        running = cls(app, advising, stop, parts.watching)
        running._discarding.append(authenticator.close)
        if advising is not None:
            foretelling = build_foretelling(settings, advising, ledger, now, stop)
            running._thread("gpucost-foretelling", foretelling.run)
        rules = rules_of(settings, parts.book, parts.teams, stopped=stop)
        pipeline = build_pipeline(settings.ingest, parts.source(stop), ledger, rules, now)
        loop = Loop(
            pipeline,
            settings.ingest,
            status,
            sleep=stop.wait,
            stopped=stop.is_set,
            rng=random.Random(),
            expected=settings.prometheus.cluster,
            strangers=build_strangers(settings, now, stop),
        )
        running._thread("gpucost-loop", loop.run)
        if settings.detectors.enabled:
            state = _nobody_knows if parts.watching is None else parts.watching.overview
            detectors = build_detect_loop(settings, pipeline, detect_status, state, stop)
            running._thread("gpucost-detectors", detectors.run)
        retaining = Retaining(ledger, settings.retention, now)
        running._thread("gpucost-retention", RetainingLoop(retaining, status, wait=stop.wait).run)
        if news is not None:
            running._thread("gpucost-news", news.telling.run)
            running._thread("gpucost-sender", news.send)
            running._closing.append(news.close)
        return running

    @property
    def knows_state(self) -> bool:
        """Whether it knows how the cluster stands now."""
        return self._watching is not None and self._watching.is_current

    def watch(self) -> None:
        """Begin to watch the cluster, and to answer about it; ``start`` does, where nobody did before."""
        if self._watches:
            return
        self._watches = True
        if self._watching is not None:
            self._watching.start()
        if self.advising is not None:
            self.advising.start()

    def start(self) -> None:
        """Begin to watch and to work."""
        self.watch()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """The window that is being written, and the message that is being sent, are finished; nothing of the
        next is begun. A source that hangs is not waited for: the ledger is transactional, and what is missing
        is due after the next start."""
        self.stop.set()
        deadline = time.monotonic() + _GRACE_S
        for close in self._closing:
            close()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                logger.warning(
                    "%s: the source does not answer: leaving without what is being read", thread.name
                )
        self.discard()

    def discard(self) -> None:
        """End what only looks; for one that never started to work."""
        if self.advising is not None:
            self.advising.close()
        if self._watching is not None:
            self._watching.close()
        for discard in self._discarding:
            discard()

    def _thread(self, name: str, target: Callable[[], object]) -> None:
        self._threads.append(threading.Thread(target=target, name=name, daemon=True))


def _nobody_knows(cluster: str) -> Overview | None:
    """The state of a cluster that is not watched."""
    del cluster
    return None
