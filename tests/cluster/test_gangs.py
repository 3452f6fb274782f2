"""Gangs, and since when they are partial."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.cluster.objects.jobs import JobObject
from gpucost.cluster.objects.pods import Pod, PodPhase
from gpucost.cluster.objects.volcano import GroupKind
from gpucost.cluster.views.gangs import PodGang, gangs
from gpucost.cluster.views.gpu_units import GpuUnits
from gpucost.cluster.views.ownership import PodOwnership
from gpucost.contract.queue_metrics import GangKind
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.jobs import JobKind, JobReference
from tests.cluster.builders import (
    GPU,
    SECOND,
    T0,
    assignment,
    condition,
    job,
    pod,
    pod_group,
    pod_set,
    state,
    workload,
)

VCJOB = job("train", "Job", "batch.volcano.sh/v1alpha1")
IN_GROUP = {"scheduling.k8s.io/group-name": "pg"}
IN_WORKLOAD = {"kueue.x-k8s.io/workload": "wl"}


def of(*objects: object, ended: Sequence[Pod] = ()) -> list[PodGang]:
    now = state(*objects)
    return gangs(now, GpuUnits(now, ResourceCatalog()), PodOwnership(now), ended)


def at(seconds: float) -> int:
    return T0 + round(seconds * SECOND)


def member(
    name: str,
    bound_s: float | None = None,
    created_s: float = 0,
    ended_s: float | None = None,
    **more: object,
) -> Pod:
    """Of the PodGroup ``pg``, with 8 GPUs; times in seconds after T0."""
    fields = {"annotations": IN_GROUP, "owner": VCJOB, "created_ms": at(created_s), **more}
    bound_ms = None if bound_s is None else at(bound_s)
    ended_ms = None if ended_s is None else at(ended_s)
    return pod(name, 8, bound_ms=bound_ms, ended_ms=ended_ms, **fields)  # type: ignore[arg-type]


def failed(name: str, bound_s: float, ended_s: float | None) -> Pod:
    return replace(member(name, bound_s, ended_s=ended_s), phase=PodPhase.FAILED)


def deleted(name: str, bound_s: float, ended_s: float) -> Pod:
    """It was deleted while it ran: no longer in the API."""
    return replace(member(name, bound_s), ended_ms=at(ended_s))


def bound(count: int, at_s: float = 5, first: int = 0) -> list[Pod]:
    return [member(f"m{i}", at_s) for i in range(first, first + count)]


def test_a_pod_group_with_what_it_has() -> None:
    group = pod_group("pg", 4, uid="group-uid", rest={"queue": "research", "phase": "Unknown"}, owner=VCJOB)
    (found,) = of(VCJOB, group, *bound(3), member("late"))
    assert found == PodGang(
        kind=GangKind.POD_GROUP,
        namespace="team-a",
        name="pg",
        uid="group-uid",
        job=JobReference(JobKind.VOLCANO_JOB, "train", "train-uid"),
        queue="research",
        min_members=4,
        running=3,
        pending=1,
        succeeded=0,
        held={GPU: 24},
        is_partial=True,
        partial_since_ms=at(5),
    )


@pytest.mark.parametrize(
    ("why", "members", "gone", "since_s"),
    [
        ("all are there", bound(4), (), None),
        ("more are wanted than needed", [*bound(4), member("tail")], (), None),
        ("none has a node yet", [member(f"m{i}") for i in range(4)], (), None),
        ("bound one by one, the last not yet", [member("a", 3), member("b", 4.001), member("c")], (), 3),
        ("one failed, its successor waits", [*bound(3), failed("m3", 5, 60), member("r", None, 61)], (), 60),
        ("one was deleted, its end was seen", [*bound(3), member("r", None, 61)], [deleted("m3", 5, 60)], 60),
        ("one was deleted, nobody saw it", [*bound(3), member("r", None, 61)], (), 61),
        ("nobody saw it, two successors", [*bound(2), member("r", None, 61), member("s", None, 70)], (), 61),
        ("one never found a node", [*bound(3), member("m3", None, 0)], (), 5),
        ("no successor yet", bound(3), [deleted("m3", 5, 60.123)], 60.123),
        ("lost and whole again", [*bound(3), member("r", 90, 61)], [deleted("m3", 5, 60)], None),
        (
            "lost, whole again, lost again",
            [*bound(2), member("r", 90, 61), member("s", None, 121)],
            [deleted("m3", 5, 60), deleted("m2", 5, 120)],
            120,
        ),
        (
            "a second loss does not make it younger",
            [*bound(2), member("r", None, 61)],
            [deleted("m3", 5, 60), deleted("m2", 5, 120)],
            60,
        ),
        (
            "lost and replaced in the same instant",
            [*bound(3), member("r", 60, 50)],
            [deleted("m3", 5, 60)],
            None,
        ),
        (
            "the first loss unseen, its successor came, the second seen",
            [*bound(2), member("r", 90, 61), member("s", None, 121)],
            [deleted("m2", 5, 120)],
            120,
        ),
        ("one succeeded", [*bound(3), member("m3", 5, ended_s=60)], (), None),
        ("one succeeded, one was lost", [*bound(2), member("m3", 5, ended_s=60), failed("x", 5, 70)], (), 70),
        ("one failed, nobody knows when", [*bound(3), failed("m3", 5, None), member("r", None, 61)], (), 61),
        ("the missing one is gated", [*bound(3), member("m3", gates=("topology",))], (), None),
        ("one of two missing is gated", [*bound(2), member("m2"), member("m3", gates=("topology",))], (), 5),
        (
            "the one that is gated is no successor",
            [*bound(2), member("r", None, 61), member("g", None, 50, gates=("topology",))],
            (),
            61,
        ),
        ("what is there has not ended", [*bound(3), member("r", None, 61)], [deleted("m0", 5, 60)], 61),
        ("a clock was behind: bound before created", [*bound(3, 5), member("m3", 5, 6)], (), None),
        ("all that is left is deleted", [member(f"m{i}", 5, deleted_ms=at(99)) for i in range(3)], (), None),
    ],
)  # fmt: skip
def test_partial_since(why: str, members: list[Pod], gone: Sequence[Pod], since_s: float | None) -> None:
    (found,) = of(VCJOB, pod_group("pg", 4), *members, ended=gone)
    assert found.partial_since_ms == (None if since_s is None else at(since_s)), why


@pytest.mark.parametrize(
    ("why", "members"),
    [
        ("one was deleted or never made, nobody saw it", bound(3)),
        ("one failed, nobody knows when, and has no successor", [*bound(3), failed("m3", 5, None)]),
        ("the only one that waits is gated", [*bound(2), member("g", None, 50, gates=("topology",))]),
    ],
)
def test_nothing_says_since_when(why: str, members: list[Pod]) -> None:
    (found,) = of(VCJOB, pod_group("pg", 4), *members)
    assert (found.is_partial, found.partial_since_ms, found.was_whole) == (True, None, False), why


@pytest.mark.parametrize(
    ("why", "members", "since_s"),
    [
        ("all are made, and it never was whole", [*bound(2), member("t"), member("s")], 5),
        ("one was lost unseen, the spare one waits since before", [*bound(2), member("t")], None),
        ("and has a successor", [*bound(2), member("t"), member("r", None, 61)], 61),
        ("only the successor waits", [*bound(2), member("r", None, 61)], 61),
    ],
)
def test_a_spare_member_that_waits_says_nothing(why: str, members: list[Pod], since_s: int | None) -> None:
    """Three are needed of four."""
    owner = replace(VCJOB, pod_sets=(pod_set("worker", 4, 8),))
    (found,) = of(owner, pod_group("pg", 3), *members)
    assert (found.is_partial, found.partial_since_ms) == (True, None if since_s is None else at(since_s)), why


def test_a_group_that_its_scheduler_never_saw_placed_was_never_whole() -> None:
    def since(phase: str) -> int | None:
        (found,) = of(VCJOB, pod_group("pg", 4, rest={"phase": phase}), *bound(3))
        assert found.is_partial
        return found.partial_since_ms

    assert [since(phase) for phase in ("Inqueue", "Pending", "Running", "Unknown", "")] == [
        *(at(5), at(5)), *(None, None, None),
    ]  # fmt: skip


def test_that_it_was_whole_is_said_of_a_gang_whose_loss_was_seen() -> None:
    (found,) = of(VCJOB, pod_group("pg", 4), *bound(3), ended=[deleted("m3", 5, 60)])
    assert (found.is_partial, found.partial_since_ms, found.was_whole) == (True, at(60), True)
    (found,) = of(VCJOB, pod_group("pg", 4), *bound(3), member("r", None, 61))
    assert (found.is_partial, found.partial_since_ms, found.was_whole) == (True, at(61), False)


def test_members_without_gpus_count_but_hold_nothing() -> None:
    group, launcher = pod_group("pg", 3), replace(member("launcher", 2), template=pod("x").template)
    waiting = [member("w0"), member("w1")]
    (found,) = of(group, launcher, *waiting)
    assert (found.running, found.held, found.partial_since_ms) == (1, {}, None)
    (found,) = of(group, launcher, member("w0", 7), member("w1"))
    assert (found.running, found.held, found.partial_since_ms) == (2, {GPU: 8}, at(7))


def test_what_is_no_gang_that_wants_gpus() -> None:
    cpu = [pod(f"c{i}", annotations=IN_GROUP, bound_ms=T0) for i in range(2)]
    assert of(pod_group("pg", 4), *cpu) == []
    assert of(pod_group("pg", 1), *bound(1)) == []
    assert of(*bound(2)) == []  # its PodGroup is not known
    over = [member(f"m{i}", 5, ended_s=9) for i in range(4)]
    assert of(pod_group("pg", 4, rest={"phase": "Completed"}), *over) == []


def test_volcanos_group_of_one_leaves_it_to_the_workload_or_the_job() -> None:
    plain = pod_group("pg", 1)
    pytorch = job("train", "PyTorchJob", "kubeflow.org/v1", gang_size=3)
    members = [
        pod(f"m{i}", 8, annotations=IN_GROUP, owner=pytorch, bound_ms=at(5) if i else None) for i in range(3)
    ]
    (found,) = of(plain, pytorch, *members)
    assert (found.kind, found.uid, found.min_members, found.partial_since_ms) == (
        GangKind.JOB, "train-uid", 3, at(5),
    )  # fmt: skip
    wl = workload("wl", pod_set("main", 3, 8), queue="lq", owner=pytorch, admitted_ms=T0)
    (found,) = of(plain, pytorch, wl, *members)
    assert (found.kind, found.uid, found.queue) == (GangKind.WORKLOAD, "wl-uid", "lq")
    assert found.job == JobReference(JobKind.PYTORCH_JOB, "train", "train-uid")


@pytest.mark.parametrize(
    ("kind", "more"), [(GroupKind.NATIVE, {"group": "pg"}), (GroupKind.COSCHEDULING, {})]
)
def test_groups_of_other_schedulers(kind: GroupKind, more: dict[str, str]) -> None:
    labels = {"scheduling.x-k8s.io/pod-group": "pg"}
    members = [pod(f"m{i}", 1, labels=labels, bound_ms=at(i) if i else None, **more) for i in range(3)]  # type: ignore[arg-type]
    (found,) = of(pod_group("pg", 3, kind), *members)
    assert (found.kind, found.running, found.partial_since_ms) == (GangKind.POD_GROUP, 2, at(1))
    assert found.job == JobReference(JobKind.POD, "m0", "m0-uid")


def in_workload(count: int, bound_s: float | None = 5, first: int = 0, **more: object) -> list[Pod]:
    return [
        member(f"m{i}", bound_s, annotations=IN_WORKLOAD, owner=None, **more)
        for i in range(first, first + count)
    ]


def test_a_workload_needs_what_it_was_given_less_what_it_gave_back() -> None:
    pods = pod_set("main", 8, 8)
    done = in_workload(3, ended_s=60)
    reclaimed = workload("wl", pods, admitted_ms=T0, rest={"reclaimable": {"main": 3}})
    (found,) = of(reclaimed, *done, *in_workload(5, first=3))
    assert (found.min_members, found.running, found.succeeded) == (5, 5, 3)
    assert found.partial_since_ms is None
    # Done members that are gone count too, and a lost one still shows.
    lost = replace(in_workload(1, first=7)[0], ended_ms=at(70))
    (found,) = of(reclaimed, *in_workload(4, first=3), ended=[lost])
    assert found.partial_since_ms == at(70)
    (found,) = of(reclaimed, *in_workload(5, first=3))
    assert found.partial_since_ms is None


def test_a_job_with_more_completions_than_parallelism_lacks_the_successor() -> None:
    wl = workload("wl", pod_set("main", 4, 8), admitted_ms=T0)
    done, running = in_workload(1, ended_s=60), in_workload(3, first=1)
    successor = in_workload(1, None, first=4, created_s=61)
    (found,) = of(wl, *done, *running, *successor)
    assert found.partial_since_ms == at(61)
    (found,) = of(wl, *done, *running)
    assert found.partial_since_ms is None


def test_a_clock_behind_lets_nothing_look_whole() -> None:
    """One was bound 10 s before it was created: by then another waits for the one that succeeded."""
    wl = workload("wl", pod_set("main", 4, 8), admitted_ms=T0)
    done, running = in_workload(1, ended_s=60), in_workload(2, first=1)
    lost = replace(in_workload(1, first=3, ended_s=65)[0], phase=PodPhase.FAILED)
    waits, odd = in_workload(1, None, first=4, created_s=61), in_workload(1, 70, first=5, created_s=80)
    (found,) = of(wl, *done, *running, lost, *waits, *odd)
    assert found.partial_since_ms == at(61)


def test_the_outermost_job_that_says_so_is_the_gang() -> None:
    outer = job("train", "JobSet", "jobset.x-k8s.io/v1alpha2", gang_size=4)
    inner = job("train-0", gang_size=2, owner=outer)
    waiting = [pod(f"w{i}", 1, owner=inner) for i in range(2)]
    (found,) = of(outer, inner, *waiting, *(pod(f"p{i}", 1, owner=inner, bound_ms=at(5)) for i in range(2)))
    assert (found.uid, found.min_members, found.partial_since_ms) == ("train-uid", 4, at(5))


def test_a_workload_smaller_than_its_pod_sets_was_admitted_in_part() -> None:
    pods = pod_set("main", 8, 8)
    part = workload("wl", pods, admitted_ms=T0, rest={"assignments": (assignment(pods, "h100", 4),)})
    (found,) = of(part, *in_workload(4))
    assert (found.min_members, found.partial_since_ms) == (4, None)


def test_a_workload_that_is_told_to_stop_is_not_partial() -> None:
    evicted = {"Evicted": condition(True, "Preempted")}
    wl = workload("wl", pod_set("main", 4, 8), admitted_ms=T0, conditions=evicted)
    (found,) = of(wl, *in_workload(2))
    assert (found.running, found.partial_since_ms) == (2, None)


def test_gpu_workers_that_are_not_made_yet_make_a_launcher_a_gang() -> None:
    sets = (pod_set("launcher", 1, cpu=1000), pod_set("worker", 4, 8))
    wl = workload("wl", *sets, admitted_ms=T0)
    launcher = replace(in_workload(1)[0], template=sets[0].template)
    (found,) = of(wl, launcher)
    assert (found.min_members, found.running, found.held, found.partial_since_ms) == (5, 1, {}, None)


def of_workload(owner: JobObject, *members: Pod, **more: Any) -> list[PodGang]:
    """With one admitted workload for all that the job wants."""
    return of(owner, workload("wl", *owner.pod_sets, owner=owner, admitted_ms=T0, **more), *members)


SWEEP = job("sweep", pod_sets=(pod_set("main", 4, 8),))
RAY = job(
    "ray",
    "RayJob",
    "ray.io/v1",
    pod_sets=(pod_set("head", 1, cpu=4000), pod_set("h100", 2, 8), pod_set("submitter", 1, cpu=1000)),
    gang_size=3,
)
SUBMITTER = job("ray-submit", owner=RAY)
MPI = job(
    "mpi",
    "MPIJob",
    "kubeflow.org/v2beta1",
    pod_sets=(pod_set("launcher", 1, cpu=1000), pod_set("worker", 4, 8)),
    gang_size=5,
)
LAUNCHER = job("mpi-launcher", owner=MPI)


def workers(count: int, owner: JobObject, bound_s: float | None = 5, first: int = 0) -> list[Pod]:
    return [member(f"w{i}", bound_s, owner=owner, annotations={}) for i in range(first, first + count)]


def test_tasks_that_do_not_need_each_other_are_no_gang_under_a_workload_either() -> None:
    assert of_workload(SWEEP, *workers(2, SWEEP), *workers(2, SWEEP, None, 2)) == []
    indexed = replace(SWEEP, gang_size=4)
    (found,) = of_workload(indexed, *workers(2, indexed), *workers(2, indexed, None, 2))
    assert (found.kind, found.min_members, found.partial_since_ms) == (GangKind.WORKLOAD, 4, at(5))


def test_a_submitter_is_no_member() -> None:
    submits = replace(member("s", 70, owner=SUBMITTER, annotations={}), template=pod("x").template)
    for more in ((), (SUBMITTER, submits)):
        now = state(RAY, workload("wl", *RAY.pod_sets, owner=RAY, admitted_ms=T0), *workers(3, RAY), *more)
        (found,) = gangs(now, GpuUnits(now, ResourceCatalog()), PodOwnership(now))
        assert (found.kind, found.min_members, found.running, found.is_partial) == (
            GangKind.WORKLOAD, 3, 3, False,
        )  # fmt: skip
        # It does not stand in for a worker that is lost, with a workload or without.
        for of_kueue in ((), (workload("wl", *RAY.pod_sets, owner=RAY, admitted_ms=T0),)):
            lost = [deleted("w2", 5, 60)]
            lost = [
                replace(each, meta=replace(each.meta, owner=RAY.as_owner, annotations={})) for each in lost
            ]
            (found,) = of(RAY, *of_kueue, *workers(2, RAY), *more, ended=lost)
            assert (found.running, found.partial_since_ms) == (2, at(60))


@pytest.mark.parametrize("labels", [{}, {"training.kubeflow.org/job-role": "launcher"}])
@pytest.mark.parametrize("has_workload", [True, False])
def test_a_launcher_is_needed_once_it_is_made(labels: dict[str, str], has_workload: bool) -> None:
    wl = [workload("wl", *MPI.pod_sets, owner=MPI, admitted_ms=T0)] if has_workload else []
    launcher = member("l", None, 60, owner=MPI if labels else LAUNCHER, annotations={}, labels=labels)
    launcher = replace(launcher, template=pod("x").template)
    jobs = (MPI, LAUNCHER)
    (found,) = of(*jobs, *wl, *workers(4, MPI))
    assert (found.min_members, found.running, found.is_partial) == (4, 4, False)
    (found,) = of(*jobs, *wl, *workers(3, MPI), *workers(1, MPI, None, 3))
    assert (found.min_members, found.partial_since_ms) == (4, at(5))
    (found,) = of(*jobs, *wl, *workers(4, MPI), launcher)
    assert (found.min_members, found.partial_since_ms) == (5, at(60))
    bound_ms = at(65)
    (found,) = of(*jobs, *wl, *workers(4, MPI), replace(launcher, bound_ms=bound_ms, phase=PodPhase.RUNNING))
    assert (found.min_members, found.running, found.is_partial) == (5, 5, False)


@pytest.mark.parametrize(
    ("given", "size", "returned", "running", "needs", "is_partial"),
    [
        (None, 8, 0, 8, 8, False),
        (None, 6, 0, 6, 6, False),  # elastic: it would do with 6
        (None, 6, 0, 5, 6, True),
        (4, 8, 0, 4, 4, False),  # admitted in part
        (4, 8, 0, 3, 4, True),
        (4, 2, 0, 2, 2, False),
        (None, 8, 3, 5, 5, False),
        (None, 8, 3, 4, 5, True),
        (None, 6, 2, 6, 6, False),  # those two it could do without
        (None, 6, 4, 4, 4, False),
        (None, 6, 4, 3, 4, True),
        (4, 2, 1, 2, 2, False),
        (4, 2, 3, 1, None, False),  # a single pod is left
    ],
)
def test_the_smaller_need_of_workload_and_job_counts(
    given: int | None, size: int, returned: int, running: int, needs: int | None, is_partial: bool
) -> None:
    pods = pod_set("main", 8, 8)
    owner = job("j", pod_sets=(pods,), gang_size=size)
    rest = {"assignments": (assignment(pods, "h100", given),), "reclaimable": {"main": returned}}
    (found,) = of_workload(owner, *workers(running, owner), rest=rest)
    assert found.is_partial is is_partial
    assert needs is None or found.min_members == needs


def test_a_job_that_does_not_say_what_it_needs_leaves_it_to_the_workload() -> None:
    unsaid = job("tune", "TrainJob", "trainer.kubeflow.org/v1alpha1")
    wl = workload("wl", pod_set("node", 4, 8), owner=unsaid, admitted_ms=T0)
    (found,) = of(unsaid, wl, *workers(4, unsaid))
    assert (found.kind, found.min_members) == (GangKind.WORKLOAD, 4)


def test_every_group_of_a_leader_worker_set_is_a_gang() -> None:
    lws = job("serve", "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", gang_size=2, gangs=2)
    members = [
        pod(
            f"serve-{group}-{i}",
            4,
            owner=lws,
            bound_ms=at(5) if (group, i) != (1, 1) else None,
            labels={"leaderworkerset.sigs.k8s.io/group-index": str(group)},
        )
        for group in range(2)
        for i in range(2)
    ]
    found = of(lws, *members)
    assert [(g.name, g.uid, g.running, g.partial_since_ms) for g in found] == [
        ("serve-0", "serve-uid-0", 2, None),
        ("serve-1", "serve-uid-1", 1, at(5)),
    ]
    assert {g.job for g in found} == {JobReference(JobKind.LEADER_WORKER_SET, "serve", "serve-uid")}


def test_a_job_that_has_ended_is_not_partial() -> None:
    ended = replace(job("j", gang_size=4), ended_ms=at(50))
    (found,) = of(ended, *(pod(f"p{i}", 1, owner=ended, bound_ms=T0) for i in range(2)))
    assert found.partial_since_ms is None


def test_a_group_that_was_not_let_in_has_no_pods() -> None:
    rest = {"phase": "Pending", "min_resources": {GPU: 32, "cpu": 1000}, "queue": "q"}
    waiting = pod_group("pg", 4, rest=rest, owner=VCJOB)
    (found,) = of(VCJOB, waiting)
    assert (found.running, found.pending, found.min_members, found.queue) == (0, 0, 4, "q")
    assert found.job == JobReference(JobKind.VOLCANO_JOB, "train", "train-uid")
    assert of(pod_group("pg", 4, rest={**rest, "phase": "Running"})) == []
    assert of(pod_group("pg", 4, rest={**rest, "min_resources": {"cpu": 1}})) == []


def test_pods_that_are_over_make_no_gang() -> None:
    assert of(pod_group("pg", 4), ended=[deleted("m0", 5, 60)]) == []


seconds = st.integers(0, 9)


@st.composite
def lives(draw: st.DrawFn) -> Pod:
    created, wait, run = draw(seconds), draw(st.none() | seconds), draw(st.none() | seconds)
    bound_s = None if wait is None else created + wait
    ended_s = None if run is None or bound_s is None else bound_s + run
    name = f"m{draw(st.integers(0, 10**6))}"
    gates = ("gate",) if bound_s is None and draw(st.booleans()) else ()
    found = member(name, bound_s, created, ended_s, gates=gates)
    fails = ended_s is not None and draw(st.booleans())
    return replace(found, phase=PodPhase.FAILED) if fails else found


def unique(pods: Iterable[Pod]) -> list[Pod]:
    return list({each.meta.uid: each for each in pods}.values())


@given(st.lists(lives(), max_size=8), st.lists(lives(), max_size=4), st.integers(2, 6), st.randoms())
def test_the_order_of_pods_does_not_matter(
    members: list[Pod], gone: list[Pod], need: int, random: object
) -> None:
    members = unique(members)
    gone = [each for each in unique(gone) if each.ended_ms is not None]
    first = of(VCJOB, pod_group("pg", need), *members, ended=gone)
    random.shuffle(members)  # type: ignore[attr-defined]
    random.shuffle(gone)  # type: ignore[attr-defined]
    assert of(VCJOB, pod_group("pg", need), *members, ended=gone) == first


@given(st.lists(lives(), max_size=8), st.lists(lives(), max_size=4), st.integers(2, 6))
def test_partial_exactly_while_members_are_missing(members: list[Pod], gone: list[Pod], need: int) -> None:
    """By counting: some hold GPUs, and bound, done and gated ones together are too few."""
    members = unique(members)
    here = {each.meta.uid for each in members}
    gone = [each for each in unique(gone) if each.ended_ms is not None and each.meta.uid not in here]
    gone = [each for each in gone if each.phase is not PodPhase.SUCCEEDED]
    running = sum(each.is_bound for each in members)
    done = sum(each.phase is PodPhase.SUCCEEDED for each in members)
    gated = sum(each.is_gated for each in members)
    for found in of(VCJOB, pod_group("pg", need), *members, ended=gone):
        is_partial = running > 0 and running + done + gated < need
        assert found.is_partial is is_partial
        assert found.partial_since_ms is None or is_partial
        waits = any(each.bound_ms is None and not each.is_gated for each in members)
        assert found.partial_since_ms is not None or not is_partial or not (found.was_whole or waits)
        if found.partial_since_ms is not None:
            assert found.partial_since_ms >= min(each.bound_ms or at(99) for each in (*members, *gone))
