"""What pods belong to."""

from __future__ import annotations

import time

import pytest

from gpucost.cluster.objects.volcano import GroupKind
from gpucost.cluster.views.ownership import (
    MOST_OWNERS,
    OwnerKeys,
    PodAffiliation,
    PodOwnership,
    group_key,
)
from gpucost.domain.jobs import JobKind, JobReference, OwnerReference
from tests.cluster.builders import (
    GPU,
    T0,
    assignment,
    condition,
    job,
    local_queue,
    namespace,
    pod,
    pod_group,
    pod_set,
    state,
    template,
    workload,
)

JOB_SET = ("JobSet", "jobset.x-k8s.io/v1alpha2")


def test_a_chain_ends_in_its_job() -> None:
    outer = job("train", *JOB_SET)
    inner = job("train-workers-0", owner=outer)
    member = pod("train-workers-0-0", 1, owner=inner)
    found = PodOwnership(state(outer, inner, member)).of(member)
    assert found == PodAffiliation(JobReference(JobKind.JOB_SET, "train", "train-uid"))


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        (None, JobReference(JobKind.POD, "p", "p-uid")),
        (
            OwnerReference("kubeflow.org/v1", "PyTorchJob", "gone", "gone-uid"),
            JobReference(JobKind.PYTORCH_JOB, "gone", "team-a:gone-uid"),
        ),
        (
            OwnerReference("example.com/v1", "Thing", "thing", "t-uid"),
            JobReference(JobKind.OTHER, "thing", "team-a:t-uid"),
        ),
    ],
)
def test_a_chain_ends_where_an_owner_is_not_known(
    owner: OwnerReference | None, expected: JobReference
) -> None:
    alone = pod("p", owner=owner)
    found = PodOwnership(state(alone)).of(alone)
    assert (found.job, found.is_checked) == (expected, owner is None)


VICTIM = job("train", labels={"team": "a", "kueue.x-k8s.io/queue-name": "lq"}, gang_size=2)


@pytest.mark.parametrize(
    "owner",
    [
        VICTIM.as_owner,
        OwnerReference("apps/v1", "Deployment", "free-lunch", "train-uid"),
        OwnerReference("v1", "Pod", "honest", "honest-uid"),
    ],
)
def test_an_owner_in_another_namespace_is_not_believed(owner: OwnerReference) -> None:
    forged = pod("forged", 8, namespace="evil", owner=owner)
    honest = pod("honest", 8, owner=VICTIM)
    admitted = workload("wl", owner=VICTIM, queue="lq", cluster_queue="cq")
    spaces = (namespace("evil", {"team": "e"}), namespace("team-a", {"team": "space"}))
    alone = PodOwnership(state(VICTIM, honest, admitted, *spaces)).of(honest)
    ownership = PodOwnership(state(forged, VICTIM, honest, admitted, *spaces))
    found = ownership.of(forged)
    assert (found.job.name, found.job.uid) == (owner.name, f"evil:{owner.uid}")
    assert (found.workload, found.queue, found.cluster_queue, found.team) == ("", "", "", "e")
    assert not found.is_checked
    assert ownership.jobs_of(forged) == ()
    assert ownership.of(honest) == alone
    assert alone == PodAffiliation(
        JobReference(JobKind.JOB, "train", "train-uid"), "wl", "wl-uid", "lq", "cq", team="a"
    )


@pytest.mark.parametrize(
    ("owner", "uid"),
    [
        (OwnerReference("batch/v1", "Job", "other", "train-uid"), "team-a:train-uid"),
        (OwnerReference("batch.volcano.sh/v1alpha1", "Job", "train", "train-uid"), "team-a:train-uid"),
        # What a CronJob starts is a job of its own: here, the pod.
        (OwnerReference("batch/v1", "CronJob", "train", "train-uid"), "p-uid"),
    ],
)
def test_an_owner_of_another_kind_or_name_than_the_reference_says_is_not_known(
    owner: OwnerReference, uid: str
) -> None:
    member = pod("p", owner=owner)
    found = PodOwnership(state(VICTIM, member))
    assert found.jobs_of(member) == ()
    assert found.of(member).job.uid == uid


def test_references_are_written_in_any_version() -> None:
    beta = OwnerReference("batch/v1beta1", "Job", "train", "train-uid")
    member = pod("p", owner=beta)
    assert PodOwnership(state(VICTIM, member)).of(member).job == JobReference(
        JobKind.JOB, "train", "train-uid"
    )


