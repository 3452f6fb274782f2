"""What a pod asks for and where it may run, from its spec."""

from __future__ import annotations

import gc
import time
import tracemalloc
import weakref
from typing import Any

import pytest

from gpucost.cluster.objects.pods import PodTemplate, SelectorRequirement, Toleration
from gpucost.kube.parse.fields import ObjectPart
from gpucost.kube.parse.templates import pod_template

_GPU = "nvidia.com/gpu"


def _container(requests: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    limits = more.pop("limits", None)
    resources = {"requests": requests} | ({"limits": limits} if limits else {})
    return {"name": "c", "resources": resources, **more}


def _sidecar(requests: dict[str, Any]) -> dict[str, Any]:
    return _container(requests, restartPolicy="Always")


def _read(**spec: Any) -> PodTemplate:
    root = ObjectPart(spec)
    template = pod_template(root)
    assert root.flaws == []
    return template


@pytest.mark.parametrize(
    ("spec", "requests"),
    [
        ({}, {}),
        (
            {"containers": [_container({"cpu": "1", _GPU: 2}), _container({_GPU: "1"})]},
            {"cpu": 1000, _GPU: 3},
        ),
        # The largest init container counts, not their sum, and by resource.
        (
            {
                "containers": [_container({"cpu": "2", _GPU: "1"})],
                "initContainers": [_container({"cpu": "3"}), _container({"cpu": "4", "memory": "1Ki"})],
            },
            {"cpu": 4000, "memory": 1024, _GPU: 1},
        ),
        # A sidecar runs beside the containers, and beside the init containers after it only.
        (
            {
                "containers": [_container({"cpu": "1"})],
                "initContainers": [
                    _container({"cpu": "5"}),
                    _sidecar({"cpu": "2"}),
                    _container({"cpu": "4"}),
                ],
            },
            {"cpu": 6000},
        ),
        (
            {
                "containers": [_container({"cpu": "3"})],
                "initContainers": [_sidecar({"cpu": "2"}), _sidecar({"cpu": "1", _GPU: "1"})],
            },
            {"cpu": 6000, _GPU: 1},
        ),
        # Overhead comes on top of either.
        (
            {
                "containers": [_container({"cpu": "1"})],
                "initContainers": [_container({"cpu": "2"})],
                "overhead": {"cpu": "250m", "memory": "1Mi"},
            },
            {"cpu": 2250, "memory": 2**20},
        ),
        # A limit stands for a request that is missing; a request that is there wins.
        (
            {"containers": [_container({"cpu": "1"}, limits={"cpu": "4", _GPU: "8"})]},
            {"cpu": 1000, _GPU: 8},
        ),
        ({"containers": [_container(None, limits={_GPU: "8"})]}, {_GPU: 8}),
        # Requests of the whole pod: for cpu, memory and huge pages only.
        (
            {
                "containers": [_container({"cpu": "1", "memory": "1Ki", _GPU: "1"})],
                "resources": {
                    "requests": {"cpu": "8", _GPU: "9"},
                    "limits": {"cpu": "16", "memory": "2Ki", "hugepages-2Mi": "4Mi"},
                },
                "overhead": {"cpu": "1"},
            },
            {"cpu": 9000, "memory": 1024, "hugepages-2Mi": 2**22, _GPU: 1},
        ),
        ({"containers": [_container({_GPU: "0", "cpu": "1"})]}, {"cpu": 1000}),
    ],
)
def test_requests_are_those_the_scheduler_counts(spec: dict[str, Any], requests: dict[str, int]) -> None:
    assert _read(**spec).requests == requests


def test_many_init_containers_beside_a_sidecar_of_many_resources_cost_no_more_than_their_size() -> None:
    sidecar = _sidecar({f"example.com/{i}": "1" for i in range(2000)})
    steps = [_container({"cpu": str(1 + i % 7)}) for i in range(10_000)]
    start = time.process_time()
    found = _read(containers=[_container({"cpu": "1"})], initContainers=[sidecar, *steps])
    assert time.process_time() - start < 1
    assert found.requests == {**{f"example.com/{i}": 1 for i in range(2000)}, "cpu": 7000}


def test_a_request_that_makes_no_sense_is_a_flaw_and_the_others_count() -> None:
    root = ObjectPart({"containers": [_container({_GPU: "two", "cpu": "1"}), _container({_GPU: "1"})]})
    assert pod_template(root).requests == {"cpu": 1000, _GPU: 1}
    assert [flaw.field for flaw in root.flaws] == [f"containers[0].resources.requests.{_GPU}"]


def test_where_it_may_run() -> None:
    required = {
        "nodeSelectorTerms": [
            {
                "matchExpressions": [
                    {"key": "gpu", "operator": "In", "values": ["h100", "h200"]},
                    {"key": "old", "operator": "DoesNotExist"},
                ],
                "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["bad"]}],
            },
            {},
        ]
    }
    template = _read(
        nodeSelector={"pool": "train"},
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": required,
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
            }
        },
        tolerations=[
            {"key": _GPU, "operator": "Exists", "effect": "NoSchedule"},
            {"key": "team", "value": "vision"},
            {"operator": "Exists"},
        ],
        priorityClassName="high",
        schedulerName="volcano",
        resourceClaims=[
            {"name": "a", "resourceClaimName": "mine"},
            {"name": "b", "resourceClaimTemplateName": "made"},
            {"name": "c"},
        ],
    )
    assert template == PodTemplate(
        requests={},
        node_selector={"pool": "train"},
        affinity=(
            (
                SelectorRequirement("gpu", "In", ("h100", "h200")),
                SelectorRequirement("old", "DoesNotExist"),
                SelectorRequirement("metadata.name", "NotIn", ("bad",), of_field=True),
            ),
            # An empty term matches no node; an In without values says the same.
            (SelectorRequirement("", "In"),),
        ),
        tolerations=(
            Toleration(_GPU, exists=True, effect="NoSchedule"),
            Toleration("team", value="vision"),
            Toleration(exists=True),
        ),
        priority_class="high",
        scheduler="volcano",
        claims=("mine", "made"),
        has_pod_affinity=False,
    )


