"""What is in a dump is what the parsers read, no more and no less; held against the parsers themselves."""

from __future__ import annotations

import json
from collections import defaultdict
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.kube.dumps.allowlist import LONGEST_MESSAGE
from gpucost.kube.dumps.dump import line_of
from gpucost.kube.dumps.scrub import ANNOTATIONS, KINDS, scrubbed
from gpucost.kube.parse.events import Unreadable
from tests.cli.state_worlds import SECRET
from tests.kube.every_object import ALL, EVERYTHING, Json, collection_of
from tests.kube.parse import job_objects
from tests.support.objects.broken import JSON, broken, put, ways

Way = tuple[str | int, ...]
CANARY = "canary"
SHOWN = {
    "Pod": {"PodScheduled"},
    "Workload": {"QuotaReserved", "Requeued", "Admitted", "PodGroupScheduled"},
    "ClusterQueue": {"Active"},
    "LocalQueue": {"Active"},
    "PodGroup": {"PodGroupScheduled", "PodGroupInitiallyScheduled", "Unschedulable"},
    "CompositePodGroup": {"CompositePodGroupInitiallyScheduled"},
}
"""Conditions whose message the screen has."""
UNREAD = {("metadata", "managedFields", "[]", key) for key in ("manager", "subresource")}
"""What is kept though no parser reads it: of whom and what the times are."""

by_name = pytest.mark.parametrize(
    "found", EVERYTHING, ids=lambda found: f"{found['kind']} {found['metadata']['name']}"
)


class Noted(dict[str, Any]):
    """A mapping that notes which text is read from it."""

    def __init__(self, found: Json, way: Way, read: set[Way]) -> None:
        self._way, self._read = way, read
        super().__init__({key: noted(value, (*way, key), read) for key, value in found.items()})

    def get(self, key: str, default: Any = None) -> Any:
        value = super().get(key, default)
        if isinstance(value, str):
            self._read.add((*self._way, key))
        elif isinstance(value, list) and any(isinstance(each, str) for each in value):
            self._read.add((*self._way, key, "[]"))
        return value

    def __getitem__(self, key: str) -> Any:
        return self.get(key)

    def items(self) -> Any:
        return [(key, self.get(key)) for key in self]


def noted(found: Any, way: Way, read: set[Way]) -> Any:
    if isinstance(found, list):
        return [noted(each, (*way, "[]"), read) for each in found]
    return Noted(found, way, read) if isinstance(found, dict) else found


def texts_read(found: Json) -> set[Way]:
    """Ways to text that the parser looks at, with ``[]`` for any index."""
    read: set[Way] = {("apiVersion",), ("kind",)}
    collection_of(found).parse(noted(found, (), read))
    return read


@cache
def read_of_kind() -> dict[str, set[Way]]:
    """All that the parser of a kind read in any of its objects."""
    read = defaultdict(set)
    for found in EVERYTHING:
        read[collection_of(found).name] |= texts_read(found)
    return read


def is_private(found: Json, way: Way) -> bool:
    """Whether the text there must not be in a dump, though a parser reads it."""
    match way:
        case ("metadata", "annotations", str(name)):
            return name not in ANNOTATIONS
        case ("status", "conditions", int(), "message"):
            return at(found, way[:-1]).get("type") not in [*SHOWN.get(found["kind"], ())]
        case ("status", "admissionChecks", int(), "message"):
            return bool(at(found, way[:-1]).get("state") == "Ready")
        case _:
            return False


def at(found: Any, way: Way) -> Any:
    for key in way:
        found = found[key]
    return found


def with_unknown_fields(found: Any) -> Any:
    """A further field in every mapping."""
    if isinstance(found, list):
        return [with_unknown_fields(each) for each in found]
    if not isinstance(found, dict):
        return found
    more = {"added": "x", "addedTexts": ["x"], "addedObject": {"name": "x", "value": "x"}}
    return {key: with_unknown_fields(value) for key, value in found.items()} | more


