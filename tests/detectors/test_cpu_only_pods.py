"""Pods without GPUs that keep free GPUs from being used."""

from __future__ import annotations

from gpucost.cluster.objects.nodes import Taint
from gpucost.cluster.views.gpu_units import GROUP, RESERVATIONS
from gpucost.detectors.findings import RuleDetection
from gpucost.detectors.rule_settings import CpuOnlyPodsSettings, ScopedSettings
from gpucost.detectors.rules.cpu_only_pods import run
from gpucost.domain.jobs import OwnerReference
from tests.cluster import builders as build
from tests.detectors.case_cpu_only_pods import crowded, overview
from tests.detectors.worlds import World, at

OWNER = OwnerReference("apps/v1", "ReplicaSet", "agent", "agent-uid")


def found(world: World) -> RuleDetection:
    return run(world.facts(), ScopedSettings(CpuOnlyPodsSettings()))


def test_as_many_gpus_as_lack_their_share_of_the_cores() -> None:
    for cores, gpus in ((0.0, 0), (8.0, 1), (8.001, 2), (16.0, 2)):
        drafts = found(crowded(cores)).drafts
        assert sum(draft.action.frees_boards for draft in drafts) == gpus, cores


def test_a_daemon_set_belongs_there() -> None:
    assert found(crowded(16, owner="DaemonSet")).drafts == ()


def test_the_owner_of_a_fraction_and_its_reservation_have_a_gpu() -> None:
    labels = {GROUP: "g"}
    reserves = build.pod("r", 1, namespace=RESERVATIONS, labels={"app": RESERVATIONS, **labels}, node="n1")
    asks, half = build.template(cpu=16_000), {"gpu-fraction": "0.5"}
    owns = build.pod("owner", node="n1", asks=asks, labels=labels, annotations=half, created_ms=at(0))
    assert found(crowded(0, more=(reserves, owns))).drafts == ()
    assert found(crowded(0, more=(owns,))).drafts != ()


def test_without_a_free_gpu_nobody_is_in_the_way() -> None:
    assert found(crowded(0.001, gpus=8)).drafts == ()


def test_without_the_taint_it_is_to_be_put_there_and_the_pod_goes() -> None:
    (draft,) = found(crowded(owner="ReplicaSet")).drafts
    assert draft.action.patch.splitlines() == [
        "kubectl taint nodes n1 nvidia.com/gpu=present:NoSchedule",
        "kubectl -n ns delete pod web",
    ]
    assert draft.boards_now == draft.action.frees_boards == 1


def test_with_the_taint_the_pod_tolerates_it_and_has_to_go() -> None:
    taint = Taint("nvidia.com/gpu", "present", "NoSchedule")
    (draft,) = found(crowded(taints=(taint,), owner="ReplicaSet")).drafts
    assert draft.action.patch.splitlines() == [
        "kubectl cordon n1",
        "kubectl -n ns delete pod web",
        "kubectl uncordon n1",
    ]


def test_what_nobody_makes_again_is_never_deleted() -> None:
    taint = Taint("nvidia.com/gpu", "present", "NoSchedule")
    for taints, patch in (((), "kubectl taint nodes n1 nvidia.com/gpu=present:NoSchedule"), ((taint,), "")):
        (draft,) = found(crowded(taints=taints, team="web-team")).drafts
        assert draft.team_view is not None
        assert (draft.action.patch, draft.team_view.action.patch) == (patch, "")
        for action in (draft.action, draft.team_view.action):
            assert "No controller makes this pod again (ns/web): ask whoever runs it" in action.text
            assert "delete" not in action.text


def test_it_is_the_finding_of_the_pods_team_where_that_is_one() -> None:
    (draft,) = found(crowded()).drafts
    assert (draft.team, draft.team_view) == ("", None)
    (draft,) = found(crowded(team="web-team", owner="ReplicaSet")).drafts
    assert draft.team == "web-team"
    assert draft.team_view is not None
    assert draft.team_view.action.patch == "kubectl -n ns delete pod web"


def test_no_more_pods_go_than_have_to() -> None:
    world = crowded(8.5)
    for cpu, command in ((0, "kubectl -n ns delete pod web"), (500, "kubectl -n ns delete pod web small")):
        made = {"created_ms": at(0), "namespace": "ns", "owner": OWNER}
        small = build.pod("small", node="n1", asks=build.template(cpu=cpu), **made)
        world.overview = overview(8.5, world.end, owner="ReplicaSet", more=(small,))
        (draft,) = found(world).drafts
        assert draft.action.frees_boards == 2
        assert draft.action.patch.splitlines()[-1] == command
