"""Kueue's and Volcano's metrics about themselves: optional, and never needed for anything else.

Read in a thread of its own. A round that fails leaves the facts of the last good one, marked as not up.
"""

from __future__ import annotations

import logging
import math
import re
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gpucost.contract.queue_metrics import (
    ADMISSION_WAIT_SECONDS,
    ADMISSION_WAITS,
    SCHEDULER_INFO,
    SCHEDULER_UP,
)
from gpucost.domain.errors import InputError
from gpucost.kube.connect.credentials import TokenFile, is_loopback, tls_context
from gpucost.kube.connect.transport import TransportError
from gpucost_exporter_base.fetch import TextFetchError, address, fetch
from gpucost_queue_collector.page import line

MAX_BYTES = 64 << 20
"""Of one answer: 500 ClusterQueues with five priority classes give about 30 MB."""

MAX_LINE = 8192
"""Characters of a line: the parser takes quadratic time on long ones. A line of Kueue's has a few
hundred at most."""
MAX_LINES = 200_000
"""Of those that are used: 500 ClusterQueues with five priority classes give about 45,000 for each role."""
MAX_VERSION = 64
OVERDUE = "overdue"
"""The problem of a round that does not end."""

_BUILD = "kueue_build_info"
_WAIT = "kueue_admission_wait_time_seconds"
_USED = re.compile(rf"^(?:{_BUILD}|{_WAIT}).{{0,{MAX_LINE}}}$", re.MULTILINE)
_ROLES = ("leader", "standalone", "")
_LOGGER = logging.getLogger(__name__)


class SchedulerKind(StrEnum):
    """Whose metrics they are. The values of the label ``scheduler``; also the prefix of all their names."""

    KUEUE = "kueue"
    VOLCANO = "volcano"


@dataclass(frozen=True, slots=True)
class WaitHistogram:
    """Waits until admission. ``buckets``: upper bound in seconds, and how many waited at most that long.

    Bounds rise, the last is infinite. ``sum`` is in seconds.
    """

    buckets: tuple[tuple[float, float], ...]
    sum: float
    count: float


@dataclass(frozen=True, slots=True)
class SchedulerFacts:
    """The last facts of one scheduler; ``waits`` is by ClusterQueue.

    ``problem`` is empty while ``up``, else one word: why the last round failed. ``version`` is empty where no
    metric has it; Volcano's never have.
    """

    scheduler: SchedulerKind
    version: str = ""
    up: bool = False
    problem: str = "not_read"
    waits: Mapping[str, WaitHistogram] = field(default_factory=dict)

    def within(self, queues: Container[str]) -> SchedulerFacts:
        """The same, with the waits of these ClusterQueues only: others are gone, or never were."""
        return replace(self, waits={name: wait for name, wait in self.waits.items() if name in queues})


@dataclass(frozen=True, slots=True)
class SchedulerEndpoint:
    """Where the metrics are and how they are asked for.

    Kueue's are served over https and want the token of a service account that may ``get`` the URL
    ``/metrics``. ``ca_file`` is the authority of its certificate; ``insecure`` accepts any certificate, and
    then any server that answers gets the token.
    """

    scheduler: SchedulerKind
    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    insecure: bool = False
    interval_s: float = 60.0
    timeout_s: float = 10.0


class NotMetrics(Exception):
    """The text is not that of the scheduler: a proxy's page, another program's metrics, too many."""


