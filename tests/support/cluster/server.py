"""An API server over real HTTP, whose objects and faults a test holds in its hands.

kmock serves (HTTP, the request log, and replies scripted with its DSL, which come first); what is not
scripted is answered from ``model``. kmock's own emulator cannot be that model: its lists have one page and
the resource version ``...``, its watches neither start at a version nor end, and its discovery names
versions in no order. It runs in a thread of its own, and everything public here is called from others.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp.web
import kmock

from tests.support.cluster.discovery import document, status
from tests.support.cluster.faults import NOW, STATUS, Armed, Faults, ListFault, WatchFault
from tests.support.cluster.installed import everything
from tests.support.cluster.model import Collection, Convert, Event, Expired, Json, Kind, Model
from tests.support.cluster.watching import End, Watch

T = TypeVar("T")
_NAMESPACES = re.compile(r"/api/(?P<version>v1)/(?P<plural>namespaces)(?:/(?P<name>[^/]+))?/?")
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?/?"
)
_WAIT_S = 60.0


@dataclass(frozen=True)
class Asked:
    """One request."""

    path: str
    params: dict[str, str]

    @property
    def is_watch(self) -> bool:
        return self.params.get("watch") in ("true", "1")


class _Handler(kmock.RawHandler):
    """kmock's replies first, then those of ``otherwise``.

    kmock 0.8 fails on paths of namespaces themselves (it looks for a kind below them), so it never sees them.
    """

    def __init__(self, otherwise: Callable[..., Coroutine[Any, Any, aiohttp.web.StreamResponse]]) -> None:
        super().__init__(strict=True)
        self.otherwise = otherwise

    async def __call__(self, raw_request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        if _NAMESPACES.fullmatch(raw_request.path):
            return await self.otherwise(raw_request)
        return await super().__call__(raw_request)

    async def _handle(self, request: kmock.Request) -> aiohttp.web.StreamResponse:
        try:
            return await super()._handle(request)
        except NotImplementedError:
            return await self.otherwise(request._raw_request)


class ClusterServer:
    """The server, running between ``with`` and its end. ``collections`` are served from the start, all of
    ``installed.everything`` unless given; ``page_size`` bounds every page of a list.

    Raises at the end of ``with`` what went wrong in the server itself.
    """

    def __init__(
        self, collections: list[tuple[Kind, str]] | None = None, page_size: int | None = None
    ) -> None:
        self._model = Model()
        for kind, version in everything() if collections is None else collections:
            self._model.install(kind, version)
        self._page_size = page_size
        self._watches: list[Watch] = []
        self._expected: Counter[str] = Counter()
        self._watch_faults, self._list_faults = Faults(WatchFault), Faults(ListFault)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster server")
        self.asked: list[Asked] = []
        """Every request so far."""
        self.handler = _Handler(self._answer)
        """kmock's: replies scripted on it come first. It belongs to the server's thread: see ``script``."""
        self._server = kmock.Server(self.handler)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self.url = self._run(self._open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._run(self._close(error is None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _open(self) -> str:
        await self.handler.__aenter__()
        await self._server.__aenter__()
        return str(self._server.url).rstrip("/")

    async def _close(self, is_well: bool) -> None:
        for watch in list(self._watches):
            watch.give(End.LEAVE)
        await self._server.__aexit__(None, None, None)
        try:
            await self.handler.__aexit__(None, None, None)
        except Exception:
            if is_well:
                raise

    # The world

    def install(self, kind: Kind, version: str, convert: Convert = dict) -> None:
        """Serve a collection (again), in one more version; ``convert`` writes its objects in that version."""
        self._do(lambda: self._model.install(kind, version, convert))

    def uninstall(self, name: str, version: str = "") -> None:
        """As if its CRD were deleted: 404, and open watches end. With ``version`` only that is no longer
        served; else its objects are gone too."""
        self._do(lambda: self._uninstall(name, version))

    def put(self, found: Json) -> None:
        """Create or update the object of that name. A new one brings its uid; its resource version is given
        here. Nothing happens when nothing changed."""
        self._do(lambda: self._announce(*self._model.put(found)))

    def delete(self, found: Json) -> None:
        """Remove the object of that name."""
        self._do(lambda: self._announce(*self._model.delete(found)))

    def objects(self, name: str) -> dict[str, Json]:
        """Of a collection, by uid, as they were put, with their resource versions."""
        texts = self._do(lambda: self._model.named(name)[0].within(""))
        return {found["metadata"]["uid"]: found for found in map(json.loads, texts)}

    def find(self, collection: str, name: str, namespace: str = "") -> Json:
        """One object. Raises ``LookupError``."""
        text = self._do(lambda: self._model.named(collection)[0].objects[namespace, name])
        return dict(json.loads(text))

    # Faults

    def break_watch(
        self, how: WatchFault, name: str = "", times: int | None = 1, retry_after_s: int = 1
    ) -> None:
        """Open watches of a collection (of each where ``name`` is empty) break, or the next ones do.

        ``cut``: the connection breaks. ``410_event``: an ERROR event. ``silence``: it stays open, and nothing
        more comes. ``truncated_line``: the next event is cut to half, then it goes on. Statuses: it ends, and
        ``times`` attempts to watch again are refused. ``times`` None: again and again until ``mend``.
        """
        self._do(lambda: self._break(how, name, times, retry_after_s))

    def break_list(
        self, how: ListFault, name: str = "", times: int | None = 1, retry_after_s: int = 1
    ) -> None:
        """The next lists fail. ``expired_page``: not at the first page, but at the second."""
        self._do(lambda: self._break_list(how, name, times, retry_after_s))

    def mend(self, name: str = "") -> None:
        """No faults any more but those that have begun: a silent watch stays silent."""
        self._do(lambda: self._mend(name))

    def compact(self) -> None:
        """Forget history: who watches from an older version gets 410, and continue tokens expire."""
        self._do(self._model.compact)

    def bookmark(self, name: str = "") -> None:
        """Tell open watches the current version."""
        self._do(lambda: self._bookmark(name))

    def script(self, action: Callable[[kmock.RawHandler], object]) -> None:
        """Use kmock's DSL: ``server.script(lambda mock: mock["get", "/version"] << 503)``."""
        self._do(lambda: action(self.handler))

    # Waiting

    def quiet(self, timeout_s: float = _WAIT_S) -> None:
        """Until every event is written to every watch that still talks."""
        self._until(lambda: not any(watch.unwritten for watch in self._watches), timeout_s, "written")

    def settle(self, timeout_s: float = _WAIT_S) -> None:
        """Until every client is known to have taken in everything.

        HTTP has no receipts, so a watch that got events is ended, as servers do; the version from which the
        client watches next says how far it came. So ``short_watch_s`` must be 0 in a reflector's settings.
        A client that has read a list is waited for until it watches, so one that only lists never settles.
        Of collections with a fault that stands it is only waited for that the client met it.
        """
        self._until(self._all_taken, timeout_s, "taken in: " + ", ".join(sorted(self._expected)))

    def await_watches(self, count: int, timeout_s: float = _WAIT_S) -> None:
        """Until at least so many watches are open."""
        self._until(lambda: len(self._watches) >= count, timeout_s, f"watched {count} times")

    def forget_clients(self) -> None:
        """Those that watched until now will not come back: ``settle`` waits for them no longer."""
        self._do(self._forget)

    def standing_faults(self) -> set[str]:
        """Collections that a fault without an end keeps from being read, and whose client got that answer."""
        return self._do(
            lambda: {
                collection.kind.name
                for collection in self._model.named("")
                if self._watch_faults.stands(collection.kind.name)
                or self._list_faults.stands(collection.kind.name)
            }
        )

    def open_watches(self) -> Counter[str]:
        """How many watches are open, by collection."""
        return self._do(lambda: Counter(watch.name for watch in self._watches))

    def requests(self) -> Counter[str]:
        """How often each path was asked for; watches with ``?watch`` after it."""
        return Counter(asked.path + ("?watch" if asked.is_watch else "") for asked in list(self.asked))

    # In the server's thread

    def _announce(self, collection: Collection, event: Event | None) -> None:
        for watch in self._watches:
            if event is not None and watch.collection is collection:
                watch.tell(event)

    def _uninstall(self, name: str, version: str) -> None:
        (collection,) = self._model.named(name)
        self._model.uninstall(collection, version)
        for watch in self._watches:
            if watch.collection is collection and watch.version not in collection.served:
                watch.give(End.PROPER)
        self._expected.pop(collection.kind.name, None)

    def _forget(self) -> None:
        """Whether a client has left, its watch says only when something is to be written to it."""
        self._expected.clear()
        for watch in self._watches:
            watch.is_forgotten = True

    def _bookmark(self, name: str) -> None:
        for watch in self._watches:
            if watch.collection.is_named(name):
                watch.bookmark(self._model.version)

    def _break(self, how: WatchFault, name: str, times: int | None, retry_after_s: int) -> None:
        for collection in self._model.named(name):
            left = times
            for watch in self._watches:
                if watch.collection is collection and left != 0:
                    watch.broken(how)
                    left = left - 1 if how in NOW and left is not None else left
            if left != 0:
                self._watch_faults.arm(Armed(how, collection.kind.name, left, retry_after_s))

    def _break_list(self, how: ListFault, name: str, times: int | None, retry_after_s: int) -> None:
        for collection in self._model.named(name):
            self._list_faults.arm(Armed(how, collection.kind.name, times, retry_after_s))

    def _mend(self, name: str) -> None:
        for collection in self._model.named(name):
            self._watch_faults.mend(collection.kind.name)
            self._list_faults.mend(collection.kind.name)

    def _all_taken(self) -> bool:
        """Ends watches that owe a receipt; whether none does."""
        taken: Counter[str] = Counter()
        for watch in self._watches:
            if watch.is_forgotten:
                continue
            if watch.is_taken:
                taken[watch.name] += 1
            elif not watch.unwritten:
                watch.give(End.PROPER)
        return all(
            taken[name] >= count or self._watch_faults.stands(name) or self._list_faults.stands(name)
            for name, count in self._expected.items()
        )

    async def _answer(self, raw: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        asked = Asked(raw.path, dict(raw.query))
        self.asked.append(asked)
        found = document(self._model, raw.path)
        if found is not None:
            return aiohttp.web.json_response(found)
        path = _NAMESPACES.fullmatch(raw.path) or _PATH.fullmatch(raw.path)
        parts = path.groupdict("") if path else {}
        collection = self._model.collections.get((parts.get("group", ""), parts.get("plural", "")))
        if collection is None or parts["version"] not in collection.served:
            return _refused(404)
        version, namespace = parts["version"], parts.get("namespace", "")
        if asked.is_watch:
            return await self._watch(raw, asked, collection, version, namespace)
        if not parts["name"]:
            return self._list(asked, collection, version, namespace)
        text = collection.objects.get((namespace, parts["name"]))
        if text is None:
            return _refused(404)
        return aiohttp.web.json_response(collection.written(text, version))

    def _list(
        self, asked: Asked, collection: Collection, version: str, namespace: str
    ) -> aiohttp.web.StreamResponse:
        name, token = collection.kind.name, asked.params.get("continue", "")
        fault = self._list_faults.take(name, *STATUS)
        if fault is not None:
            return _refused(STATUS[fault.how], fault.retry_after_s)
        if token and self._list_faults.take(name, "expired_page"):
            return _refused(410)
        limit = min(int(asked.params.get("limit", 0)) or 1 << 30, self._page_size or 1 << 30)
        try:
            texts, at, following, left = self._model.page(collection, namespace, limit, token)
        except Expired:
            return _refused(410)
        metadata = {"resourceVersion": str(at)}
        if not following:
            self._expected[name] = max(self._expected[name], 1)  # who has read all of it watches next
        else:
            metadata |= {"continue": following, "remainingItemCount": left}  # type: ignore[dict-item]
        return aiohttp.web.json_response(
            {
                "kind": f"{collection.kind.kind}List",
                "apiVersion": collection.api_version(version),
                "metadata": metadata,
                "items": [collection.written(text, version) for text in texts],
            }
        )

    async def _watch(
        self, raw: aiohttp.web.BaseRequest, asked: Asked, collection: Collection, version: str, namespace: str
    ) -> aiohttp.web.StreamResponse:
        name = collection.kind.name
        fault = self._watch_faults.take(name, *STATUS, *NOW)
        if fault is not None and fault.how in STATUS:
            return _refused(STATUS[fault.how], fault.retry_after_s)
        start = int(asked.params.get("resourceVersion") or 0)
        watch = Watch(collection, version, namespace, start)
        watch.begin()
        if fault is not None:
            watch.broken(fault.how)
        self._watches.append(watch)
        open_now = sum(1 for each in self._watches if each.name == name and not each.is_forgotten)
        self._expected[name] = max(self._expected[name], open_now)
        ends_s = float(asked.params.get("timeoutSeconds") or 1800)
        timer = self._loop.call_later(ends_s, watch.give, End.PROPER)
        try:
            return await watch.play(raw)
        finally:
            timer.cancel()
            self._watches.remove(watch)

    # Between threads

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_WAIT_S)

    def _do(self, action: Callable[[], T]) -> T:
        async def act() -> T:
            return action()

        return self._run(act())

    def _until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._do(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not everything was {what}")
            time.sleep(0.002)


def _refused(code: int, retry_after_s: int = 0) -> aiohttp.web.Response:
    headers = {"Retry-After": str(retry_after_s)} if code == 429 else {}
    return aiohttp.web.json_response(status(code), status=code, headers=headers)
