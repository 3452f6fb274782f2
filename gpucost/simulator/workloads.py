"""What is submitted in a month: when it comes, how long it would run, how it would fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import numpy.typing as npt

from gpucost.domain.jobs import JobKind
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Window
from gpucost.simulator.inventory import GPU
from gpucost.simulator.templates import SERVERS, TEMPLATES, Server, Template
from gpucost.simulator.tenants import SANDBOX, TEAM_BY_NAME, Team

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """Whose job it is. ``labelled`` says whether its pods carry the team's label."""

    uid: str
    name: str
    kind: JobKind
    team: Team
    namespace: str
    project: str
    user: str
    labelled: bool

    @property
    def full_name(self) -> str:
        """As namespace/name."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Submission:
    """One job as submitted: ``pods`` pods of ``units`` units each, all of them or none.

    Attempt ``k`` fails after the part ``failures[k]`` of its run time, if there is such an entry, and is
    tried again up to ``retries`` times. ``urgent`` work preempts other; ``restarts`` says whether the job
    comes back after an eviction, for the rest of its run time. ``measured`` work goes to nodes that measure
    all the time, and to no others.
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


def submissions(month: Window, seed: int, scale: int = 1) -> list[Submission]:
    """What the teams submit in ``month``, in order of time; ``scale`` multiplies how much comes."""
    rng = np.random.default_rng([seed, 1])
    found = [sub for template in TEMPLATES for sub in _of_template(template, month, rng, seed, scale)]
    for server in SERVERS:
        found += _of_server(server, month, rng, seed, scale)
    found += _scripted(month, seed, scale)
    return sorted(found, key=lambda sub: (sub.submit_ms, sub.job.uid))


def stable_uid(seed: int, name: str) -> str:
    """A uid that looks like Kubernetes' and depends on nothing but the seed and the name."""
    return str(uuid5(NAMESPACE_URL, f"gpucost.simulator/{seed}/{name}"))


def stable_rng(seed: int, name: str) -> np.random.Generator:
    """Randomness that depends on nothing but the seed and the name."""
    return np.random.default_rng([seed, *name.encode()])


def rhythm(instants_ms: Ints, nocturnal: bool = False) -> Floats:
    """How much is submitted, 1 being a weekday's average: nights and weekends are slow, cron runs at two."""
    hour = instants_ms // HOUR_MS % 24
    if nocturnal:
        return np.where(hour == 2, 24.0, 0.0)
    by_day = 1 + 0.8 * np.sin((hour - 9) / 24 * 2 * np.pi)
    return np.asarray(by_day * np.where(is_weekend(instants_ms), 0.35, 1.0), dtype=np.float64)


def is_weekend(instants_ms: Ints | int) -> npt.NDArray[np.bool_]:
    """Saturday or Sunday, UTC."""
    return np.asarray((instants_ms // DAY_MS + 3) % 7 >= 5)  # 1970-01-01 was a Thursday


def _of_template(
    template: Template, month: Window, rng: np.random.Generator, seed: int, scale: int
) -> Iterator[Submission]:
    teams = list(template.teams)
    weights = np.array([template.teams[name] for name in teams])
    weights /= weights.sum()
    for number, submit_ms in enumerate(_arrivals(template, month, rng, scale)):
        team = TEAM_BY_NAME[teams[int(rng.choice(len(teams), p=weights))]]
        nobodys = template.kind is JobKind.POD and rng.random() < 0.1
        labelled = bool(rng.random() < template.labelled) and not nobodys
        run_s = np.clip(rng.lognormal(np.log(template.median_s), template.sigma), 4, 6 * 86_400)
        yield Submission(
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


def _failures(template: Template, rng: np.random.Generator) -> tuple[float, ...]:
    """The part of the run time after which each attempt fails, up to the first that succeeds."""
    failures: list[float] = []
    while len(failures) <= template.retries and rng.random() < template.fails:
        failures.append(float(rng.uniform(0.02, 0.95)))
    return tuple(failures)


def _arrivals(template: Template, month: Window, rng: np.random.Generator, scale: int) -> list[int]:
    """Poisson arrivals with the rhythm of the week: whole seconds, in order."""
    hours = np.arange(month.start_ms, month.end_ms, HOUR_MS, dtype=np.int64)
    counts = rng.poisson(template.per_day * scale * rhythm(hours, template.nocturnal) / 24)
    starts = np.repeat(hours, counts) + rng.integers(0, 3_600, int(counts.sum())) * SECOND_MS
    return [int(t) for t in np.sort(starts)]


def _of_server(
    server: Server, month: Window, rng: np.random.Generator, seed: int, scale: int
) -> Iterator[Submission]:
    """Replicas that live from roll-out to roll-out (a week), and more of them in working hours."""
    week = 7 * DAY_MS
    days = np.arange(month.start_ms, month.end_ms, DAY_MS, dtype=np.int64)
    spans = [(t, week) for t in range(month.start_ms - 2 * DAY_MS, month.end_ms, week)] * server.base
    spans += [(int(day) + 7 * HOUR_MS, 12 * HOUR_MS) for day in days[~is_weekend(days)]] * server.peak
    job = identity(seed, server.name, server.kind, TEAM_BY_NAME[server.team], rng)
    for start_ms, length_ms in spans * scale:
        late_ms = int(rng.integers(0, 600)) * SECOND_MS
        yield Submission(
            job, server.pool, server.resource, 1, server.units, start_ms + late_ms, length_ms - late_ms
        )


def _scripted(month: Window, seed: int, scale: int) -> Iterator[Submission]:
    """What a month of real life has and chance might not: preemption, a bad image, a job too big to run."""
    rng = np.random.default_rng([seed, 2])
    language, robotics = TEAM_BY_NAME["language"], TEAM_BY_NAME["robotics"]
    for day in (8, 22):
        job = identity(seed, f"deadline-{day:02d}", JobKind.PYTORCH_JOB, language, rng)
        at_ms = month.start_ms + day * DAY_MS + 10 * HOUR_MS
        yield Submission(job, "h100", GPU, 4 * scale, 8, at_ms, 5 * HOUR_MS, urgent=True)
    bad_image = identity(seed, "bad-image", JobKind.JOB, robotics, rng)
    at_ms = month.start_ms + 5 * DAY_MS + 9 * HOUR_MS
    yield Submission(bad_image, "h100", GPU, 1, 1, at_ms, 4 * MINUTE_MS, failures=(0.99,))
    too_big = identity(seed, "too-big", JobKind.JOB, robotics, rng)
    yield Submission(too_big, "h100", GPU, 1, 16, month.start_ms + 13 * DAY_MS, HOUR_MS)


def identity(
    seed: int, name: str, kind: JobKind, team: Team, rng: np.random.Generator, labelled: bool = True
) -> JobIdentity:
    namespace, project, user = (str(rng.choice(c)) for c in (team.namespaces, team.projects, team.users))
    return JobIdentity(stable_uid(seed, name), name, kind, team, namespace, project, user, labelled)
