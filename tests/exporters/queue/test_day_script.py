"""The scripted day itself: reflectors alone see it as its truth says, through every fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import kubernetes_validate
import pytest

from gpucost.kube.connect.http_transport import HttpTransport
from gpucost.kube.watch.object_store import ObjectChangeKind
from gpucost.kube.watch.reflector import Reflector, ReflectorSettings
from tests.exporters.queue.day import World, day
from tests.exporters.queue.day_truth import END_MS, Check, PodTruth, at
from tests.support import crds
from tests.support.cluster.installed import KUEUE, everything
from tests.support.cluster.model import Kind
from tests.support.cluster.server import ClusterServer
from tests.support.objects import instant
from tests.support.objects.kueue_v1beta1 import as_v1beta1
from tests.support.shared import needs_shared

OF_KUBERNETES = ("", "apps", "batch")
SETTINGS = ReflectorSettings(page_size=7, inactivity_s=1.0, short_watch_s=0.0)


def path_of(kind: Kind, version: str) -> str:
    return f"/apis/{kind.group}/{version}/{kind.plural}" if kind.group else f"/api/{version}/{kind.plural}"


@dataclass
class Span:
    """When a pod held its GPUs, as a reader of its object would say."""

    start_ms: int | None = None
    end_ms: int | None = None
    closed: int = 0


@dataclass
class Collector:
    """A reflector for each collection, and the intervals of the pods."""

    url: str
    clock: Callable[[], int]
    spans: dict[str, Span] = field(default_factory=dict)
    reflectors: dict[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        for kind, version in everything():
            self.reflectors[kind.name] = Reflector[Any](
                HttpTransport(self.url),
                path_of(kind, version),
                trim=dict,
                settings=SETTINGS,
                clock=self.clock,
                jitter=lambda: 0.03,
                on_change=self.take if kind.name == "pods" else None,
            )
        for reflector in self.reflectors.values():
            reflector.start()

    def stop(self) -> None:
        for reflector in self.reflectors.values():
            reflector.close()

    def take(self, change: Any) -> None:
        """Takes in one change of a pod."""
        found = change.object
        span = self.spans.setdefault(found["metadata"]["uid"], Span())
        span.start_ms = span.start_ms or condition_ms(found, "PodScheduled")
        if span.closed or span.start_ms is None:
            return
        end_ms = ended_ms(found)
        if end_ms is None and change.kind in (ObjectChangeKind.DELETED, ObjectChangeKind.VANISHED):
            end_ms = change.seen_ns // 1_000_000
        if end_ms is not None:
            span.end_ms, span.closed = end_ms, span.closed + 1

    def objects(self, name: str) -> list[Any]:
        return list(self.reflectors[name].snapshot().values())


def condition_ms(found: Any, type_: str) -> int | None:
    for each in found["status"].get("conditions", ()):
        if each["type"] == type_ and each["status"] == "True":
            return clock_ms(each["lastTransitionTime"])
    return None


def ended_ms(found: Any) -> int | None:
    for each in found["status"].get("containerStatuses", ()):
        if "terminated" in each["state"]:
            return clock_ms(each["state"]["terminated"]["finishedAt"])
    return condition_ms(found, "DisruptionTarget")


def clock_ms(text: str) -> int:
    assert text.startswith("2026-10-05T")
    return at(text[11:-1])


def reserved(queues: list[Any]) -> dict[tuple[str, str, str], tuple[int, int]]:
    return {
        (queue["metadata"]["name"], flavor["name"], use["name"]): (int(use["total"]), int(use["borrowed"]))
        for queue in queues
        for flavor in queue["status"]["flavorsReservation"]
        for use in flavor["resources"]
    }


def waiting(workloads: list[Any], queue_of: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Kueue's order: priority, then creation (preemption does not put a workload back)."""
    lines: dict[str, list[tuple[int, str, str]]] = {queue: [] for queue in queue_of.values()}
    for found in workloads:
        named = found["metadata"]
        reservation = next(each for each in found["status"]["conditions"] if each["type"] == "QuotaReserved")
        if reservation["status"] == "False":
            place = (-found["spec"]["priority"], named["creationTimestamp"], named["name"])
            lines[queue_of[named["namespace"]]].append(place)
    return {queue: tuple(name for *_, name in sorted(line)) for queue, line in lines.items()}


