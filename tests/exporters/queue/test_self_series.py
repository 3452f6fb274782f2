"""What the collector says of itself."""

from __future__ import annotations

from gpucost.cluster.objects.state import CollectionStatus
from gpucost.cluster.views.problems import StateProblemCode
from gpucost.contract.queue_metrics import STATE_PROBLEMS
from gpucost_queue_collector.collector import (
    SPECS,
    CollectorSelf,
    write_problems,
    write_self,
)
from tests.cluster.builders import T0
from tests.exporters.queue.series import lines


def test_in_full() -> None:
    found = CollectorSelf(
        is_current=True,
        replicas=2,
        refreshed_ms=T0 + 5,
        collections={
            "pods": CollectionStatus("v1", synced=True, seen_ms=T0 + 250),
            "nodes": CollectionStatus("v1", synced=True, problem="http_403", seen_ms=T0),
            "workloads.kueue.x-k8s.io": CollectionStatus("v1beta1", synced=False),
            "queues.scheduling.volcano.sh": CollectionStatus("", synced=True, absent=True, seen_ms=T0),
        },
        counts={"pods": 3, "nodes": 0},
        errors={("nodes", "http_403"): 4},
        failures={"pods": 0, "gangs": 2},
        failed={"gangs"},
    )
    assert lines(SPECS, write_self(found)) == [
        "state_up 1.0",
        "state_replicas 2.0",
        "state_refreshed_timestamp_seconds 1792800000.005",
        'state_collection_up{collection="pods",version="v1"} 1.0',
        'state_collection_up{collection="nodes",version="v1"} 0.0',
        'state_collection_up{collection="workloads.kueue.x-k8s.io",version="v1beta1"} 0.0',
        'state_collection_up{collection="queues.scheduling.volcano.sh",version="none"} 1.0',
        'state_collection_objects{collection="pods"} 3.0',
        'state_collection_objects{collection="nodes"} 0.0',
        'state_collection_seen_timestamp_seconds{collection="pods"} 1792800000.25',
        'state_collection_seen_timestamp_seconds{collection="nodes"} 1792800000.0',
        'state_collection_seen_timestamp_seconds{collection="queues.scheduling.volcano.sh"} 1792800000.0',
        'state_collection_errors_total{collection="nodes",reason="http_403"} 4.0',
        'exporter_source_up{source="pods"} 1.0',
        'exporter_source_up{source="gangs"} 0.0',
        'exporter_source_errors_total{source="pods"} 0.0',
        'exporter_source_errors_total{source="gangs"} 2.0',
    ]


def test_before_anything_was_read() -> None:
    found = CollectorSelf(
        False, 1, None, {"pods": CollectionStatus("v1", synced=False)}, {"pods": 0}, {}, {}, ()
    )
    assert lines(SPECS, write_self(found)) == [
        "state_up 0.0",
        "state_replicas 1.0",
        'state_collection_up{collection="pods",version="v1"} 0.0',
        'state_collection_objects{collection="pods"} 0.0',
    ]


def test_problems_by_code_0_included() -> None:
    assert lines((STATE_PROBLEMS,), write_problems((StateProblemCode.FLAWED, 0))) == [
        'state_problems{code="flawed"} 0.0'
    ]
