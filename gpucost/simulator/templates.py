"""The sorts of work the teams submit: tables only, drawn from in ``workloads``.

The shapes (many short jobs, few long gangs that hold most of the time) follow what is published about real
GPU clusters; every number here is our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpucost.domain.jobs import JobKind
from gpucost.simulator.inventory import GPU

_EVERYBODY = {"language": 3.0, "vision": 2.0, "speech": 2.0, "ranking": 2.0, "robotics": 1.0, "platform": 0.5}
_RESEARCH = {"language": 5.0, "vision": 2.0, "speech": 1.5}
_PRODUCT = {"ranking": 3.0, "robotics": 2.0}


@dataclass(frozen=True, slots=True)
class Template:
    """One sort of work. Run times are log-normal around ``median_s``; ``per_day`` is a weekday's mean.

    ``fails`` is the chance that an attempt fails (or is failed by its author); a failed attempt is retried
    up to ``retries`` times. ``labelled`` is the chance that the pods carry their team's label.
    """

    kind: JobKind
    stem: str
    pool: str
    pods: tuple[int, ...]
    units: tuple[int, ...]
    median_s: float
    sigma: float
    per_day: float
    teams: Mapping[str, float] = field(default_factory=lambda: _EVERYBODY)
    resource: str = GPU
    fails: float = 0.12
    retries: int = 1
    labelled: float = 0.97
    nocturnal: bool = False


TEMPLATES: tuple[Template, ...] = (
    Template(JobKind.PYTORCH_JOB, "pretrain", "h100", (2, 2, 4), (8,), 19_000, 0.9, 2.4, {"language": 1.0}),
    Template(JobKind.PYTORCH_JOB, "finetune", "h100", (1, 1, 2), (8,), 9_000, 1.0, 7, _RESEARCH, retries=2),
    Template(JobKind.VOLCANO_JOB, "vj-sweep", "h100", (2, 3), (2, 4), 6_000, 1.0, 8, _RESEARCH),
    Template(JobKind.JOB_SET, "dataprep", "h100", (2, 4), (1, 2), 3_600, 0.8, 6, _RESEARCH),
    Template(JobKind.JOB, "ablation", "h100", (1,), (1, 1, 2), 2_400, 1.2, 45, _RESEARCH),
    Template(JobKind.PYTORCH_JOB, "train", "a100", (1, 2), (4, 8), 12_000, 0.9, 2.6),
    Template(JobKind.TRAIN_JOB, "distill", "a100", (2,), (2,), 8_000, 0.9, 5),
    Template(JobKind.RAY_CLUSTER, "ray", "a100", (3, 4), (1,), 30_000, 0.7, 2, fails=0.0),
    Template(JobKind.JOB, "probe", "a100", (1,), (1,), 1_500, 1.2, 50),
    Template(JobKind.NOTEBOOK, "nb-big", "a100", (1,), (1,), 45_000, 0.9, 3, fails=0.0),
    Template(JobKind.JOB, "sim", "a100-owned", (1,), (2,), 15_000, 0.9, 7, _PRODUCT),
    Template(JobKind.MPI_JOB, "mpi-plan", "a100-owned", (2,), (1, 2), 7_000, 0.8, 5, {"robotics": 1.0}),
    Template(JobKind.NOTEBOOK, "nb", "h100-sliced", (1,), (1,), 60_000, 0.8, 22, fails=0.0),
    Template(JobKind.JOB, "unit", "h100-sliced", (1,), (1,), 300, 1.0, 90),
    Template(
        JobKind.NOTEBOOK, "nb-2g", "h100-mixed", (1,), (1,), 40_000, 0.8, 5, resource="nvidia.com/mig-2g.20gb"
    ),
    Template(
        JobKind.POD, "try", "h100-mixed", (1,), (1,), 4_000, 1.1, 20, resource="nvidia.com/mig-1g.10gb",
        labelled=0.4, retries=0,
    ),
    Template(JobKind.JOB, "smoke", "l4-shared", (1,), (1,), 22, 0.6, 110, fails=0.08, retries=0),
    Template(JobKind.POD, "debug", "l4-shared", (1,), (1,), 2_500, 1.0, 18, labelled=0.3, retries=0),
    Template(JobKind.JOB, "render", "l4-spot", (1,), (1,), 5_000, 0.9, 32, _PRODUCT),
    Template(
        JobKind.CRON_JOB, "nightly-eval", "l4-spot", (1,), (2,), 3_000, 0.4, 6, {"platform": 1.0},
        nocturnal=True,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Server:
    """A Deployment or the like: ``base`` replicas day and night, ``peak`` more in working hours."""

    kind: JobKind
    name: str
    team: str
    pool: str
    resource: str
    units: int
    base: int
    peak: int


SERVERS: tuple[Server, ...] = (
    Server(JobKind.DEPLOYMENT, "feed-ranker", "ranking", "l4-shared", GPU, 1, 6, 6),
    Server(JobKind.DEPLOYMENT, "embedder", "ranking", "h100-mixed", "nvidia.com/mig-3g.40gb", 1, 3, 2),
    Server(JobKind.STATEFUL_SET, "vector-index", "ranking", "l4-shared", GPU, 1, 3, 0),
    Server(JobKind.LEADER_WORKER_SET, "chat-70b", "language", "a100", GPU, 4, 1, 0),
    Server(JobKind.RAY_SERVICE, "asr", "speech", "h100-sliced", GPU, 1, 4, 4),
)