def layers(workloads: list[Any], pods: list[Any]) -> dict[str, str]:
    """What holds each one back, where the only bar after quota is the failed device plugin."""
    held = {}
    for found in workloads:
        if condition_ms(found, "Finished") is not None:
            continue
        owner = found["metadata"]["ownerReferences"][0]["uid"]
        own = [
            pod
            for pod in pods
            if owner in [each["uid"] for each in pod["metadata"].get("ownerReferences", ())]
        ]
        if condition_ms(found, "QuotaReserved") is None:
            held[found["metadata"]["name"]] = "quota"
        elif own and any("nodeName" not in pod["spec"] for pod in own):
            held[found["metadata"]["name"]] = "device"
    return held


class Played:
    """The day, played to collectors of which the first is killed."""

    def __init__(self, server: ClusterServer) -> None:
        self.now_ms = at("00:00:00")
        self.server = server
        self.collectors: list[Collector] = []
        self.checked: Counter[str] = Counter()
        self.customs: list[Any] = []
        self.plain: list[Any] = []
        self.seen: dict[str, Any] = {}
        self.world = World(server, self.kill, self.begin)

    def begin(self) -> None:
        collector = Collector(self.server.url, lambda: self.now_ms * 1_000_000)
        self.collectors.append(collector)
        collector.start()
        self.server.await_watches(len(collector.reflectors))

    def kill(self) -> None:
        self.server.settle()
        self.collectors[-1].stop()
        self.server.forget_clients()

    def play(self) -> None:
        script = day()
        checks = {check.at_ms: check for check in script.truth.checks}
        self.begin()
        for step in script.steps:
            self.now_ms = step.at_ms
            self.world.play(step)
            self.server.settle()
            self.collect()
            if step.at_ms in checks:
                self.check(checks[step.at_ms])

    def collect(self) -> None:
        """Each state of an object after a step, once."""
        for kind, _ in everything():
            is_custom = kind.group == KUEUE or kind.group.endswith("volcano.sh")
            if is_custom or kind.group in OF_KUBERNETES:
                for found in self.server.objects(kind.name).values():
                    if self.seen.setdefault(found["metadata"]["resourceVersion"], found) is found:
                        (self.customs if is_custom else self.plain).append(found)

    def check(self, check: Check) -> None:
        read = self.collectors[-1].objects
        workloads = read("workloads.kueue.x-k8s.io")
        queue_of = {
            queue["metadata"]["namespace"]: queue["spec"]["clusterQueue"]
            for queue in read("localqueues.kueue.x-k8s.io")
        }
        clock = instant(check.at_ms)
        assert reserved(read("clusterqueues.kueue.x-k8s.io")) == check.reserved, clock
        assert waiting(workloads, queue_of) == check.waiting, clock
        assert layers(workloads, read("pods")) == check.layers, clock
        self.checked["checks"] += 1


@pytest.fixture(scope="module")
def played() -> Any:
    with ClusterServer(page_size=7) as server:
        played = Played(server)
        try:
            played.play()
            yield played
        finally:
            played.collectors[-1].stop()


TRUTH = day().truth


def test_it_is_the_same_day_every_time() -> None:
    assert day().truth == TRUTH
    assert [step.at_ms for step in day().steps] == [step.at_ms for step in day().steps]
    assert day().steps[-1].at_ms == END_MS


def test_every_object_is_seen_at_the_end(played: Played) -> None:
    for kind, _ in everything():
        reflector = played.collectors[-1].reflectors[kind.name]
        assert dict(reflector.snapshot()) == played.server.objects(kind.name), kind.name
    assert played.checked["checks"] == len(TRUTH.checks)


