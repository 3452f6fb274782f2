"""A scripted day of a small cluster: what happens, second by second, and what is true of it.

Six nodes of eight GPUs: four with H100, one with MIG instances, one time-sliced four ways. Three
ClusterQueues of eight H100 each share a cohort; the fourth H100 node is Volcano's. Nothing is random. To
play it:

    for step in day().steps:
        ...            # the test moves the collector's clock to step.at_ms
        world.play(step)
        ...            # the test waits for server.quiet() or server.settle(), and scrapes

Every time below is one at which the script's controllers write, so that objects and truth agree to the
millisecond. The API writes whole seconds; only deletions that nothing else tells of fall between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.exporters.queue import day_facts as facts
from tests.exporters.queue.day_facts import (
    EVAL,
    FOLD,
    GANG,
    GPU,
    LLM,
    NIGHTLY,
    SHARED,
    SLICE,
    SLICES,
    SWEEP,
    TRAIN,
    TUNE,
    URGENT,
)
from tests.exporters.queue.day_truth import END_MS, Truth, at
from tests.support.cluster import shapes
from tests.support.cluster.actors import Actors
from tests.support.cluster.kueue_actor import Kueue, Training
from tests.support.cluster.server import ClusterServer
from tests.support.cluster.volcano_actor import Volcano
from tests.support.objects import kueue, metadata

PODS, WORKLOADS = "pods", "workloads.kueue.x-k8s.io"
_WATCHED = (PODS, WORKLOADS)


@dataclass
class World:
    """What the steps act on. The test says what stopping and starting a collector means."""

    server: ClusterServer
    stop_collector: Callable[[], object] = lambda: None
    start_collector: Callable[[], object] = lambda: None
    actors: Actors = field(init=False)
    kueue: Kueue = field(init=False)
    volcano: Volcano = field(init=False)

    def __post_init__(self) -> None:
        self.actors = Actors(self.server)
        self.kueue, self.volcano = Kueue(self.actors), Volcano(self.actors)

    def play(self, step: Step) -> None:
        """Everything of one step, at its time."""
        self.actors.now_ms = step.at_ms
        for act in step.acts:
            act(self)


Act: TypeAlias = Callable[[World], object]


@dataclass(frozen=True)
class Step:
    """What happens at one instant."""

    at_ms: int
    acts: tuple[Act, ...]


@dataclass(frozen=True)
class Day:
    """Steps by time, the first of which sets the cluster up, and the truth."""

    steps: tuple[Step, ...]
    truth: Truth


Scene: TypeAlias = Iterator[tuple[str, *tuple[Act, ...]]]
"""A time of the day, and what happens then."""


def day() -> Day:
    """The same day, whenever it is called. Instants at which the truth is checked are steps too."""
    steps = [Step(at(clock), tuple(acts)) for scene in _SCENES for clock, *acts in scene()]
    steps += [Step(check.at_ms, ()) for check in facts.CHECKS]
    steps.append(Step(END_MS, ()))
    return Day(tuple(sorted(steps, key=lambda each: each.at_ms)), facts.DAY_TRUTH)


# What is there from the start


def _start() -> Scene:
    yield "00:00:00", _namespaces, _nodes, _queues


def _namespaces(world: World) -> None:
    for name in ("team-a", "team-b", "team-c", "hpc", "lab", "serving"):
        found = metadata(name, uid=f"namespace-{name}", labels={"kubernetes.io/metadata.name": name})
        world.server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": found})


def _nodes(world: World) -> None:
    h100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
    for index in (1, 2, 3):
        world.actors.add_node(f"gpu-{index}", {GPU: 8}, {**h100, "pool": "batch"})
    world.actors.add_node("gpu-4", {GPU: 8}, {**h100, "pool": "hpc"})
    slices = {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mig-3g.40gb.count": "16",
        "nvidia.com/mig-3g.40gb.product": "NVIDIA-A100-SXM4-80GB-MIG-3g.40gb",
        "pool": "mig",
    }
    world.actors.add_node("gpu-5", {GPU: 0, SLICE: 16}, slices)
    shared = {
        "nvidia.com/gpu.product": "NVIDIA-L4",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.replicas": "4",
        "nvidia.com/gpu.sharing-strategy": "time-slicing",
        "pool": "shared",
    }
    world.actors.add_node("gpu-6", {SHARED: 32}, shared)


def _queues(world: World) -> None:
    reclaim = {"reclaimWithinCohort": "Any", "withinClusterQueue": "Never"}
    quotas: dict[str, Any] = {"alpha": (8, None, 4), "beta": (8, 8), "gamma": 8}
    world.kueue.add(
        kueue.resource_flavor("h100", node_labels={"pool": "batch"}, uid="flavor-h100"),
        kueue.resource_flavor("a100-mig", node_labels={"pool": "mig"}, uid="flavor-a100-mig"),
        kueue.cohort("research", uid="cohort-research"),
        *(
            kueue.cluster_queue(
                name,
                cohort="research",
                groups=[{"h100": {GPU: quota}}, *([{"a100-mig": {SLICE: 16}}] if name == "beta" else [])],
                preemption=reclaim,
                uid=f"queue-{name}",
            )
            for name, quota in quotas.items()
        ),
        *(
            kueue.local_queue("gpus", queue, f"team-{team}", uid=f"local-queue-{team}")
            for team, queue in zip("abc", quotas, strict=True)
        ),
    )
    world.kueue.refresh()
    world.volcano.add_queue("hpc", 8)


# What a step does


def _submit(training: Training) -> Act:
    return lambda world: world.kueue.submit(training)


def _admit(training: Training) -> Act:
    return lambda world: world.kueue.admit(training)


def _bind(training: Training, node: str) -> Act:
    return lambda world: world.kueue.bind(training, node)


def _run(training: Training) -> Act:
    return lambda world: world.kueue.run(training)


def _finish(training: Training) -> Act:
    return lambda world: world.kueue.finish(training)


def _clean(training: Training) -> Act:
    return lambda world: world.kueue.clean(training)


def _preempt(training: Training, by: Training) -> Act:
    return lambda world: world.kueue.preempt(training, by, "InCohortReclamation")


def _stop(training: Training) -> Act:
    return lambda world: world.kueue.stop(training)


def _requeue(training: Training) -> Act:
    return lambda world: world.kueue.requeue(training)


def _plain(name: str, node: str = "gpu-6", resource: str = SHARED, units: int = 1, uid: str = "") -> Act:
    return lambda world: world.actors.start_pod("lab", name, uid or name, node, resource, units)


def _ends(name: str, namespace: str = "lab") -> Act:
    return lambda world: world.actors.finish(namespace, name)


def _goes(name: str, namespace: str = "lab") -> Act:
    return lambda world: world.actors.remove(namespace, name)


def _breaks(how: Any, *collections: str, times: int | None = 1) -> Act:
    def act(world: World) -> None:
        for name in collections or ("",):
            world.server.break_watch(how, name, times)

    return act


# The day


def _others() -> Scene:
    """A Deployment that serves all day, a notebook, and pods that come and go."""
    yield "00:10:00", _serve
    yield "00:10:01", *(_web("bind", index, "gpu-6") for index in (0, 1))
    yield "00:10:04", *(_web("run", index) for index in (0, 1))
    yield "00:20:00", lambda world: world.actors.create_pod("lab", "notebook", "notebook", SLICE, 1)
    yield "00:20:02", lambda world: world.actors.bind("lab", "notebook", "gpu-5")
    yield "00:20:09", lambda world: world.actors.run("lab", "notebook")
    yield "06:20:00", _ends("notebook")
    yield "06:30:00", _goes("notebook")
    yield "07:00:00", _plain("blip")
    yield "07:00:03", lambda world: world.actors.terminate("lab", "blip")
    yield "11:30:00", _plain("burst")
    yield "12:00:00", lambda world: world.actors.evict("lab", "burst")
    yield "12:20:00", _goes("burst")
    yield "14:00:00", _plain("stuck")
    yield "14:45:00.250", _goes("stuck")
    yield "17:00:00", _breaks("429", PODS), _plain("ping")
    yield "17:00:40", _ends("ping")
    yield "17:01:00", _goes("ping")
    yield "19:00:00", _breaks("410_status"), _plain("pong")
    yield "19:20:00", _ends("pong")
    yield "19:25:00", _goes("pong")


def _serve(world: World) -> None:
    made = shapes.deployment("serving", "web", world.actors.now_ms, 2, shapes.template(SHARED, 1))
    for found in made:
        world.server.put(found)
    for index in (0, 1):
        world.actors.create_pod(
            "serving", f"web-7d9f-{index}", f"web-{index}", SHARED, 1, owner=shapes.reference(made[1])
        )


def _web(what: str, index: int, *more: str) -> Act:
    return lambda world: getattr(world.actors, what)("serving", f"web-7d9f-{index}", *more)


def _borrowing() -> Scene:
    """Beta borrows gamma's GPUs, and loses them when gamma wants them back; others wait."""
    yield "01:00:00", _submit(TRAIN)
    yield "01:00:02", _admit(TRAIN)
    yield "01:00:03", _bind(TRAIN, "gpu-1")
    yield "01:00:10", _run(TRAIN)
    yield "01:30:00", _submit(SWEEP)
    yield "01:30:01", _admit(SWEEP)
    yield "01:30:03", _bind(SWEEP, "gpu-2")
    yield "01:30:10", _run(SWEEP)
    yield "02:05:00", _breaks("cut"), _submit(LLM)
    yield "02:05:02", _admit(LLM)
    yield "02:05:03", _bind(LLM, "gpu-3")
    yield "02:05:20", _run(LLM)
    yield "02:30:00", _submit(NIGHTLY)
    yield "02:40:00", _submit(URGENT)
    yield "03:00:00", _submit(FOLD)
    yield "03:00:01", _preempt(LLM, FOLD)
    yield "03:00:06", _stop(LLM)
    yield "03:00:07", _requeue(LLM)
    yield "03:00:08", _admit(FOLD)
    yield "03:00:09", _bind(FOLD, "gpu-3")
    yield "03:00:15", _run(FOLD)
    yield "04:00:00", _finish(TRAIN)
    yield "04:00:02", _admit(URGENT)
    yield "04:00:03", _bind(URGENT, "gpu-1")
    yield "04:00:05", _run(URGENT)
    yield "04:05:00", _clean(TRAIN)
    yield "05:30:00", lambda world: world.server.compact(), _breaks("410_event"), _finish(SWEEP)
    yield "05:30:02", _admit(LLM)
    yield "05:30:03", _bind(LLM, "gpu-2")
    yield "05:30:20", _run(LLM)
    yield "05:35:00", _clean(SWEEP)


