"""What is printed for a job that exists is what would have been printed for its manifest: the same patch."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import yaml

from gpucost.advisor.advise import advise
from gpucost.advisor.model.answers import SuggestedChangeKind
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.suggest.patches import gpu_asks, largest_count, merge_patch
from gpucost.cluster.objects.jobs import JobManifest
from gpucost.domain.gpu import ResourceCatalog
from gpucost.kube.manifests import manifest_of
from gpucost.kube.manifests.writer import document_of
from gpucost.kube.parse.jobs import job_parser
from tests.advisor import worlds as w
from tests.advisor.suggesting import job, knowledge, merged, read
from tests.kube.manifest_files import FILES

KINDS = sorted(set(FILES) - {"TrainJob", "CronJob", "Pod", "DaemonSet", "Notebook"})
"""Those whose live objects have the templates of several pods."""
SIDECAR = {"name": "logs", "image": "logs:1", "resources": {"limits": {"nvidia.com/gpu": 1}}}


def rebuilt(manifest: JobManifest) -> JobManifest:
    """Of the object that the API server would hold of it."""
    document = dict(manifest.document)
    metadata = {**document["metadata"], "uid": "u", "creationTimestamp": "2026-10-24T00:00:00Z"}
    live = job_parser(document["apiVersion"], document["kind"])({**document, "metadata": metadata})
    return manifest_of(document_of(live), manifest.place, w.NOW)


def patches(manifest: JobManifest, known: AdvisorContext) -> list[tuple[str, str, Any]]:
    found = advise(manifest, known).suggestions
    return [
        (e.rule, e.says, yaml.safe_load(e.change.patch))
        for e in found
        if e.change.kind is SuggestedChangeKind.MANIFEST
    ]


def nodes(count: int, gpus: int) -> list[Any]:
    return [w.node(f"n{at}", gpus) for at in range(count)]


JOBS = {
    "Indexed": {"completionMode": "Indexed"},
    "NonIndexed": {},
    "without completions": {"completions": None},
    "more completions": {"completions": 12},
    "fewer completions": {"completions": 1, "parallelism": 3},
    "an array": {"completionMode": "Indexed", "completions": 100, "backoffLimitPerIndex": 1},
    "suspended": {"suspend": True},
}


@pytest.mark.parametrize("fields", JOBS.values(), ids=JOBS)
@pytest.mark.parametrize(("pods", "gpus", "room"), [(1, 3, 1), (2, 4, 2), (4, 8, 8), (1, 16, 8)])
def test_every_form_of_a_job(fields: dict[str, Any], pods: int, gpus: int, room: int) -> None:
    document = job(pods, gpus, queue="", spec=fields)
    document["spec"] = {key: value for key, value in document["spec"].items() if value is not None}
    manifest, known = read(document), knowledge(*nodes(3, room))
    assert patches(rebuilt(manifest), known) == patches(manifest, known)


def test_a_job_of_one_pod_becomes_as_many_smaller_ones() -> None:
    """Applied to a real cluster it had raised parallelism alone: one pod ran, with three GPUs."""
    manifest, known = read(job(1, 3, queue="")), knowledge(*nodes(3, 1))
    found = {rule: patch for rule, _, patch in patches(rebuilt(manifest), known)}
    spec = merged(dict(manifest.document), found["smaller-pods"])["spec"]
    assert (spec["parallelism"], spec["completions"]) == (3, 3)
    assert spec["template"]["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 1}}


def of_file(kind: str, edit: Callable[[Any], None] = lambda _: None) -> JobManifest:
    """Without a queue and asking for GPUs alone, so that only these are in the way."""
    text = FILES[kind].replace("kueue.x-k8s.io/queue-name: team", "team: a")
    document = yaml.safe_load(text.replace('requests: {cpu: "4", memory: 16Gi}', "requests: {}"))
    edit(document)
    return read(document)


def test_what_is_suggested_for_every_kind() -> None:
    told = set()
    for kind in KINDS:
        manifest = of_file(kind)
        for count, gpus in ((1, 8), (3, 8), (12, 4), (40, 2)):
            known = knowledge(*nodes(count, gpus))
            found = patches(manifest, known)
            assert patches(rebuilt(manifest), known) == found, kind
            told |= {(kind, rule) for rule, *_ in found}
    assert len(told) >= 15
    assert {rule for _, rule in told} >= {"fewer-pods", "smaller-pods", "fewer-gpus-per-pod"}


@pytest.mark.parametrize("has_sidecars", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_change_of_pods_and_gpus_is_the_same_patch(kind: str, has_sidecars: bool) -> None:
    manifest = of_file(kind, _add_sidecars if has_sidecars else lambda _: None)
    first, second = (_changed(dict(each.document), each) for each in (manifest, rebuilt(manifest)))
    assert first == second
    assert "nvidia.com/gpu: 3" in first
    assert "name: node" in first


def _changed(before: dict[str, Any], manifest: JobManifest) -> str:
    after = deepcopy(before)
    for ask in gpu_asks(before, ResourceCatalog()):
        ask.change(after, ask.resource, 3)
    count = largest_count(before, manifest.job.job_kind)
    if count is not None:
        count.change(after, count.amount + 5)
    return yaml.safe_dump(yaml.safe_load(merge_patch(before, after)))


def _add_sidecars(value: Any) -> None:
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            value["containers"].append(deepcopy(SIDECAR))
            value["initContainers"] = [{**deepcopy(SIDECAR), "name": "first"}]
            return
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        _add_sidecars(each)
