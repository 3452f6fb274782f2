"""Frequent queries, recorded once: ``level:metric:operations``.

Ratios are recorded as numerator and denominator, so that they can be added up before they are divided. There
may be several collectors: first one value per subject, then sums. Series for alerts about money are held over
a restart of the service, as findings are.
"""

from __future__ import annotations

from alerts.rules.model import (
    RecordingRule,
    RuleGroup,
    last_known,
    money,
    of_service,
)

_NODES = (
    "max by (cluster, node, resource) (gpucost_node_gpu_allocatable) "
    "and on (cluster, node) max by (cluster, node) (gpucost_node_schedulable) == 1 "
    "unless on (cluster, node) gpucost_node_end_timestamp_seconds"
)
_BY_POD = (
    "sum by (cluster, node, resource) (max by (cluster, pod_uid, node, resource) (gpucost_pod_gpu_request "
    "unless on (cluster, pod_uid) gpucost_pod_gpu_end_timestamp_seconds))"
)
_SHARES = "(gpucost_pod_gpu_claim_share unless on (cluster, pod_uid) gpucost_pod_gpu_end_timestamp_seconds)"
_AGAIN = (
    f"(count by (cluster, node, resource) (max by (cluster, pod_uid, node, resource, device) {_SHARES}) "
    f"- count by (cluster, node, resource) (max by (cluster, node, resource, device) {_SHARES}))"
)
# Every pod requests the devices that it shares with others: they are taken from the node once.
_PODS = f"{_BY_POD} - on (cluster, node, resource) ({_AGAIN} or 0 * {_BY_POD})"
_FREE = (
    "sum by (cluster, resource) (clamp_min(node_resource:gpucost_node_gpu_allocatable:max "
    "- on (cluster, node, resource) (node_resource:gpucost_pod_gpu_request:sum "
    "or 0 * node_resource:gpucost_node_gpu_allocatable:max), 0))"
)
_COST_PER_HOUR = "cluster_team:gpucost_team_cost_per_hour:max"
_WASTE = "cluster_team_bucket:gpucost_waste_gpu_seconds:max"
_PART = "cluster_team:gpucost_team_last_day_gpu_seconds"

GROUP = RuleGroup(
    "gpucost-recording",
    (
        # Capacity and its holders, in GPUs, as of the last settled window
        RecordingRule(
            "cluster_bucket:gpucost_capacity_gpus:max",
            of_service("gpucost_capacity_gpus", "gpu_cluster", "bucket"),
        ),
        RecordingRule(
            "cluster:gpucost_capacity_gpus:sum", "sum by (cluster) (cluster_bucket:gpucost_capacity_gpus:max)"
        ),
        RecordingRule(
            "cluster_team:gpucost_team_gpus:max", of_service("gpucost_team_gpus", "gpu_cluster", "owner_team")
        ),
        # Money
        RecordingRule(
            _COST_PER_HOUR,
            last_known(money("gpucost_team_cost_per_hour", "gpu_cluster", "owner_team"), _COST_PER_HOUR),
        ),
        RecordingRule(
            "cluster:gpucost_team_cost_per_hour:sum",
            "sum by (cluster, currency) (cluster_team:gpucost_team_cost_per_hour:max)",
        ),
        RecordingRule(
            "team:gpucost_team_cost_per_hour:sum",
            'sum by (team, currency) (cluster_team:gpucost_team_cost_per_hour:max{team!~"__.*"})',
        ),
        # Where capacity went in the last day, as numerators and denominator. The total is the ledger's, and
        # is not reset with the service: several instances export the same, and a decrease is not a reset, so
        # the growth is the difference.
        RecordingRule(
            _WASTE, of_service("gpucost_waste_gpu_seconds_total", "gpu_cluster", "owner_team", "bucket")
        ),
        RecordingRule(
            "cluster_team_bucket:gpucost_waste_gpu_seconds:increase1d",
            f"clamp_min(delta({_WASTE}[1d]), 0)",
        ),
        RecordingRule(
            "cluster_bucket:gpucost_waste_gpu_seconds:increase1d",
            "sum by (cluster, bucket) (cluster_team_bucket:gpucost_waste_gpu_seconds:increase1d)",
        ),
        RecordingRule(
            "cluster:gpucost_waste_gpu_seconds:increase1d",
            "sum by (cluster) (cluster_bucket:gpucost_waste_gpu_seconds:increase1d)",
        ),
        # How much of held time was measured, likewise
        RecordingRule(
            f"{_PART}:max",
            of_service("gpucost_team_last_day_gpu_seconds", "gpu_cluster", "owner_team", "part"),
        ),
        RecordingRule(
            "cluster:gpucost_team_last_day_gpu_seconds:sum_observed",
            f'sum by (cluster) ({_PART}:max{{part="observed"}})',
        ),
        RecordingRule(
            "cluster:gpucost_team_last_day_gpu_seconds:sum_held",
            f'sum by (cluster) ({_PART}:max{{part="held"}})',
        ),
        # What is free now, by resource name, and what waits: queue pressure is waiting over allocatable
        RecordingRule("node_resource:gpucost_node_gpu_allocatable:max", _NODES),
        RecordingRule("node_resource:gpucost_pod_gpu_request:sum", _PODS),
        RecordingRule(
            "cluster_resource:gpucost_node_gpu_allocatable:sum",
            "sum by (cluster, resource) (node_resource:gpucost_node_gpu_allocatable:max)",
        ),
        RecordingRule("cluster_resource:gpucost_node_gpu_free:sum", _FREE),
        RecordingRule(
            "cluster_queue_resource:gpucost_cluster_queue_pending_units:sum",
            "sum by (cluster, cluster_queue, resource) (max by (cluster, cluster_queue, resource, reason) "
            "(gpucost_cluster_queue_pending_units))",
        ),
        RecordingRule(
            "cluster_resource:gpucost_cluster_queue_pending_units:sum",
            "sum by (cluster, resource) (cluster_queue_resource:gpucost_cluster_queue_pending_units:sum)",
        ),
        RecordingRule(
            "cluster_queue:gpucost_cluster_queue_pending_workloads:sum",
            "sum by (cluster, cluster_queue) (max by (cluster, cluster_queue, reason) "
            "(gpucost_cluster_queue_pending_workloads))",
        ),
    ),
)
