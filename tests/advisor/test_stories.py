"""One story for each way in which the scheduling stack fails people: real objects in a dump, the commands
themselves, and every printed change carried out and asked about again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucost.advisor.advise import advise
from gpucost.advisor.explanation.job_explanation import explain
from gpucost.attribution.teams import TeamRules
from gpucost.kube import manifests as documents
from gpucost.kube.dumps.dump import ClusterStateBuilder
from gpucost.kube.manifests.writer import document_of
from gpucost.kube.parse.collections import collections
from gpucost.service.advisor.advisor_service import AdvisorEngine, AdvisorService
from tests.advisor.story_worlds import (
    GPU,
    HOST,
    NOW,
    NS,
    RACK,
    Cluster,
    How,
    Json,
    bound,
    by_operations,
    by_yaml,
    kueue_job,
    manifest_of,
    namespace,
    nodes,
    plain_job,
    quotas,
    running_job,
    serving,
    unbound,
    volcano_job,
    workload_of,
)
from tests.api.advisor_worlds import StillCluster
from tests.cli.advise_answers import furnish
from tests.support.cluster import shapes
from tests.support.objects import condition, kueue, volcano

HOURS = 3_600_000
URGENT = {"urgent": 100}
PREEMPTS = {"withinClusterQueue": "LowerPriority"}
Make = Callable[[Sequence[Json]], Cluster]
HOWS = pytest.mark.parametrize("how", [by_operations, by_yaml], ids=["operations", "yaml"])


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    furnish(tmp_path, monkeypatch)
    return lambda objects: Cluster(tmp_path, objects)


def rules(found: Json) -> list[str]:
    return [each["rule"] for each in found["actions"]]


def action(found: Json, rule: str) -> Json:
    return next(dict(each) for each in found["actions"] if each["rule"] == rule)


def evidence(found: Json, layer: str) -> dict[tuple[str, str], str]:
    step = next(each for each in found["steps"] if each["layer"] == layer)
    return {(each["object"], each["field"]): each["value"] for each in step["evidence"]}


def verdicts(found: Json) -> list[str]:
    return [each["verdict"] for each in found["steps"]]


def resubmitted(before: Cluster, kind: str, name: str, change: Json, how: How = by_operations) -> Json:
    """What the advisor says of a job that was deleted, changed and is about to be submitted again."""
    assert change["kind"] == "manifest"
    manifest = how(manifest_of(before.find(kind, name)), change)
    return before.without(name).advise(manifest)


def pods_placed(advice: Json) -> int:
    return sum(sum(each["nodes"].values()) for each in advice["pod_sets"])


def elsewhere() -> list[Json]:
    """A pod and a Workload of another team, which hold no GPUs: a dump that has none of a kind does not say
    that there are none."""
    page = bound(shapes.pod("web", "page", "page", NOW - HOURS, "cpu", 1), "gpu-1")
    return [page, kueue.workload("old", "web", queue="team", conditions=[condition("Finished")])]


# 1. Quota too low beside idle nodes


def low_quota(*more: Json) -> list[Json]:
    """16 idle GPUs, a queue of 8, and a job of 16."""
    job = kueue_job("train", 2, 8)
    refused = "couldn't assign flavors to pod set main: insufficient quota for nvidia.com/gpu in flavor h100"
    return [
        namespace(),
        *nodes(2),
        kueue.resource_flavor("h100"),
        kueue.cluster_queue("ml", quotas=quotas(8)),
        kueue.local_queue("team", "ml", NS),
        job,
        workload_of(job, message=refused),
        *elsewhere(),
        *more,
    ]


@HOWS
def test_quota_too_low_beside_idle_nodes(cluster: Make, how: How) -> None:
    before = cluster(low_quota())
    found = before.explain("job/train")
    assert found["layer"] == "quota"
    assert verdicts(found) == ["holds it", "not reached", "not reached", "not reached"]
    assert found["since_ms"] == NOW - HOURS
    assert found["advice"]["decision"] == "never"
    nominal = "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota"
    assert evidence(found, "quota")["clusterqueue/ml", nominal] == "8"
    fix = found["actions"][0]
    assert fix["rule"] == "nominal-quota"
    assert "from 8 to 16" in fix["says"]
    assert (fix["change"]["kind"], fix["change"]["target"]) == ("cluster", "clusterqueue/ml")
    assert fix["change"]["command"].startswith("kubectl patch clusterqueues.v1beta2.kueue.x-k8s.io ml ")
    after = before.after(fix["change"], how)
    assert after.explain("job/train")["advice"]["decision"] == "now"
    assert after.without("train").advise(manifest_of(after.find("Job", "train")))["decision"] == "now"


@HOWS
def test_another_queue_of_the_namespace_has_room(cluster: Make, how: How) -> None:
    spare = [kueue.cluster_queue("research", quotas=quotas(16)), kueue.local_queue("spare", "research", NS)]
    before = cluster(low_quota(*spare))
    found = before.explain("job/train")
    assert rules(found)[0] == "other-queue"
    change = found["actions"][0]["change"]
    again = resubmitted(before, "Job", "train", change, how)
    assert (again["decision"], again["queue"]) == ("now", "research")


def test_the_first_line_and_the_patch_are_on_the_screen(cluster: Make) -> None:
    before = cluster(low_quota())
    shown = before.screen("job/train")
    first = "train (Job, ml): quota holds it: LocalQueue team has no quota for it (ExceedsMaxQuota)"
    assert " ".join(shown.split()).startswith(first)
    for each in before.explain("job/train")["actions"]:
        assert each["says"] in " ".join(shown.split())
        assert all(line.strip() in shown for line in each["change"]["patch"].splitlines())


def test_advise_says_the_same_before_it_is_submitted(cluster: Make) -> None:
    before = cluster(low_quota())
    manifest = manifest_of(before.find("Job", "train"))
    advice = before.without("train").advise(manifest)
    assert (advice["decision"], advice["layer"]) == ("never", "quota")
    assert "nominal-quota" in [each["rule"] for each in advice["suggestions"]]


# 2. Partial gang: the minimum is below the replicas


FULL = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."


def half_started(room: int) -> list[Json]:
    """Four pods wanted, two are enough to start, and of four nodes there is room on ``room``."""
    names = [f"gpu-{at + 1}" for at in range(4)]
    return [
        namespace(),
        *nodes(4),
        volcano.queue("default", weight=1),
        *volcano_job("sim", 4, 2, 8, names[:room], message=FULL),
        *plain_job("other", 4 - room, 8, names[room:], ""),
    ]


@HOWS
@pytest.mark.parametrize("room", [2, 3])
def test_a_gang_that_started_in_part(cluster: Make, how: How, room: int) -> None:
    before = cluster(half_started(room))
    found = before.explain("vcjob/sim")
    assert found["layer"] == "gang and placement"
    assert verdicts(found)[:2] == ["passed", "holds it"]
    assert f"{4 - room} of its 4 pods have no node" in found["says"]
    assert f"{room} run and hold their GPUs, because 2 are its minimum, fewer than it wants" in found["says"]
    assert evidence(found, "gang and placement")["podgroup/sim-1a2b", "spec.minMember"] == "2"
    assert f"the nodes have no room for its other {4 - room} pod" in found["advice"]["says"]
    fix = action(found, "fewer-pods")
    assert f"replicas {room} instead of 4" in fix["says"]
    again = resubmitted(before, "Job", "sim", fix["change"], how)
    assert (again["decision"], pods_placed(again)) == ("now", room)


def half_of_a_job(*ahead: Json) -> list[Json]:
    """One of two pods has a node, another job has the other node, and a queue for both is full."""
    full = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    return [
        namespace(),
        *nodes(2),
        kueue.resource_flavor("h100"),
        kueue.cluster_queue("ml", quotas=quotas(16)),
        kueue.local_queue("team", "ml", NS),
        *plain_job("half", 2, 8, ["gpu-1"], full),
        *running_job("other", ["gpu-2"], 8),
        *ahead,
    ]


def test_what_waits_longer_than_the_outlook_is_no_fix(cluster: Make) -> None:
    """It waits for the other job alone; in the queue it would wait for all that stand before it too."""
    line = [
        each
        for at in range(4)
        for job in [kueue_job(f"first-{at}", 2, 8)]
        for each in (job, workload_of(job))
    ]
    found = cluster(half_of_a_job(*line)).explain("job/half")
    assert found["advice"]["decision"] == "waits"
    before = found["advice"]["wait"]["p50_ms"]
    waits = [each["wait"] for each in found["actions"] if each["decision"] == "waits"]
    assert all(each is None or (each["p50_ms"] is not None and each["p50_ms"] < before) for each in waits)
    assert "gang" not in rules(found)


def test_to_start_in_part_again_is_no_fix(cluster: Make) -> None:
    found = cluster(half_started(3)).explain("vcjob/sim")
    assert found["actions"]
    assert "min-count" not in rules(found)


@pytest.mark.parametrize("room", [2, 3])
def test_whatever_is_promised_starts_whole(cluster: Make, room: int) -> None:
    before = cluster(half_started(room))
    found = before.explain("vcjob/sim")
    assert rules(found) == ["fewer-gpus-per-pod", "fewer-pods", "gang"]
    assert [each["decision"] for each in found["actions"]] == ["now", "now", "waits"]
    assert found["actions"][2]["says"].startswith("minAvailable 4 instead of 2")
    for each, wanted in zip(found["actions"], [4, room, 0], strict=True):
        again = resubmitted(before, "Job", "sim", each["change"])
        assert (again["decision"], pods_placed(again)) == (each["decision"], wanted)


def test_two_gangs_that_started_in_part_block_each_other(cluster: Make) -> None:
    """One of them gives its nodes back and waits for all it needs; then the other runs."""
    before = cluster(
        [
            namespace(),
            *nodes(4),
            volcano.queue("default", weight=1),
            *volcano_job("sim", 4, 2, 8, ["gpu-1", "gpu-2"], message=FULL),
            *volcano_job("fit", 4, 2, 8, ["gpu-3", "gpu-4"], message=FULL),
        ]
    )
    found = before.explain("vcjob/sim")
    assert (found["layer"], found["advice"]["decision"]) == ("gang and placement", "waits")
    assert before.explain("vcjob/fit")["advice"]["decision"] == "waits"
    fix = action(found, "gang")
    assert fix["decision"] == "waits"
    assert fix["says"].startswith("minAvailable 4 instead of 2")
    changed = by_operations(before.find("Job", "sim"), fix["change"])
    changed["spec"]["tasks"][0]["minAvailable"] = 4
    pending = volcano.pod_group(
        "sim-2c3d",
        NS,
        min_member=4,
        min_task_member={"worker": 4},
        min_resources={GPU: "32"},
        phase="Inqueue",
        created=NOW,
        owner=shapes.reference(changed),
    )
    assert changed["spec"]["minAvailable"] == 4
    after = before.without("sim").with_(changed, pending)
    assert after.explain("vcjob/fit")["advice"]["decision"] == "now"


# 3. Nodes that are Ready without their GPUs


PLUGIN = "nvidia-device-plugin-daemonset-x7k2p"
REFUSED = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


def plugin_pod() -> Json:
    pod = shapes.pod(
        "gpu-operator",
        PLUGIN,
        "plugin-gpu-2",
        NOW - 48 * HOURS,
        "cpu",
        1,
        owner=("apps/v1", "DaemonSet", "nvidia-device-plugin-daemonset", "daemonset-plugin"),
    )
    return bound(pod, "gpu-2")


def without_gpus(advertised: int, job: Sequence[Json]) -> list[Json]:
    broken = nodes(2, advertised=advertised)[1]
    return [namespace(), *nodes(1), broken, plugin_pod(), *job]


@pytest.mark.parametrize("advertised", [0, 6])
@pytest.mark.parametrize("placed", [["gpu-1"], []], ids=["one-placed", "none-placed"])
def test_a_node_is_ready_without_its_gpus(cluster: Make, advertised: int, placed: list[str]) -> None:
    taken = [] if placed else [serving("gpu-1", 8)]
    pods = 2 if placed else 1
    before = cluster(without_gpus(advertised, [*plain_job("train", pods, 8, placed, REFUSED), *taken]))
    found = before.explain("job/train")
    assert found["layer"] == "device"
    assert found["says"].startswith("device holds it: would fit node gpu-2 if it advertised all its GPUs")
    assert verdicts(found)[0] == "passed"
    assert verdicts(found)[2] == "holds it"
    assert evidence(found, "device")["node/gpu-2", f"status.allocatable[{GPU}]"] == str(advertised)
    fix = found["actions"][0]
    assert fix["rule"] == "node-repair"
    assert "node gpu-2" in fix["says"]
    assert (fix["decision"], fix["change"]["kind"]) == ("now", "cluster")
    command = fix["change"]["command"]
    assert command == f"kubectl -n gpu-operator delete pod {PLUGIN}"
    assert command in before.screen("job/train")
    after = before.with_(nodes(2)[1])
    again = after.explain("job/train")
    assert again["advice"]["decision"] == "now"
    assert again["layer"] == "gang and placement"


def test_a_node_without_its_gpus_under_kueue(cluster: Make) -> None:
    """Quota counts what the queue has, not what nodes advertise: the workload is admitted."""
    job = kueue_job("train", 2, 8)
    job["spec"]["suspend"] = False
    pods = [
        unbound(
            shapes.pod(NS, f"train-{at}", f"train-{at}", NOW - HOURS, GPU, 8, owner=shapes.reference(job)),
            REFUSED,
        )
        for at in range(2)
    ]
    before = cluster(
        [
            *without_gpus(0, [job, workload_of(job, placed={}), *pods]),
            kueue.resource_flavor("h100"),
            kueue.cluster_queue("ml", quotas=quotas(16)),
            kueue.local_queue("team", "ml", NS),
        ]
    )
    found = before.explain("job/train")
    assert found["layer"] == "device"
    assert verdicts(found)[0] == "passed"
    assert action(found, "node-repair")["decision"] == "now"
    assert before.with_(nodes(2)[1]).explain("job/train")["advice"]["decision"] == "now"


def test_a_node_without_its_gpus_holds_what_is_not_let_in_yet(cluster: Make) -> None:
    job = kueue_job("train", 2, 8)
    before = cluster(
        [
            *without_gpus(0, [job, workload_of(job)]),
            kueue.resource_flavor("h100"),
            kueue.cluster_queue("ml", quotas=quotas(16)),
            kueue.local_queue("team", "ml", NS),
        ]
    )
    found = before.explain("job/train")
    assert found["layer"] == "device"
    assert verdicts(found) == ["passed", "not reached", "holds it", "not reached"]
    assert evidence(found, "device")["node/gpu-2", f"status.allocatable[{GPU}]"] == "0"
    assert before.with_(nodes(2)[1]).explain("job/train")["advice"]["decision"] == "now"


def test_a_job_on_a_node_that_is_not_ready_any_more(cluster: Make) -> None:
    """What it holds is its own: the answer is about other nodes."""
    lost = nodes(1)[0]
    shapes.set_condition(lost, "Ready", False, "NodeStatusUnknown", NOW - HOURS)
    before = cluster([namespace(), lost, nodes(2)[1], *plain_job("train", 1, 8, ["gpu-1"], "")])
    found = before.explain("job/train")
    assert (found["layer"], verdicts(found)[:3]) == ("device", ["passed", "passed", "holds it"])
    assert found["advice"]["decision"] == "now"
    assert [each["nodes"] for each in found["advice"]["pod_sets"]] == [{"gpu-2": 1}]


# 4. Preemption that frees the wrong topology


def kueue_of(gpus: int, *more: Json) -> list[Json]:
    return [
        kueue.workload_priority_class("urgent", 100),
        kueue.cluster_queue("ml", quotas=quotas(gpus), preemption=PREEMPTS),
        kueue.local_queue("team", "ml", NS),
        *more,
    ]


def spread(job: Json, *of_job: Json) -> list[Json]:
    """Eight nodes of which one GPU each is held by a workload of lower priority, the others for good."""
    names = [f"gpu-{at + 1}" for at in range(8)]
    small = [each for name in names for each in running_job(f"small-{name}", [name], 1)]
    servers = [serving(name, 7) for name in names]
    flavor = kueue.resource_flavor("h100")
    return [namespace(), *nodes(8), *servers, *kueue_of(8, flavor), *small, job, *of_job]


@HOWS
def test_preemption_frees_gpus_on_eight_nodes(cluster: Make, how: How) -> None:
    job = kueue_job("big", 1, 8, priority_class="urgent")
    before = cluster(spread(job, workload_of(job, priorities=URGENT)))
    found = before.explain("job/big")
    assert found["layer"] == "gang and placement"
    assert verdicts(found)[:2] == ["passed", "holds it"]
    assert f"preemption frees 8 {GPU}, but on 8 nodes with at most 1 free each" in found["says"]
    assert "a pod of main needs 8 on one node" in found["says"]
    assert len(found["advice"]["victims"]) == 8
    assert found["advice"]["reason"] == "FreedCapacityUnusable"
    fix = found["actions"][0]
    assert (fix["rule"], fix["decision"]) == ("smaller-pods", "now")
    assert fix["says"].startswith(f"8 pods with 1 {GPU} each instead of 1 with 8")
    again = resubmitted(before, "Job", "big", fix["change"], how)
    assert (again["decision"], pods_placed(again), len(again["victims"])) == ("now", 8, 8)


def test_after_such_a_preemption(cluster: Make) -> None:
    """Kueue let it in, the others are gone, and its pod still finds no node."""
    job = kueue_job("big", 1, 8, priority_class="urgent")
    job["spec"]["suspend"] = False
    pod = shapes.pod(NS, "big-0", "big-0", NOW - HOURS, GPU, 8, owner=shapes.reference(job))
    refused = "0/8 nodes are available: 8 Insufficient nvidia.com/gpu."
    admitted = workload_of(job, priorities=URGENT, placed={})
    objects = [*spread(job, admitted, unbound(pod, refused)), *elsewhere()]
    before = cluster([each for each in objects if "small" not in each["metadata"]["name"]])
    found = before.explain("job/big")
    assert found["layer"] == "gang and placement"
    assert refused in found["says"]
    again = resubmitted(before, "Job", "big", action(found, "smaller-pods")["change"])
    assert again["decision"] == "now"


def wrong_rack() -> list[Json]:
    """Two racks of two nodes; in each a workload of lower priority holds one node, the other is taken."""
    job = kueue_job("big", 2, 8, priority_class="urgent", topology=RACK)
    labels = {"nvidia.com/gpu.present": "true"}
    flavor = kueue.resource_flavor("h100", node_labels=labels, topology="racks")
    return [
        namespace(),
        *nodes(4, per_rack=2),
        serving("gpu-2", 8),
        serving("gpu-4", 8),
        *kueue_of(16, flavor, kueue.topology("racks", [RACK, HOST])),
        *running_job("one", ["gpu-1"], 8, [HOST]),
        *running_job("two", ["gpu-3"], 8, [HOST]),
        job,
        workload_of(job, priorities=URGENT),
    ]


@HOWS
def test_preemption_frees_nodes_of_two_racks(cluster: Make, how: How) -> None:
    before = cluster(wrong_rack())
    found = before.explain("job/big")
    assert found["layer"] == "gang and placement"
    assert f"preemption frees 16 {GPU}, but on 2 nodes" in found["says"]
    assert f"all 2 pods must be in one {RACK}; at best 1 of them is" in found["says"]
    fix = found["actions"][0]
    assert (fix["rule"], fix["decision"]) == ("preferred-topology", "now")
    again = resubmitted(before, "Job", "big", fix["change"], how)
    assert (again["decision"], pods_placed(again)) == ("now", 2)
    assert {name for each in again["pod_sets"] for name in each["nodes"]} == {"gpu-1", "gpu-3"}


# All of them


def stories() -> dict[str, tuple[str, str, list[Json]]]:
    """Subject, name of the job, and objects, by story."""
    job = kueue_job("big", 1, 8, priority_class="urgent")
    return {
        "quota": ("job/train", "train", low_quota()),
        "gang": ("vcjob/sim", "sim", half_started(3)),
        "device": ("job/train", "train", without_gpus(0, plain_job("train", 2, 8, ["gpu-1"], REFUSED))),
        "nodes": ("job/big", "big", spread(job, workload_of(job, priorities=URGENT))),
        "racks": ("job/big", "big", wrong_rack()),
    }


@pytest.mark.parametrize("story", ["quota", "gang", "device", "nodes", "racks"])
def test_every_change_gives_what_it_promises(cluster: Make, story: str) -> None:
    subject, name, objects = stories()[story]
    before = cluster(objects)
    found = before.explain(subject)
    assert found["actions"]
    for each in found["actions"]:
        change: Any = each["change"]
        assert change["command"] or change["patch"]
        if change["kind"] == "manifest":
            for how in (by_operations, by_yaml):
                assert resubmitted(before, "Job", name, change, how)["decision"] == each["decision"]
        elif change["operations"]:
            again = before.after(change, by_operations).explain(subject)
            assert again["advice"]["decision"] == each["decision"]


@pytest.mark.parametrize("story", ["quota", "gang", "device", "nodes", "racks"])
def test_the_order_of_objects_does_not_matter(cluster: Make, story: str) -> None:
    subject, _, objects = stories()[story]
    assert cluster(objects).explain(subject) == cluster(objects[::-1]).explain(subject)


PAGE = Path(__file__).parents[2] / "docs" / "explain.md"
BLOCK = re.compile(r"<!-- story: (\w+) -->\n```text\n(.*?)\n```", re.DOTALL)
LEFT_OUT = "…"


@pytest.mark.parametrize("story", ["quota", "gang", "device", "nodes", "racks"])
def test_the_page_shows_what_is_printed(cluster: Make, story: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    subject, _, objects = stories()[story]
    printed = cluster(objects).screen(subject).splitlines()
    shown = dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))[story].splitlines()
    at = -1
    for line, before in zip(shown, ["", *shown], strict=False):
        if line.strip() == LEFT_OUT:
            continue
        follows = at + 1 if before.strip() != LEFT_OUT else None
        at = printed.index(line, at + 1)
        assert follows in (None, at), f"what is left out before {line!r} is not marked"
    assert at == len([line for line in printed if line]) - 1 or shown[-1].strip() == LEFT_OUT


def test_the_service_knows_what_to_do_too() -> None:
    gathering = ClusterStateBuilder(collections())
    for each in low_quota():
        gathering.add(each)
    still = StillCluster(gathering.loaded(NOW).state)
    functions = AdvisorEngine(advise, explain, documents.manifest_of, documents.reread, document_of)
    service = AdvisorService(still, functions, TeamRules.default())
    service.refresh()
    found = service.explain("job", NS, "train", service.informed())
    assert found is not None
    assert found.actions[0].rule == "nominal-quota"


@pytest.mark.parametrize("created", [f"{year}-12-31T00:00:00Z" for year in ("0001", "1970", "9999")])
def test_a_time_that_cannot_be_is_none(cluster: Make, created: str) -> None:
    objects = [*nodes(1), *plain_job("train", 2, 8, [], "0/1 nodes are available")]
    for each in objects:
        each["metadata"]["creationTimestamp"] = created
        for said in each.get("status", {}).get("conditions", ()):
            said["lastTransitionTime"] = created
    asked = cluster(objects)
    found = asked.explain("job/train")
    assert (found["layer"], found["since_ms"]) == ("gang and placement", None)
    assert all(step["since_ms"] is None for step in found["steps"])
    assert "since" not in asked.screen("job/train").splitlines()[0]
