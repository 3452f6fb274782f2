"""Names of kube-state-metrics: what became of Kubernetes' names, and back."""

from __future__ import annotations

import pytest

from gpucost.contract import kube_state as ksm
from gpucost.domain.gpu import MIG_TABLES, ResourceCatalog

PROFILES = sorted({each for table in MIG_TABLES.values() for each in table.memory_by_profile})
OTHERS = ["cpu", "memory", "nvidia_com_mig_", "nvidia_com_mig_1g", "xnvidia_com_gpu", ""]
KNOWN = ksm.by_sanitised(ResourceCatalog().shares)


@pytest.mark.parametrize("resource", sorted(ResourceCatalog().shares))
def test_every_known_resource_comes_back(resource: str) -> None:
    assert ksm.resource_name(ksm.sanitised(resource), KNOWN) == resource


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("end", ["", ".shared"])
def test_every_mig_profile_comes_back(profile: str, end: str) -> None:
    resource = f"nvidia.com/mig-{profile.replace('+', '.')}{end}"
    assert ksm.resource_name(ksm.sanitised(resource), KNOWN) == resource


@pytest.mark.parametrize("style", ["spx_nps1", "dpx_nps2", "cpx_nps4"])
def test_every_partition_of_amd_comes_back(style: str) -> None:
    found = ksm.sanitised(f"amd.com/{style}")
    assert ksm.resource_name(found, KNOWN) == f"amd.com/{style}"
    assert found.startswith(ksm.PARTS)


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_no_gpu_has_no_name(other: str) -> None:
    assert ksm.resource_name(other, KNOWN) is None


def test_labels_and_annotations() -> None:
    assert ksm.label_name("kueue.x-k8s.io/queue-name") == "label_kueue_x_k8s_io_queue_name"
    assert ksm.annotation_name("gpucost.io/team") == "annotation_gpucost_io_team"
