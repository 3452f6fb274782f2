"""Fractions of GPUs of KAI Scheduler and HAMi: their owners hold them, the reservation holds nothing."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from gpucost.cluster.objects.nodes import DeviceId, SplitGpu
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.device_claims import ClaimHistory, DeviceUse, DeviceUseKey
from gpucost.cluster.views.gpu_units import ALLOCATED, GROUP, RESERVATIONS, GpuUnits, gpu_fractions
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.sharing_rules import SharingRules
from gpucost.domain.gpu import ResourceCatalog, ShareMethod
from tests.cluster.builders import GPU, T0, node, pod, pod_group, template

CATALOG = ResourceCatalog()


def reservation(group: str, namespace: str = RESERVATIONS, at: str = "n") -> Pod:
    labels = {"app": RESERVATIONS, GROUP: group}
    return pod(f"reserve-{group}", 1, namespace=namespace, labels=labels, node=at, bound_ms=T0)


def owner(name: str, *groups: str, at: str = "n", several: bool = False, **annotations: str) -> Pod:
    labels = {f"{GROUP}/{each}" if several else GROUP: each for each in groups}
    notes = {key.replace("_", "-"): text for key, text in annotations.items()}
    return pod(name, 0, labels=labels, annotations=notes, node=at, bound_ms=T0)


def state(*pods: Pod, memory: str = "81920") -> ClusterState:
    labels = {"nvidia.com/gpu.memory": memory} if memory else {}
    nodes = {each: node(each, labels=labels) for each in ("n", "m")}
    return ClusterState(
        T0,
        pods={each.meta.uid: each for each in pods},
        nodes={each.meta.uid: each for each in nodes.values()},
    )


def key(group: str, uid: str, at: str = "n") -> DeviceUseKey:
    return DeviceUseKey(DeviceId(GPU, at, group), uid)


def test_owners_hold_what_they_were_given_and_the_reservation_nothing() -> None:
    pods = reservation("g"), owner("a", "g", gpu_fraction="0.25"), owner("b", "g", gpu_memory="40960")
    units = GpuUnits(state(*pods), CATALOG)
    assert [units.held(each) for each in pods] == [{}, {GPU: 1}, {GPU: 1}]
    assert units.uses(pods[1]) == {key("g", "a-uid"): DeviceUse(GPU, ShareMethod.FRACTION, Fraction(1, 4))}
    assert units.uses(pods[2]) == {key("g", "b-uid"): DeviceUse(GPU, ShareMethod.FRACTION, Fraction(1, 2))}
    # What is free on the node is another matter: the reservation takes the GPU.
    assert [units.of(each) for each in pods] == [{GPU: 1}, {}, {}]


def test_reservations_are_of_the_namespace_that_an_administrator_names() -> None:
    """A pod of the other namespace is a tenant's, whatever its labels say: it holds its GPU itself."""
    for namespace, rules in ((RESERVATIONS, SharingRules()), ("kai", SharingRules(reservations="kai"))):
        mine = owner("a", "g", gpu_fraction="0.5")
        there, elsewhere = reservation("g", namespace), reservation("h", f"not-{namespace}")
        units = GpuUnits(state(there, elsewhere, mine), CATALOG, sharing=rules)
        assert [units.held(each) for each in (there, elsewhere, mine)] == [{}, {GPU: 1}, {GPU: 1}]


def test_a_fraction_of_each_of_several_gpus() -> None:
    mine = owner("a", "g", "h", several=True, gpu_fraction="0.5")
    units = GpuUnits(state(reservation("g"), reservation("h"), mine), CATALOG)
    assert units.held(mine) == {GPU: 2}
    assert {each.part for each in units.uses(mine).values()} == {Fraction(1, 2)}


