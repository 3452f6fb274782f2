"""The advisor over a watched cluster: state and history are combined in the background, requests are answered
from memory."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from gpucost.advisor.model.answers import Advice, Explanation
from gpucost.advisor.model.settings import AdvisorSettings
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.wait.run_times import NO_HISTORY, RunTimes
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.objects.jobs import JobManifest, JobObject
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import PodGroup
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.domain.errors import shorten
from gpucost.pricing.price_book import PriceBook
from gpucost.service.advisor.advisor_cache import AdvisorCache
from gpucost.service.advisor.status import AdvisorStatus
from gpucost.service.advisor.tenant_views import TenantViews

logger = logging.getLogger(__name__)

EVERY_S = 2.0
"""Pause between two checks whether the watched state changed."""
HISTORY_EVERY_S = 15 * 60.0
"""Pause between two reads of past run times."""
LONGEST_AGE_S = 120.0
"""An older state is not answered from: as long as a watch may be silent
(gpucost.service.advisor.cluster_watcher)."""
COLLECTED_EVERY_S = 3600.0
"""Pause between two full garbage collections, where there is a webhook."""
_CLOSING_S = 5.0
_REST = 3
"""After a state was worked out, the pause is at least this many times as long as that took."""
# The middle one of three is near enough for "about", and each more costs a third more.
_SAMPLES_AT_ADMISSION, _HOURS_AT_ADMISSION = 3, 24.0


class NoState(Exception):
    """No answer can be given now; the message gives the reason for a person to read."""


class AdviseFunction(Protocol):
    """``gpucost.advisor.advise.advise``."""

    def __call__(
        self, manifest: JobManifest, known: AdvisorContext, with_suggestions: bool = True
    ) -> Advice: ...


class ExplainFunction(Protocol):
    """``gpucost.advisor.explanation.job_explanation.explain``."""

    def __call__(self, kind: str, namespace: str, name: str, known: AdvisorContext) -> Explanation | None: ...


class ManifestFunction(Protocol):
    """``gpucost.kube.manifests.manifest_of``. Raises InputError, which names the field."""

    def __call__(
        self, document: Mapping[str, Any], place: str, at_ms: int, namespace: str
    ) -> JobManifest: ...


class RereadFunction(Protocol):
    """``gpucost.kube.manifests.reread``. Raises InputError, which names the field."""

    def __call__(self, manifest: JobManifest, document: Mapping[str, Any], /) -> JobManifest: ...


class DocumentFunction(Protocol):
    """``gpucost.kube.manifests.writer.document_of``. Raises InputError for kinds that it cannot write."""

    def __call__(
        self, job: JobObject, workload: Workload | None, group: PodGroup | None, /
    ) -> Mapping[str, Any]: ...


class ClusterSource(Protocol):
    """``gpucost.service.advisor.cluster_watcher.ClusterWatcher``: the state of one cluster."""

    @property
    def cluster(self) -> str: ...

    @property
    def version(self) -> object:
        """A value that changes whenever a snapshot would hold other objects."""

    @property
    def is_current(self) -> bool: ...

    def overview(self, cluster: str) -> ClusterOverview | None: ...


class AdviceTurns:
    """One answer at a time: answers are computed, and two at once take longer than one after the other. At
    most ``most`` callers wait or are served, and each caller has one place only, so that no caller takes the
    places of others.
    """

    def __init__(self, most: int = 4) -> None:
        self.most = most
        self._places, self._turn = threading.BoundedSemaphore(most), threading.Lock()
        self._asking: set[str] = set()
        self._guard = threading.Lock()

    @contextmanager
    def one(self, who: str = "") -> Iterator[bool]:
        """A turn, waited for; False at once when there are ``most``, or when the caller ``who`` (empty:
        anonymous) has one or waits for one. See ``is_asking``."""
        if not self._begin(who):
            yield False
            return
        try:
            with self._turn:
                yield True
        finally:
            with self._guard:
                self._asking.discard(who)
            self._places.release()

    def is_asking(self, who: str) -> bool:
        """Whether the caller ``who`` has a turn or waits for one."""
        with self._guard:
            return who in self._asking

    def _begin(self, who: str) -> bool:
        with self._guard:
            if who in self._asking or not self._places.acquire(blocking=False):
                return False
            if who:
                self._asking.add(who)
            return True


class GarbageControl:
    """Garbage collection for a process that holds millions of objects: a full collection takes half a second
    and cannot be interrupted, and no review gets its advice in that time. So the collector is off while a
    state is made, and the objects of that state are then frozen (``gc.freeze``), which excludes them from
    collection. A dropped state is freed by its reference counts. Other reference cycles are collected once in
    ``every_s``, in one long pause.
    """

    def __init__(self, every_s: float = COLLECTED_EVERY_S) -> None:
        self._every_s, self._last_s = every_s, time.monotonic()

    @contextmanager
    def kept_out(self) -> Iterator[None]:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if time.monotonic() - self._last_s > self._every_s:
                gc.unfreeze()
                gc.collect()
                self._last_s = time.monotonic()
            gc.freeze()
            if was_enabled:
                gc.enable()


@dataclass(frozen=True)
class AdvisorEngine:
    """The functions that answer."""

    advise: AdviseFunction
    explain: ExplainFunction
    manifest_of: ManifestFunction
    reread: RereadFunction
    write: DocumentFunction | None = None
    """Without it, no changes are suggested for jobs that exist."""


@dataclass(frozen=True)
class AdvisorSnapshot:
    """One state of the cluster, and what follows from it.

    The context is not for two threads at once: ``known`` is for the thread that has a turn
    (``AdvisorService.turns``), and ``at_admission`` for the one worker of the admission webhook, which cannot
    wait for a turn.
    """

    known: AdvisorContext
    rules: TeamRules

    @cached_property
    def at_admission(self) -> AdvisorContext:
        # Simulating the wait takes seconds, and the webhook has a fraction of one.
        return replace(self.known, settings=replace(self.known.settings, samples=0, budget_s=None))

    @cached_property
    def wait_at_admission(self) -> AdvisorContext:
        """With a few samples over a day, for "about 3 h". For the same worker: computed values are shared."""
        settings = self.known.settings
        hours = min(settings.horizon_hours, _HOURS_AT_ADMISSION)
        samples = min(settings.samples, _SAMPLES_AT_ADMISSION)
        found = copy(self.at_admission)
        object.__setattr__(
            found, "settings", replace(settings, horizon_hours=hours, samples=samples, budget_s=None)
        )
        return found

    @cached_property
    def tenants(self) -> TenantViews:
        return TenantViews(self.known.overview, self.rules)

    def asks_gpus(self, manifest: JobManifest) -> bool:
        """Whether any of its pods asks for GPUs or parts of them, or may: claims are not resolved."""
        units = self.known.overview.units
        templates = [each.template for each in manifest.job.pod_sets]
        return any(template.claims or units.asked(template.requests) for template in templates)


@dataclass(eq=False)
class AdvisorService:
    """Answers for one watched cluster. All methods may be called from any thread.

    ``run_times`` reads how long jobs ran, from the ledger; where it fails, answers are made from NO_HISTORY.
    Only the threads of ``start`` work out a state; a request never waits for that.
    """

    watched: ClusterSource
    engine: AdvisorEngine
    rules: TeamRules
    prices: PriceBook | None = None
    run_times: Callable[[], RunTimes] = lambda: NO_HISTORY
    settings: AdvisorSettings = field(default_factory=AdvisorSettings)
    status: AdvisorStatus = field(default_factory=AdvisorStatus)
    learnt: AdvisorCache = field(default_factory=AdvisorCache)
    """Outcomes of predicted waits, and open findings about jobs."""
    has_webhook: bool = False
    """Whether to prepare answers for the webhook too, which takes twice the work and memory."""
    turns: AdviceTurns = field(default_factory=AdviceTurns)
    every_s: float = EVERY_S
    monotonic: Callable[[], float] = time.monotonic
    _history: RunTimes = NO_HISTORY
    _informed: AdvisorSnapshot | None = None
    _version: object = None
    _checked_s: float = 0.0
    _closed: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _garbage: GarbageControl = field(default_factory=GarbageControl)

    def start(self) -> None:
        """Begin to follow the state; to be called once."""
        for target, name in ((self._follow, "gpucost-advisor"), (self._learn, "gpucost-advisor-history")):
            thread = threading.Thread(target=target, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Stop. Does not wait for a ledger that does not answer. May be called more than once."""
        self._closed.set()
        deadline = time.monotonic() + _CLOSING_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self.has_webhook:
            gc.unfreeze()

    def refresh(self) -> None:
        """Make a snapshot if the state changed since the last one. The thread of ``start`` calls it."""
        if not self.watched.is_current:
            return
        version = (self.watched.version, self._history, self.learnt.known)
        if self._informed is None or version != self._version:
            with self._garbage.kept_out() if self.has_webhook else nullcontext():
                overview = self.watched.overview(self.watched.cluster)
                if overview is None:
                    return
                self._informed, self._version = self._inform(overview), version
        self._checked_s = self.monotonic()

    def learn(self) -> None:
        """Read how long jobs ran. The thread of ``start`` calls it."""
        try:
            self._history = self.run_times()
        except Exception as error:  # whatever state the ledger is in, advice goes on without it
            logger.warning("run times cannot be read: %s", shorten(str(error), 500))
            self._history = NO_HISTORY

    def informed(self) -> AdvisorSnapshot:
        """The current snapshot. Raises NoState while no state was read, or when the last one is too old."""
        found = self._informed
        if found is None:
            raise NoState(f"the state of the cluster {self.watched.cluster} has not been read yet")
        if not self.watched.is_current or self.monotonic() - self._checked_s > LONGEST_AGE_S:
            raise NoState(
                f"the state of the cluster {self.watched.cluster} is older than {LONGEST_AGE_S:.0f} s: "
                "its API server does not answer"
            )
        return found

    @property
    def state(self) -> ClusterState | None:
        """The state of the current snapshot; None where there is none now."""
        try:
            return self.informed().known.overview.state
        except NoState:
            return None

    def read(self, document: Mapping[str, Any], informed: AdvisorSnapshot, place: str = "") -> JobManifest:
        """A document as a manifest, submitted when the state was taken. Raises InputError."""
        at_ms = informed.known.overview.state.at_ms
        return self.engine.manifest_of(document, place, at_ms, "default")

    def advise(
        self,
        manifest: JobManifest,
        informed: AdvisorSnapshot,
        *,
        suggestions: bool = True,
        teams: Collection[str] | None = None,
    ) -> Advice:
        """Advice for the thread that has a turn; from the history of ``teams`` only, where given."""
        return self._advise(
            "advice", manifest, self._limited(self._seen_by(informed.known, teams)), suggestions
        )

    def advise_at_admission(
        self,
        manifest: JobManifest,
        informed: AdvisorSnapshot,
        *,
        suggestions: bool = False,
        until_s: float | None = None,
    ) -> Advice:
        """Advice for the one worker of the webhook: without a wait, and from the history of the namespace's
        team. No suggestion is looked for from ``until_s`` on, on ``monotonic``."""
        face = "webhook_suggestions" if suggestions else "webhook"
        teams = informed.tenants.teams_of_namespace(manifest.namespace)
        return self._advise(
            face, manifest, self._before(until_s, self._seen_by(informed.at_admission, teams)), suggestions
        )

    def wait_at_admission(
        self, manifest: JobManifest, informed: AdvisorSnapshot, *, until_s: float | None = None
    ) -> Advice:
        """The same with a rough wait, from what was simulated before ``until_s``."""
        teams = informed.tenants.teams_of_namespace(manifest.namespace)
        known = self._before(until_s, self._seen_by(informed.wait_at_admission, teams))
        return self._advise("webhook_wait", manifest, known, False)

    def _seen_by(self, known: AdvisorContext, teams: Collection[str] | None) -> AdvisorContext:
        """The context restricted to the history of ``teams``: a label, a namespace and a name in a manifest
        say whose history is asked for, and any author may write them. What was worked out is shared."""
        if teams is None:
            return known
        found = copy(known)
        object.__setattr__(found, "run_times", known.run_times.seen_by(teams))
        object.__setattr__(found, "used", self.learnt.used_by(teams))
        return found

    def _limited(self, known: AdvisorContext) -> AdvisorContext:
        """With the limits that the settings set for one answer, counted from now."""
        seconds = known.settings.budget_s
        return self._before(None if seconds is None else self.monotonic() + seconds, known)

    def _before(self, until_s: float | None, known: AdvisorContext) -> AdvisorContext:
        """With ``until_s`` as its time limit. What was worked out is shared."""
        if until_s is None:
            return known
        found = copy(known)
        object.__setattr__(found, "is_late", lambda: self.monotonic() >= until_s)
        return found

    def _advise(self, face: str, manifest: JobManifest, known: AdvisorContext, suggestions: bool) -> Advice:
        begun = self.monotonic()
        found = self.engine.advise(manifest, known, suggestions)
        self.status.answered(face, found.decision, self.monotonic() - begun)
        return found

    def explain(
        self,
        kind: str,
        namespace: str,
        name: str,
        informed: AdvisorSnapshot,
        *,
        teams: Collection[str] | None = None,
    ) -> Explanation | None:
        """None where there is no such job. From the history of ``teams`` only, where these are given."""
        begun = self.monotonic()
        found = self.engine.explain(
            kind, namespace, name, self._limited(self._seen_by(informed.known, teams))
        )
        if found is not None:
            decision = "" if found.advice is None else found.advice.decision
            self.status.answered("explain", decision, self.monotonic() - begun)
        return found

    def _inform(self, overview: ClusterOverview) -> AdvisorSnapshot:
        at_ms = overview.state.at_ms
        known = AdvisorContext(
            overview=overview,
            read=self.engine.reread,
            write=self.engine.write,
            read_new=lambda document: self.engine.manifest_of(document, "the job", at_ms, "default"),
            prices=self.prices,
            cluster=self.watched.cluster,
            run_times=self._history,
            settings=self.settings,
            calibration=self.learnt.calibration,
            skill=lambda: self.learnt.skill,
            troubles=self.learnt.troubles,
            used=self.learnt.used_by(None),
        )
        found = AdvisorSnapshot(known, self.rules)
        _prepare(found, self.has_webhook)
        return found

    def _follow(self) -> None:
        while not self._closed.is_set():
            begun = time.monotonic()
            try:
                self.refresh()
            except Exception:  # one object of an unexpected shape must not end all advice
                logger.exception("the state cannot be prepared for advice")
            # A large state takes seconds of one core: most of the time is left to others.
            self._closed.wait(max(self.every_s, _REST * (time.monotonic() - begun)))

    def _learn(self) -> None:
        while True:
            self.learn()
            if self._closed.wait(HISTORY_EVERY_S):
                return


def _prepare(found: AdvisorSnapshot, has_webhook: bool) -> None:
    """Work out everything that follows from a state once, here, so that no request pays for it."""
    overview = found.known.overview
    _ = (overview.units, overview.ownership, overview.queues, overview.positions)
    known = (found.known, *([found.at_admission] if has_webhook else ()))
    for each in (overview.state, found.tenants, *known):
        for name, attribute in vars(type(each)).items():
            if isinstance(attribute, cached_property):
                getattr(each, name)
    for each in known:
        each.warm()