def test_a_toleration_by_comparison_tolerates_nothing_and_is_a_flaw() -> None:
    root = ObjectPart({"tolerations": [{"key": "slo", "operator": "Gt", "value": "950"}]})
    assert pod_template(root).tolerations == ()
    assert [flaw.field for flaw in root.flaws] == ["tolerations[0].operator"]


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("spec", "depends"),
    [
        ({"affinity": {"podAffinity": {_REQUIRED: [{"topologyKey": "zone"}]}}}, True),
        ({"affinity": {"podAntiAffinity": {_REQUIRED: [{"topologyKey": "host"}]}}}, True),
        ({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}}, False),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, True),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, False),
    ],
)
def test_rules_about_other_pods_are_noticed_when_they_are_hard(spec: dict[str, Any], depends: bool) -> None:
    assert _read(**spec).has_pod_affinity is depends


def test_equal_templates_are_one_object() -> None:
    first = _read(containers=[_container({_GPU: "1", "cpu": "1"})])
    assert first is _read(containers=[_container({"cpu": "1000m"}), _container({_GPU: 1})])


def test_templates_are_held_by_nobody_else() -> None:
    template = _read(containers=[_container({_GPU: "3"})], nodeSelector={"only": "here"})
    seen, requests = weakref.ref(template), weakref.ref(template.requests)
    del template
    assert (seen(), requests()) == (None, None)


def test_templates_of_any_size_leave_nothing_behind() -> None:
    def make(serial: int) -> None:
        long = f"{serial}" + "x" * 100_000
        _read(
            containers=[_container({f"example.com/{long}": "1"})],
            nodeSelector={"pool": long},
            tolerations=[{"key": long, "operator": "Exists"}],
            priorityClassName=long,
        )

    make(0)
    tracemalloc.start()
    try:
        for serial in range(50):
            make(serial)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()
