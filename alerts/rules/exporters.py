"""Health of what Prometheus scrapes in a cluster: the queue collector, and the GPU exporter of every node."""

from __future__ import annotations

from alerts.rules import thresholds as t
from alerts.rules.model import (
    NODE,
    SELF_OF_CLUSTER,
    AlertRule,
    AlertSeverity,
    RuleGroup,
)

_OF = "{{ with $labels.cluster }} of cluster {{ . }}{{ end }}"
_DAY = t.REMEMBERED.duration


def _gone(metric: str) -> str:
    """Clusters that had it within the day and no longer have it. The value is 0."""
    return (
        f"0 * max by (cluster) (last_over_time({metric}[{_DAY}])) "
        f"unless on (cluster) max by (cluster) ({metric})"
    )


COLLECTOR = RuleGroup(
    "gpucost-queue-collector",
    (
        AlertRule(
            "GpuCostCollectorReplicaMissing",
            "count by (cluster) (gpucost_state_up == 1) < max by (cluster) (gpucost_state_replicas)",
            AlertSeverity.WARNING,
            "A replica of the queue collector is missing.",
            f"{{{{ $value }}}} queue collectors{_OF} have a current view of the cluster, which is fewer "
            f"than should "
            "run. Nothing is lost yet; with the next one, it is.",
            SELF_OF_CLUSTER,
            t.SETTLED,
        ),
        AlertRule(
            "GpuCostCollectorStale",
            "max by (cluster) (gpucost_state_up) == 0 "
            f"or ({_gone('gpucost_state_up')}) "
            f"or absent(last_over_time(gpucost_state_up[{_DAY}]))",
            AlertSeverity.CRITICAL,
            "No queue collector has a current view of the cluster.",
            f"No queue collector{_OF} reads pods and nodes, or none is scraped. What pods hold is only "
            f"known from "
            "their timestamps until one does, and the bill is late.",
            SELF_OF_CLUSTER,
            t.SETTLED,
            thresholds=(t.REMEMBERED,),
        ),
        AlertRule(
            "GpuCostCollectorCollectionDown",
            "min by (cluster, collection) (gpucost_state_collection_up) == 0",
            AlertSeverity.WARNING,
            "The queue collector cannot read a part of the cluster.",
            f"{{{{ $labels.collection }}}}{_OF} cannot be read. What was last known of them is shown, or "
            f"nothing "
            "where they were never read.",
            SELF_OF_CLUSTER,
            t.SETTLED,
        ),
        AlertRule(
            "GpuCostExporterPartDown",
            "min by (cluster, node, source) (gpucost_exporter_source_up) == 0",
            AlertSeverity.WARNING,
            "A part of an exporter fails at every scrape.",
            "The part {{ $labels.source }} of {{ with $labels.node }}the GPU exporter on node "
            "{{ . }}{{ else }}the queue "
            f"collector{{{{ end }}}}{_OF} fails: its series are missing, or as old as the failure.",
            SELF_OF_CLUSTER,
            t.SETTLED,
        ),
    ),
)

_NVIDIA = r'resource=~"(gpu\\.)?nvidia\\.com/.*"'
"""GPUs of others have exporters of their own (docs/existing.md)."""
_COLLECTED = "gpucost_gpu_exporter_last_collection_timestamp_seconds"
_XIDS = f'gpucost_gpu_xid_events_total{{xid!~"{t.XID_PROGRAMS}"}}'
_BY_XID = "(cluster, node, gpu_uuid, xid)"
_NOW, _THEN = (f"max by {_BY_XID} ({_XIDS}{at})" for at in ("", f" offset {t.XID_WINDOW.duration}"))
_WATCHED = f"max by (cluster, node) (gpucost_gpu_exporter_collections_total offset {t.XID_WINDOW.duration})"
# Counters begin at 0 when the node boots, so that all that they count is news then.
_BEGAN = f"max by (cluster, node) (gpucost_gpu_present_seconds_total) < {t.XID_WINDOW}"

GPUS = RuleGroup(
    "gpucost-gpu-exporter",
    (
        AlertRule(
            "GpuCostGpuExportersGone",
            _gone(_COLLECTED),
            AlertSeverity.CRITICAL,
            "No GPU exporter of the cluster is scraped any more.",
            f"Not one GPU exporter{_OF} is scraped, though some were in the last {t.REMEMBERED.shown}. "
            f"What GPUs do is "
            "unknown until they are back: use, idleness and waste of this time are lost.",
            SELF_OF_CLUSTER,
            t.SETTLED,
            thresholds=(t.REMEMBERED,),
        ),
        AlertRule(
            "GpuCostGpuExporterMissing",
            f"max by (cluster, node) (gpucost_node_gpu_capacity{{{_NVIDIA}}} > 0) "
            "and on (cluster, node) max by (cluster, node) (gpucost_node_schedulable) == 1 "
            f"and on (cluster) max by (cluster) ({_COLLECTED}) "
            f"unless on (cluster, node) max by (cluster, node) ({_COLLECTED}) "
            "unless on (cluster, node) max by (cluster, node) (gpucost_node_end_timestamp_seconds)",
            AlertSeverity.WARNING,
            "A GPU node has no GPU exporter.",
            f"Node {{{{ $labels.node }}}}{_OF} takes work and has GPUs, and no GPU exporter on it is "
            f"scraped. What its "
            "GPUs do is unknown.",
            NODE,
            t.PATIENT,
        ),
        AlertRule(
            "GpuCostGpuExporterStale",
            f"time() - max by (cluster, node) ({_COLLECTED}) > {t.EXPORTER_STALE}",
            AlertSeverity.WARNING,
            "A GPU exporter answers with old counters.",
            f"The GPU exporter on node {{{{ $labels.node }}}}{_OF} has not brought its counters up to date "
            f"for "
            "{{ $value | humanizeDuration }}.",
            NODE,
            t.BLIP,
            thresholds=(t.EXPORTER_STALE,),
        ),
        AlertRule(
            "GpuCostNvmlDown",
            "max by (cluster, node) (gpucost_nvml_up) == 0",
            AlertSeverity.WARNING,
            "The GPU driver of a node does not answer.",
            f"NVML on node {{{{ $labels.node }}}}{_OF} does not answer, or shows no GPU. Pods there that "
            f"need a GPU will "
            "fail or hang; what its GPUs do is unknown.",
            NODE,
            t.SETTLED,
        ),
        AlertRule(
            "GpuCostXidCritical",
            f"({_NOW} > 0 and on (cluster, node) ({_BEGAN})) "
            f"or ({_NOW} - on {_BY_XID} {_THEN} > 0) "
            f"or ({_NOW} > 0 unless on {_BY_XID} {_THEN} and on (cluster, node) {_WATCHED})",
            AlertSeverity.CRITICAL,
            "A GPU has reported an error that no program causes.",
            f"GPU {{{{ $labels.gpu_uuid }}}} on node {{{{ $labels.node }}}}{_OF} reported Xid "
            f"{{{{ $labels.xid }}}} "
            f"{{{{ $value }}}} times in the last {t.XID_WINDOW.shown}.",
            NODE,
            thresholds=(t.XID_WINDOW,),
        ),
    ),
)
