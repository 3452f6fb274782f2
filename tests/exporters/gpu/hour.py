"""One hour of a GPU node, as a script with its truth: what each pod held, used and drew.

Four GPUs: one whole, one in seven MIG slices, one time-sliced in four, one that is lost on the way. All
times are whole seconds of the hour.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.support.nvml.driver import DeviceLoad, FakeBoard, FakeComputeInstance, FakeInstance

HOUR = 3600
IDLE_WATTS = 70.0
WHOLE, MIG, SHARED, LOST = "GPU-whole", "GPU-mig", "GPU-shared", "GPU-lost"
SLICES = (1, 2, 3, 4, 5, 6, 7)
LOST_AT = 2400
RESTART_AT, RESTART_FOR = 1203, 8


@dataclass(frozen=True)
class ScriptedPod:
    """A pod holds ``device`` (a device id of the kubelet) from ``start`` to ``end``.

    ``busy``, ``sm``: the activity it causes on its unit while it runs, 0 to 1. On the shared GPU ``sm`` is
    its processes' share of the SMs, and the GPU is busy as long as any of them is.
    """

    name: str
    board: str
    device: str
    start: int
    end: int
    busy: float
    sm: float
    resource: str = "nvidia.com/gpu"
    pid: int = 0

    def runs(self, second: int) -> bool:
        return self.start <= second < self.end

    @property
    def instance(self) -> int:
        return int(self.device.rpartition("-")[2]) if self.board == MIG else 0


PODS = (
    ScriptedPod("train", WHOLE, WHOLE, 60, 1805, 0.93, 0.61),
    # The same GPU between two scrapes, and a job that lives and dies between two.
    ScriptedPod("eval", WHOLE, WHOLE, 1812, 3001, 0.55, 0.32),
    ScriptedPod("short", WHOLE, WHOLE, 3064, 3084, 1.0, 0.85),
    *(
        ScriptedPod(
            f"slice-{number}",
            MIG,
            f"MIG-slice-{number}",
            30 * number,
            3500 - 100 * number,
            0.15 * number,
            0.12 * number,
        )
        for number in SLICES[:5]
    ),
    ScriptedPod("heavy", SHARED, f"{SHARED}::0", 45, 3400, 0.9, 0.60, "nvidia.com/gpu.shared", 101),
    ScriptedPod("light", SHARED, f"{SHARED}::1", 100, 3300, 0.9, 0.15, "nvidia.com/gpu.shared", 102),
    ScriptedPod("rare", SHARED, f"{SHARED}::2", 700, 2100, 0.9, 0.05, "nvidia.com/gpu.shared", 103),
    ScriptedPod("unlucky", LOST, LOST, 20, 3600, 0.8, 0.5),
)
SHARED_BUSY = 0.9
DYNAMIC_WATTS = 500.0


def boards() -> tuple[FakeBoard, ...]:
    slices = [
        FakeInstance(number, 1, "1g.10gb", [FakeComputeInstance(f"MIG-slice-{number}")]) for number in SLICES
    ]
    return (
        FakeBoard(WHOLE, minor=0),
        FakeBoard(MIG, minor=1, mig=True, instances=slices),
        FakeBoard(SHARED, minor=2),
        FakeBoard(LOST, minor=3),
    )


ALLOCATABLE = {
    "nvidia.com/gpu": [WHOLE, LOST, *(f"MIG-slice-{number}" for number in SLICES)],
    "nvidia.com/gpu.shared": [f"{SHARED}::{replica}" for replica in range(4)],
}


@dataclass
class Truth:
    """By pod: GPU seconds held, GPU seconds busy, joules. ``watched`` leaves out the lost GPU's end."""

    held: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    busy: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    joules: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def loads(second: int) -> dict[str | tuple[str, int], DeviceLoad]:
    """What runs on each device in the second that begins at ``second``."""
    running = [pod for pod in PODS if pod.runs(second)]
    found: dict[str | tuple[str, int], DeviceLoad] = {}
    for board in (WHOLE, LOST):
        for pod in (pod for pod in running if pod.board == board):
            found[board] = DeviceLoad(pod.busy, pod.sm, pod.sm / 2, IDLE_WATTS + DYNAMIC_WATTS * pod.busy)
    sliced = [pod for pod in running if pod.board == MIG]
    for pod in sliced:
        found[MIG, pod.instance] = DeviceLoad(pod.busy, pod.sm, pod.sm / 2)
    found[MIG] = DeviceLoad(watts=IDLE_WATTS + DYNAMIC_WATTS * sum(pod.sm for pod in sliced) / 7)
    sharing = [pod for pod in running if pod.board == SHARED]
    if sharing:
        sm = sum(pod.sm for pod in sharing)
        watts = IDLE_WATTS + DYNAMIC_WATTS * sm
        found[SHARED] = DeviceLoad(
            SHARED_BUSY, sm, sm / 2, watts, processes={pod.pid: 100 * pod.sm for pod in sharing}
        )
    return found


def truth() -> Truth:
    """The script, added up second by second."""
    total = Truth()
    for second in range(HOUR):
        running = [pod for pod in PODS if pod.runs(second)]
        sm_of_shared = sum(pod.sm for pod in running if pod.board == SHARED)
        for pod in running:
            share = {MIG: 1 / 7, SHARED: 1 / 4}.get(pod.board, 1.0)
            total.held[pod.name] += share
            if pod.board == LOST and second >= LOST_AT:
                continue
            part = pod.sm / sm_of_shared if pod.board == SHARED else share
            total.busy[pod.name] += (SHARED_BUSY if pod.board == SHARED else pod.busy) * part
            dynamic = {MIG: pod.sm / 7, SHARED: pod.sm}.get(pod.board, pod.busy)
            total.joules[pod.name] += IDLE_WATTS * share + DYNAMIC_WATTS * dynamic
    return total


def events() -> Mapping[int, list[tuple[str, ScriptedPod]]]:
    """What happens at which second: pods end before others start."""
    found: dict[int, list[tuple[str, ScriptedPod]]] = defaultdict(list)
    for pod in PODS:
        found[pod.end].append(("end", pod))
    for pod in PODS:
        found[pod.start].append(("start", pod))
    return found


def seconds() -> Iterator[int]:
    return iter(range(HOUR))
