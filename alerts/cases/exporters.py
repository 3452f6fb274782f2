"""The queue collector, one or several, and the GPU exporters."""

from __future__ import annotations

from alerts.cases.helpers import BEGINS, always, around, pair, samples
from alerts.rules import thresholds as t
from alerts.rules.model import AlertCase, ExpectedAlert

_SELF = "gpucost-self?var-cluster={}"
_BOARD = "gpucost-nodes?var-cluster=prod&var-node=gpu-1"
_NODE = {"cluster": "prod", "node": "gpu-1"}
_ON = 'cluster="prod", node="gpu-1"'
_RUNS = "Nothing is lost yet; with the next one, it is."
_COLLECTED = "gpucost_gpu_exporter_last_collection_timestamp_seconds"
_UNREAD = (
    "reads pods and nodes, or none is scraped. What pods hold is only known from their timestamps until "
    "one does, and "
    "the bill is late."
)
_WORKLOADS = (
    'gpucost_state_collection_up{cluster="a", collection="workloads.kueue.x-k8s.io", version="v1beta2"'
)
_STALE = {"severity": "critical"}


def _xid(code: int) -> str:
    return f'gpucost_gpu_xid_events_total{{{_ON}, gpu_uuid="GPU-1", xid="{code}"}}'


_WINDOW = int(t.XID_WINDOW.value)
_OF_NEW_NODE = ExpectedAlert(
    {"severity": "critical", "cluster": "prod", "node": "new", "gpu_uuid": "GPU-2", "xid": "48"},
    "GPU GPU-2 on node new of cluster prod reported Xid 48 2 times in the last 1h.",
    "gpucost-nodes?var-cluster=prod&var-node=new",
)

COLLECTOR: tuple[AlertCase, ...] = (
    pair(
        "GpuCostCollectorReplicaMissing",
        "one of two replicas is gone, and comes back; the other cluster has all it should have",
        {
            'gpucost_state_up{cluster="a", instance="one"}': always(),
            'gpucost_state_up{cluster="a", instance="two"}': samples(
                (1, 10), ("stale", 1), ("_", 19), (1, 20)
            ),
            'gpucost_state_replicas{cluster="a", instance="one"}': always(2),
            'gpucost_state_up{cluster="b", instance="three"}': always(),
            'gpucost_state_replicas{cluster="b", instance="three"}': always(1),
        },
        {"cluster": "a"},
        f"1 queue collectors of cluster a have a current view of the cluster, which is fewer than should "
        f"run. {_RUNS}",
        _SELF.format("a"),
    ),
    pair(
        "GpuCostCollectorReplicaMissing",
        "one of two replicas is there, but its view is not current",
        {
            'gpucost_state_up{instance="one"}': always(),
            'gpucost_state_up{instance="two"}': around("GpuCostCollectorReplicaMissing", 1, 0),
            'gpucost_state_replicas{instance="one"}': always(2),
            'gpucost_state_replicas{instance="two"}': always(2),
        },
        {},
        f"1 queue collectors have a current view of the cluster, which is fewer than should run. {_RUNS}",
        _SELF.format(""),
    ),
    pair(
        "GpuCostCollectorStale",
        "no view of cluster a is current; one that never was does not count; that of b always is",
        {
            'gpucost_state_up{cluster="a", instance="one"}': around("GpuCostCollectorStale", 1, 0),
            'gpucost_state_up{cluster="a", instance="two"}': always(0),
            'gpucost_state_up{cluster="b", instance="three"}': always(),
        },
        {"cluster": "a"},
        f"No queue collector of cluster a {_UNREAD}",
        _SELF.format("a"),
    ),
    pair(
        "GpuCostCollectorStale",
        "the collector of cluster a is gone, and back; that of b is there",
        {
            'gpucost_state_up{cluster="a"}': samples((1, 10), ("stale", 1), ("_", 19), (1, 20)),
            'gpucost_state_up{cluster="b"}': always(),
        },
        {"cluster": "a"},
        f"No queue collector of cluster a {_UNREAD}",
        _SELF.format("a"),
    ),
    AlertCase(
        "GpuCostCollectorStale",
        "there never was a collector; then one replica of two is enough",
        {'gpucost_state_up{instance="one"}': samples(("_", 30), (1, 60))},
        silent=(540,),
        firing={600: (ExpectedAlert(_STALE, f"No queue collector {_UNREAD}", _SELF.format("")),)},
        resolved=(1_800,),
    ),
    pair(
        "GpuCostCollectorCollectionDown",
        "one replica may not read workloads; what a cluster does not have is up, in version none",
        {
            f'{_WORKLOADS}, instance="one"}}': (around("GpuCostCollectorCollectionDown", 1, 0)),
            f'{_WORKLOADS}, instance="two"}}': (always()),
            'gpucost_state_collection_up{cluster="a", collection="rayjobs.ray.io", version="none"}': always(),
        },
        {"cluster": "a", "collection": "workloads.kueue.x-k8s.io"},
        "workloads.kueue.x-k8s.io of cluster a cannot be read. What was last known of them is shown, or "
        "nothing where "
        "they were never read.",
        _SELF.format("a"),
    ),
    pair(
        "GpuCostExporterPartDown",
        "a part of the collector",
        {
            'gpucost_exporter_source_up{cluster="a", source="workloads"}': around(
                "GpuCostExporterPartDown", 1, 0
            )
        },
        {"cluster": "a", "source": "workloads"},
        "The part workloads of the queue collector of cluster a fails: its series are missing, or as old "
        "as the failure.",
        _SELF.format("a"),
    ),
    pair(
        "GpuCostExporterPartDown",
        "a part of a GPU exporter",
        {f'gpucost_exporter_source_up{{{_ON}, source="gpus"}}': around("GpuCostExporterPartDown", 1, 0)},
        {**_NODE, "source": "gpus"},
        "The part gpus of the GPU exporter on node gpu-1 of cluster prod fails: its series are missing, or "
        "as old as the "
        "failure.",
        _SELF.format("prod"),
    ),
)

