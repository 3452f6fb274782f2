"""A whole cluster, kept current: one reflector for each collection, and snapshots of them together."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpucost.cluster.objects.scheduler_config import SchedulerConfigs
from gpucost.cluster.objects.state import ClusterState, CollectionStatus
from gpucost.cluster.views.workload_families import FamilyMemory
from gpucost.kube.connect.transport import KubeTransport
from gpucost.kube.parse.collections import ApiCollection
from gpucost.kube.watch.api_calls import ApiDiscovery
from gpucost.kube.watch.object_store import ObjectChange
from gpucost.kube.watch.reflector import Reflector, ReflectorSettings
from gpucost.kube.watch.scheduler_reader import SchedulerReader

_MS = 1_000_000
# Objects per page: large enough that 50,000 pods are a hundred requests, small enough for an API server.
SETTINGS = ReflectorSettings(page_size=500, absent_s=60.0)

_CLOSING_S = 5.0

UNKNOWN_VERSION = "unknown_version"
"""The problem of a collection that is served, but in no version that can be read."""

OnChange: TypeAlias = Callable[[ObjectChange[Any]], None]


@dataclass(frozen=True, slots=True)
class WatchClocks:
    """Unix nanoseconds, monotonic seconds, and a random number in [0, 1)."""

    wall_ns: Callable[[], int] = time.time_ns
    monotonic_s: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random

    def now_ms(self) -> int:
        return self.wall_ns() // _MS


@dataclass(frozen=True, slots=True)
class _Watched:
    collection: ApiCollection
    reflector: Reflector[Any]


class ClusterWatch:
    """Reads ``collections`` over ``transport``. ``on_change`` is called with every change of the collections
    named in it, by their reflector's thread, and must be quick. With ``schedulers`` a snapshot has their
    configuration; without, their defaults are assumed.

    Each collection is followed on its own: one that fails delays no other, and its last state stays.
    """

    def __init__(
        self,
        transport: KubeTransport,
        collections: Iterable[ApiCollection],
        on_change: Mapping[str, OnChange] | None = None,
        settings: ReflectorSettings = SETTINGS,
        clocks: WatchClocks | None = None,
        schedulers: SchedulerReader | None = None,
    ) -> None:
        self._schedulers = schedulers
        self._clocks = clocks or WatchClocks()
        self._discovery = ApiDiscovery(
            transport, monotonic=self._clocks.monotonic_s, clock=self._clocks.wall_ns
        )
        self._closed = threading.Event()
        self._families = FamilyMemory()
        listeners = on_change or {}
        self._watched = tuple(
            _Watched(each, self._reflector(transport, each, listeners.get(each.name), settings))
            for each in collections
        )

    def start(self) -> None:
        """Begin to read all of them; call it once."""
        for each in self._watched:
            each.reflector.start()
        if self._schedulers is not None:
            self._schedulers.start()

    def close(self) -> None:
        """Stop; the last state stays. May be called more than once.

        Waits for ``_CLOSING_S`` at most: a thread that waits for a silent server is left behind.
        """
        self._closed.set()
        for each in self._watched:
            each.reflector.close(0.0)
        deadline = time.monotonic() + _CLOSING_S
        if self._schedulers is not None:
            self._schedulers.close(_CLOSING_S)
        for each in self._watched:
            each.reflector.close(max(0.0, deadline - time.monotonic()))

    def wait(self, seconds: float) -> bool:
        """Wait until every collection has been read once, found absent or forbidden; False when ``seconds``
        pass, or it is closed, before."""
        deadline = time.monotonic() + seconds
        while not all(map(_is_answered, self.statuses().values())):
            if time.monotonic() > deadline or self._closed.wait(0.02):
                return False
        return True

    def snapshot(self) -> ClusterState:
        """The present state of all collections. Copies no object."""
        schedulers = SchedulerConfigs() if self._schedulers is None else self._schedulers.configs
        parts: dict[str, list[Mapping[str, Any]]] = {}
        for each in self._watched:
            parts.setdefault(each.collection.field, []).append(each.reflector.snapshot())
        found: dict[str, Any] = {name: _merged(maps) for name, maps in parts.items()}
        if "workloads" in found:
            found["workloads"] = self._families.one_per_job(found["workloads"])
        return ClusterState(self._clocks.now_ms(), self.statuses(), schedulers=schedulers, **found)

    @property
    def version(self) -> tuple[int, ...]:
        """Changes whenever a snapshot would hold other objects, or configurations of schedulers."""
        objects = tuple(each.reflector.version for each in self._watched)
        return objects if self._schedulers is None else (*objects, self._schedulers.version)

    def statuses(self) -> dict[str, CollectionStatus]:
        """How current each collection is, by its name."""
        return {each.collection.name: _status(each) for each in self._watched}

    def counts(self) -> dict[str, int]:
        """How many objects of each collection there are, by its name."""
        return {each.collection.name: len(each.reflector.snapshot()) for each in self._watched}

    def current(self, longest_silence_s: float) -> frozenset[str]:
        """Names of the collections that exist, were read, and have not been silent for longer than that.

        A collection whose server answers, but sends nothing new for much longer, is not among them either.
        """
        now_ms = self._clocks.now_ms()
        stalled = {each.collection.name for each in self._watched if each.reflector.is_stalled}
        return frozenset(
            name
            for name, each in self.statuses().items()
            if name not in stalled
            and each.synced
            and not each.absent
            and (not each.problem or now_ms - (each.seen_ms or 0) <= longest_silence_s * 1000)
        )

    def is_current(self, longest_silence_s: float) -> bool:
        """Whether every required collection is current."""
        return self.required <= self.current(longest_silence_s)

    @property
    def required(self) -> frozenset[str]:
        """Names of the collections without which there is no result."""
        return frozenset(each.collection.name for each in self._watched if each.collection.required)

    def errors(self) -> dict[tuple[str, str], int]:
        """Numbers of errors, by collection and reason."""
        counts: Counter[tuple[str, str]] = Counter()
        for each in self._watched:
            counts.update({(each.collection.name, why): n for why, n in each.reflector.errors.items()})
        return dict(counts)

    def _reflector(
        self,
        transport: KubeTransport,
        collection: ApiCollection,
        on_change: OnChange | None,
        settings: ReflectorSettings,
    ) -> Reflector[Any]:
        path, *older = collection.paths
        return Reflector(
            transport,
            path,
            trim=collection.parse,
            on_change=on_change,
            older_paths=older,
            optional=not collection.required,
            why_absent=lambda: self._why_absent(collection),
            is_served=lambda path: path.split("/")[-2] in self._versions(collection),
            settings=settings,
            clock=self._clocks.wall_ns,
            monotonic=self._clocks.monotonic_s,
            jitter=self._clocks.jitter,
        )

    def _why_absent(self, collection: ApiCollection) -> str:
        """Whether it exists after all, in versions that cannot be read."""
        return UNKNOWN_VERSION if self._versions(collection) else ""

    def _versions(self, collection: ApiCollection) -> tuple[str, ...]:
        return self._discovery.versions_of(collection.group, collection.plural)


def _status(watched: _Watched) -> CollectionStatus:
    reflector = watched.reflector
    version = reflector.path.split("/")[-2]
    seen_ns = reflector.last_success_ns
    return CollectionStatus(
        "" if reflector.absent else version,
        reflector.synced,
        reflector.absent,
        reflector.problem,
        None if seen_ns is None else seen_ns // _MS,
    )


def _is_answered(status: CollectionStatus) -> bool:
    return status.synced or status.absent or status.problem == "http_403"


def _merged(maps: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    filled = [each for each in maps if each]
    if len(filled) <= 1:
        return filled[0] if filled else {}
    return {uid: found for each in filled for uid, found in each.items()}