def _gang() -> Scene:
    """A gang of four loses a member, whose GPUs another pod takes before the replacement is there."""
    hpc = "hpc"
    yield "06:40:00", lambda world: world.volcano.submit(GANG)
    yield "06:40:01", lambda world: world.volcano.enqueue(GANG)
    yield "06:40:05", lambda world: world.volcano.bind(GANG, "gpu-4")
    yield "06:40:10", lambda world: world.volcano.run(GANG)
    yield (
        "08:00:00",
        lambda world: world.actors.create_pod(hpc, "greedy", "greedy", GPU, 2, pool=hpc),
        lambda world: world.actors.unschedulable(hpc, "greedy", "0/6 nodes are available"),
    )
    yield "08:30:00", _breaks("silence", PODS), _member_lost
    yield "09:15:00", _ends("greedy", hpc)
    yield "09:15:02", _goes("greedy", hpc)
    yield "09:15:03", _member_back
    yield "09:15:08", lambda world: world.actors.run(hpc, GANG.pod_name(3)), _session("Running")
    yield "20:30:00", lambda world: world.volcano.finish(GANG)
    yield "20:35:00", lambda world: world.volcano.clean(GANG)
    yield "21:00:00", lambda world: world.actors.delete_node("gpu-4")


def _session(phase: str) -> Act:
    return lambda world: world.volcano.report(GANG, phase, "Running")