def test_what_groups_and_workloads_of_another_namespace_say_of_a_job_is_not_believed() -> None:
    claim = {"kueue.x-k8s.io/job-uid": "train-uid"}
    made = workload("wl", queue="lq", labels=claim)
    forged = [
        workload("by-label", namespace="evil", queue="evil", labels=claim, created_ms=T0 + 1),
        workload("by-owner", namespace="evil", queue="evil", owner=VICTIM, created_ms=T0 + 2),
    ]
    group = pod_group("g", 2, namespace="evil", owner=VICTIM)
    honest = pod("honest", 8, owner=VICTIM)
    names = {"kueue.x-k8s.io/workload": "by-owner", "kueue.x-k8s.io/pod-group-name": "by-label"}
    named = pod("named", 8, annotations={**names, "scheduling.k8s.io/group-name": "g"})
    ownership = PodOwnership(state(VICTIM, made, *forged, group, honest, named))
    assert ownership.of(honest).workload == "wl"
    assert (ownership.of(named).workload, ownership.pod_group_of(named)) == ("", None)
    assert [ownership.job_of(each).uid for each in (made, *forged, group)] == [
        *("train-uid", "by-label-uid", "evil:train-uid", "evil:train-uid")
    ]
    assert [ownership.maker_of(each) for each in (made, *forged, group)] == [VICTIM, None, None, None]


def test_a_workload_of_an_owner_that_nobody_watches_is_found_by_its_uid() -> None:
    owner = OwnerReference("workload.codeflare.dev/v1beta2", "AppWrapper", "w", "w-uid")
    member, made = pod("p", owner=owner), workload("wl", owner=owner, queue="lq")
    ownership = PodOwnership(state(member, made))
    assert ownership.of(member).workload == "wl"
    assert (
        ownership.of(member).job == ownership.job_of(made) == JobReference(JobKind.OTHER, "w", "team-a:w-uid")
    )


def test_a_chain_of_owners_without_end_is_cut_off() -> None:
    pods = [pod("p-0")]
    for i in range(1, 3000):
        pods.append(pod(f"p-{i}", owner=OwnerReference("v1", "Pod", f"p-{i - 1}", f"p-{i - 1}-uid")))
    ownership = PodOwnership(state(*pods))
    start = time.process_time()
    found = [ownership.of(each).job.name for each in pods]
    assert found[1:17] == ["p-0"] * 16
    assert found[2999] == f"p-{2999 - MOST_OWNERS}"
    assert time.process_time() - start < 1


def test_workers_of_a_leader_worker_set_belong_to_it_through_their_leader() -> None:
    lws = job("serve", "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1")
    leaders = job("serve", "StatefulSet", "apps/v1", owner=lws, uid="leaders-uid")
    leader = pod("serve-0", 8, owner=leaders)
    workers = job("serve-0", "StatefulSet", "apps/v1", uid="workers-uid", owner=_owner(leader.meta.uid))
    worker = pod("serve-0-1", 8, owner=workers)
    ownership = PodOwnership(state(lws, leaders, leader, workers, worker))
    assert ownership.of(worker).job == JobReference(JobKind.LEADER_WORKER_SET, "serve", "serve-uid")
    assert ownership.jobs_of(worker) == (workers, leaders, lws)


def _owner(uid: str) -> OwnerReference:
    return OwnerReference("v1", "Pod", "serve-0", uid)


def test_a_circle_of_owners_ends() -> None:
    a = job("a", *JOB_SET, owner=OwnerReference("batch/v1", "Job", "b", "b-uid"))
    b = job("b", owner=a)
    member = pod("p", owner=b)
    assert PodOwnership(state(a, b, member)).of(member).job == JobReference(JobKind.JOB_SET, "a", "a-uid")


def test_each_run_of_a_cron_job_is_a_job() -> None:
    cron = job("nightly", "CronJob")
    run = job("nightly-1", owner=cron)
    member = pod("nightly-1-x", owner=run)
    assert PodOwnership(state(cron, run, member)).of(member).job == JobReference(
        JobKind.CRON_JOB, "nightly-1", "nightly-1-uid"
    )


def test_the_workload_of_any_link_and_what_it_was_given() -> None:
    outer = job("train", *JOB_SET)
    inner = job("train-0", owner=outer)
    leader, workers = pod_set("leader", 1, cpu=1000), pod_set("workers", 4, 8)
    rest = {"assignments": (assignment(leader, "cpu"), assignment(workers, "h100"))}
    admitted = workload(
        "wl", leader, workers, queue="lq", cluster_queue="cq", owner=outer, admitted_ms=T0, rest=rest
    )
    labels = {"kueue.x-k8s.io/podset": "workers"}
    member = pod("train-0-0", 8, owner=inner, labels=labels)
    vague = pod("train-0-1", 8, owner=inner)
    ownership = PodOwnership(state(outer, inner, admitted, member, vague))
    train = JobReference(JobKind.JOB_SET, "train", "train-uid")
    assert ownership.of(member) == PodAffiliation(train, "wl", "wl-uid", "lq", "cq", "h100")
    assert ownership.of(vague).flavor == ""
    assert ownership.workload_of(member) is admitted
    assert ownership.job_of(admitted) == train


