"""Objects in files and back: what is kept, what must not be, and what is said of files that are no dumps."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.cluster.state import CollectionStatus
from gpucost.domain.errors import InputError
from gpucost.kube.collections import Collection, collections
from gpucost.kube.dump import Gathering, Loaded, Origin, closing, line_of, named, opening, read_dump
from gpucost.kube.scrub import scrubbed
from tests.cli.state_worlds import NOW, SECRET, cluster
from tests.kube.parse import job_objects
from tests.kube.parse.test_pods import _FULL, _FULL_NODE
from tests.support.objects.broken import JSON

ALL = collections()
POD = {"apiVersion": "v1", **_FULL, "kind": "Pod"}
NODE = {"apiVersion": "v1", **_FULL_NODE, "kind": "Node"}
JOBS = {
    "batch/v1 Job": job_objects.JOB,
    "batch/v1 CronJob": job_objects.CRON_JOB,
    "jobset.x-k8s.io/v1alpha2 JobSet": job_objects.JOB_SET,
    "trainer.kubeflow.org/v1alpha1 TrainJob": job_objects.TRAIN_JOB,
    "kubeflow.org/v1 PyTorchJob": job_objects.PYTORCH_JOB,
    "kubeflow.org/v2beta1 MPIJob": job_objects.MPI_JOB,
    "ray.io/v1 RayCluster": job_objects.RAY_CLUSTER,
    "ray.io/v1 RayService": job_objects.RAY_SERVICE,
    "ray.io/v1 RayJob": job_objects.RAY_JOB,
    "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet": job_objects.LEADER_WORKER_SET,
    "apps/v1 Deployment": job_objects.REPLICAS,
    "apps/v1 DaemonSet": job_objects.DAEMON_SET,
    "kubeflow.org/v1 Notebook": job_objects.NOTEBOOK,
    "batch.volcano.sh/v1alpha1 Job": job_objects.VOLCANO_JOB,
}


def of_jobs() -> list[dict[str, Any]]:
    return [{**found, "apiVersion": name.split()[0], "kind": name.split()[1]} for name, found in JOBS.items()]


EVERYTHING = [*cluster(), *of_jobs(), POD, NODE]


def collection_of(found: dict[str, Any]) -> Collection:
    group = found["apiVersion"].rpartition("/")[0]
    return next(each for each in ALL if (each.group, each.kind) == (group, found["kind"]))


def gathered(items: Iterable[dict[str, Any]]) -> Loaded:
    gathering = Gathering(ALL)
    for item in items:
        gathering.add(item)
    return gathering.loaded(NOW)


def loaded(source: Path | bytes) -> Loaded:
    gathering = Gathering(ALL)
    read_dump(source, gathering)
    return gathering.loaded(NOW + 1)


def a_list(items: Iterable[dict[str, Any]], kind: str = "List") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "items": list(items)}


def a_dump(items: Iterable[dict[str, Any]], origin: Origin) -> str:
    return opening() + ",\n".join(line_of(item) for item in items) + closing(origin)


# Scrubbing


@pytest.mark.parametrize(
    "found", EVERYTHING, ids=lambda found: f"{found['kind']} {found['metadata']['name']}"
)
def test_scrubbed_objects_are_read_as_before(found: dict[str, Any]) -> None:
    parse = collection_of(found).parse
    others = frozenset(found["metadata"].get("annotations", ())) - {
        "kubectl.kubernetes.io/last-applied-configuration"
    }
    assert parse(scrubbed(found, others)) == parse(found)
    again = scrubbed(found)
    assert scrubbed(again) == again


@pytest.mark.parametrize(
    "hidden",
    [
        {"spec": {"containers": [{"name": "a", "env": [{"name": "P", "value": SECRET}]}]}},
        {"spec": {"containers": [{"name": "a", "args": [SECRET], "command": [SECRET], "image": SECRET}]}},
        {"spec": {"initContainers": [{"lifecycle": SECRET, "workingDir": SECRET}], "containers": []}},
        {"spec": {"containers": [], "volumes": [{"csi": {"volumeAttributes": {"p": SECRET}}}]}},
        {"spec": {"containers": [], "hostAliases": [SECRET], "subdomain": SECRET}},
        {"spec": {"template": {"spec": {"containers": [{"env": SECRET}], "unknown": SECRET}}}},
        {"spec": {"jobTemplate": {"spec": {"template": {"spec": {"containers": [{"args": [SECRET]}]}}}}}},
        {"spec": {"podSets": [{"template": {"spec": {"containers": [{"env": [SECRET]}]}}}]}},
        {"spec": {"trainer": {"env": [{"value": SECRET}], "args": [SECRET], "command": [SECRET]}}},
        {"spec": {"runtimeEnvYAML": SECRET, "entrypoint": SECRET}},
        {"spec": {"rayClusterSpec": {"headGroupSpec": {"rayStartParams": {"redis-password": SECRET}}}}},
        {"spec": {"devices": {"config": [{"opaque": {"parameters": {"key": SECRET}}}]}}},
        {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": SECRET}}},
        {"metadata": {"annotations": {"vault.example.com/token": SECRET, "note": SECRET}}},
        {"metadata": {"managedFields": [{"manager": SECRET}], "generateName": SECRET}},
        {"spec": {"template": {"metadata": {"annotations": {"checksum/config": SECRET}}}}},
        {"status": {"containerStatuses": [{"state": {"terminated": {"message": SECRET}}}]}},
        {"status": {"containerStatuses": [{"image": SECRET, "imageID": SECRET, "containerID": SECRET}]}},
        {"data": {"password": SECRET}, "stringData": {"password": SECRET}},
    ],
)
def test_no_secret_is_in_a_dump(hidden: dict[str, Any]) -> None:
    assert SECRET not in line_of(hidden)


def test_names_that_people_choose_are_no_fields() -> None:
    labels = {"env": "prod", "data": "x", "command": "y"}
    found = {
        "metadata": {"labels": labels},
        "spec": {"nodeSelector": labels, "selector": {"matchLabels": labels}, "nodeLabels": labels},
    }
    assert scrubbed(found) == found


def test_annotations_that_name_a_team_are_kept_when_asked_for() -> None:
    found = {"metadata": {"annotations": {"acme.com/team": "a", "kueue.x-k8s.io/queue-name": "q", "b": "c"}}}
    kept = scrubbed(found, frozenset({"acme.com/team"}))["metadata"]["annotations"]
    assert kept == {"acme.com/team": "a", "kueue.x-k8s.io/queue-name": "q"}


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status", "kind"]), JSON))
def test_no_json_breaks_scrubbing(found: dict[str, Any]) -> None:
    again = scrubbed(found)
    assert scrubbed(again) == again


# There and back


def test_a_dump_of_ours_says_when_and_what_was_there() -> None:
    versions = {"pods": "v1", "nodes": "v1", "cohorts.kueue.x-k8s.io": ""}
    origin = Origin(NOW, versions, ["namespaces"])
    found = loaded(a_dump(EVERYTHING, origin).encode())
    assert found.state == gathered(map(scrubbed, EVERYTHING)).state
    assert (found.state.at_ms, found.is_dated, found.left_out) == (NOW, True, {})
    statuses = found.state.collections
    assert statuses["pods"] == CollectionStatus("v1", synced=True, seen_ms=NOW)
    # It is not forbidden after all: another file has some.
    assert statuses["namespaces"] == CollectionStatus("v1", synced=True, seen_ms=NOW)
    assert statuses["cohorts.kueue.x-k8s.io"].version == "v1beta2"
    empty = loaded(a_dump([], origin).encode()).state
    assert empty.collections["namespaces"] == CollectionStatus("", False, problem="forbidden", seen_ms=NOW)
    assert empty.collections["cohorts.kueue.x-k8s.io"].absent


def test_every_line_is_ascii_and_an_object() -> None:
    found = {**POD, "metadata": {**POD["metadata"], "labels": {"\u202e": "\x1b\n"}}}
    text = a_dump([found, NODE], Origin(NOW, {}))
    assert text.isascii()
    lines = text.splitlines()
    assert [json.loads(line.removesuffix(","))["kind"] for line in lines[1:-1]] == ["Pod", "Node"]
    assert json.loads(text)["kind"] == "List"


WHOLE = a_list(EVERYTHING)
TEXT = json.dumps(WHOLE)


@pytest.mark.parametrize(
    "content",
    [
        TEXT.encode(),
        json.dumps(WHOLE, indent=4).encode(),
        gzip.compress(TEXT.encode()),
        gzip.compress(TEXT[:999].encode()) + gzip.compress(TEXT[999:].encode()),
        TEXT.encode("utf-16"),
        TEXT.encode("utf-8-sig"),
        json.dumps(EVERYTHING).encode(),
        "\n".join(map(json.dumps, EVERYTHING)).encode(),
        json.dumps(a_list([a_list(EVERYTHING[:5]), a_list(EVERYTHING[5:])])).encode(),
        yaml.safe_dump(WHOLE).encode(),
        gzip.compress(yaml.safe_dump_all(EVERYTHING).encode()),
    ],
    ids=[
        *("json", "indented", "gzip", "gzip parts", "utf-16", "bom", "array", "one after another", "lists"),
        *("yaml", "yaml documents"),
    ],
)
def test_every_form_gives_the_same_state(content: bytes, tmp_path: Path) -> None:
    expected = gathered(EVERYTHING)
    found = loaded(content)
    assert found.state == expected.state
    assert (found.is_dated, found.state.at_ms, found.left_out) == (False, NOW + 1, {})
    file = tmp_path / "any name"
    file.write_bytes(content)
    assert loaded(file).state == expected.state


def test_a_folder_is_all_its_dumps_together(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.json").write_text(json.dumps(a_list(EVERYTHING[:9])), encoding="utf-8")
    (tmp_path / "b" / "c.yaml.gz").write_bytes(gzip.compress(yaml.safe_dump(a_list(EVERYTHING[9:])).encode()))
    (tmp_path / "b" / "notes.txt").write_text("not this one", encoding="utf-8")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "hidden.json").write_text("nor this", encoding="utf-8")
    assert loaded(tmp_path).state == gathered(EVERYTHING).state


def test_items_of_a_typed_list_need_not_say_their_kind() -> None:
    bare = [{key: POD[key] for key in POD if key not in ("apiVersion", "kind")}]
    assert list(loaded(json.dumps(a_list(bare, "PodList")).encode()).state.pods) == ["u"]


def test_times_in_yaml_without_quotes_stay_times() -> None:
    metadata = "{name: n, uid: u, creationTimestamp: 2026-10-24T00:00:00Z}"
    text = f"---\n# a remark\n- {{apiVersion: v1, kind: Namespace, metadata: {metadata}}}\n"
    found = loaded(text.encode()).state.namespaces["u"]
    assert (found.meta.created_ms, found.flaws) == (NOW, ())


def test_what_is_not_read_is_counted() -> None:
    strange = [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "uid": "s"}},
        {"apiVersion": "kueue.x-k8s.io/v9", "kind": "Workload", "metadata": {"name": "w", "uid": "w"}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "without uid"}},
        {},
    ]
    found = loaded(json.dumps(a_list([*strange, strange[0]])).encode())
    assert found.left_out == {
        "Secret (v1)": 2,
        "Workload (kueue.x-k8s.io/v9)": 1,
        "no kind (no apiVersion)": 1,
        "unreadable": 1,
    }


def test_the_newest_of_several_dumps_says_when() -> None:
    texts = [a_dump([POD], Origin(at_ms, {"pods": "v1"})) for at_ms in (NOW, NOW + 5, NOW - 5)]
    assert loaded("".join(texts).encode()).state.at_ms == NOW + 5


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"# only a remark\n", "empty"),
        (gzip.compress(TEXT.encode())[:-40], "a gzip file that is cut short or broken"),
        (b"\x1f\x8bnothing", "a gzip file that is cut short or broken"),
        (TEXT.encode()[: len(TEXT) // 2], "JSON that is cut short or broken in line 1 of 1"),
        (b'{"items": [}', "JSON that is cut short or broken in line 1 of 1"),
        (a_dump([POD], Origin(NOW, {})).encode()[:-2], "JSON that is cut short or broken in line 3 of 3"),
        (b"<!DOCTYPE html><html>login</html>", "a web page, or XML"),
        (b"\x80\x81\x82\x83", "not text"),
        (b"error: You must be logged in to the server", "kind: missing"),
        (b"No resources found", "'No resources found' is not allowed"),
        (b"a: [1", "neither JSON nor YAML"),
        (b"[1, 2]", "1 is not allowed"),
        (b'{"kind": "List", "items": {"a": 1}}', "items: {'a': 1} is not allowed"),
        (b'{"kind": "List", "items": ["pod"]}', "'pod' is not allowed"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"metadata": {"gpucost.io/state": {"takenAt": "x", "collections": {}}}}', "takenAt: 'x'"),
        (b'{"metadata": {"gpucost.io/state": {"takenAt": "2026-10-24T00:00:00Z"}}}', "gpucost.io/state: "),
    ],
)
def test_what_is_no_dump_is_refused_by_name(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "given.json"
    file.write_bytes(content)
    for source, name in ((file, str(file)), (tmp_path, str(file)), (content, "standard input")):
        with pytest.raises(InputError) as caught:
            loaded(source)
        assert str(caught.value).startswith(name)
        assert said in str(caught.value)


def test_a_place_without_dumps_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"no dump in it"):
        loaded(tmp_path)
    with pytest.raises(InputError, match=r"missing\.json: No such file or directory"):
        loaded(tmp_path / "missing.json")


@settings(max_examples=200, deadline=None)
@given(JSON, st.sampled_from(["List", "PodList", "Pod", ""]))
def test_no_document_does_more_than_be_refused(document: Any, kind: str) -> None:
    for content in (document, {"kind": kind, "items": document}, {"metadata": document}):
        with suppress(InputError):
            loaded(json.dumps(content).encode())


def test_an_object_of_a_typed_list_gets_its_kind() -> None:
    workloads = next(each for each in ALL if each.kind == "Workload")
    assert named(workloads, "v1beta1", {"metadata": {}})["apiVersion"] == "kueue.x-k8s.io/v1beta1"
    assert named(ALL[0], "v1", {"kind": ""}) == {"apiVersion": "v1", "kind": "Pod"}