def with_canaries(found: Json) -> Json:
    """A canary in all text that the parser does not read."""
    known = read_of_kind()[collection_of(found).name] | texts_read(found) | UNREAD
    planted = deepcopy(found)
    for way in ways(found):
        is_text = isinstance(at(found, way), str)
        any_index = tuple("[]" if isinstance(key, int) else key for key in way)
        if is_text and (any_index not in known or is_private(found, way)):
            *above, last = way
            at(planted, tuple(above))[last] = CANARY
    return planted


def without_flaws_values(found: Any) -> Any:
    return replace(found, flaws=tuple(replace(flaw, value="") for flaw in found.flaws))


def parsed(found: Json) -> Any:
    """What a parser makes of it; of flaws the value is left out, of which scrubbing leaves only the form."""
    try:
        return without_flaws_values(collection_of(found).parse(found))
    except Unreadable:
        return None


def public(found: Json) -> Json:
    """Without the annotations and messages that must not be in a dump, whatever their form."""
    kept = deepcopy(found)
    for way in reversed(ways(found)):
        if is_private(found, way):
            *above, last = way
            del at(kept, tuple(above))[last]
    return kept


# What is kept


def test_every_kind_that_is_read_is_known() -> None:
    assert {(each.group, each.kind) for each in ALL} == KINDS.keys()
    assert {(each.group, each.kind) for each in map(collection_of, EVERYTHING)} == KINDS.keys()


@by_name
def test_scrubbed_objects_are_read_as_before(found: Json) -> None:
    parse = collection_of(found).parse
    once = scrubbed(found)
    assert parse(once) == parse(public(found))
    assert scrubbed(once) == once


def test_a_dump_says_that_a_ray_job_failed() -> None:
    found = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        **job_objects.RAY_JOB,
        "status": {"jobStatus": "FAILED"},
    }
    assert parsed(scrubbed(found)) == parsed(public(found))
    assert "FAILED" in line_of(found)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(EVERYTHING), st.data())
def test_broken_objects_are_read_as_before(whole: Json, data: st.DataObject) -> None:
    kind = {key: whole[key] for key in ("apiVersion", "kind")}
    found = {**data.draw(broken(whole)), **kind}
    once = scrubbed(found)
    assert parsed(once) == parsed(public(found))
    assert scrubbed(once) == once


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status", "kind", "apiVersion"]), JSON))
def test_no_json_breaks_scrubbing(found: Json) -> None:
    once = scrubbed(found)
    assert scrubbed(once) == once


# What is not


@by_name
def test_text_that_no_parser_reads_is_not_in_a_dump(found: Json) -> None:
    planted = with_canaries(with_unknown_fields(found))
    assert CANARY in json.dumps(planted)
    assert CANARY not in line_of(planted)


@by_name
def test_text_in_another_form_is_not_in_a_dump(found: Json) -> None:
    """Where an object or a list should be, or where text should: a later version may put anything there."""
    for way in ways(found):
        if "labels" in way or "annotations" in way or "message" in way:
            continue
        value = at(found, way)
        other: Any = (
            {"name": {"value": CANARY}, CANARY: CANARY} if not isinstance(value, dict) else [[CANARY]]
        )
        assert CANARY not in line_of(put(found, way, other)), way


POD = {"containers": [{"name": "a", "env": [SECRET], "args": [SECRET]}], "volumes": [SECRET]}
TEMPLATE = {"metadata": {"annotations": {"checksum/config": SECRET}}, "spec": POD}
ENDED = {"terminated": {"message": SECRET, "exitCode": 1, "containerID": SECRET}}


