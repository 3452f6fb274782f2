"""The advisor over a watched cluster: what is known is put together in the background, answers are given from
memory."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from gpucost.advisor.answers import Advice, Explanation
from gpucost.advisor.knowledge import Knowledge
from gpucost.advisor.settings import AdvisorSettings
from gpucost.advisor.wait.runtimes import NO_HISTORY, RunTimes
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.jobs import JobObject
from gpucost.cluster.kueue import Workload
from gpucost.cluster.manifest import JobManifest
from gpucost.cluster.overview import Overview
from gpucost.cluster.volcano import PodGroup
from gpucost.domain.errors import shorten
from gpucost.pricing.book import PriceBook
from gpucost.service.advising_status import AdvisingStatus
from gpucost.service.advising_tenants import Tenants
from gpucost.service.learnt import Learnt

logger = logging.getLogger(__name__)

EVERY_S = 2.0
"""Pause between two looks at whether the watched state changed."""
HISTORY_EVERY_S = 15 * 60.0
"""Pause between two reads of past run times."""
LONGEST_AGE_S = 120.0
"""An answer from an older state is none: as long as a watch may be silent (gpucost.service.watching)."""
_CLOSING_S = 5.0
_REST = 3
"""How much longer than working out a state nothing is worked out."""
# The middle one of three is near enough for "about", and each more costs a third more.
_SAMPLES_AT_ADMISSION, _HOURS_AT_ADMISSION = 3, 24.0


class NoState(Exception):
    """Nothing can be answered now; the message says why, to a person."""


class Advise(Protocol):
    """``gpucost.advisor.advise.advise``."""

    def __call__(self, manifest: JobManifest, known: Knowledge, with_suggestions: bool = True) -> Advice: ...


class Explain(Protocol):
    """``gpucost.advisor.explain.explain``."""

    def __call__(self, kind: str, namespace: str, name: str, known: Knowledge) -> Explanation | None: ...


class ManifestOf(Protocol):
    """``gpucost.kube.manifests.manifest_of``. Raises InputError, which names the field."""

    def __call__(
        self, document: Mapping[str, Any], place: str, at_ms: int, namespace: str
    ) -> JobManifest: ...


class Reread(Protocol):
    """``gpucost.kube.manifests.reread``. Raises InputError, which names the field."""

    def __call__(self, manifest: JobManifest, document: Mapping[str, Any], /) -> JobManifest: ...


class Write(Protocol):
    """``gpucost.kube.manifests.rebuilt.document_of``. Raises InputError for kinds that it cannot write."""

    def __call__(
        self, job: JobObject, workload: Workload | None, group: PodGroup | None, /
    ) -> Mapping[str, Any]: ...


class Watched(Protocol):
    """``gpucost.service.watching.Watching``: the state of one cluster."""

    @property
    def cluster(self) -> str: ...

    @property
    def version(self) -> object:
        """Another one whenever a snapshot would hold other objects."""

    @property
    def is_current(self) -> bool: ...

    def overview(self, cluster: str) -> Overview | None: ...


class Turns:
    """One answer at a time: they are computed, and two at once take longer than one after the other. At most
    ``most`` wait or are served."""

    def __init__(self, most: int = 4) -> None:
        self.most = most
        self._places, self._turn = threading.BoundedSemaphore(most), threading.Lock()

    @contextmanager
    def one(self) -> Iterator[bool]:
        """A turn, waited for; False at once when there are ``most``."""
        if not self._places.acquire(blocking=False):
            yield False
            return
        try:
            with self._turn:
                yield True
        finally:
            self._places.release()


@dataclass(frozen=True)
class Engine:
    """The functions that answer."""

    advise: Advise
    explain: Explain
    manifest_of: ManifestOf
    reread: Reread
    write: Write | None = None
    """Without it nothing is suggested for jobs that exist."""


@dataclass(frozen=True)
class Informed:
    """What is known of one state, and what follows from it.

    Knowledge is not for two threads at once: ``known`` is for whoever has a turn (``Advising.turns``), and
    ``at_admission`` for the one worker of the admission webhook, which cannot wait for a turn.
    """

    known: Knowledge
    rules: TeamRules

    @cached_property
    def at_admission(self) -> Knowledge:
        # Simulating the wait takes seconds, and the webhook has a fraction of one.
        return replace(self.known, settings=replace(self.known.settings, samples=0))

    @cached_property
    def wait_at_admission(self) -> Knowledge:
        """A few samples of a day, for "about 3 h". By the same worker: what is worked out is shared."""
        settings = self.known.settings
        hours = min(settings.horizon_hours, _HOURS_AT_ADMISSION)
        samples = min(settings.samples, _SAMPLES_AT_ADMISSION)
        found = copy(self.at_admission)
        object.__setattr__(found, "settings", replace(settings, horizon_hours=hours, samples=samples))
        return found

    @cached_property
    def tenants(self) -> Tenants:
        return Tenants(self.known.overview, self.rules)

    def asks_gpus(self, manifest: JobManifest) -> bool:
        """Whether any of its pods asks for GPUs or parts of them, or may: claims are not looked into."""
        units = self.known.overview.units
        templates = [each.template for each in manifest.job.pod_sets]
        return any(template.claims or units.asked(template.requests) for template in templates)


@dataclass(eq=False)
class Advising:
    """Answers for one watched cluster. All methods may be called from any thread.

    ``run_times`` reads how long jobs ran, from the ledger; where it fails, NO_HISTORY is answered from. Only
    ``start``'s threads work out a state; who asks never waits for that.
    """

    watched: Watched
    engine: Engine
    rules: TeamRules
    prices: PriceBook | None = None
    run_times: Callable[[], RunTimes] = lambda: NO_HISTORY
    settings: AdvisorSettings = field(default_factory=AdvisorSettings)
    status: AdvisingStatus = field(default_factory=AdvisingStatus)
    learnt: Learnt = field(default_factory=Learnt)
    """How waits that were foretold held, and what is found against jobs."""
    has_webhook: bool = False
    """Whether to prepare for it too, which takes twice the work and memory."""
    turns: Turns = field(default_factory=Turns)
    every_s: float = EVERY_S
    monotonic: Callable[[], float] = time.monotonic
    _history: RunTimes = NO_HISTORY
    _informed: Informed | None = None
    _version: object = None
    _checked_s: float = 0.0
    _closed: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Begin to follow the state; once."""
        for target, name in ((self._follow, "gpucost-advisor"), (self._learn, "gpucost-advisor-history")):
            thread = threading.Thread(target=target, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Stop. A ledger that does not answer is not waited for. May be called more than once."""
        self._closed.set()
        deadline = time.monotonic() + _CLOSING_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def refresh(self) -> None:
        """Put together what is known, if the state changed since. ``start``'s thread calls it."""
        if not self.watched.is_current:
            return
        version = (self.watched.version, self._history, self.learnt.known)
        if self._informed is None or version != self._version:
            with _uncollected() if self.has_webhook else nullcontext():
                overview = self.watched.overview(self.watched.cluster)
                if overview is None:
                    return
                self._informed, self._version = self._inform(overview), version
        self._checked_s = self.monotonic()

    def learn(self) -> None:
        """Read how long jobs ran. ``start``'s thread calls it."""
        try:
            self._history = self.run_times()
        except Exception as error:  # whatever the ledger is in: advice goes on without it
            logger.warning("run times cannot be read: %s", shorten(str(error), 500))
            self._history = NO_HISTORY

    def informed(self) -> Informed:
        """What is known now. Raises NoState while no state was read, or the last one is too old."""
        found = self._informed
        if found is None:
            raise NoState(f"the state of the cluster {self.watched.cluster} has not been read yet")
        if not self.watched.is_current or self.monotonic() - self._checked_s > LONGEST_AGE_S:
            raise NoState(
                f"the state of the cluster {self.watched.cluster} is older than {LONGEST_AGE_S:.0f} s: "
                "its API server does not answer"
            )
        return found

    def read(self, document: Mapping[str, Any], informed: Informed, place: str = "") -> JobManifest:
        """A document as a manifest, submitted when the state was taken. Raises InputError."""
        at_ms = informed.known.overview.state.at_ms
        return self.engine.manifest_of(document, place, at_ms, "default")

    def advise(self, manifest: JobManifest, informed: Informed, *, suggestions: bool = True) -> Advice:
        """For whoever has a turn."""
        return self._advise("advice", manifest, informed.known, suggestions)

    def advise_at_admission(
        self, manifest: JobManifest, informed: Informed, *, suggestions: bool = False
    ) -> Advice:
        """For the one worker of the webhook. Without a wait."""
        face = "webhook_suggestions" if suggestions else "webhook"
        return self._advise(face, manifest, informed.at_admission, suggestions)

    def wait_at_admission(self, manifest: JobManifest, informed: Informed) -> Advice:
        """The same with a rough wait."""
        return self._advise("webhook_wait", manifest, informed.wait_at_admission, False)

    def _advise(self, face: str, manifest: JobManifest, known: Knowledge, suggestions: bool) -> Advice:
        begun = self.monotonic()
        found = self.engine.advise(manifest, known, suggestions)
        self.status.answered(face, found.decision, self.monotonic() - begun)
        return found

    def explain(self, kind: str, namespace: str, name: str, informed: Informed) -> Explanation | None:
        """None where there is no such job."""
        begun = self.monotonic()
        found = self.engine.explain(kind, namespace, name, informed.known)
        if found is not None:
            decision = "" if found.advice is None else found.advice.decision
            self.status.answered("explain", decision, self.monotonic() - begun)
        return found

    def _inform(self, overview: Overview) -> Informed:
        at_ms = overview.state.at_ms
        known = Knowledge(
            overview=overview,
            read=self.engine.reread,
            write=self.engine.write,
            read_new=lambda document: self.engine.manifest_of(document, "the job", at_ms, "default"),
            prices=self.prices,
            run_times=self._history,
            settings=self.settings,
            calibration=self.learnt.calibration,
            troubles=self.learnt.troubles,
            used=self.learnt.used,
        )
        found = Informed(known, self.rules)
        _prepare(found, self.has_webhook)
        return found

    def _follow(self) -> None:
        while not self._closed.is_set():
            begun = time.monotonic()
            try:
                self.refresh()
            except Exception:  # an object nobody thought of must not end all advice
                logger.exception("the state cannot be prepared for advice")
            # A large state takes seconds of one core: most of the time is left to others.
            self._closed.wait(max(self.every_s, _REST * (time.monotonic() - begun)))

    def _learn(self) -> None:
        while True:
            self.learn()
            if self._closed.wait(HISTORY_EVERY_S):
                return


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of garbage, which nothing can interrupt. A state is millions of new objects:
    while they are made it would go through all of them again and again, a second each time in which no
    review gets its advice. What it has missed it does once, afterwards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _prepare(found: Informed, has_webhook: bool) -> None:
    """Everything that follows from a state is worked out here once, so that no request pays for it."""
    overview = found.known.overview
    _ = (overview.units, overview.ownership, overview.queues, overview.positions)
    known = (found.known, *([found.at_admission] if has_webhook else ()))
    for each in (overview.state, found.tenants, *known):
        for name, attribute in vars(type(each)).items():
            if isinstance(attribute, cached_property):
                getattr(each, name)
    for each in known:
        each.warm()
