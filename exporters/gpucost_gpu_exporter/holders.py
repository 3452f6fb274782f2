"""Who holds what on this node, put together from the kubelet, the pod watch and the boards there are.

The kubelet is asked in a thread of its own (``run``), every few seconds and at once when a pod appears,
finishes or goes; ``current`` never waits.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpucost_gpu_exporter.conditions import NODE, Lack
from gpucost_gpu_exporter.devices import Resolved, resolve
from gpucost_gpu_exporter.dra import DraDevice
from gpucost_gpu_exporter.holdings import KubeletState
from gpucost_gpu_exporter.kubelet.client import KubeletDown, PodResources
from gpucost_gpu_exporter.quantities import SECOND_NS
from gpucost_gpu_exporter.topology import Topology

logger = logging.getLogger(__name__)

# How long the kubelet's last answer stands: a restart of the kubelet takes less.
STANDS_NS = 30 * SECOND_NS
# After a wake: 8 s at two questions a second, of the hundred that the kubelet answers.
HASTE_S, HASTY_QUESTIONS = 0.5, 16
# However often something changes on the node: the kubelet refuses more than a hundred questions a second.
LEAST_PAUSE_S = 0.1


class PodNames(Protocol):
    """What the pod watch says."""

    def uid(self, namespace: str, name: str) -> str | None: ...

    def is_finished(self, namespace: str, name: str) -> bool: ...

    def devices(self) -> Mapping[str, DraDevice]: ...

    @property
    def version(self) -> object: ...

    @property
    def problem(self) -> str: ...


class NoPodNames:
    """Where there is no API server to ask: UIDs are unknown, and the kubelet's list is all there is."""

    version = 0
    problem = "off"

    def uid(self, namespace: str, name: str) -> str | None:  # noqa: ARG002 nobody is known
        return None

    def is_finished(self, namespace: str, name: str) -> bool:  # noqa: ARG002 nobody is known
        return False

    def devices(self) -> Mapping[str, DraDevice]:
        return {}


@dataclass(frozen=True, slots=True)
class _Answer:
    state: KubeletState
    at_ns: int


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a resolution was made of: it holds for as long as these are the same."""

    state: KubeletState
    topology: Topology
    version: object
    slices: Mapping[str, DraDevice]


class Holders:
    """Reads the kubelet and resolves its answer."""

    def __init__(
        self,
        kubelet: PodResources,
        pods: PodNames,
        clock_ns: Callable[[], int],
    ) -> None:
        self._kubelet = kubelet
        self._pods = pods
        self._clock_ns = clock_ns
        self._changed: Callable[[], None] = lambda: None
        self._wake = threading.Event()
        self._closed = threading.Event()
        self.asked = threading.Event()
        """Set once the kubelet was asked, whatever it said."""
        self._answer: _Answer | None = None
        self._problem = "starting"
        self._resolved: Resolved | None = None
        self._resolved_from: _Inputs | None = None
        self._topology = Topology()
        self._replicas: Mapping[str, int] = {}
        self.errors: Counter[str] = Counter()

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call ``changed``, which must be quick, when the kubelet's answer is another one than before."""
        self._changed = changed

    def refresh(self) -> None:
        """Ask the kubelet once. A failure leaves its last answer standing for 30 s."""
        now_ns = self._clock_ns()
        try:
            self._take(self._kubelet.read(now_ns), now_ns)
        except KubeletDown as error:
            self._failed(str(error.code), error)
        except Exception as error:  # whatever it was, the kubelet is asked again
            self._failed("failed", error)
        self.asked.set()

    def _failed(self, reason: str, error: Exception) -> None:
        if reason != self._problem:
            logger.info("no answer from the kubelet: %s", error, exc_info=reason == "failed")
        self._problem = reason
        self.errors[reason] += 1

    def _take(self, state: KubeletState, now_ns: int) -> None:
        before, self._problem = self._answer, ""
        # The same answer keeps its identity, so that it is not resolved again.
        same = before is not None and before.state == state
        self._answer = _Answer(before.state if same and before else state, now_ns)
        if not same:
            self._changed()

    def current(self, now_ns: int, topology: Topology) -> Resolved | None:
        """Who holds what now; None when the kubelet has not answered for a while."""
        answer = self._answer
        self._topology = topology
        if answer is None or now_ns - answer.at_ns > STANDS_NS:
            self._resolved = self._resolved_from = None
            self._problem = self._problem or "failed"
            return None
        slices, version = self._pods.devices(), self._pods.version
        known = self._resolved_from
        is_same = known is not None and known.state is answer.state and known.slices is slices
        if not (is_same and known and (known.topology, known.version) == (topology, version)):
            self._resolved = resolve(
                answer.state, topology, self._pods.uid, self._pods.is_finished, slices, self._replicas
            )
            self._replicas = self._resolved.replicas
            self._resolved_from = _Inputs(answer.state, topology, version, slices)
        return self._resolved

    def lacks(self) -> Iterator[Lack]:
        """What is not known of who holds what."""
        if self._problem:
            yield Lack(NODE, "kubelet", self._problem)
        if self._pods.problem:
            yield Lack(NODE, "pods", self._pods.problem)
        if self._kubelet.allocatable_problem:
            yield Lack(NODE, "allocatable", self._kubelet.allocatable_problem)
        if self._resolved is not None:
            if self._resolved.unresolved and self._topology.boards:
                yield Lack(NODE, "holders", "unknown_device")
            if not self._pods.problem and any(not held.pod.uid for held in self._resolved.holdings):
                yield Lack(NODE, "pods", "uid_unknown")
            for note in self._resolved.notes:
                yield Lack(NODE, "holders", str(note.kind))

    def wake(self) -> None:
        """Ask the kubelet now: something changed on the node."""
        self._wake.set()

    def run(self, interval_s: float) -> None:
        """Ask the kubelet at once, then again and again, until ``close``.

        The API server tells of a pod before the kubelet has given it its devices, so after a wake the
        kubelet is asked several times, lest a short job lose its first seconds.
        """
        hasty = 0
        while not self._closed.is_set():
            self.refresh()
            self._closed.wait(LEAST_PAUSE_S)
            hasty = HASTY_QUESTIONS if self._wake.is_set() else max(0, hasty - 1)
            self._wake.clear()
            self._wake.wait(min(interval_s, HASTE_S) if hasty else interval_s)

    def close(self) -> None:
        self._closed.set()
        self._wake.set()
        self._kubelet.close()
