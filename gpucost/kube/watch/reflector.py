"""The state of a Kubernetes collection, kept current: list once, then watch, for ever.

The protocol is client-go's (kubernetes/client-go, tools/cache/reflector.go): a list in pages, then a watch
from the list's resource version, with bookmarks. It differs where money depends on it:

- objects are keyed by uid: a pod that was deleted and made again under its name is two objects;
- a list replaces what is known only when it is complete, and what is missing in it is reported as vanished,
  with the time when it was last known to be there: ends are billed;
- an event that cannot be read is skipped, counted, and made good by a list;
- a server that says nothing new for long is not believed, but asked for a list (``doubted_s``): a connection
  through a proxy can look alive for hours.

These are why it is of our own; tests against an API server that breaks its watches in every way hold them
(tests/kube/test_reflector_faults.py and those beside it).

Durations are seconds (ReflectorSettings says of each why it is what it is), instants Unix nanoseconds. After
failures it pauses with full jitter, so that clients do not come back together. ``up`` is whether the server
answered last time, ``synced`` whether a complete list was ever read, ``is_stalled`` whether the server
said nothing new for ten minutes: the collector's heartbeat depends on them.

``cluster_watch`` runs one for each collection, in a thread of its own, for the queue collector and, through
``gpucost.service.advisor.cluster_watcher``, for the advisor; the GPU exporter runs one for its node's pods.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic

from gpucost.domain.backoff import FullJitter
from gpucost.kube.connect.transport import AnswerCheck, KubeTransport, TransportError
from gpucost.kube.parse.events import (
    EventType,
    ListPage,
    Unreadable,
    WatchEvent,
    is_stale,
    parse_event,
    resource_version,
)
from gpucost.kube.watch.api_calls import (
    FORBIDDEN,
    GONE,
    NOT_FOUND,
    ApiServerRefusal,
    ListWatchCalls,
    deadlines,
    refusal_of_event,
)
from gpucost.kube.watch.object_store import (
    ObjectChange,
    ObjectStore,
    StoredObject,
    T,
)

_LOG = logging.getLogger(__name__)
_SILENT = "silent"
_QUIET = frozenset({_SILENT, "overdue"})


@dataclass(frozen=True, slots=True)
class ReflectorSettings:
    """Durations in seconds."""

    page_size: int = 500
    """Objects per page of a list; fewer where they are large."""
    max_pages: int = 10_000
    """Pages of a list; one with more is not read to its end, and replaces nothing."""
    max_objects: int = 1_000_000
    """Objects of a list, in the same way."""
    list_timeout_s: float = 30.0
    """Longest silence while a list is read."""
    page_s: float = 120.0
    """Longest that one page of a list may take."""
    list_s: float = 900.0
    """Longest that a list may take; a server forgets where one stands after five to ten minutes."""
    watch_timeout_s: float = 300.0
    """The server ends a watch after between one and two times this, at random, so that clients spread."""
    overrun_s: float = 60.0
    """A watch is left when the server has not ended it so long after it should have."""
    renewal_s: float = 150.0
    """A watch that was silent for so long is made anew: its connection may be dead. Only an event or bookmark
    that can be read breaks the silence: a proxy can keep any connection busy. That is no error yet."""
    inactivity_s: float = 1200.0
    """Silence of watches, one after the other, that is an error; below ``renewal_s`` that of each watch.

    Twice what a sound server may need. It sends a bookmark a minute, but only once it knows of a later
    version than the watch began at (kubernetes v1.33, apiserver/pkg/storage/cacher: defaultBookmarkFrequency
    in cacher.go, process in cache_watcher.go). Of a collection without events it learns that by etcd's
    progress notifications: every ten minutes by default (etcd v3.4, etcdserver/api/v3rpc/watch.go,
    progressReportInterval; since v3.5 ``--experimental-watch-progress-notify-interval``, in v3.6 without
    ``experimental-``, which kubeadm sets to 5 s)."""
    doubted_s: float = 400.0
    """When watches together brought nothing for so long, a list comes next. After three silent ones, that is:
    one dead connection does not make every client of a server list again. A list moves on the version that
    watches begin at, past the last notice of etcd: so often, it passes over no two notices of etcd."""
    stalled_s: float = 600.0
    """Without list, event and bookmark for so long, what is known is not current any more. Long enough for
    ``doubted_s`` and the list after it, so that a quiet server without bookmarks is never taken for it."""
    mended_s: float = 300.0
    """Between lists that come only because an event could not be read."""
    short_watch_s: float = 1.0
    """A watch that ends sooner and brought nothing counts as a failure."""
    settled_s: float = 60.0
    """Failures are forgotten after a watch that lasted so long, even if a list must follow it."""
    longest_retry_after_s: float = 120.0
    """No ``Retry-After`` is believed beyond this."""
    absent_s: float = 300.0
    """Between looks for an optional collection that is not served."""
    backoff: FullJitter = field(default_factory=FullJitter)
    """Pauses after failures."""


class Reflector(Generic[T]):
    """Objects of one collection by uid. ``start`` runs it in a thread of its own; ``step`` goes by hand.

    ``trim`` converts an object to its stored form. ``on_change`` is called with every change, in order, by
    the thread that reads; it must be quick. ``older_paths`` are where else the collection may be served
    (older API versions), newest first. With ``optional`` a collection that is not served (a CRD not
    installed) is ``absent`` and empty and looked for again now and then; without, it is an error.
    ``why_absent`` is called then: one word where that is a problem, such as an unknown version, else nothing.
    ``is_served`` is called with a path that answers 403, and may raise as ``ApiDiscovery`` does: a server
    says 403 of a group that is not installed too, where no rule names it (authorization comes before the look
    for a handler: kubernetes v1.33, apiserver/pkg/server/config.go, DefaultBuildHandlerChain). ``clock``
    gives Unix nanoseconds, ``monotonic`` seconds, ``jitter`` is uniform in [0, 1).

    Lists ask for no resource version, which means the newest state: one read from a lagging cache could bring
    back what is gone.
    """

    def __init__(
        self,
        transport: KubeTransport,
        path: str,
        params: Mapping[str, str] | None = None,
        *,
        trim: Callable[[dict[str, Any]], T],
        on_change: Callable[[ObjectChange[T]], None] | None = None,
        older_paths: Sequence[str] = (),
        optional: bool = False,
        why_absent: Callable[[], str] = str,
        is_served: Callable[[str], bool] = bool,
        settings: ReflectorSettings | None = None,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._calls, self._paths = ListWatchCalls(transport, params or {}, clock), (path, *older_paths)
        self._on_change, self._optional = on_change, optional
        self._why_absent, self._is_served = why_absent, is_served
        self._settings = settings or ReflectorSettings()
        self._clock, self._monotonic, self._jitter = clock, monotonic, jitter
        self._store = ObjectStore(trim)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._path = path
        self._position: str | None = None
        self._failures = 0
        self._fruitful = False
        self._begun_s = self._heard_s = monotonic()
        self._unheard_s = self._silent_s = 0.0
        self._missed = False
        self._mended_s: float | None = None
        self._errors: Counter[str] = Counter()
        self.up = False
        """Whether the server answered last time."""
        self.synced = False
        """Whether a complete list has ever been read; before, the snapshot says nothing."""
        self.absent = False
        """Whether an optional collection is not served."""
        self.problem = ""
        """Why the server could not be read last time, as in ``errors``; empty while ``up``."""
        self.last_success_ns: int | None = None
        """When the server last said how things are: by a complete list, an event or a bookmark."""

    def snapshot(self) -> Mapping[str, T]:
        """Every object by its uid, at one instant: an immutable view, the same until one changes."""
        with self._lock:
            return self._store.view()

    @property
    def version(self) -> int:
        """Rises with every change of the snapshot."""
        return self._store.version

    @property
    def is_stalled(self) -> bool:
        """Whether the server said nothing new for ``stalled_s``, though it may answer."""
        return self._monotonic() - self._heard_s > self._settings.stalled_s

    @property
    def path(self) -> str:
        """Where the collection was last found."""
        return self._path

    @property
    def errors(self) -> Counter[str]:
        """How often, by reason: ``http_403``, ``event_410``, ``short_watch``, ``callback``, ``internal``, and
        those of ``TransportError`` and ``Unreadable``."""
        with self._lock:
            return self._errors.copy()

    def start(self) -> None:
        """Begin, in a daemon thread; once."""
        self._thread = threading.Thread(target=self._run, name=f"reflector {self._paths[0]}", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop, also in the middle of a watch; the snapshot stays. May be called more than once."""
        self._closed.set()
        self._calls.close()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def step(self) -> float:
        """One list, or one watch until it ends. Gives the seconds to wait before the next step."""
        if self._missed and self._may_mend():
            self._position, self._mended_s = None, self._monotonic()
        try:
            return self._list() if self._position is None else self._watch()
        except ApiServerRefusal as refused:
            if refused.relist or self._is_nowhere(refused, self._path):
                self._position = None
            return self._failed(
                refused.reason, refused.message, refused.retry_after_s, refused.status != GONE
            )
        except (TransportError, Unreadable) as error:
            return self._failed(error.reason, str(error))

    def _run(self) -> None:
        pause_s = 0.0
        while not self._closed.wait(pause_s):
            try:
                pause_s = self.step()
            except Exception as error:
                _LOG.exception("reflector of %s", self._path)
                pause_s = self._failed("internal", type(error).__name__)

    # Listing

    def _list(self) -> float:
        for path in self._paths:
            try:
                listed, position = self._read_list(path)
            except ApiServerRefusal as refused:
                is_last = path == self._paths[-1]
                if not self._is_nowhere(refused, path) or (is_last and not self._is_absent()):
                    raise
            else:
                self._path, self._position, self.absent = path, position, False
                self._replace(listed)
                return 0.0
        why = self._why_absent()
        self.absent = True
        self._replace({})
        self._failures = 0
        if why:
            self._failed(why, "served in no version that can be read")
        return self._settings.absent_s

    def _is_nowhere(self, refused: ApiServerRefusal, path: str) -> bool:
        """Whether ``path`` was refused since nothing is served there."""
        if refused.status != FORBIDDEN or not self._optional:
            return refused.status == NOT_FOUND
        try:
            return not self._is_served(path)
        except (ApiServerRefusal, TransportError, Unreadable):
            return False

    def _is_absent(self) -> bool:
        """Objects once seen are given up only when the server says so three times: a proxy may have lied."""
        return self._optional and (not len(self._store) or self._failures > 1)

    def _read_list(self, path: str) -> tuple[dict[str, StoredObject[T]], str]:
        listed: dict[str, StoredObject[T]] = {}
        position = ""
        for page in islice(self._pages(path), self._settings.max_pages):
            position = position or page.resource_version
            for item in page.items:
                self._list_item(item, listed)
            for error in page.unread:
                self._keep_unread(error, listed)
            if not page.token:
                return listed, position
            if len(listed) > self._settings.max_objects:
                break
        raise Unreadable("too_many")

    def _pages(self, path: str) -> Iterator[ListPage]:
        settings = self._settings
        deadline = deadlines(self._monotonic, settings.page_s, settings.list_s)
        return self._calls.pages(path, settings.page_size, settings.list_timeout_s, deadline)

    def _list_item(self, item: Any, listed: dict[str, StoredObject[T]]) -> None:
        try:
            uid, kept = self._store.read(item)
            listed[uid] = kept
        except Unreadable as error:
            self._keep_unread(error, listed)

    def _keep_unread(self, error: Unreadable, listed: dict[str, StoredObject[T]]) -> None:
        """One that is there and cannot be read keeps its last known state: it has not vanished."""
        self._count(error.reason)
        if (known := self._store.kept(error.uid)) is not None:
            listed[error.uid] = known

    def _replace(self, listed: Mapping[str, StoredObject[T]]) -> None:
        now_ns = self._clock()
        with self._lock:
            seen_ns = now_ns if self.last_success_ns is None else self.last_success_ns
            changes = self._store.replace(listed, seen_ns, now_ns)
        self._heard()
        self.synced, self._missed = True, False
        for change in changes:
            self._tell(change)

    # Watching

    def _watch(self) -> float:
        ends_s = int(self._settings.watch_timeout_s * (1 + self._jitter()))
        silence_s = self._silence_s
        self._begun_s = self._monotonic()
        check = self._watch_check(self._begun_s + ends_s + self._settings.overrun_s)
        with self._calls.watch(self._path, self._position or "", ends_s, silence_s, check) as lines:
            # No sign of life of what is known: that its position has expired is said in the stream.
            self._answered()
            return self._timed(lines)

    @property
    def _silence_s(self) -> float:
        """Of one watch, until it is left."""
        return min(self._settings.renewal_s, self._settings.inactivity_s)

    def _watch_check(self, ends_s: float) -> AnswerCheck:
        def check() -> None:
            now_s = self._monotonic()
            if now_s > ends_s:
                raise TransportError("overdue", "the server does not end the watch")
            if now_s - max(self._begun_s, self._heard_s) > self._silence_s:
                raise TransportError("silent", "bytes, and nothing that can be read")

        return check

    def _timed(self, lines: Iterator[bytes]) -> float:
        started, self._fruitful = self._monotonic(), False
        try:
            self._follow(lines)
        except ApiServerRefusal:
            # Else a list and an event, again and again, would pass for a server that is well.
            self._forgive(self._monotonic() - started >= self._settings.settled_s)
            raise
        except TransportError as error:
            self._forgive(self._lasted(started) or self._fruitful)
            if error.reason not in _QUIET:
                raise
            if error.reason == _SILENT and not self._is_too_silent(started):
                return 0.0
            # Whether the server is there, the next request says.
            return self._failed(error.reason, str(error), is_down=False)
        finally:
            self._doubt(self._monotonic() - max(started, self._heard_s))
        self._forgive(self._lasted(started) or self._fruitful)
        if self._lasted(started):
            return 0.0
        if self._fruitful:
            return self._settings.backoff.pause_s(1, self._jitter())
        return self._failed("short_watch", "the watch ended at once")

    def _is_too_silent(self, started_s: float) -> bool:
        """Whether watches brought nothing for so long that it is an error; each such span counts once. What
        lists say meanwhile does not break it: that bookmarks do not come through is worth a word."""
        settings = self._settings
        if settings.inactivity_s <= settings.renewal_s:
            return True
        self._silent_s += self._monotonic() - max(started_s, self._heard_s)
        if self._silent_s < settings.inactivity_s:
            return False
        self._silent_s = 0.0
        return True

    def _doubt(self, unheard_s: float) -> None:
        self._unheard_s += unheard_s
        if self._unheard_s >= self._settings.doubted_s:
            self._position = None

    def _lasted(self, started_s: float) -> bool:
        return self._monotonic() - started_s >= self._settings.short_watch_s

    def _forgive(self, is_well: bool) -> None:
        if is_well:
            self._failures = 0

    def _follow(self, lines: Iterator[bytes]) -> None:
        """Takes events until the watch ends.

        One that is lost, and passed by later ones, is lost to any later watch too: then a list comes, unless
        one came for such a reason of late. The last line of a cut connection is not lost, only not yet read.
        """
        lost = False
        for line in lines:
            if not line.strip():
                continue
            taken = self._take(line)
            lost = lost or not taken
            self._missed = self._missed or (lost and taken)
            if self._missed and self._may_mend():
                return

    def _may_mend(self) -> bool:
        last_s = self._mended_s
        return last_s is None or self._monotonic() - last_s >= self._settings.mended_s

    def _take(self, line: bytes) -> bool:
        with self._skipping():
            event = parse_event(line)
            if event.type is EventType.ERROR:
                raise refusal_of_event(event.object)
            self._apply(event)
            self._fruitful = True
            self._advance(resource_version(event.object))
            self._heard()
            self._silent_s = 0.0
            return True
        return False

    def _apply(self, event: WatchEvent) -> None:
        if event.type is EventType.BOOKMARK:
            return
        with self._lock:
            change = self._store.remove if event.type is EventType.DELETED else self._store.put
            changed = change(event.object, self._clock())
        if changed is not None:
            self._tell(changed)

    def _advance(self, version: str) -> None:
        if version and not is_stale(version, self._position or ""):
            self._position = version

    # Bookkeeping

    @contextmanager
    def _skipping(self) -> Iterator[None]:
        try:
            yield
        except Unreadable as error:
            self._count(error.reason)

    def _tell(self, change: ObjectChange[T]) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(change)
        except Exception:
            self._count("callback")
            _LOG.exception("a change of %s could not be handled", self._path)

    def _answered(self) -> None:
        if not self.up:
            _LOG.info("%s is %s", self._path, "not installed" if self.absent else "read")
        self.up, self.problem = True, ""

    def _heard(self) -> None:
        self._answered()
        self.last_success_ns = self._clock()
        self._heard_s, self._unheard_s = self._monotonic(), 0.0

    def _failed(
        self, reason: str, message: str, retry_after_s: float | None = None, is_down: bool = True
    ) -> float:
        if self._closed.is_set():
            return 0.0
        self._count(reason)
        if is_down and (self.up or not self._failures):
            said = {"reason": reason}
            _LOG.warning("%s cannot be read: %s, %s", self._path, reason, message, extra=said)
        if is_down:
            self.up, self.problem = False, reason
        self._failures += 1
        if retry_after_s is not None:
            return min(retry_after_s, self._settings.longest_retry_after_s)
        return self._settings.backoff.pause_s(self._failures, self._jitter())

    def _count(self, reason: str) -> None:
        with self._lock:
            self._errors[reason] += 1
