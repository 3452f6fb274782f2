"""Changes of documents: for every kind of job, what is written down gives what was asked about."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import yaml
from hypothesis import given as given_by
from hypothesis import strategies as st

from gpucost.advisor.suggest.patches import (
    drop,
    get,
    gpu_asks,
    gpu_specs,
    largest_count,
    merge_patch,
    metadata,
    operations,
    patched,
    pod_specs,
    pointer,
    put,
    text_of,
)
from gpucost.advisor.suggest.queue_choice import kueue_queue, volcano_queue
from gpucost.cluster.objects.jobs import JobManifest
from gpucost.domain.gpu import ResourceCatalog
from gpucost.kube.manifests import read_manifests, reread
from tests.advisor.suggesting import Document, Edit, merged
from tests.advisor.worlds import NOW
from tests.cluster.builders import GPU
from tests.kube.manifest_files import FILES

CATALOG = ResourceCatalog()
KINDS = sorted(FILES)
TOLERATION = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}


def manifests(kind: str) -> list[JobManifest]:
    return list(read_manifests(FILES[kind], "job.yaml", NOW).jobs)


def changed(manifest: JobManifest, edit: Edit) -> JobManifest:
    """After ``edit``; the operations and the patch, which went through text, both give that."""
    before = dict(manifest.document)
    after = deepcopy(before)
    edit(after)
    steps = list(operations(before, after))
    assert steps
    assert patched(before, steps) == after
    assert merged(before, yaml.safe_load(merge_patch(before, after))) == after
    return reread(manifest, after)


@pytest.mark.parametrize("kind", KINDS)
def test_the_queue_of_every_kind(kind: str) -> None:
    for each in manifests(kind):
        found = changed(each, kueue_queue(each.document, "other"))
        assert found.queue == "other"
        assert found.job.pod_sets == each.job.pod_sets


@pytest.mark.parametrize("kind", KINDS)
def test_the_volcano_queue_of_every_kind(kind: str) -> None:
    for each in manifests(kind):
        if each.job.kind != "CronJob" or each.volcano_queue:
            assert changed(each, volcano_queue(each.document, "other")).volcano_queue == "other"


@pytest.mark.parametrize("kind", KINDS)
def test_tolerations_of_every_kind(kind: str) -> None:
    for each in manifests(kind):
        specs = gpu_specs(each.document, CATALOG)
        if not specs:
            assert kind == "TrainJob"
            continue

        def edit(document: Document, specs: list[Any] = specs) -> None:
            for spec in specs:
                put(document, (*spec, "tolerations"), [TOLERATION])

        found = changed(each, edit)
        for before, after in zip(each.job.pod_sets, found.job.pod_sets, strict=True):
            if before.template.requests.get(GPU):
                assert [one.key for one in after.template.tolerations] == ["gpu"]


@pytest.mark.parametrize("kind", KINDS)
def test_gpus_of_every_kind(kind: str) -> None:
    for each in manifests(kind):
        asks = gpu_asks(each.document, CATALOG)
        if not asks:
            continue

        def edit(document: Document, asks: list[Any] = asks) -> None:
            for ask in asks:
                ask.change(document, GPU, ask.amount + 8)

        found = changed(each, edit)
        for before, after in zip(each.job.pod_sets, found.job.pod_sets, strict=True):
            asked = before.template.requests.get(GPU, 0)
            assert after.template.requests.get(GPU, 0) == (asked + 8 if asked else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_counts_of_every_kind(kind: str) -> None:
    for each in manifests(kind):
        count = largest_count(each.document, each.job.job_kind)
        if count is None:
            assert kind in ("Pod", "Notebook", "DaemonSet", "CronJob") or each.job.pods_wanted == 1, kind
            continue

        def edit(document: Document, count: Any = count) -> None:
            drop(document, ("metadata", "annotations"))
            count.change(document, 1)
            if get(document, ("spec", "minAvailable")):
                put(document, ("spec", "minAvailable"), 1)

        assert changed(each, edit).job.pods_wanted < each.job.pods_wanted


@pytest.mark.parametrize("kind", KINDS)
def test_places_that_every_kind_has(kind: str) -> None:
    for each in manifests(kind):
        assert all(isinstance(get(each.document, at), dict) for at in metadata(each.document))
        assert kind == "TrainJob" or pod_specs(each.document)


@pytest.mark.parametrize(
    ("path", "expected"),
    [((), ""), (("a/b",), "/a~1b"), (("~1",), "/~01"), (("", 0), "//0"), (("é\n",), "/é\n")],
)
def test_pointers(path: tuple[str | int, ...], expected: str) -> None:
    assert pointer(path) == expected


def test_putting_and_dropping() -> None:
    document: Document = {"metadata": {"labels": None}, "spec": {"a": {"b": {"c": 1}}, "l": [{"x": 1}]}}
    put(document, ("metadata", "labels", "q"), "v")
    put(document, ("spec", "l", 0, "y", "z"), 2)
    drop(document, ("spec", "a", "b", "c"))
    drop(document, ("spec", "nowhere", "c"))
    assert document == {"metadata": {"labels": {"q": "v"}}, "spec": {"l": [{"x": 1, "y": {"z": 2}}]}}
    for wrong in (("spec", "l", "x", "y"), ("spec", "l", 7, "x"), ("metadata", "labels", "q", "x")):
        with pytest.raises(LookupError):
            put(document, wrong, 1)


PLAIN = st.recursive(
    st.one_of(st.booleans(), st.integers(-5, 5), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(st.text(max_size=3), PLAIN, max_size=4)


@given_by(DOCUMENTS, DOCUMENTS)
def test_operations_lead_from_any_document_to_any_other(before: Document, after: Document) -> None:
    assert patched(before, operations(before, after)) == after


def test_a_patch_has_no_aliases() -> None:
    shared = [TOLERATION]
    text = merge_patch({}, {"a": shared, "b": {"c": shared}})
    assert "&" not in text
    assert yaml.safe_load(text) == {"a": shared, "b": {"c": shared}}


@given_by(st.dictionaries(st.text(), st.text(), min_size=1))
def test_patches_are_the_yaml_they_mean(changes: Document) -> None:
    assert yaml.safe_load(text_of(changes)) == changes
    assert yaml.safe_load(text_of(changes, is_whole=False)) == changes