@pytest.mark.parametrize(
    ("kind", "hidden"),
    [
        ("v1 Pod", {"spec": {"containers": [{"name": "a", "env": [{"name": "P", "value": SECRET}]}]}}),
        ("v1 Pod", {"spec": {"containers": [{"args": [SECRET], "command": [SECRET], "image": SECRET}]}}),
        ("v1 Pod", {"spec": {"initContainers": [{"lifecycle": SECRET, "workingDir": SECRET}]}}),
        (
            "v1 Pod",
            {"spec": {"volumes": [{"csi": {"volumeAttributes": {"p": SECRET}}}], "subdomain": SECRET}},
        ),
        ("v1 Pod", {"status": {"message": SECRET, "podIP": SECRET}}),
        ("v1 Pod", {"status": {"message": f"Pod was rejected: {SECRET}"}}),
        (
            "v1 Pod",
            {"status": {"containerStatuses": [{"state": ENDED, "lastState": ENDED, "image": SECRET}]}},
        ),
        ("v1 Pod", {"status": {"containerStatuses": [{"state": {"waiting": {"message": SECRET}}}]}}),
        ("v1 Pod", {"status": {"ephemeralContainerStatuses": [{"name": "debug", "state": ENDED}]}}),
        ("v1 Pod", {"status": {"conditions": [{"type": "acme.com/Ready", "message": SECRET}]}}),
        ("v1 Node", {"spec": {"providerID": SECRET}, "status": {"images": [{"names": [SECRET]}]}}),
        ("batch/v1 Job", {"spec": {"template": TEMPLATE}}),
        ("batch/v1 CronJob", {"spec": {"jobTemplate": {"spec": {"template": TEMPLATE}}}}),
        ("apps/v1 StatefulSet", {"spec": {"template": TEMPLATE, "volumeClaimTemplates": [SECRET]}}),
        ("jobset.x-k8s.io/v1alpha2 JobSet", {"spec": {"replicatedJobs": [{"template": {"spec": TEMPLATE}}]}}),
        (
            "trainer.kubeflow.org/v1alpha1 TrainJob",
            {
                "spec": {
                    "trainer": {"env": [{"value": SECRET}], "args": [SECRET], "command": [SECRET]},
                    "initializer": {"dataset": {"env": [SECRET]}},
                    "podSpecOverrides": [POD],
                    "podTemplateOverrides": [{"spec": POD}],
                    "runtimePatches": [{"trainingRuntimeSpec": {"template": TEMPLATE}}],
                }
            },
        ),
        (
            "kubeflow.org/v1 PyTorchJob",
            {
                "spec": {
                    "elasticPolicy": {"rdzvConf": [{"key": "password", "value": SECRET}], "rdzvHost": SECRET}
                }
            },
        ),
        ("kubeflow.org/v1 TFJob", {"spec": {"tfReplicaSpecs": {"Worker": {"template": TEMPLATE}}}}),
        ("kubeflow.org/v1 Notebook", {"spec": {"template": TEMPLATE}, "status": {"containerState": ENDED}}),
        (
            "batch.volcano.sh/v1alpha1 Job",
            {
                "spec": {
                    "plugins": {"ssh": [f"--ssh-private-key={SECRET}"], "env": [SECRET]},
                    "tasks": [{"template": TEMPLATE}],
                    "volumes": [SECRET],
                },
                "status": {"state": {"message": SECRET, "phase": "Failed"}},
            },
        ),
        (
            "ray.io/v1 RayJob",
            {
                "spec": {
                    "metadata": {"token": SECRET},
                    "runtimeEnv": SECRET,
                    "runtimeEnvYAML": SECRET,
                    "entrypoint": SECRET,
                    "entrypointResources": SECRET,
                    "submitterPodTemplate": TEMPLATE,
                },
                "status": {"message": SECRET, "dashboardURL": SECRET},
            },
        ),
        (
            "ray.io/v1alpha1 RayService",
            {
                "spec": {
                    "serveConfigV2": SECRET,
                    "serveConfig": {"runtimeEnv": SECRET, "deployments": [{"userConfig": SECRET}]},
                    "serveDeploymentGraphConfig": {
                        "deployments": [{"rayActorOptions": {"runtimeEnv": SECRET}}]
                    },
                    "rayClusterConfig": {"headServiceAnnotations": {"a/b": SECRET}},
                }
            },
        ),
        (
            "ray.io/v1 RayCluster",
            {
                "spec": {
                    "headServiceAnnotations": {"x": SECRET},
                    "headGroupSpec": {"rayStartParams": {"redis-password": SECRET}, "template": TEMPLATE},
                    "workerGroupSpecs": [{"rayStartParams": {"p": SECRET}, "template": TEMPLATE}],
                    "gcsFaultToleranceOptions": {"redisPassword": {"value": SECRET}},
                    "autoscalerOptions": {"env": [SECRET]},
                }
            },
        ),
        (
            "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
            {"spec": {"leaderWorkerTemplate": {"workerTemplate": TEMPLATE, "leaderTemplate": TEMPLATE}}},
        ),
        (
            "kueue.x-k8s.io/v1beta2 Workload",
            {
                "spec": {"podSets": [{"template": TEMPLATE}]},
                "status": {
                    "admissionChecks": [
                        {"state": "Ready", "message": SECRET},
                        {"state": "Retry", "podSetUpdates": [{"annotations": {"a": SECRET}}]},
                    ],
                    "conditions": [{"type": "Evicted", "message": SECRET}],
                },
            },
        ),
        (
            "resource.k8s.io/v1 ResourceClaim",
            {
                "spec": {
                    "devices": {
                        "requests": [{"exactly": {"selectors": [{"cel": {"expression": SECRET}}]}}],
                        "config": [{"opaque": {"parameters": {"key": SECRET}}}],
                    }
                },
                "status": {"devices": [{"data": {"key": SECRET}}]},
            },
        ),
        ("v1 Namespace", {"metadata": {"managedFields": [{"manager": SECRET}], "generateName": SECRET}}),
        ("v1 Pod", {"metadata": {"managedFields": [{"fieldsV1": {"f:data": {SECRET: {}}}}]}}),
        ("v1 Secret", {"data": {"password": SECRET}, "stringData": {"password": SECRET}}),
        ("v1 ConfigMap", {"data": {"password": SECRET}, "spec": {"key": SECRET}}),
    ],
)
def test_no_secret_is_in_a_dump(kind: str, hidden: Json) -> None:
    api_version, _, name = kind.partition(" ")
    assert SECRET not in line_of({**hidden, "apiVersion": api_version, "kind": name})