def test_how_a_pod_names_its_workload() -> None:
    owner = job("j")
    by_owner = workload("by-owner", owner=owner)
    by_uid = workload("by-uid", labels={"kueue.x-k8s.io/job-uid": "k-uid"})
    named, grouped = workload("named"), workload("grouped")
    group = "kueue.x-k8s.io/pod-group-name"
    pods = {
        "by-owner": pod("a", owner=owner),
        "by-uid": pod("b", owner=job("k")),
        "named": pod("c", owner=owner, annotations={"kueue.x-k8s.io/workload": "named"}),
        "grouped": pod("d", labels={group: "grouped"}),
        "": pod("e", namespace="elsewhere", annotations={group: "grouped"}),
    }
    annotated = pod("f", annotations={group: "grouped"})
    ownership = PodOwnership(state(owner, job("k"), by_owner, by_uid, named, grouped, *pods.values()))
    assert {name: ownership.of(each).workload for name, each in pods.items()} == {n: n for n in pods}
    assert ownership.of(annotated).workload == "grouped"
    assert ownership.job_of(by_uid) == JobReference(JobKind.JOB, "k", "k-uid")
    assert ownership.job_of(grouped) == JobReference(JobKind.POD, "grouped", "grouped-uid")


def test_pods_of_a_deployment_with_workloads_of_their_own() -> None:
    replicas = job("web", "ReplicaSet", "apps/v1")
    pods = [pod(f"web-{i}", 1, owner=replicas) for i in range(2)]
    workloads = [
        workload(f"wl-{i}", owner=OwnerReference("v1", "Pod", f"web-{i}", f"web-{i}-uid")) for i in range(2)
    ]
    ownership = PodOwnership(state(replicas, *pods, *workloads))
    assert [ownership.of(each).workload for each in pods] == ["wl-0", "wl-1"]


def test_of_several_workloads_the_newest_unfinished_counts() -> None:
    owner = job("j")
    finished = {"Finished": condition(True)}
    slices = [
        workload("old", owner=owner, created_ms=T0),
        workload("new", owner=owner, created_ms=T0 + 1),
        workload("over", owner=owner, created_ms=T0 + 2, conditions=finished),
    ]
    member = pod("p", owner=owner)
    for order in (slices, slices[::-1]):
        assert PodOwnership(state(owner, member, *order)).of(member).workload == "new"


@pytest.mark.parametrize(
    ("labels", "annotations", "expected"),
    [
        ({"kueue.x-k8s.io/local-queue-name": "lq"}, {}, ("lq", "cq")),
        ({"kueue.x-k8s.io/queue-name": "lq"}, {}, ("lq", "cq")),
        ({"kueue.x-k8s.io/queue-name": "nowhere"}, {}, ("nowhere", "")),
        (
            {"kueue.x-k8s.io/queue-name": "lq", "kueue.x-k8s.io/cluster-queue-name": "was"},
            {},
            ("lq", "cq"),
        ),
        ({}, {"scheduling.k8s.io/group-name": "pg"}, ("volcano-q", "")),
        ({}, {"scheduling.volcano.sh/queue-name": "plain"}, ("plain", "")),
        # Any user can write this label.
        ({"kueue.x-k8s.io/cluster-queue-name": "theirs"}, {}, ("", "")),
        # A Volcano queue may be named like a LocalQueue; it leads to no ClusterQueue.
        ({"volcano.sh/queue-name": "lq"}, {}, ("lq", "")),
        ({}, {}, ("", "")),
    ],
)
def test_queues_without_a_workload(
    labels: dict[str, str], annotations: dict[str, str], expected: tuple[str, str]
) -> None:
    group = pod_group("pg", 4, rest={"queue": "volcano-q"})
    for member, objects in (
        (pod("p", labels=labels, annotations=annotations), ()),
        (pod("p", owner=job("j")), (job("j", labels=labels, annotations=annotations),)),
    ):
        if objects and "scheduling.k8s.io/group-name" in annotations:
            continue  # a group is the pod's own
        now = state(member, group, local_queue("lq", "cq"), *objects)
        found = PodOwnership(now).of(member)
        assert (found.queue, found.cluster_queue) == expected