@pytest.mark.parametrize(
    ("annotations", "memory"),
    [
        ({"gpu_fraction": "0"}, "81920"),
        ({"gpu_fraction": "1.5"}, "81920"),
        ({"gpu_fraction": "1"}, "81920"),
        ({"gpu_fraction": "1e-999"}, "81920"),
        ({"gpu_fraction": "half", "gpu_memory": "1"}, "81920"),
        ({"gpu_fraction": "1..2"}, "81920"),
        ({"gpu_fraction": "0." + "3" * 4000}, "81920"),
        ({"gpu_memory": "40960"}, ""),
        ({"gpu_memory": "90000"}, "81920"),
        ({"gpu_memory": "-5"}, "81920"),
    ],
)
def test_a_part_that_nothing_says_is_unknown(annotations: dict[str, str], memory: str) -> None:
    mine = owner("a", "g", **annotations)
    units = GpuUnits(state(reservation("g"), mine, memory=memory), CATALOG)
    assert units.uses(mine) == {key("g", "a-uid"): DeviceUse(GPU, ShareMethod.UNKNOWN)}
    assert units.held(mine) == {GPU: 1}


@pytest.mark.parametrize(
    "pods",
    [
        # Labels that a tenant may write: in its own namespace it has no reservation.
        (reservation("g", "team-a"), owner("a", "g", gpu_fraction="0.25")),
        # A name of a group alone: KAI takes no such pod.
        (reservation("g"), owner("a", "g")),
        # A group of which there is no reservation on the pod's node.
        (reservation("g", at="m"), owner("a", "g", gpu_fraction="0.25")),
        (owner("a", "g", gpu_fraction="0.25"),),
    ],
)
def test_what_no_reservation_is_for_is_no_fraction(pods: tuple[Pod, ...]) -> None:
    units = GpuUnits(state(*pods), CATALOG)
    tenants = [each for each in pods if each.meta.namespace != RESERVATIONS]
    assert [units.held(each) for each in tenants] == [units.of(each) for each in tenants]
    assert not any(units.uses(each) for each in pods)


def test_what_was_given_stays_so_whatever_its_owner_writes() -> None:
    mine, held = owner("a", "g", gpu_fraction="0.75"), reservation("g")
    uses = gpu_fractions(state(held, mine)).uses
    cheaper = replace(mine, meta=owner("a", "g", gpu_fraction="0.01").meta)
    history = ClaimHistory(fractions=uses)
    for later in (state(held, cheaper), state(cheaper)):
        units = GpuUnits(later, CATALOG, history=history)
        assert units.uses(cheaper) == uses["a-uid"]
        assert units.held(cheaper) == {GPU: 1}


def test_a_whole_gpu_beside_the_fraction_of_another() -> None:
    found: Any = owner("a", "g", gpu_fraction="0.5")
    mine = replace(found, template=pod("x", 1).template)
    assert GpuUnits(state(reservation("g"), mine), CATALOG).held(mine) == {GPU: 2}


def hami(*allocated: str, gpus: int = 1) -> tuple[GpuUnits, Pod]:
    """A pod on a node with two GPUs that are handed out ten times each."""
    split = tuple(SplitGpu(f"GPU-{name}", 81920, 10) for name in "ab")
    where = node("h", split_gpus=split, replicas={GPU: 10})
    notes = {ALLOCATED: ";".join(allocated)}
    mine = pod("a", gpus, annotations=notes, node="h", bound_ms=T0)
    found = ClusterState(T0, pods={mine.meta.uid: mine}, nodes={where.meta.uid: where})
    return GpuUnits(found, CATALOG), mine


@pytest.mark.parametrize(
    ("allocated", "parts"),
    [
        (("GPU-a,NVIDIA,20480,0:",), [("GPU-a", Fraction(1, 4))]),
        (("GPU-a,NVIDIA,81920,100:",), [("GPU-a", Fraction(1))]),
        # Two containers, of which the second has parts of two GPUs.
        (
            ("GPU-a,NVIDIA,8192,0:", "GPU-a,NVIDIA,8192,0:GPU-b,NVIDIA,40960,0:", ""),
            [("GPU-a", Fraction(1, 5)), ("GPU-b", Fraction(1, 2))],
        ),
        # More than there is, and no number: no part is known.
        (("GPU-a,NVIDIA,90000,0:GPU-b,NVIDIA,lots,0:",), [("GPU-a", None), ("GPU-b", None)]),
    ],
)
def test_parts_of_hami(allocated: tuple[str, ...], parts: list[tuple[str, Fraction | None]]) -> None:
    units, mine = hami(*allocated, gpus=sum(each.count("NVIDIA") for each in allocated))
    found = [
        (key.device.device, use.part if use.method is ShareMethod.FRACTION else None)
        for key, use in units.uses(mine).items()
    ]
    assert found == parts
    assert units.held(mine) == {GPU: len({uuid for uuid, _ in parts})}


