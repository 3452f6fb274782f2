"""Pods without GPUs that keep free GPUs from being used."""

from __future__ import annotations

from gpucost.cluster.nodes import Taint
from gpucost.detectors.findings import Detection
from gpucost.detectors.rules.cpu_only_pods import Settings, run
from gpucost.detectors.settings import Scoped
from tests.detectors.case_cpu_only_pods import crowded
from tests.detectors.worlds import World


def found(world: World) -> Detection:
    return run(world.facts(), Scoped(Settings()))


def test_as_many_gpus_as_lack_their_share_of_the_cores() -> None:
    for cores, gpus in ((0.0, 0), (8.0, 1), (8.001, 2), (16.0, 2)):
        drafts = found(crowded(cores)).drafts
        assert sum(draft.action.frees_boards for draft in drafts) == gpus, cores


def test_a_daemon_set_belongs_there() -> None:
    assert found(crowded(16, owner="DaemonSet")).drafts == ()


def test_without_a_free_gpu_nobody_is_in_the_way() -> None:
    assert found(crowded(0.001, gpus=8)).drafts == ()


def test_without_the_taint_it_is_to_be_put_there() -> None:
    (draft,) = found(crowded()).drafts
    assert draft.action.patch == "kubectl taint nodes n1 nvidia.com/gpu=present:NoSchedule"


def test_with_the_taint_the_pod_tolerates_it_and_has_to_go() -> None:
    taint = Taint("nvidia.com/gpu", "present", "NoSchedule")
    (draft,) = found(crowded(taints=(taint,))).drafts
    assert draft.action.patch == "kubectl -n ns delete pod web"
