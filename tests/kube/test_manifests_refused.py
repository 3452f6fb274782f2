"""What is refused of a manifest: by field, with the value and what is allowed, and never otherwise."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.domain.errors import InputError
from gpucost.kube.manifests import manifest_of, read_manifests
from gpucost.kube.manifests.reader import MOST_BYTES, MOST_DOCUMENTS, MOST_VALUES
from gpucost.kube.manifests.rules.resources import check_resources
from gpucost.kube.parse.fields import ObjectPart
from tests.kube.manifest_files import FILES
from tests.kube.parse.json_values import JSON

NOW = 1_792_800_000_000
_CONTAINER = "spec.template.spec.containers[0]"
_RESOURCES = f"{_CONTAINER}.resources"


def refusal(text: str | bytes) -> str:
    with pytest.raises(InputError) as caught:
        read_manifests(text, "job.yaml", NOW)
    return str(caught.value)


def changed(kind: str, way: str, value: Any) -> str:
    """A file with one field set, or with None removed; ``way`` leads to it by keys and indices."""
    document = yaml.safe_load(FILES[kind])
    at: Any = document
    *steps, last = (int(step) if step.isdigit() else step for step in way.split(">"))
    for step in steps:
        at = at.setdefault(step, {}) if isinstance(step, str) else at[step]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return json.dumps(document)


_IN = "spec>template>spec>containers>0>resources>"
FIELDS: list[tuple[str, str, Any, str]] = [
    ("Job", "apiVersion", None, "apiVersion: missing; allowed: that of a kind of job"),
    ("Job", "kind", None, "kind: missing"),
    ("Job", "kind", "Jobb", "kind: 'batch/v1 Jobb' is not allowed; allowed: a kind of job: "),
    ("Job", "kind", ["Job"], "kind: ['Job'] is not allowed"),
    ("Job", "spec", None, "spec: missing; allowed: an object"),
    ("Job", "metadata", None, "metadata: missing; allowed: an object with a name"),
    ("Job", "metadata", "sweep", "metadata: 'sweep' is not allowed"),
    ("Job", "metadata>name", None, "metadata.name: missing; allowed: a name, or generateName"),
    ("Job", "metadata>name", "Sweep_1", "metadata.name: 'Sweep_1' is not allowed; allowed: lower-case"),
    ("Job", "metadata>name", "a\x1b[31m", r"metadata.name: 'a\x1b[31m' is not allowed"),
    ("Job", "metadata>name", "a" * 254, "metadata.name: 'aaa"),
    ("Job", "metadata>name", 7, "metadata.name: 7 is not allowed"),
    ("Job", "metadata>namespace", "team a", "metadata.namespace: 'team a' is not allowed"),
    ("Job", "metadata>labels>kueue.x-k8s.io/queue-name", "a b", "metadata.labels[kueue.x-k8s.io/queue-name]"),
    ("Job", "metadata>labels>kueue.x-k8s.io/queue-name", 5, "metadata.labels[kueue.x-k8s.io/queue-name]: 5"),
    ("Job", "metadata>label", {"a": "b"}, "metadata.label: unknown field; allowed: labels (did you mean"),
    (
        "Job",
        "spec>paralelism",
        4,
        "spec.paralelism: unknown field; allowed: parallelism (did you mean this?)",
    ),
    ("Job", "spec>Parallelism", 4, "spec.Parallelism: unknown field; allowed: parallelism (did you"),
    ("JobSet", "spec>replicatedJob", [], "spec.replicatedJob: unknown field; allowed: replicatedJobs"),
    (
        "Job",
        "spec>parallelism",
        -1,
        "spec.parallelism: -1 is not allowed; allowed: greater than or equal",
    ),
    ("Job", "spec>parallelism", "4", "spec.parallelism: '4' is not allowed; allowed: a whole number"),
    ("Job", "spec>parallelism", 1.5, "spec.parallelism: 1.5 is not allowed; allowed: a whole number"),
    (
        "Job",
        "spec>parallelism",
        2**31,
        "spec.parallelism: 2147483648 is not allowed; allowed: at most 1,000,000",
    ),
    (
        "JobSet",
        "spec>replicatedJobs>1>replicas",
        900_000,
        "spec: 3,600,001 pods is not allowed; allowed: at most",
    ),
    (
        "Job",
        "spec>template",
        None,
        "spec.template.spec.containers: missing; allowed: at least one",
    ),
    ("Job", "spec>template>spec>containers", None, "spec.template.spec.containers: missing"),
    (
        "Job",
        "spec>template>spec>containers",
        [],
        "spec.template.spec.containers: missing; allowed: at least one",
    ),
    ("CronJob", "spec>jobTemplate", None, "spec.jobTemplate.spec.template.spec.containers: missing"),
    (
        "CronJob",
        "spec>jobTemplate>spec>parallelism",
        -2,
        "spec.jobTemplate.spec.parallelism: -2 is not allowed",
    ),
    ("JobSet", "spec>replicatedJobs", [], "spec.replicatedJobs: missing"),
    (
        "JobSet",
        "spec>replicatedJobs>0>template>spec>template",
        None,
        "replicatedJobs[0].template.spec.containers",
    ),
    (
        "JobSet",
        "spec>replicatedJobs>0>name",
        "workers",
        "spec.replicatedJobs (a name in it): 'workers' is not",
    ),
    (
        "JobSet",
        "spec>replicatedJobs>0>name",
        "a\nb",
        r"spec.replicatedJobs (a name in it): 'a\nb' is not allowed",
    ),
    ("RayCluster", "spec>workerGroupSpecs>0>groupName", "\x07", r"groupName: '\x07' is not allowed"),
    ("VolcanoJob", "spec>queue", "a\tb", r"spec.queue: 'a\tb' is not allowed"),
    (
        "Job",
        "spec>template>spec>priorityClassName",
        "a\x00",
        r"spec.template.spec.priorityClassName: 'a\x00'",
    ),
    (
        "Job",
        "spec>template>spec>nodeSelector",
        {"a": "b c"},
        "spec.template.spec.nodeSelector[a]: 'b c' is not",
    ),
    (
        "Job",
        "spec>template>spec>toleration",
        [],
        "spec.template.spec.toleration: unknown field; allowed: tolerat",
    ),
    (
        "Job",
        f"{_IN}limits>nvidia.com/gpu",
        "500m",
        f"{_RESOURCES}.limits[nvidia.com/gpu]: '500m' is not allowed",
    ),
    ("Job", f"{_IN}limits>nvidia.com/gpu", 0.5, f"{_RESOURCES}.limits[nvidia.com/gpu]: '0.5' is not allowed"),
    ("Job", f"{_IN}limits>nvidia.com/gpu", -1, f"{_RESOURCES}.limits[nvidia.com/gpu]: '-1' is not allowed"),
    (
        "Job",
        f"{_IN}limits>nvidia.com/gpu",
        "one",
        f"{_RESOURCES}.limits[nvidia.com/gpu]: 'one' is not allowed",
    ),
    (
        "Job",
        f"{_IN}requests>nvidia.com/gpu",
        1,
        f"{_RESOURCES}.requests[nvidia.com/gpu]: '1' is not allowed; allowed: equal to nvidia.com/gpu limit",
    ),
    (
        "Job",
        f"{_IN}requests>nvidia.com/mig-1g.10gb",
        1,
        f"{_RESOURCES}.limits[nvidia.com/mig-1g.10gb]: missing; allowed: the same as its request, 1",
    ),
    (
        "Job",
        f"{_IN}limits>memory",
        "1Gi",
        f"{_RESOURCES}.requests[memory]: '16Gi' is not allowed; allowed: less than or equal to memory limit",
    ),
    (
        "Job",
        f"{_IN}request",
        {},
        f"{_RESOURCES}.request: unknown field; allowed: requests (did you mean this?)",
    ),
    (
        "Job",
        "metadata>annotations>kueue.x-k8s.io/job-min-parallelism",
        "4",
        "job-min-parallelism]: '4' is not allowed; allowed: a whole number from 1 to 3, fewer than its pods",
    ),
    (
        "Job",
        "metadata>labels>kueue.x-k8s.io/max-exec-time-seconds",
        "1h",
        "metadata.labels[kueue.x-k8s.io/max-exec-time-seconds]: '1h'",
    ),
    (
        "Job",
        "metadata>labels>gpucost.io/checkpoints",
        "yes",
        "metadata.labels[gpucost.io/checkpoints]: 'yes' is not allowed",
    ),
    (
        "Job",
        "spec>template>metadata>annotations>kueue.x-k8s.io/podset-slice-size",
        "0",
        "spec.template.metadata.annotations[kueue.x-k8s.io/podset-slice-size]: '0'",
    ),
]


@pytest.mark.parametrize(("kind", "way", "value", "message"), FIELDS, ids=[f"{f[0]}-{f[1]}" for f in FIELDS])
def test_nonsense_is_refused_by_its_field(kind: str, way: str, value: Any, message: str) -> None:
    said = refusal(changed(kind, way, value))
    assert message in said
    assert said.startswith("job.yaml: ")


@pytest.mark.fault(59)
@pytest.mark.parametrize("hostile", ["a\x1b[31mred", "a\nb", "\u202eevil", "a\x00", " a", "x" * 300])
@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("Job", "metadata>name"),
        ("Job", "metadata>namespace"),
        ("Job", "metadata>labels>kueue.x-k8s.io/queue-name"),
        ("Job", "spec>template>spec>priorityClassName"),
        ("Job", "spec>template>spec>schedulerName"),
        ("JobSet", "spec>replicatedJobs>0>name"),
        ("RayJob", "spec>rayClusterSpec>workerGroupSpecs>0>groupName"),
        ("VolcanoJob", "spec>tasks>0>name"),
        ("VolcanoJob", "spec>queue"),
    ],
)
def test_hostile_names_are_refused_and_escaped(kind: str, way: str, hostile: str) -> None:
    said = refusal(changed(kind, way, hostile))
    assert " is not allowed" in said
    assert said.isprintable()
    assert len(said) < 600


def test_the_first_flaw_is_named_and_how_many_more() -> None:
    document = yaml.safe_load(FILES["Job"])
    document["metadata"]["name"] = "No Name"
    document["spec"]["backoffLimit"] = -1
    document["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "0.5"
    said = refusal(json.dumps(document))
    assert said.startswith("job.yaml: metadata.name: 'No Name' is not allowed")
    assert said.endswith("; and 2 more")


def test_what_cannot_be_decoded_is_said_before_any_rule() -> None:
    """As the API server does."""
    document = json.loads(changed("Job", "spec>paralelism", 4))
    document["metadata"]["name"] = "No Name"
    document["spec"]["template"]["spec"]["containers"][0]["ports"] = {"containerPort": 80}
    said = refusal(json.dumps(document))
    assert said.startswith("job.yaml: spec.template.spec.containers[0].ports: ")
    assert said.endswith("allowed: a list; and 1 more")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "job.yaml: empty"),
        ("---\n---\n", "job.yaml: empty"),
        ("# nothing\n", "job.yaml: empty"),
        ("just text", "job.yaml: 'just text' is not allowed; allowed: a mapping with apiVersion"),
        ("[]", "job.yaml: [] is not allowed"),
        ('{"kind": "Job"', "job.yaml: no JSON in line 1"),
        ("a: [1", "job.yaml: no YAML"),
        ("a: b: c", "job.yaml: no YAML"),
        ("a: 1\na: 2\n", "job.yaml: 'a' stands there twice"),
        ('{"a": 1, "a": 2}', "job.yaml: 'a' stands there twice"),
        ("1: x\n", "job.yaml: the key 1"),
        ("a: .inf\n", "job.yaml: inf is not allowed"),
        ('{"a": NaN}', "job.yaml: nan is not allowed"),
        ("a: &a [x]\nb: *a\n", "an anchor or alias"),
        ("a: !!python/name:os.system x\n", "a tag (!)"),
        ("<<: {a: 1}\n", "a merge key"),
        (b"\xff\xfe\x00", "job.yaml: not text in UTF-8"),
        ("a: \x00", "job.yaml: no YAML"),
        ("[" * 100_000, "too deep"),
        ("- " * 100_000, "nested more than 100 deep"),
        ('{"a":' * 200 + "1" + "}" * 200, "too deep"),
        ("a: " + "1" * 5000, "job.yaml: "),
        ("x" * (MOST_BYTES + 1), f"at most {MOST_BYTES:,} bytes"),
        ("a: [" + "1," * MOST_VALUES + "1]", f"at most {MOST_VALUES:,} keys and values"),
        ('{"a": [' + "1," * MOST_VALUES + "1]}", f"at most {MOST_VALUES:,} keys and values"),
        ("---\n".join(["a: 1\n"] * (MOST_DOCUMENTS + 1)), f"at most {MOST_DOCUMENTS} in one file"),
        ('{"apiVersion": "v1", "kind": "List"}', "job.yaml: items: "),
        ('{"apiVersion": "v1", "kind": "List", "items": [3]}', "job.yaml: items[0]: 3"),
    ],
    ids=range(28),
)  # fmt: skip
def test_text_that_is_no_manifest(text: str | bytes, message: str) -> None:
    assert message in refusal(text)


@pytest.mark.parametrize("count", [1_001, 10_000])
def test_thousands_of_pod_sets(count: int) -> None:
    document = yaml.safe_load(FILES["JobSet"])
    replicated = document["spec"]["replicatedJobs"][0]
    document["spec"]["replicatedJobs"] = [{**replicated, "name": f"r{n}"} for n in range(count)]
    said = refusal(json.dumps(document))
    assert f"{count:,} pod sets" in said or f"at most {MOST_VALUES:,} keys and values" in said


class Counted(dict[str, str]):
    """Knows how often all of it was read."""

    times = 0

    def items(self) -> Any:
        self.times += 1
        return super().items()


def test_thousands_of_resources_are_not_read_once_for_each() -> None:
    asked, most = (Counted((f"example.com/r{n}", "-1") for n in range(1_000)) for _ in range(2))
    claims = [{"name": f"r{n}", "request": "x"} for n in range(100)]
    container = ObjectPart({"resources": {"requests": asked, "limits": most, "claims": claims}})
    check_resources(container, [f"r{n}" for n in range(100)])
    assert container.flaws
    assert asked.times + most.times < 10


def test_one_flawed_document_of_many_is_named() -> None:
    said = refusal(FILES["Job"] + "---\n" + changed("JobSet", "spec>replicatedJobs>0>replicas", -1))
    assert said.startswith("job.yaml, document 2: spec.replicatedJobs[0].replicas: -1")


def _group(total: object, name: str = "p") -> dict[str, Any]:
    pod: dict[str, Any] = yaml.safe_load(FILES["Pod"])
    pod["metadata"] |= {"name": name, "labels": {"kueue.x-k8s.io/pod-group-name": "ring"}}
    if total is not None:
        pod["metadata"]["annotations"] = {"kueue.x-k8s.io/pod-group-total-count": total}
    return pod


@pytest.mark.parametrize(
    ("totals", "message"),
    [
        ((None,), "metadata.annotations[kueue.x-k8s.io/pod-group-total-count]: missing; allowed: how many"),
        (("0",), "pod-group-total-count]: '0' is not allowed"),
        (("two",), "pod-group-total-count]: 'two' is not allowed"),
        ((2,), "pod-group-total-count]: 2 is not allowed"),
        (("2", "3"), "pod-group-total-count]: '3' is not allowed; allowed: 2, as the first pod"),
        (("1", "1"), "pod-group-total-count]: '1' is not allowed; allowed: 2, as many pods as are given"),
    ],
)
def test_pod_groups_that_make_no_sense(totals: tuple[object, ...], message: str) -> None:
    pods = "---\n".join(yaml.safe_dump(_group(total, f"p{n}")) for n, total in enumerate(totals))
    assert message in refusal(pods)


def test_one_object_is_one_job() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
    jobs = [yaml.safe_load(FILES["Job"]), yaml.safe_load(FILES["JobSet"])]
    for document, count in ((service, 0), ({"apiVersion": "v1", "kind": "List", "items": jobs}, 2)):
        with pytest.raises(InputError, match=f"{count} jobs; allowed: exactly one job"):
            manifest_of(document, "x", NOW)


_KINDS = [(doc["apiVersion"], doc["kind"]) for doc in map(yaml.safe_load, FILES.values())]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(_KINDS), JSON, JSON)
def test_random_objects_of_every_kind(kind: tuple[str, str], metadata: Any, spec: Any) -> None:
    document = {"apiVersion": kind[0], "kind": kind[1], "metadata": metadata, "spec": spec}
    with contextlib.suppress(InputError):
        manifest_of(document, "x", NOW)


def _ways(found: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    return [way, *(each for key, value in keys for each in _ways(value, (*way, key)))]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_field_of_a_real_manifest_replaced_by_anything(data: st.DataObject) -> None:
    document = yaml.safe_load(FILES[data.draw(st.sampled_from(sorted(FILES)))])
    for _ in range(data.draw(st.integers(1, 3))):
        way = data.draw(st.sampled_from(_ways(document)[1:]))
        at = document
        for step in way[:-1]:
            at = at[step]
        at[way[-1]] = data.draw(JSON)
    with contextlib.suppress(InputError):
        manifest = manifest_of(document, "x", NOW)
        assert manifest_of(document, "x", NOW) == manifest


@settings(max_examples=150, deadline=None)
@given(JSON | st.text(max_size=40) | st.binary(max_size=40))
def test_random_text(found: Any) -> None:
    text = found if isinstance(found, (str, bytes)) else json.dumps(found)
    with contextlib.suppress(InputError):
        read_manifests(text, "x", NOW)