def _member_lost(world: World) -> None:
    lost = GANG.pod_name(3)
    world.actors.finish("hpc", lost, 137)
    world.actors.remove("hpc", lost)
    world.actors.bind("hpc", "greedy", "gpu-4")
    world.actors.run("hpc", "greedy")
    world.volcano.create_pod(GANG, 3, "b")
    world.actors.unschedulable("hpc", lost, "pod group is not ready, 3 Running, 1 Pending")
    world.volcano.report(GANG, "Unknown", "Running")


def _member_back(world: World) -> None:
    world.actors.bind("hpc", GANG.pod_name(3), "gpu-4")
    world.volcano.report(GANG, "Running", "Running")


def _losses() -> Scene:
    """The MIG node's device plugin fails for two hours, while a workload that needs it is admitted."""
    yield "10:10:00", _breaks("truncated_line", *_WATCHED), _submit(EVAL)
    yield "10:10:01", _admit(EVAL)
    yield "10:10:02", _bind(EVAL, "gpu-1")
    yield "10:10:05", _run(EVAL)
    yield "10:30:00", lambda world: world.actors.advertise("gpu-5", {SLICE: 0}, "allocatable")
    yield "10:35:00", lambda world: world.actors.advertise("gpu-5", {SLICE: 0}, "capacity")
    yield "10:45:00", _submit(SLICES)
    yield "10:45:01", _admit(SLICES)
    yield (
        "10:45:02",
        lambda world: world.actors.unschedulable("team-b", SLICES.pod_name(0), "0/6 nodes are available"),
    )
    yield "12:30:00", lambda world: world.actors.advertise("gpu-5", {SLICE: 16})
    yield "12:30:05", _bind(SLICES, "gpu-5")
    yield "12:30:10", _run(SLICES)
    yield "16:00:00", _finish(SLICES)
    yield "16:05:00", _clean(SLICES)