@pytest.mark.parametrize(
    ("scheduler", "labels", "queue"),
    [
        ("kai-scheduler", {"kai.scheduler/queue": "vision", "queue": "other"}, "vision"),
        (
            "yunikorn",
            {"yunikorn.apache.org/queue": "root.vision", "queue": "root.old"},
            "unverified:root.vision",
        ),
        ("yunikorn", {"queue": "root.old"}, "unverified:root.old"),
        # Without its scheduler such a label means nothing: ``queue`` is anybody's word.
        ("default-scheduler", {"queue": "root.old", "kai.scheduler/queue": "vision"}, ""),
        ("kai-scheduler", {"volcano.sh/queue-name": "q", "kai.scheduler/queue": "vision"}, "q"),
    ],
)
def test_queues_of_other_schedulers(scheduler: str, labels: dict[str, str], queue: str) -> None:
    member = pod("p", labels=labels, asks=template(1, scheduler=scheduler))
    asked_elsewhere = pod("q", labels=labels, asks=template(1, scheduler="other"))
    ownership = PodOwnership(state(asked_elsewhere, member))
    found = ownership.of(asked_elsewhere), ownership.of(member)
    assert (found[1].queue, found[1].cluster_queue) == (queue, "")
    assert found[0].queue == ("q" if "volcano.sh/queue-name" in labels else "")


def test_a_pending_workload_waits_in_the_cluster_queue_of_its_local_queue() -> None:
    owner = job("j")
    member = pod("p", owner=owner, labels={"kueue.x-k8s.io/queue-name": "moved"})
    now = state(owner, member, workload("wl", queue="lq", owner=owner), local_queue("lq", "cq"))
    assert (PodOwnership(now).of(member).queue, PodOwnership(now).of(member).cluster_queue) == ("lq", "cq")


def test_the_flavor_is_that_of_the_gpus() -> None:
    given = pod_set("main", 2, 8, cpu=1000)
    both = assignment(given, "x")
    mixed = type(both)("main", {"cpu": "default", GPU: "h100"}, both.usage, 2)
    devices = type(both)("main", {"claimed-gpus": "h200"}, {}, 2)
    for assigned, expected in ((mixed, "h100"), (devices, "h200")):
        owner, member = job("j"), pod("p", 8, owner=job("j"))
        wl = workload("wl", given, owner=owner, admitted_ms=T0, rest={"assignments": (assigned,)})
        assert PodOwnership(state(owner, member, wl)).of(member).flavor == expected


def test_teams_come_from_the_nearest_object_that_names_one() -> None:
    keys = OwnerKeys(team=("org/team", "team"), project=("org/project",), user=("owner",))
    outer = job("train", *JOB_SET, labels={"org/team": "outer", "owner": "ada"})
    inner = job("train-0", owner=outer, annotations={"org/project": "llm"}, labels={"org/team": ""})
    space = namespace("team-a", {"team": "space"}, annotations={"owner": "nobody", "org/project": "none"})
    labelled = pod("a", owner=inner, labels={"team": "own"})
    plain = pod("b", owner=inner)
    alone, stranger = pod("c"), pod("d", namespace="unknown")
    now = state(outer, inner, space, labelled, plain, alone, stranger)
    ownership = PodOwnership(now, keys)
    teams = {each.meta.name: _names(ownership.of(each)) for each in (labelled, plain, alone, stranger)}
    assert teams == {
        "a": ("own", "llm", "ada"),
        "b": ("outer", "llm", "ada"),
        "c": ("space", "none", "nobody"),
        "d": ("", "", ""),
    }


def test_the_team_of_a_workload_is_that_of_its_job() -> None:
    outer = job("train", labels={"team": "vision"})
    owned, labelled = (
        workload("a", owner=outer),
        workload("b", labels={"kueue.x-k8s.io/job-uid": outer.meta.uid}),
    )
    own = workload("c", owner=outer, labels={"team": "own"})
    lone = workload("d")
    ownership = PodOwnership(state(outer, owned, labelled, own, lone, namespace("team-a", {"team": "space"})))
    assert [ownership.team_of(each) for each in (owned, labelled, own, lone)] == [
        "vision",
        "vision",
        "own",
        "space",
    ]


def _names(found: PodAffiliation) -> tuple[str, str, str]:
    return found.team, found.project, found.user


def test_keys_are_tried_in_order_on_one_object() -> None:
    both = pod("p", labels={"team": "second", "gpucost.io/team": "first"})
    assert PodOwnership(state(both)).of(both).team == "first"


def test_a_pod_that_changed_is_asked_anew() -> None:
    before, after = pod("p", labels={"team": "a"}), pod("p", labels={"team": "b"})
    ownership = PodOwnership(state(after))
    assert [ownership.of(each).team for each in (before, after, before)] == ["a", "b", "a"]


def test_group_keys() -> None:
    volcano = {"scheduling.k8s.io/group-name": "v"}
    assert group_key(pod("p", group="n", annotations=volcano)) == (GroupKind.NATIVE.value, "team-a", "n")
    assert group_key(pod("p", annotations=volcano)) == (GroupKind.VOLCANO.value, "team-a", "v")
    label = {"scheduling.x-k8s.io/pod-group": "c"}
    assert group_key(pod("p", labels=label)) == (GroupKind.COSCHEDULING.value, "team-a", "c")
    assert group_key(pod("p")) is None