class SchedulerMetrics:
    """Reads one endpoint every ``interval_s``.

    Raises InputError for an address that will not do, for one that would show the token to others, and for
    times that are not above 0.
    """

    def __init__(
        self, endpoint: SchedulerEndpoint, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        name = endpoint.scheduler.value
        self._endpoint, self._monotonic_s = endpoint, monotonic_s
        self._address = address(endpoint.url, f"{name} metrics url", "https://kueue.example:8443/metrics")
        in_clear = self._address.scheme == "http" and not is_loopback(self._address.hostname or "")
        if endpoint.token_file is not None and in_clear:
            raise InputError(f"{name} metrics url", endpoint.url, "https, because a token is sent")
        for what, value in (("interval", endpoint.interval_s), ("timeout", endpoint.timeout_s)):
            if not 0 < value < math.inf:
                raise InputError(f"{name} metrics {what}", value, "a number of seconds above 0")
        self._facts = SchedulerFacts(endpoint.scheduler)
        self._good_until_s = math.inf
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def facts(self) -> SchedulerFacts:
        """What is known now, without waiting for a round.

        Not up where the last good round is more than three intervals and a time-out ago: this catches a round
        that does not end; one that fails sets ``problem`` itself.
        """
        facts = self._facts
        if facts.up and self._monotonic_s() > self._good_until_s:
            return replace(facts, up=False, problem=OVERDUE)
        return facts

    def start(self) -> None:
        """Read at once and then every ``interval_s``, until ``close``."""
        name = f"{self._endpoint.scheduler}-metrics"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; waits for the round it is in, at most about the time-out."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(2 * self._endpoint.timeout_s)

    def poll(self) -> None:
        """One round. Failures become ``problem``, and are never raised."""
        scheduler = self._endpoint.scheduler
        try:
            facts = read_metrics(scheduler, self._text())
        except TextFetchError as error:
            self._failed("refused" if error.status in {401, 403} else error.reason.value)
        except TransportError as error:  # the token or the authority
            self._failed(error.reason)
        except NotMetrics:
            self._failed("not_metrics")
        except Exception:
            _LOGGER.exception("a round of reading the metrics of %s failed", scheduler)
            self._failed("internal")
        else:
            if not self._facts.up:
                _LOGGER.info("the metrics of %s are read", scheduler)
            endpoint = self._endpoint
            self._good_until_s = self._monotonic_s() + 3 * endpoint.interval_s + endpoint.timeout_s
            self._facts = facts

    def _text(self) -> str:
        endpoint = self._endpoint
        headers = {"Authorization": TokenFile(endpoint.token_file).header()} if endpoint.token_file else {}
        tls = None
        if self._address.scheme == "https":
            tls = _any_certificate() if endpoint.insecure else tls_context(endpoint.ca_file)
        return fetch(self._address, endpoint.timeout_s, MAX_BYTES, headers=headers, tls=tls)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.poll()
            self._stopping.wait(self._endpoint.interval_s)

    def _failed(self, problem: str) -> None:
        if self._facts.problem != problem:
            _LOGGER.warning("the metrics of %s cannot be read: %s", self._endpoint.scheduler, problem)
        self._facts = replace(self._facts, up=False, problem=problem)


def read_metrics(scheduler: SchedulerKind, text: str) -> SchedulerFacts:
    """The facts in a text of metrics. Raises NotMetrics, also for more than MAX_LINES.

    Only lines that are used are parsed: they are a few in a hundred, and the parser is slow. A line that is
    longer than any of Kueue's is not used, nor are metrics of Kueue in an answer of Volcano.
    """
    if not re.search(rf"^{scheduler}_", text, re.MULTILINE):
        raise NotMetrics
    used = _USED.findall(text) if scheduler is SchedulerKind.KUEUE else []
    if len(used) > MAX_LINES:
        raise NotMetrics
    version, waits = "", _Waits()
    try:
        for sample in _samples("\n".join(used)):
            if sample.name == _BUILD:
                version = version or sample.labels.get("git_version", "")
            else:
                waits.add(sample)
    except ValueError as error:
        raise NotMetrics from error
    return SchedulerFacts(scheduler, version[:MAX_VERSION], True, "", waits.histograms())


SCHEDULER_SPECS = (SCHEDULER_UP, SCHEDULER_INFO, ADMISSION_WAITS, ADMISSION_WAIT_SECONDS)


def write_scheduler(facts: SchedulerFacts) -> Sequence[bytes]:
    """One text for each of SCHEDULER_SPECS; info only once the scheduler has been read."""
    name = facts.scheduler.value
    is_known = facts.up or bool(facts.version)
    return (
        line(SCHEDULER_UP, (name,), facts.up),
        line(SCHEDULER_INFO, (name, facts.version), 1) if is_known else b"",
        b"".join(line(ADMISSION_WAITS, (queue,), wait.count) for queue, wait in facts.waits.items()),
        b"".join(line(ADMISSION_WAIT_SECONDS, (queue,), wait.sum) for queue, wait in facts.waits.items()),
    )


class _Waits:
    """Sums a histogram over all labels but the queue and the role of the replica.

    A replica that was follower and became leader shows both roles; only the leader admits, so of several
    roles of a queue one is taken.
    """

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], dict[float, float]] = defaultdict(lambda: defaultdict(float))
        self._sums: dict[tuple[str, str], float] = defaultdict(float)
        self._counts: dict[tuple[str, str], float] = defaultdict(float)

    def add(self, sample: Sample) -> None:
        queue = sample.labels.get("cluster_queue", "")
        if not queue or not 0 <= sample.value < math.inf:
            return
        key = queue, sample.labels.get("replica_role", "")
        match sample.name.removeprefix(_WAIT):
            case "_bucket":
                self._buckets[key][float(sample.labels.get("le", "nan"))] += sample.value
            case "_sum":
                self._sums[key] += sample.value
            case "_count":
                self._counts[key] += sample.value

    def histograms(self) -> dict[str, WaitHistogram]:
        """Of every queue that has all of a histogram's parts."""
        whole = [key for key in self._counts if key in self._sums and math.inf in self._buckets[key]]
        taken: dict[str, str] = {}
        for queue, role in sorted(whole, key=_preference):
            taken.setdefault(queue, role)
        return {queue: self._histogram((queue, role)) for queue, role in taken.items()}

    def _histogram(self, key: tuple[str, str]) -> WaitHistogram:
        bounds = sorted(bound for bound in self._buckets[key] if not math.isnan(bound))
        buckets = tuple((bound, self._buckets[key][bound]) for bound in bounds)
        return WaitHistogram(buckets, self._sums[key], self._counts[key])


def _preference(key: tuple[str, str]) -> tuple[int, str, str]:
    queue, role = key
    return (_ROLES.index(role) if role in _ROLES else len(_ROLES)), role, queue


def _samples(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):
        yield from family.samples


def _any_certificate() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
