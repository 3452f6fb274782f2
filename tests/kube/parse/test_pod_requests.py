"""What a pod counts for: sidecars and the steps of its start in their order, and while it is resized."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.kube.parse.fields import ObjectPart
from gpucost.kube.parse.templates import pod_requests
from tests.kube.parse.pod_objects import GPU, a_pod, condition

Container = tuple[int, bool]
"""GPUs, and whether it always restarts."""


def container(name: str, gpus: int = 0, *, always: bool = False, **requests: str) -> dict[str, Any]:
    asks = {**({GPU: str(gpus)} if gpus else {}), **requests}
    return {"name": name, "resources": {"requests": asks}} | ({"restartPolicy": "Always"} if always else {})


def gpus(main: list[int], init: list[Container]) -> int:
    spec = {
        "containers": [container(f"c{n}", count) for n, count in enumerate(main)],
        "initContainers": [
            container(f"i{n}", count, always=always) for n, (count, always) in enumerate(init)
        ],
    }
    return pod_requests(ObjectPart(spec)).get(GPU, 0)


@pytest.mark.parametrize(
    ("main", "init", "held"),
    [
        ([2, 1], [], 3),
        ([0], [(1, True)], 1),
        ([2], [(1, True)], 3),
        ([2], [(4, False)], 4),
        ([4], [(2, False)], 4),
        # A step beside the sidecars that began before it, and not beside those after it.
        ([1], [(2, True), (3, False)], 5),
        ([1], [(3, False), (2, True)], 3),
        ([1], [(1, True), (3, False), (1, True), (1, False)], 4),
    ],
)
def test_gpus_of_init_containers_and_sidecars(main: list[int], init: list[Container], held: int) -> None:
    assert gpus(main, init) == held


CONTAINERS = st.lists(st.integers(0, 8), min_size=1, max_size=4)
STEPS = st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=6)


@given(CONTAINERS, STEPS)
def test_the_rule_of_kubernetes_as_it_is_written(main: list[int], init: list[Container]) -> None:
    """KEP-753: the most of all containers with all sidecars, and of each step with the sidecars before."""
    together = sum(main) + sum(count for count, always in init if always)
    steps = [
        count + sum(before for before, is_sidecar in init[:at] if is_sidecar)
        for at, (count, _) in enumerate(init)
    ]
    assert gpus(main, init) == max([together, *steps])


def test_gpus_of_the_whole_pod_are_not_counted() -> None:
    """Only cpu, memory and huge pages may be requested there; whatever stands there, its containers count."""
    spec = {"containers": [container("c", 1)], "resources": {"requests": {GPU: "4"}, "limits": {GPU: "4"}}}
    assert pod_requests(ObjectPart(spec)) == {GPU: 1}
    assert pod_requests(ObjectPart({**spec, "containers": [container("c")]})) == {}


INFEASIBLE = condition("PodResizePending", "True", 9, reason="Infeasible")
DEFERRED = condition("PodResizePending", "True", 9, reason="Deferred")


def resized(asks: str, allocated: str = "", has: str = "", **more: Any) -> dict[str, int]:
    """Cores of a pod with a GPU that was made with 4 of them, and its GPUs."""
    stated: dict[str, Any] = {"name": "main"}
    if allocated:
        stated["allocatedResources"] = {"cpu": allocated, "memory": "1Gi", GPU: "1"}
    if has:
        stated["resources"] = {"requests": {"cpu": has, "memory": "1Gi", GPU: "1"}}
    spec = {"containers": [container("main", 1, cpu=asks, memory="1Gi")]}
    told = [more["pending"]] if "pending" in more else []
    asked = dict(a_pod(spec, told, containerStatuses=[stated]).requests)
    assert asked.pop("memory") == 2**30
    return asked


@pytest.mark.parametrize(
    ("why", "requests", "cores"),
    [
        ("nothing is told", resized("4"), 4),
        ("it has what it asks for", resized("4", "4", "4"), 4),
        ("as much, written otherwise", resized("4", "4000m", "4"), 4),
        ("asks for more, not given yet", resized("8", "4", "4"), 8),
        ("more is set aside, and it does not have it yet", resized("8", "8", "4"), 8),
        ("asks for less, and has more still", resized("2", "2", "4"), 4),
        ("asks for less, not looked at yet", resized("2", "4", "4"), 4),
        ("has less now", resized("2", "2", "2"), 2),
        ("asks for more, later", resized("8", "4", "4", pending=DEFERRED), 8),
        ("can never have more", resized("8000", "4", "4", pending=INFEASIBLE), 4),
        ("can never have more, of an older kubelet", resized("8000", "4", pending=INFEASIBLE), 4),
    ],
)
def test_a_pod_that_is_resized_and_its_gpu(why: str, requests: dict[str, int], cores: int) -> None:
    assert requests == {"cpu": cores * 1000, GPU: 1}, why


def test_a_status_never_changes_how_many_gpus_a_pod_holds() -> None:
    stated = {
        "name": "main",
        "allocatedResources": {"cpu": "8", GPU: "8"},
        "resources": {"requests": {GPU: "8"}},
    }
    spec = {"containers": [container("main", 1, cpu="4")]}
    assert a_pod(spec, containerStatuses=[stated]).requests == {"cpu": 8000, GPU: 1}


@pytest.mark.parametrize(
    ("asks", "pending", "cores"), [("8", DEFERRED, 8), ("2", DEFERRED, 4), ("8000", INFEASIBLE, 4)]
)
def test_the_whole_pod_is_resized(asks: str, pending: dict[str, Any], cores: int) -> None:
    spec = {"containers": [container("main", 1, cpu="1")], "resources": {"requests": {"cpu": asks}}}
    stated = {"resources": {"requests": {"cpu": "4"}}, "allocatedResources": {"cpu": "4"}}
    assert a_pod(spec, [pending], **stated).requests == {"cpu": cores * 1000, GPU: 1}


def test_a_sidecar_that_is_resized() -> None:
    spec = {
        "containers": [container("main", 1, cpu="1")],
        "initContainers": [container("side", cpu="1", always=True)],
    }
    stated = [{"name": "side", "allocatedResources": {"cpu": "3"}, "resources": {"requests": {"cpu": "3"}}}]
    assert a_pod(spec, initContainerStatuses=stated).requests == {"cpu": 4000, GPU: 1}