@needs_shared("reference/crds")
def test_every_object_of_a_custom_kind_was_valid_all_day(played: Played) -> None:
    kinds = Counter(found["kind"] for found in played.customs)
    assert kinds["Workload"] == 9 * 3 + 2 * 3  # submitted, admitted, finished; the preempted one twice more
    assert {"ClusterQueue", "LocalQueue", "Cohort", "ResourceFlavor", "PodGroup", "Queue"} <= set(kinds)
    for found in played.customs:
        crds.validate(found)
        if found["apiVersion"].startswith(KUEUE):
            crds.validate(as_v1beta1(found))


def test_every_object_of_kubernetes_itself_was_valid_all_day(played: Played) -> None:
    kinds = Counter(found["kind"] for found in played.plain)
    assert {"Pod", "Node", "Namespace", "Job", "Deployment", "ReplicaSet"} <= set(kinds)
    assert kinds["Pod"] > 100
    for found in played.plain:
        kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)


def test_the_pods_are_those_of_the_truth(played: Played) -> None:
    seen = {
        uid for each in played.collectors for uid, span in each.spans.items() if span.start_ms is not None
    }
    assert seen == set(TRUTH.pod_by_uid)


@pytest.mark.fault(12, 13)
@pytest.mark.parametrize("pod", TRUTH.pods, ids=lambda pod: pod.uid)
def test_a_pod_held_its_gpus_as_the_truth_says(played: Played, pod: PodTruth) -> None:
    spans = [each.spans[pod.uid] for each in played.collectors if pod.uid in each.spans]
    assert {span.start_ms for span in spans} == {pod.start_ms}
    ends = [span.end_ms for span in spans if span.closed]
    if pod.in_outage:
        assert ends == []
    elif pod.unseen is not None:
        assert ends == [pod.unseen[0]]
    else:
        assert set(ends) == ({pod.end_ms} if pod.end_ms is not None else set())
    assert all(span.closed <= 1 for span in spans)


def test_every_fault_was_felt(played: Played) -> None:
    first, second = (
        {reason for reflector in each.reflectors.values() for reason in reflector.errors}
        for each in played.collectors
    )
    assert {"cut", "event_410", "silent", "bad_line"} <= first
    assert {"http_403", "http_429", "http_410", "event_410"} <= second


def test_workloads_end_as_the_truth_says(played: Played) -> None:
    found = played.collectors[-1].reflectors["workloads.kueue.x-k8s.io"].snapshot()
    assert set(found) == {each.uid for each in TRUTH.workloads}
    for truth in TRUTH.workloads:
        workload = found[truth.uid]
        last = truth.waits[-1]
        counted = workload["status"].get("schedulingStats", {"evictions": []})["evictions"]
        assert condition_ms(workload, "QuotaReserved") == last.reserved_ms, truth.name
        assert condition_ms(workload, "Admitted") == last.admitted_ms, truth.name
        assert condition_ms(workload, "Finished") == truth.finished_ms, truth.name
        assert {each["reason"]: each["count"] for each in counted} == truth.evictions, truth.name


def test_no_node_is_given_more_than_it_has() -> None:
    """The script's scheduler could be real: no GPU is held twice."""
    room = {(each.node, each.resource): each.capacity for each in reversed(TRUTH.capacity) if each.capacity}
    held: Counter[tuple[str, str]] = Counter()
    changes = [(pod.start_ms, 1, pod) for pod in TRUTH.pods]
    changes += [(pod.end_ms, 0, pod) for pod in TRUTH.pods if pod.end_ms is not None]
    for _, is_start, pod in sorted(changes, key=lambda each: each[:2]):
        key = (pod.node, pod.resource)
        held[key] += pod.units if is_start else -pod.units
        assert held[key] <= (room[key] or 0), key