@pytest.mark.parametrize(
    "annotation",
    [
        "kubectl.kubernetes.io/last-applied-configuration",
        "notebooks.kubeflow.org/http-headers-request-set",
        "serving.kubeflow.org/s3-secretkey",
        "evilk8s.io/queue-name",
        "kueue.x-k8s.io/note",
        "vault.example.com/token",
        "note",
    ],
)
def test_annotations_stay_only_by_their_whole_name(annotation: str) -> None:
    kept = {
        "kueue.x-k8s.io/queue-name": "q",
        "team": "a",
        "hub.jupyter.org/username": "ann",
        "acme.com/team": "b",
    }
    for kind in ("Pod", "Node", "Namespace"):
        found = {"apiVersion": "v1", "kind": kind, "metadata": {"annotations": {**kept, annotation: SECRET}}}
        assert scrubbed(found, frozenset({"acme.com/team"}))["metadata"]["annotations"] == kept
        del found["metadata"]["annotations"]["acme.com/team"]


def test_messages_that_are_shown_are_cut() -> None:
    long = "x" * 5000
    waiting = {"type": "QuotaReserved", "status": "False", "message": long}
    check = {"name": "c", "state": "Retry", "message": long}
    status = {"conditions": [waiting], "admissionChecks": [check]}
    found = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "status": status}
    kept = scrubbed(found)["status"]
    assert (
        len(kept["conditions"][0]["message"]) == len(kept["admissionChecks"][0]["message"]) == LONGEST_MESSAGE
    )


def test_names_that_people_choose_are_no_fields() -> None:
    labels = {"env": "prod", "data": "x", "command": "y"}
    node = {"metadata": {"labels": labels}, "status": {"capacity": labels, "allocatable": labels}}
    pod = {"metadata": {"labels": labels}, "spec": {"nodeSelector": labels, "overhead": labels}}
    for found in ({"apiVersion": "v1", "kind": "Node", **node}, {"apiVersion": "v1", "kind": "Pod", **pod}):
        assert scrubbed(found) == found
