"""KIND/NAME as people and kubectl write it."""

from __future__ import annotations

import pytest

from gpucost.cli.advise.explain_command import SHORT, kind_reference
from gpucost.domain.errors import InputError
from gpucost.domain.jobs import JobKind
from gpucost.kube.parse.collections import collections


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("job/a", "Job"),
        ("Jobs/a", "Job"),
        ("job.batch/a", "Job"),
        ("jobs.batch.volcano.sh/a", "VolcanoJob"),
        ("vcjob/a", "VolcanoJob"),
        ("volcanojob/a", "VolcanoJob"),
        ("pytorchjob/a", "PyTorchJob"),
        ("PyTorchJobs.kubeflow.org/a", "PyTorchJob"),
        ("rayjob/a", "RayJob"),
        ("deploy/a", "Deployment"),
        ("po/a", "Pod"),
        ("wl/a", "Workload"),
        ("workloads.kueue.x-k8s.io/a", "Workload"),
        ("pg/a", "PodGroup"),
        ("podgroups.scheduling.volcano.sh/a", "PodGroup"),
        ("LWS/a", "LeaderWorkerSet"),
    ],
)
def test_names_of_kinds(text: str, kind: str) -> None:
    assert kind_reference(text) == (kind, "a")


def test_every_kind_that_makes_pods_has_its_name() -> None:
    for each in JobKind:
        if each is not JobKind.OTHER:
            assert kind_reference(f"{each.value}/a").kind == each.value
    for collection in collections():
        if collection.field in ("jobs", "pods", "workloads"):
            assert kind_reference(f"{collection.name}/a")
    assert {kind_reference(f"{short}/a").kind for short in SHORT} == set(SHORT.values())


@pytest.mark.parametrize("text", ["", "job", "job/", "/a", "job/a/b", "node/a", "secret/a", "\x1b[2J/a"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        kind_reference(text)
    assert caught.value.field == "KIND/NAME"
    assert caught.value.value == text
