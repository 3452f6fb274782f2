"""What pods held, cut among jobs: at every moment it is the same as before, and each job has its GPUs."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract.frames import ALLOCATIONS, CAPACITY, NODES
from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import HOUR_MS, Window, parse_instant
from gpucost.telemetry.evidence.frame_rows import FrameRow, frame_of
from gpucost.telemetry.inner.inner_jobs import InnerJob, JobRecords, KnownRuns, known_runs
from gpucost.telemetry.inner.pod_division import InnerScheduler, NodeNameSource, UnitSizes, divide

T0 = parse_instant("2026-11-01T10:00:00Z")
GPU = "nvidia.com/gpu"
AT = {name: at for at, name in enumerate(ALLOCATIONS.column_names)}
SLURM = InnerScheduler("s", "slurm", "c", "slurm", re.compile("w-(.+)"), node_name=r"\1")
RAY = InnerScheduler("r", "ray", "c", "ray", re.compile(".+"), teams=("red", "blue"))


def pod(name: str, start: int, end: int, count: int, resource: str = GPU, uid: str = "") -> FrameRow:
    holder = ("slurm", name, uid or f"{name}-uid", "Other", "set", "set-uid", *[""] * 4, "own", "p", "u")
    return ("c", f"on-{name}", *holder, resource, count, T0 + start, T0 + end)


def job(
    key: str, start: int, end: int | None, gpus: int | None, *nodes: str, team: str = "red", over: bool = True
) -> InnerJob:
    ends = None if end is None else T0 + end
    return InnerJob(key, "", f"user-{key}", team, gpus, nodes, T0 + start, ends, over and end is not None)


def known(*jobs: InnerJob, written: int = 1_000_000) -> KnownRuns:
    return known_runs([(T0 + written, JobRecords(jobs))])


def divided(
    pods: list[FrameRow], runs: KnownRuns, end: int = 1000, scheduler: InnerScheduler = SLURM
) -> tuple[dict[Any, int], dict[Any, int | None]]:
    """(pod, job, start, end) -> units; (code, first words) -> GPU ms."""
    parts, problems = divide(pods, scheduler, runs, Window(T0, T0 + end))
    found: dict[Any, int] = {}
    for row in parts:
        name = str(row[AT["job"]])
        key = row[AT["pod"]], name, *(int(str(row[AT[edge]])) - T0 for edge in ("start_ms", "end_ms"))
        assert key not in found
        found[key] = int(str(row[AT["count"]]))
    told: Counter[Any] = Counter()
    for each in problems:
        assert each.at_ms is not None
        assert T0 <= each.at_ms < T0 + end
        told[each.code, each.detail] += each.board_ms or 0
    return found, dict(told)


def test_a_job_has_its_part_and_the_pod_the_rest() -> None:
    parts, problems = divide(
        [pod("w-1", 0, 100, 8)], SLURM, known(job("7", 20, 60, 3, "1")), Window(T0, T0 + 100)
    )
    [mine] = [row for row in parts if row[AT["job_uid"]] == "s/7"]
    names = ("namespace", "pod", "pod_uid", "job_kind", "job", "team_label", "project", "user", "count")
    told = ["slurm", "w-1", "w-1-uid", "Other", "slurm/7", "red", "", "user-7", 3]
    assert [mine[AT[name]] for name in names] == told
    assert divided([pod("w-1", 0, 100, 8)], known(job("7", 20, 60, 3, "1")))[0] == {
        ("w-1", "set", 0, 20): 8,
        ("w-1", "slurm/7", 20, 60): 3,
        ("w-1", "set", 20, 60): 5,
        ("w-1", "set", 60, 100): 8,
    }
    assert problems == []


def test_jobs_have_gpus_in_the_order_in_which_they_began() -> None:
    runs = known(job("1", 0, 50, 6, "1"), job("2", 10, 100, 6, "1"))
    parts, problems = divided([pod("w-1", 0, 100, 8)], runs)
    assert parts == {
        ("w-1", "slurm/1", 0, 50): 6,
        ("w-1", "set", 0, 10): 2,
        ("w-1", "slurm/2", 10, 50): 2,
        ("w-1", "slurm/2", 50, 100): 6,
        ("w-1", "set", 50, 100): 2,
    }
    [(code, detail)] = problems
    assert (code, problems[code, detail]) == (DataProblemCode.INNER_UNPLACED, 4 * 40)
    assert "had more GPUs than its pods held" in detail


def test_gpus_of_several_nodes_are_as_many_on_each() -> None:
    pods = [pod("w-1", 0, 100, 8), pod("w-2", 0, 100, 8)]
    even, none = divided(pods, known(job("1", 0, 100, 6, "1", "2")))
    assert {key[0]: n for key, n in even.items() if key[1] == "slurm/1"} == {"w-1": 3, "w-2": 3}
    assert none == {}
    odd, problems = divided(pods, known(job("1", 0, 100, 5, "1", "2")))
    assert {key[0]: n for key, n in odd.items() if key[1] == "slurm/1"} == {"w-1": 3, "w-2": 2}
    assert sorted(problems.values()) == [200, 300]
    assert {code for code, _ in problems} == {DataProblemCode.INNER_UNKNOWN}


def test_a_node_that_is_no_pod_is_a_problem_unless_it_is_said_to_be_elsewhere() -> None:
    runs = known(job("1", 0, 100, 6, "1", "metal-3"))
    parts, problems = divided([pod("w-1", 0, 100, 8)], runs)
    assert parts["w-1", "slurm/1", 0, 100] == 3
    assert list(problems.values()) == [300]
    assert divided(
        [pod("w-1", 0, 100, 8)], runs, scheduler=replace(SLURM, elsewhere=re.compile("metal-.*"))
    ) == (parts, {})


@pytest.mark.parametrize(
    ("source", "told"),
    [(NodeNameSource.POD, "1"), (NodeNameSource.NODE, "n.zone"), (NodeNameSource.SHORT_NODE, "n")],
)
def test_a_node_is_called_after_its_pod_or_its_machine(source: NodeNameSource, told: str) -> None:
    assert replace(SLURM, node_from=source).node_of("w-1", "n.zone") == told


def test_only_pods_of_the_rule_are_divided() -> None:
    named = replace(SLURM, owners=re.compile("set"))
    asked = [
        ("slurm", "w-1", "set"),
        ("rogue", "w-1", "set"),
        ("slurm", "w-", "set"),
        ("slurm", "w-1", "sets"),
    ]
    assert [named.selects(*each) for each in asked] == [True, False, False, False]


def test_pods_that_cannot_be_told_apart_stay_whole() -> None:
    twins = [pod("w-1", 0, 100, 4), pod("w-1", 0, 100, 4, uid="other")]
    rows, told = divide(twins, SLURM, known(job("1", 20, 60, 1, "1")), Window(T0, T0 + 100))
    assert sorted(rows) == sorted(twins)
    [problem] = told
    assert "which 2 pods at once are said to be" in problem.detail
    assert problem.board_ms == 40
    mixed = [pod("w-1", 0, 100, 4), pod("w-1", 0, 100, 7, "nvidia.com/mig-1g.10gb")]
    rows, found = divide(mixed, SLURM, known(job("1", 20, 60, 1, "1")), Window(T0, T0 + 100))
    assert {row[AT["job"]] for row in rows} == {"set"}
    assert [each.board_ms for each in found] == [40]


def test_jobs_of_ray_have_gpus_of_any_pod_in_the_order_of_names() -> None:
    pods = [pod("head", 0, 100, 1), pod("worker", 0, 50, 4)]
    runs = known(job("a", 0, 100, 3), job("b", 20, 40, 2), job("c", 60, 70, 1, team="green"))
    parts, problems = divided(pods, runs, scheduler=RAY)
    assert parts == {
        ("head", "ray/a", 0, 100): 1,
        ("worker", "ray/a", 0, 50): 2,
        ("worker", "ray/b", 20, 40): 2,
        ("worker", "set", 0, 20): 2,
        ("worker", "set", 40, 50): 2,
    }
    # After 50 there is one GPU for the three of a, and none for c.
    assert list(problems.values()) == [2 * 50 + 1 * 10]


def test_a_team_that_records_may_not_name_stays_with_the_pod() -> None:
    parts, problems = divided([pod("head", 0, 100, 4)], known(job("c", 0, 100, 1, team="green")), 100, RAY)
    assert parts == {("head", "set", 0, 100): 4}
    assert list(problems.values()) == [100]


def test_an_unknown_number_is_not_zero() -> None:
    runs = known(job("a", 0, 100, 1), job("b", 0, 50, None), job("c", 0, 50, None))
    parts, problems = divided([pod("head", 0, 100, 4)], runs, 100, RAY)
    assert parts == {("head", "ray/a", 0, 100): 1, ("head", "set", 0, 100): 3}
    assert list(problems.values()) == [3 * 50]


def test_what_runs_lasts_until_the_latest_file_that_says_so() -> None:
    running = job("1", 10, None, 2, "1")
    assert divided([pod("w-1", 0, 100, 8)], known(running, written=60), 100) == (
        {
            ("w-1", "set", 0, 10): 8,
            ("w-1", "slurm/1", 10, 60): 2,
            ("w-1", "set", 10, 60): 6,
            ("w-1", "set", 60, 100): 8,
        },
        {
            (
                DataProblemCode.INNER_UNKNOWN,
                "no file of records is of this time or later: what pods held then is theirs",
            ): 8 * 40
        },
    )
    gone = known_runs([(T0 + 60, JobRecords((running,))), (T0 + 200, JobRecords())])
    parts, problems = divided([pod("w-1", 0, 100, 8)], gone, 100)
    assert parts["w-1", "slurm/1", 10, 60] == 2
    assert {code: n for (code, _), n in problems.items()} == {DataProblemCode.END_UNKNOWN: 2 * 40}


def test_of_several_records_of_a_run_the_latest_counts() -> None:
    files = [
        (T0 + 300, JobRecords((job("1", 10, 50, 2, "1"), job("1", 60, 80, 2, "1")))),
        (T0 + 30, JobRecords((job("1", 10, None, 2, "1"),), ("bad",))),
    ]
    runs = known_runs(files)
    assert [(run.job.start_ms - T0, run.end_ms - T0, run.doubt_ms - T0) for run in runs.runs] == [
        (10, 50, 50),
        (60, 80, 80),
    ]
    assert (runs.as_of_ms, runs.refused) == (T0 + 300, ("bad",))
    assert known_runs([]) == KnownRuns()


def test_refused_records_are_told_in_every_hour_without_a_time() -> None:
    runs = KnownRuns((), T0 + 10 * HOUR_MS, tuple(f"wrong {n}" for n in range(22)))
    rows = [pod("w-1", 0, 2 * HOUR_MS, 8)]
    _, problems = divide(rows, SLURM, runs, Window(T0, T0 + 2 * HOUR_MS))
    assert {(each.at_ms or 0) - T0 for each in problems} == {0, HOUR_MS}
    assert {each.board_ms for each in problems} == {None}
    assert len({each.detail for each in problems}) == 21
    assert divide([], SLURM, runs, Window(T0, T0 + HOUR_MS)) == ([], [])


TIMES = st.integers(0, 40)
PODS = st.lists(
    st.tuples(st.sampled_from(["w-1", "w-2", "w-3"]), TIMES, TIMES, st.integers(1, 8)), max_size=5
)
JOBS = st.lists(
    st.tuples(
        TIMES,
        st.none() | TIMES,
        st.none() | st.integers(1, 12),
        st.lists(st.sampled_from(["1", "2", "3", "9"]), max_size=3, unique=True),
        st.sampled_from(["red", "green"]),
        st.booleans(),
    ),
    max_size=6,
)


def moments(rows: list[FrameRow], *by: str) -> dict[Any, Counter[Any]]:
    """Units by columns at every moment."""
    found: dict[Any, Counter[Any]] = {}
    for row in rows:
        for at in range(int(str(row[AT["start_ms"]])) - T0, int(str(row[AT["end_ms"]])) - T0):
            found.setdefault(at, Counter())[tuple(row[AT[name]] for name in by)] += int(str(row[AT["count"]]))
    return found


@given(PODS, JOBS, st.sampled_from([SLURM, RAY]), TIMES)
def test_at_every_moment_pods_have_what_they_had(
    pods: list[Any], jobs: list[Any], scheduler: InnerScheduler, cut: int
) -> None:
    rows = [
        pod(name, min(a, b), max(a, b) + 1, n, uid=f"{name}-{i}") for i, (name, a, b, n) in enumerate(pods)
    ]
    runs = known(
        *(
            job(f"j{i}", start, None if end is None else start + end, gpus, *nodes, team=team, over=over)
            for i, (start, end, gpus, nodes, team, over) in enumerate(jobs)
        ),
        written=35,
    )
    parts, problems = divide(rows, scheduler, runs, Window(T0, T0 + 50))
    assert moments(parts, "pod_uid", "resource", "node") == moments(rows, "pod_uid", "resource", "node")
    assert all((each.board_ms or 0) >= 0 for each in problems)
    # No job has more than its record says, nor at another time, nor is a team named that may not be.
    told = {f"{scheduler.name}/{each.job.key}": each for each in runs.runs}
    for at, held in moments(parts, "job_uid", "team_label").items():
        for (uid, team), units in held.items():
            if uid in told:
                run = told[uid]
                assert run.job.start_ms <= T0 + at < run.end_ms
                assert run.job.gpus is not None
                assert units <= run.job.gpus
                assert scheduler.may_name(str(team))
    # Two windows say what one says.
    halves: list[FrameRow] = []
    for window in (Window(T0, T0 + cut), Window(T0 + cut, T0 + 50)) if cut else ():
        halves += divide(clipped(rows, window), scheduler, runs, window)[0]
    if cut:
        assert moments(halves, "pod_uid", "job_uid") == moments(parts, "pod_uid", "job_uid")


def clipped(rows: list[FrameRow], window: Window) -> list[FrameRow]:
    found = []
    for row in rows:
        start, end = (int(str(row[AT[name]])) for name in ("start_ms", "end_ms"))
        start, end = max(start, window.start_ms), min(end, window.end_ms)
        if start < end:
            found.append((*row[: AT["start_ms"]], start, end))
    return found


MIG = "nvidia.com/mig-1g.10gb"


def sizes(product: str = "NVIDIA-H100-80GB-HBM3", replicas: int = 1) -> UnitSizes:
    """On the node of the pod w-1, whose GPUs have these labels and replicas."""
    node = ("c", "on-w-1", T0, T0 + 1000, product, 1, "", "", "", "", "", "{}")
    counts = ("c", "on-w-1", GPU, T0, T0 + 1000, *[replicas] * 4, 1)
    frames = ClusterFrames(nodes=frame_of(NODES, [node]), capacity=frame_of(CAPACITY, [counts]))
    return UnitSizes(frames)


@pytest.mark.parametrize(
    ("resource", "units", "told"),
    [(MIG, sizes(), 20), (GPU, sizes("NVIDIA-H100-80GB-HBM3-SHARED", 4), 35), (MIG, sizes("RTX"), None)],
)
def test_problems_count_gpus_and_not_units(resource: str, units: UnitSizes, told: int | None) -> None:
    """Five units for 70 ms, of which the job wants seven: two of a seventh are 20 ms, of a fourth 35."""
    runs = known(job("1", 0, 70, 7, "1"))
    rows, [problem] = divide([pod("w-1", 0, 70, 5, resource)], SLURM, runs, Window(T0, T0 + 70), units)
    assert [row[AT["count"]] for row in rows] == [5]
    assert problem.board_ms == told


def test_other_problems_count_gpus_too() -> None:
    gone = replace(job("2", 0, None, 1, "1"), is_over=True)
    runs = known(job("1", 0, 70, 1, "1", team="green"), gone, written=140)
    named = replace(SLURM, teams=("red",))
    _, problems = divide([pod("w-1", 0, 210, 7, MIG)], named, runs, Window(T0, T0 + 210), sizes())
    found = Counter[str]()
    for each in problems:
        found[each.detail.partition(":")[0]] += each.board_ms or 0
    assert found == {
        "jobs on 1 name teams that its records may not name": 10,
        "jobs on 1 have no end on record": 140 // 7,
        "no file of records is of this time or later": 70,
    }


def test_a_pod_with_a_part_of_a_divided_gpu_stays_whole() -> None:
    """Slurm counts one GPU, of which the pod has an eighth: a unit of it would be nothing."""
    rows = [pod("w-1", 0, 80, 12_600, "gpu.nvidia.com.dra-capacity")]
    node = ("c", "on-w-1", T0, T0 + 80, "", 1, "", "", "", "", "", "{}")
    counts = ("c", "on-w-1", "gpu.nvidia.com.dra-capacity", T0, T0 + 80, *[100_800] * 4, 1)
    units = UnitSizes(ClusterFrames(nodes=frame_of(NODES, [node]), capacity=frame_of(CAPACITY, [counts])))
    parts, [problem] = divide(rows, SLURM, known(job("1", 0, 80, 1, "1")), Window(T0, T0 + 80), units)
    assert parts == rows
    assert "a part that is no unit of its own" in problem.detail
    assert problem.board_ms == 10


def test_an_unknown_number_of_a_pod_that_is_not_divided_is_all_that_it_has() -> None:
    mixed = [pod("w-1", 0, 70, 4), pod("w-1", 0, 70, 7, MIG)]
    _, problems = divide(mixed, SLURM, known(job("1", 0, 70, None, "1")), Window(T0, T0 + 70), sizes())
    assert [each.board_ms for each in problems] == [5 * 70]


def test_a_run_ends_at_the_latest_when_its_job_is_started_again() -> None:
    """A cron saw the first run; Slurm put it back into the queue, and sacct then only tells of the second."""
    files = [
        (T0 + 30, JobRecords((job("1", 10, None, 2, "1", over=False),))),
        (T0 + 300, JobRecords((job("1", 50, 80, 2, "1"), job("2", 20, None, 1, "1", over=False)))),
    ]
    assert [
        (run.job.start_ms - T0, run.end_ms - T0, run.doubt_ms - T0) for run in known_runs(files).runs
    ] == [
        (10, 30, 50),
        (20, 300, 300),
        (50, 80, 80),
    ]