def _outage() -> Scene:
    """No collector runs for twenty minutes: a pod goes, one ends, one comes, a workload is preempted."""
    yield "12:10:00", _plain("ghost"), _plain("done")
    yield "13:00:00", lambda world: world.stop_collector()
    yield "13:05:00", _plain("late")
    yield "13:07:00", _goes("ghost")
    yield "13:08:00", _ends("done")
    yield "13:10:00", _submit(TUNE)
    yield "13:10:01", _preempt(LLM, TUNE)
    yield "13:10:06", _stop(LLM)
    yield "13:10:07", _requeue(LLM)
    yield "13:10:08", _admit(TUNE)
    yield "13:10:09", _bind(TUNE, "gpu-2")
    yield "13:10:10", _admit(NIGHTLY)
    yield "13:10:11", _bind(NIGHTLY, "gpu-2")
    yield "13:10:15", _run(TUNE), _run(NIGHTLY)
    yield "13:20:00", lambda world: world.start_collector()
    yield "14:10:00", _goes("done")
    yield "15:30:00", _ends("late")
    yield "15:40:00", _goes("late")


def _gap() -> Scene:
    """The watches are refused for ten minutes, and history is lost: a pod is made again, unseen."""
    yield "14:30:00", _plain("cell", uid="cell-first")
    yield "14:59:59", lambda world: world.server.bookmark()
    yield "15:00:00", _breaks("403", *_WATCHED, times=None)
    yield "15:03:00.400", _goes("cell")
    yield "15:03:05", _plain("cell", uid="cell-second")
    yield "15:10:00", lambda world: world.server.compact(), lambda world: world.server.mend()
    yield "18:30:00", _ends("cell")
    yield "18:40:00", _goes("cell")


def _evening() -> Scene:
    """Everything ends, one after the other."""
    yield "16:30:00", _finish(FOLD)
    yield "16:30:02", _admit(LLM)
    yield "16:30:03", _bind(LLM, "gpu-3")
    yield "16:30:20", _run(LLM)
    yield "16:35:00", _clean(FOLD)
    for clock, minute, training in (
        ("18:00:00", "18:05:00", NIGHTLY),
        ("20:00:00", "20:05:00", LLM),
        ("21:30:00", "21:35:00", EVAL),
        ("22:00:00", "22:05:00", URGENT),
        ("23:00:00", "23:05:00", TUNE),
    ):
        yield clock, _finish(training)
        yield minute, _clean(training)


_SCENES: tuple[Callable[[], Scene], ...] = (
    *(_start, _others, _borrowing, _gang),
    *(_losses, _outage, _gap, _evening),
)
