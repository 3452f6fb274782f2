"""What is submitted in a month: when it comes, how long it would run, how it would fail; and the teams.

``TEAMS`` are the teams of the simulated company, with the labels and namespaces of their pods; the templates
are the kinds of work that they submit, and ``submissions`` draws jobs from them. The shapes (many short jobs,
few long gangs that hold most of the time) follow what is published about real GPU clusters; every number here
is our own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import numpy.typing as npt

from gpucost.domain.buckets import NO_TEAM
from gpucost.domain.jobs import JobKind
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Window
from gpucost.simulator.inventory import GPU


@dataclass(frozen=True, slots=True)
class SimulatedTeam:
    """One team. Its pods carry its label, except where that was forgotten; ``cluster_queue`` is where its
    quota is."""

    name: str
    namespaces: tuple[str, ...]
    queue: str
    cluster_queue: str
    projects: tuple[str, ...]
    users: tuple[str, ...]


TEAMS: tuple[SimulatedTeam, ...] = (
    SimulatedTeam(
        "language",
        ("language-train", "language-eval"),
        "language",
        "research",
        ("atlas", "babel"),
        ("ada", "bruno", "chen", "dilara"),
    ),
    SimulatedTeam(
        "vision", ("vision",), "vision", "research", ("iris", "retina"), ("elif", "farid", "greta")
    ),
    SimulatedTeam("speech", ("speech",), "speech", "research", ("echo",), ("hiro", "ines")),
    SimulatedTeam(
        "ranking", ("ranking-prod", "ranking-dev"), "ranking", "product", ("feed", "ads"), ("jonas", "kavya")
    ),
    SimulatedTeam("robotics", ("robotics",), "robotics", "product", ("gripper",), ("lena", "mateo", "noor")),
    SimulatedTeam(
        "platform", ("platform",), "platform", "platform", ("ci", "eval-nightly"), ("olga", "pavel")
    ),
)

TEAM_BY_NAME = {team.name: team for team in TEAMS}

# What platform keeps for releases: a queue of its own, hardly used.
RELEASE = replace(TEAM_BY_NAME["platform"], queue="release", cluster_queue="release")

# A namespace that no team rule knows: what runs here has no team in reports.
SANDBOX = SimulatedTeam(NO_TEAM, ("sandbox",), "", "", ("",), ("guest",))


_EVERYBODY = {"language": 3.0, "vision": 2.0, "speech": 2.0, "ranking": 2.0, "robotics": 1.0, "platform": 0.5}
_RESEARCH = {"language": 5.0, "vision": 2.0, "speech": 1.5}
_PRODUCT = {"ranking": 3.0, "robotics": 2.0}


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """One kind of work. Run times are log-normal around ``median_s``; ``per_day`` is a weekday's mean.

    ``fails`` is the chance that an attempt fails (or is failed by its author); a failed attempt is retried up
    to ``retries`` times. ``labelled`` is the chance that the pods carry their team's label.
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


