"""Series of nodes: which have GPUs, what they have, and how one that is gone is shown."""

from __future__ import annotations

from dataclasses import replace

from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.views.device_claims import PublishedUnits
from gpucost.domain.gpu import ResourceCatalog
from gpucost_queue_collector.node_series import SPECS, GpuNode, GpuNodes, write_node
from gpucost_queue_collector.object_memory import EndedNode
from tests.cluster.builders import GPU, MINUTE, T0, node
from tests.exporters.queue.series import HOSTILE, TAMED, lines, read_back

SLICE = "nvidia.com/mig-1g.10gb"
FULL = node(
    "gpu-1",
    capacity={GPU: 8, SLICE: 0},
    allocatable={GPU: 7, SLICE: 0},
    expected={GPU: 8},
    labels={"example.com/Tier": "gold"},
    product="NVIDIA-H100-80GB-HBM3",
    instance_type="p5.48xlarge",
    capacity_type="spot",
    region="eu-1",
    zone="eu-1a",
    pool="train",
    boards=8,
    replicas={GPU: 1},
    provider_id="aws:///eu-1a/i-1",
)


def published_alike(units: dict[str, int]) -> PublishedUnits:
    return PublishedUnits(units, units)


def find(*nodes: Node, labels: tuple[str, ...] = (), **published: int) -> dict[str, GpuNode]:
    finder = GpuNodes(ResourceCatalog(), labels)
    by_node = {name: published_alike({"gpu.nvidia.com": units}) for name, units in published.items()}
    return dict(finder.find(nodes, (), by_node))


def test_a_node_in_full() -> None:
    [found] = find(FULL, labels=("example.com/Tier", "example.com/none")).values()
    assert lines(SPECS, write_node(found)) == [
        'node_info{node="gpu-1",product="NVIDIA-H100-80GB-HBM3",instance_type="p5.48xlarge",'
        'capacity_type="spot",topology_region="eu-1",topology_zone="eu-1a",node_pool="train",provider_id="aws:///eu-1a/i-1",'
        'label_example_com_tier="gold"} 1.0',
        'node_boards{node="gpu-1"} 8.0',
        'node_gpu_capacity{node="gpu-1",resource="nvidia.com/gpu"} 8.0',
        'node_gpu_capacity{node="gpu-1",resource="nvidia.com/mig-1g.10gb"} 0.0',
        'node_gpu_allocatable{node="gpu-1",resource="nvidia.com/gpu"} 7.0',
        'node_gpu_allocatable{node="gpu-1",resource="nvidia.com/mig-1g.10gb"} 0.0',
        'node_gpu_expected{node="gpu-1",resource="nvidia.com/gpu"} 8.0',
        'node_gpu_replicas{node="gpu-1",resource="nvidia.com/gpu"} 1.0',
        'node_schedulable{node="gpu-1"} 1.0',
        'node_start_timestamp_seconds{node="gpu-1"} 1792800000.0',
    ]


def test_what_nothing_says_is_absent() -> None:
    [found] = find(node("gpu-1", allocatable={GPU: 1}, is_cordoned=True)).values()
    assert lines(SPECS, write_node(found)) == [
        'node_info{node="gpu-1",product="",instance_type="",capacity_type="",topology_region="",'
        'topology_zone="",node_pool="",provider_id=""} 1.0',
        'node_gpu_capacity{node="gpu-1",resource="nvidia.com/gpu"} 1.0',
        'node_gpu_allocatable{node="gpu-1",resource="nvidia.com/gpu"} 1.0',
        'node_schedulable{node="gpu-1"} 0.0',
        'node_unavailable_info{node="gpu-1",cause="cordoned"} 1.0',
        'node_start_timestamp_seconds{node="gpu-1"} 1792800000.0',
    ]


def test_hostile_names_come_back_as_they_were() -> None:
    found = GpuNode(node(HOSTILE, 1), {GPU: 1}, {GPU: 1}, (("example.com/tier", HOSTILE),), T0)
    read = read_back(SPECS, write_node(found))
    assert {each["node"] for each in read} == {TAMED}
    assert read[0]["label_example_com_tier"] == TAMED


def test_which_nodes_have_gpus() -> None:
    nothing: dict[str, int] = {}
    found = find(
        node("cpu", allocatable={"cpu": 64_000}),
        node("gpu"),
        node("lost", allocatable={GPU: 0}),
        node("labelled", allocatable=nothing, product="NVIDIA-L40S"),
        node("claims", allocatable=nothing, expected={GPU: 8}),
        node("dra", allocatable=nothing),
        node("both", 8),
        dra=4,
        both=8,
    )
    assert {name: each.capacity for name, each in found.items()} == {
        "gpu": {GPU: 8},
        "lost": {GPU: 0},
        "labelled": {},
        "claims": {},
        "dra": {"gpu.nvidia.com": 4},
        "both": {GPU: 8},
    }


def test_a_node_that_is_gone_has_its_end_and_all_it_had() -> None:
    finder, dra = GpuNodes(ResourceCatalog(), ()), node("dra", allocatable={"cpu": 64_000})
    finder.find([FULL, dra], (), {"dra": published_alike({"gpu.nvidia.com": 4})})
    ended = [EndedNode(each, T0 + MINUTE + 1, T0 + 2 * MINUTE) for each in (FULL, dra)]
    for _ in range(2):
        found = finder.find([], ended, {})
        assert {name: each.capacity for name, each in found.items()} == {
            "gpu-1": {GPU: 8, SLICE: 0},
            "dra": {"gpu.nvidia.com": 4},
        }
        assert lines(SPECS, write_node(found["dra"]))[-1] == (
            'node_end_timestamp_seconds{node="dra"} 1792800060.001'
        )


def test_one_that_is_gone_before_anybody_looked() -> None:
    [found] = GpuNodes(ResourceCatalog(), ()).find([], [EndedNode(FULL, T0 + 1, T0 + 1)], {}).values()
    assert (found.capacity, found.ended_ms) == ({GPU: 8, SLICE: 0}, T0 + 1)


def test_of_two_nodes_of_one_name_the_newest_is_shown() -> None:
    older = node("gpu-1", 8)
    newer = node("gpu-1", 4, created_ms=T0 + MINUTE)
    newer = replace(newer, meta=replace(newer.meta, uid="second-uid"))
    for order in ((older, newer), (newer, older)):
        assert {name: each.capacity for name, each in find(*order).items()} == {"gpu-1": {GPU: 4}}
    ended = [EndedNode(newer, T0 + 3, T0 + 3), EndedNode(older, T0 + 2, T0 + 2)]
    [found] = GpuNodes(ResourceCatalog(), ()).find([], ended, {}).values()
    assert (found.capacity, found.ended_ms) == ({GPU: 4}, T0 + 3)
