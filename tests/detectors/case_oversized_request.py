"""What oversized_request must be tried with: each variant at its threshold, below, too short, with a gap."""

from __future__ import annotations

from collections.abc import Sequence

from gpucost.cluster.objects.metadata import ObjectMeta
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import Pod, PodPhase, PodTemplate
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from tests.detectors.worlds import GIB, GPU, Case, World, at

START = 5
RUN = 61
A100_80, A100_40 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-SXM4-40GB"
TEN_GB = 10 * 10**9


def job(
    minutes: int = RUN,
    *,
    gpus: Sequence[float] = (1.0,),
    sm: float | None = 0.15,
    memory: float = 0.8 * TEN_GB,
    kind: str = "Job",
    product: str = "NVIDIA-H100-80GB-HBM3",
    gap: range = range(0),
    start: int = START,
    team: str = "t1",
) -> World:
    """One pod, a GPU per activity level, in steps of a minute; no rows in the minutes of ``gap``."""
    world = World(start + minutes).node("n1", product=product)
    world.pod("p1", "n1", start, units=len(gpus), job="j1", kind=kind, team=team)
    for n, level in enumerate(gpus):
        levels: list[float | None] = [None if minute in gap else level for minute in range(minutes)]
        world.work("p1", "n1", f"GPU-{n}", levels, start=start, step=1, sm=sm, memory=memory)
    return world


def team(
    *, sm: float | None = 0.25, hours: int = 13, gap: range = range(0), others: int = 8, gpus: int = 4
) -> World:
    """A team of one job of four GPUs, and another with more of the cluster that uses it well."""
    world = World(hours * 60).node("n1").node("n2")
    world.pod("p1", "n1", 0, units=gpus, job="j1", team="slow")
    world.pod("p2", "n2", 0, units=others, job="j2", team="fast")
    levels: list[float | None] = [None if step in gap else 1.0 for step in range(hours * 4)]
    for n in range(gpus):
        world.work("p1", "n1", f"a{n}", levels, step=15, sm=sm)
    for n in range(others):
        world.work("p2", "n2", f"b{n}", [1.0] * (hours * 4), step=15, sm=0.6)
    return world


def host(minutes: int = RUN, *, cores: int = 19, node_cores: int = 96, watched: bool = True) -> World:
    """A pod of four of eight GPUs with ``cores`` each, on a node that has twelve: 19 x 4 leaves 20 of 48."""
    world = World(START + minutes).node("n1").pod("p1", "n1", START, units=4, job="j1")
    for n in range(4):
        world.work("p1", "n1", f"GPU-{n}", [1.0] * minutes, start=START, step=1)
    if watched:
        world.overview = ClusterOverview(_state(cores * 4, node_cores))
    return world


def _state(cores: int, node_cores: int) -> ClusterState:
    amounts = {"cpu": node_cores * 1000, "memory": 2048 * GIB, GPU: 8, "pods": 110}
    node = Node(ObjectMeta("node-1", "", "n1", at(0), {}, {}), amounts, amounts, True, at(0), False)
    template = PodTemplate({"cpu": cores * 1000, "memory": 100 * GIB, GPU: 4})
    meta = ObjectMeta("p1", "ns", "p1", at(START), {}, {})
    pod = Pod(meta, PodPhase.RUNNING, template, node="n1", bound_ms=at(START))
    return ClusterState(at(RUN), nodes={"node-1": node}, pods={"p1": pod})


def server(
    hours: int = 24,
    *,
    peak: float,
    pods: int = 1,
    gpus: int = 1,
    kind: str = "Deployment",
    memory: float = 40 * GIB,
    rest: float = 0.05,
    busy: float = 1.0,
    gap: range = range(0),
    product: str = A100_80,
) -> World:
    """Replicas side by side, in steps of an hour: SMs at ``rest``, and at ``peak`` from 12 to 13 o'clock; no
    rows in the hours of ``gap``. ``busy`` is how much more they are busy."""
    world = World(hours * 60).node("n1", boards=pods * gpus, product=product)
    for pod in range(pods):
        world.pod(f"p{pod}", "n1", 0, units=gpus, job="web", kind=kind)
        for gpu in range(gpus):
            levels = [None if n in gap else busy * (peak if n == 12 else rest) for n in range(hours)]
            world.work(f"p{pod}", "n1", f"g{pod}{gpu}", levels, step=60, sm=1 / busy, memory=memory)
    return world


CASES: tuple[Case, ...] = (
    Case(
        "fits_smaller",
        positive=job(),
        below=job(sm=0.1501),
        short=job(RUN - 1),
        gap=job(gap=range(30, 40)),
        # 51 minutes after the warm-up; 15 % of the SMs are more than the seventh that 1g has, so it is 2g.
        board_ms=51 * MINUTE_MS * 5 // 7,
    ),
    Case(
        "too_many_gpus",
        # Two are used, the least of them three times as much as the busiest other.
        positive=job(70, gpus=(0.9, 0.147, 0.049, 0.01), sm=0.5),
        below=job(70, gpus=(0.9, 0.146, 0.049, 0.01), sm=0.5),
        short=job(69, gpus=(0.9, 0.147, 0.049, 0.01), sm=0.5),
        gap=job(70, gpus=(0.9, 0.147, 0.049, 0.01), sm=0.5, gap=range(30, 45)),
        board_ms=2 * 60 * MINUTE_MS,
    ),
    Case(
        "serving_peak",
        # 4 x 36.75 % are 147 %, 70 % of 2.1 replicas: three will do. A little more, and it needs all four.
        positive=server(pods=4, memory=62 * GIB, peak=0.3675),
        below=server(pods=4, memory=62 * GIB, peak=0.5251),
        short=server(1, pods=4, memory=62 * GIB, peak=0.3675),
        gap=server(pods=4, memory=62 * GIB, peak=0.3675, gap=range(3)),
        board_ms=24 * HOUR_MS,
    ),
    Case(
        "serving_memory",
        # 4 x 35 % are 70 % of two GPUs; 4 x 62 GiB are 97 % of 80 % of four.
        positive=server(gpus=4, peak=0.35, kind="LeaderWorkerSet", memory=62 * GIB),
        below=server(gpus=4, peak=0.3501, kind="LeaderWorkerSet", memory=62 * GIB),
        short=server(1, gpus=4, peak=0.35, kind="LeaderWorkerSet", memory=62 * GIB),
        gap=server(gpus=4, peak=0.35, kind="LeaderWorkerSet", memory=62 * GIB, gap=range(3)),
        board_ms=2 * 24 * HOUR_MS,
        is_view=True,
    ),
    Case(
        "low_efficiency",
        positive=team(),
        below=team(sm=0.2501),
        short=team(hours=12),
        gap=team(gap=range(20, 30)),
        board_ms=4 * 13 * HOUR_MS // 2,
        is_view=True,
    ),
    Case(
        "memory_over_ask",
        positive=job(sm=0.5, memory=40 * GIB, product=A100_80),
        below=job(sm=0.5, memory=40.1 * GIB, product=A100_80),
        short=job(RUN - 1, sm=0.5, memory=40 * GIB, product=A100_80),
        gap=job(sm=0.5, memory=40 * GIB, product=A100_80, gap=range(30, 45)),
        board_ms=None,
        is_view=True,
    ),
    Case(
        "host_share",
        # 96 - 76 cores leave 20, the share of one GPU of the four that are free.
        positive=host(),
        below=host(cores=18),
        short=host(RUN - 1),
        gap=host(watched=False),
        board_ms=3 * RUN * MINUTE_MS,
        is_view=True,
    ),
)