TEMPLATES: tuple[JobTemplate, ...] = (
    JobTemplate(JobKind.PYTORCH_JOB, "pretrain", "h100", (2, 2, 4), (8,), 19_000, 0.9, 2.4,
                {"language": 1.0}),
    JobTemplate(JobKind.PYTORCH_JOB, "finetune", "h100", (1, 1, 2), (8,), 9_000, 1.0, 7, _RESEARCH,
                retries=2),
    JobTemplate(JobKind.VOLCANO_JOB, "vj-sweep", "h100", (2, 3), (2, 4), 6_000, 1.0, 8, _RESEARCH),
    JobTemplate(JobKind.JOB_SET, "dataprep", "h100", (2, 4), (1, 2), 3_600, 0.8, 6, _RESEARCH),
    JobTemplate(JobKind.JOB, "ablation", "h100", (1,), (1, 1, 2), 2_400, 1.2, 45, _RESEARCH),
    JobTemplate(JobKind.PYTORCH_JOB, "train", "a100", (1, 2), (4, 8), 12_000, 0.9, 2.6),
    JobTemplate(JobKind.TRAIN_JOB, "distill", "a100", (2,), (2,), 8_000, 0.9, 5),
    JobTemplate(JobKind.RAY_CLUSTER, "ray", "a100", (3, 4), (1,), 30_000, 0.7, 2, fails=0.0),
    JobTemplate(JobKind.JOB, "probe", "a100", (1,), (1,), 1_500, 1.2, 50),
    JobTemplate(JobKind.NOTEBOOK, "nb-big", "a100", (1,), (1,), 45_000, 0.9, 3, fails=0.0),
    JobTemplate(JobKind.JOB, "sim", "a100-owned", (1,), (2,), 15_000, 0.9, 7, _PRODUCT),
    JobTemplate(JobKind.MPI_JOB, "mpi-plan", "a100-owned", (2,), (1, 2), 7_000, 0.8, 5, {"robotics": 1.0}),
    JobTemplate(JobKind.NOTEBOOK, "nb", "h100-sliced", (1,), (1,), 60_000, 0.8, 22, fails=0.0),
    JobTemplate(JobKind.JOB, "unit", "h100-sliced", (1,), (1,), 300, 1.0, 90),
    JobTemplate(
        JobKind.NOTEBOOK, "nb-2g", "h100-mixed", (1,), (1,), 40_000, 0.8, 5, resource="nvidia.com/mig-2g.20gb"
    ),
    JobTemplate(
        JobKind.POD, "try", "h100-mixed", (1,), (1,), 4_000, 1.1, 20, resource="nvidia.com/mig-1g.10gb",
        labelled=0.4, retries=0,
    ),
    JobTemplate(JobKind.JOB, "smoke", "l4-shared", (1,), (1,), 22, 0.6, 110, fails=0.08, retries=0),
    JobTemplate(JobKind.POD, "debug", "l4-shared", (1,), (1,), 2_500, 1.0, 18, labelled=0.3, retries=0),
    JobTemplate(JobKind.JOB, "render", "l4-spot", (1,), (1,), 5_000, 0.9, 32, _PRODUCT),
    JobTemplate(
        JobKind.CRON_JOB, "nightly-eval", "l4-spot", (1,), (2,), 3_000, 0.4, 6, {"platform": 1.0},
        nocturnal=True,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerTemplate:
    """A Deployment or the like: ``base`` replicas day and night, ``peak`` more in working hours; ``measured``
    as of a JobSubmission."""

    kind: JobKind
    name: str
    team: str
    pool: str
    resource: str
    units: int
    base: int
    peak: int
    measured: bool = False


SERVERS: tuple[ServerTemplate, ...] = (
    ServerTemplate(JobKind.DEPLOYMENT, "feed-ranker", "ranking", "l4-shared", GPU, 1, 6, 6),
    ServerTemplate(
        JobKind.DEPLOYMENT, "embedder", "ranking", "h100-mixed", "nvidia.com/mig-3g.40gb", 1, 3, 2
    ),
    ServerTemplate(JobKind.STATEFUL_SET, "vector-index", "ranking", "l4-shared", GPU, 1, 3, 0),
    ServerTemplate(JobKind.LEADER_WORKER_SET, "chat-70b", "language", "a100", GPU, 4, 1, 0),
    ServerTemplate(JobKind.RAY_SERVICE, "asr", "speech", "h100-sliced", GPU, 1, 4, 4),
)

FORGOTTEN: tuple[ServerTemplate, ...] = (
    ServerTemplate(JobKind.DEPLOYMENT, "captioner-old", "vision", "a100", GPU, 2, 1, 0, measured=True),
    ServerTemplate(JobKind.DEPLOYMENT, "rerank-shadow", "ranking", "a100", GPU, 1, 2, 0, measured=True),
    ServerTemplate(JobKind.STATEFUL_SET, "asr-canary", "speech", "h100", GPU, 1, 1, 0, measured=True),
)
"""Servers of the month before that nobody calls, until somebody acts upon what was found of them."""


DrawnFloats: TypeAlias = npt.NDArray[np.float64]
DrawnInts: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """Whose job it is. ``labelled`` says whether its pods carry the team's label."""

    uid: str
    name: str
    kind: JobKind
    team: SimulatedTeam
    namespace: str
    project: str
    user: str
    labelled: bool

    @property
    def full_name(self) -> str:
        """As namespace/name."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class JobSubmission:
    """One job as submitted: ``pods`` pods of ``units`` units each, all of them or none.

    Attempt ``k`` fails after the part ``failures[k]`` of its run time, if there is such an entry, and is
    tried again up to ``retries`` times. ``urgent`` work preempts other work; ``restarts`` says whether the
    job comes back after an eviction, for the rest of its run time. ``measured`` work goes to nodes that
    measure all the time, and to no others.
    """

    job: JobIdentity
    pool: str
    resource: str
    pods: int
    units: int
    submit_ms: int
    run_ms: int
    failures: tuple[float, ...] = ()
    retries: int = 0
    urgent: bool = False
    restarts: bool = True
    attempt: int = 0
    measured: bool = False


def submissions(
    month: Window, seed: int, scale: int = 1, servers: Sequence[ServerTemplate] = SERVERS
) -> list[JobSubmission]:
    """The jobs that the teams submit in ``month``, in order of time; ``scale`` multiplies their number."""
    rng = np.random.default_rng([seed, 1])
    found = [sub for template in TEMPLATES for sub in _of_template(template, month, rng, seed, scale)]
    for server in servers:
        found += _of_server(server, month, rng, seed, scale)
    found += _scripted(month, seed, scale)
    return sorted(found, key=lambda sub: (sub.submit_ms, sub.job.uid))


def stable_uid(seed: int, name: str) -> str:
    """A uid in the form of Kubernetes' that depends only on the seed and the name."""
    return str(uuid5(NAMESPACE_URL, f"gpucost.simulator/{seed}/{name}"))


def stable_rng(seed: int, name: str) -> np.random.Generator:
    """Randomness that depends only on the seed and the name."""
    return np.random.default_rng([seed, *name.encode()])


def rhythm(instants_ms: DrawnInts, nocturnal: bool = False) -> DrawnFloats:
    """The rate of submissions, 1 being a weekday's average: nights and weekends are slow, cron
    jobs run at two."""
    hour = instants_ms // HOUR_MS % 24
    if nocturnal:
        return np.where(hour == 2, 24.0, 0.0)
    by_day = 1 + 0.8 * np.sin((hour - 9) / 24 * 2 * np.pi)
    return np.asarray(by_day * np.where(is_weekend(instants_ms), 0.35, 1.0), dtype=np.float64)


def is_weekend(instants_ms: DrawnInts | int) -> npt.NDArray[np.bool_]:
    """Saturday or Sunday, UTC."""
    return np.asarray((instants_ms // DAY_MS + 3) % 7 >= 5)  # 1970-01-01 was a Thursday


def _of_template(
    template: JobTemplate, month: Window, rng: np.random.Generator, seed: int, scale: int
) -> Iterator[JobSubmission]:
    teams = list(template.teams)
    weights = np.array([template.teams[name] for name in teams])
    weights /= weights.sum()
    for number, submit_ms in enumerate(_arrivals(template, month, rng, scale)):
        team = TEAM_BY_NAME[teams[int(rng.choice(len(teams), p=weights))]]
        nobodys = template.kind is JobKind.POD and rng.random() < 0.1
        labelled = bool(rng.random() < template.labelled) and not nobodys
        run_s = np.clip(rng.lognormal(np.log(template.median_s), template.sigma), 4, 6 * 86_400)
        yield JobSubmission(
            identity(
                seed,
                f"{template.stem}-{number:05d}",
                template.kind,
                SANDBOX if nobodys else team,
                rng,
                labelled,
            ),
            template.pool,
            template.resource,
            pods=int(rng.choice(template.pods)),
            units=int(rng.choice(template.units)),
            submit_ms=submit_ms,
            run_ms=int(run_s) * SECOND_MS,
            failures=_failures(template, rng),
            retries=template.retries,
            restarts=template.kind not in (JobKind.POD, JobKind.NOTEBOOK),
        )


def _failures(template: JobTemplate, rng: np.random.Generator) -> tuple[float, ...]:
    """The part of the run time after which each attempt fails, up to the first that succeeds."""
    failures: list[float] = []
    while len(failures) <= template.retries and rng.random() < template.fails:
        failures.append(float(rng.uniform(0.02, 0.95)))
    return tuple(failures)


def _arrivals(template: JobTemplate, month: Window, rng: np.random.Generator, scale: int) -> list[int]:
    """Poisson arrivals with the rhythm of the week: whole seconds, in order."""
    hours = np.arange(month.start_ms, month.end_ms, HOUR_MS, dtype=np.int64)
    counts = rng.poisson(template.per_day * scale * rhythm(hours, template.nocturnal) / 24)
    starts = np.repeat(hours, counts) + rng.integers(0, 3_600, int(counts.sum())) * SECOND_MS
    return [int(t) for t in np.sort(starts)]


def _of_server(
    server: ServerTemplate, month: Window, rng: np.random.Generator, seed: int, scale: int
) -> Iterator[JobSubmission]:
    """Replicas that live from roll-out to roll-out (a week), and more of them in working hours."""
    week = 7 * DAY_MS
    days = np.arange(month.start_ms, month.end_ms, DAY_MS, dtype=np.int64)
    spans = [(t, week) for t in range(month.start_ms - 2 * DAY_MS, month.end_ms, week)] * server.base
    spans += [(int(day) + 7 * HOUR_MS, 12 * HOUR_MS) for day in days[~is_weekend(days)]] * server.peak
    job = identity(seed, server.name, server.kind, TEAM_BY_NAME[server.team], rng)
    for start_ms, length_ms in spans * scale:
        late_ms = int(rng.integers(0, 600)) * SECOND_MS
        yield JobSubmission(
            job, server.pool, server.resource, 1, server.units, start_ms + late_ms, length_ms - late_ms,
            measured=server.measured,
        )  # fmt: skip


def _scripted(month: Window, seed: int, scale: int) -> Iterator[JobSubmission]:
    """Events that a month of real life has and chance might not produce: preemption, a bad image, a job too
    big to run."""
    rng = np.random.default_rng([seed, 2])
    language, robotics = TEAM_BY_NAME["language"], TEAM_BY_NAME["robotics"]
    for day in (8, 22):
        job = identity(seed, f"deadline-{day:02d}", JobKind.PYTORCH_JOB, language, rng)
        at_ms = month.start_ms + day * DAY_MS + 10 * HOUR_MS
        yield JobSubmission(job, "h100", GPU, 4 * scale, 8, at_ms, 5 * HOUR_MS, urgent=True)
    bad_image = identity(seed, "bad-image", JobKind.JOB, robotics, rng)
    at_ms = month.start_ms + 5 * DAY_MS + 9 * HOUR_MS
    yield JobSubmission(bad_image, "h100", GPU, 1, 1, at_ms, 4 * MINUTE_MS, failures=(0.99,))
    too_big = identity(seed, "too-big", JobKind.JOB, robotics, rng)
    yield JobSubmission(too_big, "h100", GPU, 1, 16, month.start_ms + 13 * DAY_MS, HOUR_MS)


def identity(
    seed: int, name: str, kind: JobKind, team: SimulatedTeam, rng: np.random.Generator, labelled: bool = True
) -> JobIdentity:
    namespace, project, user = (str(rng.choice(c)) for c in (team.namespaces, team.projects, team.users))
    return JobIdentity(stable_uid(seed, name), name, kind, team, namespace, project, user, labelled)