@pytest.mark.parametrize(
    # The first is well-formed, and HAMi would have listed both: one is written to pay for a 80000th part.
    "allocated",
    ["GPU-a,NVIDIA,1,0:", "", "GPU-z,NVIDIA,1,0:", "GPU-a", "GPU-a,NVIDIA,1:", ":;,,,:"],
)
def test_what_hami_did_not_write_leaves_the_requests(allocated: str) -> None:
    units, mine = hami(allocated, gpus=2)
    assert (units.held(mine), units.uses(mine)) == ({GPU: 2}, {})


@pytest.mark.parametrize("text", ["0.3333333333333333", "+0.25", "5e-1", ".5", "1e-1"])
def test_numbers_as_kai_reads_them(text: str) -> None:
    mine = owner("a", "g", gpu_fraction=text)
    [use] = GpuUnits(state(reservation("g"), mine), CATALOG).uses(mine).values()
    assert (use.method, use.part) == (ShareMethod.FRACTION, Fraction(text))


def test_a_reservation_of_which_nobody_has_a_part_holds_its_gpu_after_a_while() -> None:
    """A tenant may take the label off its pod; and KAI makes the reservation before it binds the owner."""
    held = reservation("g")
    for at_ms, units in ((T0 + 60_000, {}), (T0 + 121_000, {GPU: 1})):
        assert GpuUnits(replace(state(held), at_ms=at_ms), CATALOG).held(held) == units
    owned = replace(state(held, owner("a", "g", gpu_fraction="0.25")), at_ms=T0 + 121_000)
    assert GpuUnits(owned, CATALOG).held(held) == {}


def test_what_counts_is_what_a_pod_had_when_it_was_first_seen_bound() -> None:
    early, late = owner("a", "g", gpu_fraction="0.75"), owner("b", "g", gpu_fraction="0.1")
    history = ClaimHistory(firsts={"a-uid": early, "b-uid": None})
    now = owner("a", "g", gpu_fraction="0.01")
    units = GpuUnits(state(reservation("g"), now, late), CATALOG, history=history)
    assert units.uses(now) == {key("g", "a-uid"): DeviceUse(GPU, ShareMethod.FRACTION, Fraction(3, 4))}
    assert units.uses(late) == {}


def test_owners_of_fractions_make_gangs_and_wait() -> None:
    """A gang of three: two have a quarter of a GPU each, and one waits for its own."""
    group = pod_group("gang", 3)
    mine = {"scheduling.k8s.io/group-name": "gang", "gpu-fraction": "0.25"}
    asks = template(0, scheduler="kai-scheduler")
    bound = [
        pod(name, asks=asks, labels={GROUP: "g"}, annotations=mine, node="n", bound_ms=T0) for name in "ab"
    ]
    waits = pod("c", asks=asks, annotations=mine)
    cpu = pod("d", asks=template(0, cpu=1, scheduler="kai-scheduler"))
    found = replace(state(reservation("g"), *bound, waits, cpu), pod_groups={group.meta.uid: group})
    overview = ClusterOverview(found)
    [gang] = overview.gangs
    assert (gang.min_members, gang.running, gang.pending, gang.held) == (3, 2, 1, {GPU: 2})
    assert {job.name for job in overview.job_holds} == {"c"}
    # A pod that writes the annotation, and asks another scheduler, waits for no GPU.
    stray = pod("c", annotations=mine)
    assert not ClusterOverview(state(stray)).job_holds
