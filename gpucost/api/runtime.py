"""The service in one process: its loops, each in a thread of its own, the app that answers for them, and
reloads.

A reload reads the configuration again while the service runs. The new parts are read, checked and built next
to those that run. Only if all of that works they take over: new requests go to the new app, those in flight
end on the old one, the old loops end, and then the new begin, so that no two of them ever work. On any error
everything stays as it was: a service runs what its files say, or what they said before, and no mixture.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Protocol

from fastapi import FastAPI

from gpucost.api.app import create_app
from gpucost.api.server.listener import AppSwitch
from gpucost.api.server.operations_status import OperationsStatus
from gpucost.api.server.services import PLAIN_BOOK
from gpucost.attribution.teams import TeamRules
from gpucost.charges.policy_file import PolicyBook
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.domain.errors import GpuCostError
from gpucost.ledger.ledger import Ledger
from gpucost.pricing.price_book import PriceBook
from gpucost.service.advisor.advisor_service import AdvisorService, ClusterSource
from gpucost.service.advisor.status import AdvisorStatus
from gpucost.service.detection.loop import DetectorStatus
from gpucost.service.ingest.loop import IngestLoop
from gpucost.service.ingest.retention_loop import RetentionLoop, RetentionRun
from gpucost.service.ingest.status import LoopStatus
from gpucost.service.reporting.month_forecasts import keep_forecasts
from gpucost.service.settings.model import Settings
from gpucost.service.wiring.access import build_authenticator, build_login
from gpucost.service.wiring.advisor import build_advising, build_foretelling
from gpucost.service.wiring.configuration import ServiceConfiguration, fingerprint, read_as_seen
from gpucost.service.wiring.detection import build_detect_loop
from gpucost.service.wiring.ledger import accounts_of, build_reporting
from gpucost.service.wiring.notifications import build_news
from gpucost.service.wiring.pipeline import build_pipeline, rules_of
from gpucost.service.wiring.source_checks import build_strangers
from gpucost.telemetry.interval_source import IntervalSource

logger = logging.getLogger(__name__)

# Together with the other waits of a stop (docs/operations.md), below the grace period of the chart's pod.
_GRACE_S = 15


class ClusterFollower(ClusterSource, Protocol):
    """A cluster whose state is followed from ``start`` to ``close``."""

    def start(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class ServiceParts:
    """The parts that the service works with, opened by the caller.

    ``source`` opens the telemetry; once its event is set, no failed query is tried again. ``policy`` is what
    teams pay by. Without
    ``watching`` the current state of a cluster is unknown, and there is no advisor. ``operations`` and
    ``advisor_status`` belong to the process: they survive a reload.
    """

    settings: Settings
    book: PriceBook
    teams: TeamRules
    ledger: Ledger
    source: Callable[[threading.Event], IntervalSource]
    now: Callable[[], int]
    watching: ClusterFollower | None = None
    policy: PolicyBook = PLAIN_BOOK
    operations: OperationsStatus = field(default_factory=OperationsStatus)
    advisor_status: AdvisorStatus = field(default_factory=AdvisorStatus)


@dataclass
class ServiceRuntime:
    """``app`` answers from the start; the loops run from ``start`` to ``close``, each called once."""

    app: FastAPI
    advising: AdvisorService | None
    stop: threading.Event
    _watching: ClusterFollower | None
    _watches: bool = False
    _threads: list[threading.Thread] = field(default_factory=list)
    _closing: list[Callable[[], object]] = field(default_factory=list)
    _discarding: list[Callable[[], object]] = field(default_factory=list)

    @classmethod
    def of(cls, parts: ServiceParts) -> ServiceRuntime:
        """Nothing runs yet. Raises InputError for settings that do not fit together."""
        settings, ledger, now, stop = parts.settings, parts.ledger, parts.now, threading.Event()
        status, detect_status = LoopStatus(), DetectorStatus()
        advising = None
        if parts.watching is not None:
            advising = build_advising(
                settings.advisor,
                parts.watching,
                parts.book,
                parts.teams,
                ledger,
                parts.advisor_status,
                has_webhook=settings.webhook.enabled,
            )
        source = parts.source(stop)
        news = build_news(settings, ledger, parts.teams, parts.policy, advising, source, now, stop)
        authenticator = build_authenticator(settings, ledger, now)
        app = create_app(
            ledger,
            settings.api,
            now=now,
            status=status,
            quotas=parts.teams.quotas,
            budgets=parts.teams.budgets,
            plans=parts.teams.budget_plans,
            expected=parts.teams.expected,
            accounts=accounts_of(parts.teams),
            detectors=detect_status,
            advising=advising,
            telling=None if news is None else news.status,
            authenticator=authenticator,
            login=build_login(settings, ledger, authenticator, now),
            operations=parts.operations,
            named_teams=parts.teams.names,
            policy=parts.policy,
            close_coverage=Fraction(settings.ledger.close_coverage),
            prices=parts.book,
        )
        running = cls(app, advising, stop, parts.watching)
        running._discarding.append(authenticator.close)
        if advising is not None:
            foretelling = build_foretelling(settings, advising, ledger, now, stop)
            running._thread("gpucost-foretelling", foretelling.run)
        rules = rules_of(settings, parts.book, parts.teams, stopped=stop)
        pipeline = build_pipeline(settings.ingest, source, ledger, rules, now)
        loop = IngestLoop(
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
            # A dump is as old as it is: what is found live must not be about pods of then.
            live = None if settings.detectors.dump is not None else parts.watching
            state = _nobody_knows if live is None else live.overview
            detectors = build_detect_loop(settings, pipeline, detect_status, state, stop)
            running._thread("gpucost-detectors", detectors.run)
        retaining = RetentionRun(ledger, settings.retention, now)
        reporting = build_reporting(ledger, parts.teams)
        retention = RetentionLoop(
            retaining, status, wait=stop.wait, daily=lambda: keep_forecasts(reporting, now())
        )
        running._thread("gpucost-retention", retention.run)
        if news is not None:
            running._thread("gpucost-news", news.telling.run)
            running._thread("gpucost-sender", news.send)
            running._closing.append(news.close)
        return running

    @property
    def knows_state(self) -> bool:
        """Whether the current state of the cluster is there."""
        return self._watching is not None and self._watching.is_current

    def watch(self) -> None:
        """Begin to watch the cluster, and to answer about it; ``start`` does, unless it was called before."""
        if self._watches:
            return
        self._watches = True
        if self._watching is not None:
            self._watching.start()
        if self.advising is not None:
            self.advising.start()

    def start(self) -> None:
        """Begin to watch and run the loops."""
        self.watch()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """The window that is being written, and the message that is being sent, are finished; no further one
        is begun. A source that hangs is not waited for: the ledger is transactional, and what is missing is
        due after the next start.
        """
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
        """Stop watching; for one whose loops were never started."""
        if self.advising is not None:
            self.advising.close()
        if self._watching is not None:
            self._watching.close()
        for discard in self._discarding:
            discard()

    def _thread(self, name: str, target: Callable[[], object]) -> None:
        self._threads.append(threading.Thread(target=target, name=name, daemon=True))


def _nobody_knows(cluster: str) -> ClusterOverview | None:
    """The state of a cluster that is not watched."""
    del cluster
    return None


_IN_FLIGHT_S = 10.0
_FIRST_STATE_S = 10.0
_LOOK_S = 0.05
_SETTLES_S = 0.2
_CLOSING_S = 20.0


@dataclass(eq=False)
class ConfigReloader:
    """``read`` returns the current configuration, ``build`` makes the parts for it, ``taken`` is called with
    both once they have taken over. ``file`` is the settings file, ``seen`` the fingerprint of the files from
    before ``configuration`` was read; without it, the current one.
    """

    read: Callable[[], ServiceConfiguration]
    build: Callable[[ServiceConfiguration], ServiceRuntime]
    taken: Callable[[ServiceConfiguration, ServiceRuntime], None]
    configuration: ServiceConfiguration
    running: ServiceRuntime
    front: AppSwitch
    status: OperationsStatus
    now: Callable[[], int]
    file: Path | None = None
    seen: str = ""
    _asked: threading.Event = field(default_factory=threading.Event)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._complaint = ""
        self._seen = self.seen or self._fingerprint()
        self._thread = threading.Thread(target=self._run, name="gpucost-reload", daemon=True)
        self.status.config_loaded(self.now(), self.configuration.hash)

    def start(self) -> None:
        """Begin to watch the files."""
        self._thread.start()

    def ask(self) -> None:
        """Read everything again now, whether or not a file changed. Signal handlers may call it."""
        self._asked.set()

    def stop(self) -> None:
        """Begin nothing more; signal handlers may call it."""
        self._stopped.set()
        self._asked.set()
        self.running.stop.set()

    def close(self) -> None:
        """End what runs. Writes in progress are finished."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join(_CLOSING_S)
        self.running.close()

    def look(self) -> bool:
        """Reload if the content of a file differs from the configuration in force; whether a new one was
        taken. A refused one is tried at each check, since a file that was missing may be there now, and
        logged once.
        """
        if self._settled() != self._seen:
            return self._reload()
        if self._complaint:
            self._complaint = ""
            self.status.config_loaded(self.now(), self.configuration.hash)
            logger.info("the configuration is again the one in force")
        return False

    def reload(self) -> bool:
        """Read everything again; whether it was taken. An error is logged with its field."""
        self._settled()
        self._complaint = ""
        return self._reload()

    def _reload(self) -> bool:
        try:
            found, seen = read_as_seen(self.read, self.file, self.configuration.files())
            fixed = self.configuration.fixed_changes(found)
            if fixed:
                return self._refuse(f"{', '.join(fixed)} cannot change while the service runs: restart it")
            running = self.build(found)
        except GpuCostError as error:
            return self._refuse(str(error))
        except Exception as error:
            return self._refuse(f"unexpected {type(error).__name__}", error)
        self._take_over(found, running)
        # From before the reading: a change since then, also while old requests ended, is for the next check.
        self._complaint, self._seen = "", seen
        return True

    def _refuse(self, complaint: str, cause: Exception | None = None) -> bool:
        self.status.config_refused()
        if complaint != self._complaint:
            logger.error(
                "configuration not taken, going on with the one before: %s", complaint, exc_info=cause
            )
        self._complaint = complaint
        return False

    def _take_over(self, found: ServiceConfiguration, running: ServiceRuntime) -> None:
        old = self.running
        running.watch()
        self._wait(_FIRST_STATE_S, lambda: running.knows_state or not old.knows_state)
        if self._stopped.is_set():
            running.discard()
            return
        self.front.swap(running.app)
        self.configuration, self.running = found, running
        self.taken(found, running)
        old.stop.set()
        self._wait(_IN_FLIGHT_S, lambda: self.front.in_flight(old.app) == 0)
        old.close()
        if self._stopped.is_set():
            running.stop.set()
        running.start()
        self.status.config_loaded(self.now(), found.hash)
        logger.info("new configuration taken, hash %s", found.hash)

    def _run(self) -> None:
        while not self._stopped.is_set():
            watch_s = self.configuration.settings.reload.watch.total_seconds()
            asked = self._asked.wait(watch_s or None)
            if self._stopped.is_set():
                return
            self._asked.clear()
            try:
                if asked:
                    self.reload()
                else:
                    self.look()
            except Exception:  # no error may end the watching
                logger.exception("the configuration cannot be looked at")

    def _settled(self) -> str:
        """The fingerprint once it stays the same for a moment, so that no half-written file is read."""
        seen = self._fingerprint()
        while seen != self._seen and not self._stopped.wait(_SETTLES_S):
            again = self._fingerprint()
            if again == seen:
                break
            seen = again
        return seen

    def _fingerprint(self) -> str:
        return fingerprint(self.configuration.files(), self.file)

    def _wait(self, seconds: float, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not until() and time.monotonic() < deadline:
            if self._stopped.wait(_LOOK_S):
                return