GPUS: tuple[AlertCase, ...] = (
    pair(
        "GpuCostGpuExportersGone",
        "both of a cluster's, and one is back",
        {
            f'{_COLLECTED}{{cluster="prod", node="gpu-1"}}': samples(("0+60", 10), ("stale", 1)),
            f'{_COLLECTED}{{cluster="prod", node="gpu-2"}}': samples(
                (30, 9), ("stale", 1), ("_", 20), (30, 20)
            ),
        },
        {"cluster": "prod"},
        "Not one GPU exporter of cluster prod is scraped, though some were in the last 1d. What GPUs do is "
        "unknown until "
        "they are back: use, idleness and waste of this time are lost.",
        _SELF.format("prod"),
        resolved=BEGINS + 1_200,
    ),
    pair(
        "GpuCostGpuExporterMissing",
        "gpu-1 loses its exporter; gpu-2 has one, gpu-3 is cordoned, amd-1 has others' GPUs, and the other "
        " cluster has no exporter at all",
        {
            f'gpucost_node_gpu_capacity{{{_ON}, resource="nvidia.com/gpu"}}': always(8),
            f"gpucost_node_schedulable{{{_ON}}}": always(),
            f"{_COLLECTED}{{{_ON}}}": samples((0, 10), ("stale", 1), ("_", 24), (0, 20)),
            f'{_COLLECTED}{{cluster="prod", node="gpu-2"}}': always(0),
            'gpucost_node_gpu_capacity{cluster="prod", node="gpu-2", resource="nvidia.com/gpu"}': always(8),
            'gpucost_node_schedulable{cluster="prod", node="gpu-2"}': always(),
            'gpucost_node_gpu_capacity{cluster="prod", node="gpu-3", resource="nvidia.com/gpu"}': always(8),
            'gpucost_node_schedulable{cluster="prod", node="gpu-3"}': always(0),
            'gpucost_node_gpu_capacity{cluster="prod", node="amd-1", resource="amd.com/gpu"}': always(8),
            'gpucost_node_schedulable{cluster="prod", node="amd-1"}': always(),
            'gpucost_node_gpu_capacity{cluster="test", node="gpu-1", resource="nvidia.com/gpu"}': always(8),
            'gpucost_node_schedulable{cluster="test", node="gpu-1"}': always(),
        },
        _NODE,
        "Node gpu-1 of cluster prod takes work and has GPUs, and no GPU exporter on it is scraped. What "
        "its GPUs do is "
        "unknown.",
        _BOARD,
    ),
    pair(
        "GpuCostGpuExporterStale",
        "just as old as it may be, then older, then fresh",
        {f"{_COLLECTED}{{{_ON}}}": samples((240, 21), ("1260+60", 20))},
        _NODE,
        "The GPU exporter on node gpu-1 of cluster prod has not brought its counters up to date for 11m 0s.",
        _BOARD,
    ),
    pair(
        "GpuCostNvmlDown",
        "on one node of two",
        {
            f"gpucost_nvml_up{{{_ON}}}": around("GpuCostNvmlDown", 1, 0),
            'gpucost_nvml_up{cluster="prod", node="gpu-2"}': always(),
        },
        _NODE,
        "NVML on node gpu-1 of cluster prod does not answer, or shows no GPU. Pods there that need a GPU "
        "will fail or "
        "hang; what its GPUs do is unknown.",
        _BOARD,
    ),
    AlertCase(
        "GpuCostXidCritical",
        "79 comes for the first time, 31 (a program's) too; 48 counts on; a node that is new brings its "
        "counts along",
        {
            f"gpucost_gpu_exporter_collections_total{{{_ON}}}": samples(("0+6", 300)),
            _xid(79): samples(("_", 80), (2, 200)),
            _xid(31): samples(("_", 80), (5, 200)),
            _xid(48): samples((1, 100), (2, 200)),
            'gpucost_gpu_exporter_collections_total{cluster="prod", node="new"}': samples(
                ("_", 70), ("0+6", 200)
            ),
            'gpucost_gpu_xid_events_total{cluster="prod", node="new", gpu_uuid="GPU-2", xid="79"}': samples(
                ("_", 70), (7, 200)
            ),
        },
        silent=(4_740,),
        firing={
            4_800: (
                ExpectedAlert(
                    {"severity": "critical", **_NODE, "gpu_uuid": "GPU-1", "xid": "79"},
                    "GPU GPU-1 on node gpu-1 of cluster prod reported Xid 79 2 times in the last 1h.",
                    _BOARD,
                ),
            ),
            4_800 + _WINDOW: (
                ExpectedAlert(
                    {"severity": "critical", **_NODE, "gpu_uuid": "GPU-1", "xid": "48"},
                    "GPU GPU-1 on node gpu-1 of cluster prod reported Xid 48 1 times in the last 1h.",
                    _BOARD,
                ),
            ),
        },
        resolved=(6_000 + _WINDOW,),
    ),
    AlertCase(
        "GpuCostXidCritical",
        "the same code again after a boot, as often as before or less often; of a node that is new, at once",
        {
            f"gpucost_gpu_exporter_collections_total{{{_ON}}}": samples(
                ("0+6", 100), ("_", 10), ("0+6", 190)
            ),
            f'gpucost_gpu_present_seconds_total{{{_ON}, gpu_uuid="GPU-1"}}': samples(
                ("90000+60", 100), ("stale", 1), ("_", 9), ("0+60", 190)
            ),
            _xid(79): samples((1, 100), ("stale", 1), ("_", 29), (1, 170)),
            'gpucost_gpu_exporter_collections_total{cluster="prod", node="new"}': samples(
                ("_", 120), ("0+6", 180)
            ),
            'gpucost_gpu_present_seconds_total{cluster="prod", node="new", gpu_uuid="GPU-2"}': samples(
                ("_", 120), ("0+60", 180)
            ),
            'gpucost_gpu_xid_events_total{cluster="prod", node="new", gpu_uuid="GPU-2", xid="48"}': samples(
                ("_", 125), (2, 175)
            ),
        },
        silent=(5_940, 7_440, 110 * 60 + _WINDOW + 1_260),
        firing={
            7_500: (_OF_NEW_NODE,),
            7_800: (
                ExpectedAlert(
                    {"severity": "critical", **_NODE, "gpu_uuid": "GPU-1", "xid": "79"},
                    "GPU GPU-1 on node gpu-1 of cluster prod reported Xid 79 1 times in the last 1h.",
                    _BOARD,
                ),
                _OF_NEW_NODE,
            ),
        },
    ),
)
