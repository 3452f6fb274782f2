"""What OpenCost asks Prometheus for one day's allocations, to be asked beside gpucost's own questions.

The queries of OpenCost 1.112 (compared with pkg/costmodel/allocation.go of its repository; later releases ask
the same in modules/prometheus-source), with its defaults: a window of a day, looks every 5 minutes, one
cluster. The few that only shared volumes and load balancers of a cloud need are among them: OpenCost asks
them always. The largest use of CPUs it asks of a recording rule first, and in a subquery where there is none.
"""

from __future__ import annotations

import resource
import time
import urllib.parse
import urllib.request

from gpucost.domain.time import DAY_MS, SECOND_MS, Window

_BOX = 'container!="", container!="POD", node!=""'
_USED = 'container!="", container_name!="POD", container!="POD"'
_OF_BOX = "(container, pod, namespace, node, cluster_id)"
_OF_USE = "(container_name, container, pod_name, pod, namespace, instance, cluster_id)"
_UNITS = {"memory": ', unit="byte"', "cpu": ', unit="core"'}
_NODE = "(node, cluster_id, instance_type, provider_id)"
_NETWORK = "kubecost_pod_network_egress_bytes_total"


def _mean(metric: str, matchers: str, by: str, operator: str = "avg", function: str = "avg_over_time") -> str:
    return f"{operator}({function}({metric}{{{matchers}}}[1d])) by {by}"


def _requested(resource_name: str) -> str:
    of_resource = f'resource="{resource_name}"{_UNITS.get(resource_name, "")}, {_BOX}'
    return _mean("kube_pod_container_resource_requests", of_resource, _OF_BOX)


def _network(matchers: str) -> str:
    return f"sum(increase({_NETWORK}{{{matchers}}}[1d])) by (pod_name, namespace, cluster_id) / 1024^3"


QUERIES = (
    "avg(kube_pod_container_status_running != 0) by (pod, namespace, cluster_id)[1d:5m]",
    _mean("container_memory_allocation_bytes", _BOX, _OF_BOX),
    _requested("memory"),
    _mean("container_memory_working_set_bytes", _USED, _OF_USE),
    _mean("container_memory_working_set_bytes", _USED, _OF_USE, "max", "max_over_time"),
    _mean("container_cpu_allocation", _BOX, _OF_BOX),
    _requested("cpu"),
    _mean("container_cpu_usage_seconds_total", _USED, _OF_USE, "avg", "rate"),
    _mean("kubecost_container_cpu_usage_irate", "", _OF_USE, "max", "max_over_time"),
    'max(max_over_time(irate(container_cpu_usage_seconds_total{container!="POD", container!=""}[10m])'
    "[1d:5m])) "
    "by (container, pod_name, pod, namespace, instance, cluster_id)",
    _requested("nvidia_com_gpu"),
    _mean("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 'container!=""', "(container, pod, namespace, cluster_id)"),
    _mean(
        *("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 'container!=""', "(container, pod, namespace, cluster_id)"),
        *("max", "max_over_time"),
    ),
    _mean("container_gpu_allocation", _BOX, _OF_BOX),
    _mean("node_cpu_hourly_cost", "", _NODE),
    _mean("node_ram_hourly_cost", "", _NODE),
    _mean("node_gpu_hourly_cost", "", _NODE),
    "avg_over_time(kubecost_node_is_spot[1d])",
    'avg(kube_persistentvolumeclaim_info{volumename!=""}) '
    "by (persistentvolumeclaim, storageclass, volumename, namespace, cluster_id)[1d:5m]",
    "avg(avg_over_time(pod_pvc_allocation[1d])) "
    "by (persistentvolume, persistentvolumeclaim, pod, namespace, cluster_id)",
    "avg(avg_over_time(kube_persistentvolumeclaim_resource_requests_storage_bytes[1d])) "
    "by (persistentvolumeclaim, namespace, cluster_id)",
    "count(kube_persistentvolume_capacity_bytes) by (persistentvolume, cluster_id)[1d:5m]",
    "avg(avg_over_time(kube_persistentvolume_capacity_bytes[1d])) by (persistentvolume, cluster_id)",
    "avg(avg_over_time(pv_hourly_cost[1d])) by (volumename, cluster_id)",
    "avg(avg_over_time(kubecost_pv_info[1d])) by (cluster_id, storageclass, persistentvolume, provider_id)",
    _network('internet="false", same_zone="false", same_region="true"'),
    "avg(avg_over_time(kubecost_network_zone_egress_cost[1d])) by (cluster_id)",
    _network('internet="false", same_zone="false", same_region="false"'),
    "avg(avg_over_time(kubecost_network_region_egress_cost[1d])) by (cluster_id)",
    _network('internet="true"'),
    "avg(avg_over_time(kubecost_network_internet_egress_cost[1d])) by (cluster_id)",
    *(
        f'sum(increase(container_network_{way}_bytes_total{{pod!=""}}[1d])) '
        "by (pod_name, pod, namespace, cluster_id)"
        for way in ("receive", "transmit")
    ),
    "avg_over_time(kube_node_labels[1d])",
    "avg_over_time(kube_namespace_labels[1d])",
    "avg_over_time(kube_namespace_annotations[1d])",
    "avg_over_time(kube_pod_labels[1d])",
    "avg_over_time(kube_pod_annotations[1d])",
    "avg_over_time(service_selector_labels[1d])",
    "avg_over_time(deployment_match_labels[1d])",
    "avg_over_time(statefulSet_match_labels[1d])",
    *(
        f'sum(avg_over_time(kube_pod_owner{{owner_kind="{kind}"}}[1d])) '
        "by (pod, owner_name, namespace, cluster_id)"
        for kind in ("DaemonSet", "Job", "ReplicaSet")
    ),
    'avg(avg_over_time(kube_replicaset_owner{owner_kind="<none>", owner_name="<none>"}[1d])) '
    "by (replicaset, namespace, cluster_id)",
    'avg(avg_over_time(kube_replicaset_owner{owner_kind="Rollout"}[1d])) '
    "by (replicaset, namespace, owner_kind, owner_name, cluster_id)",
    "avg(avg_over_time(kubecost_load_balancer_cost[1d])) "
    "by (namespace, service_name, ingress_ip, cluster_id)",
    "count(kubecost_load_balancer_cost) by (namespace, service_name, cluster_id)[1d:5m]",
    "avg(node_total_hourly_cost) by (node, cluster_id, provider_id)[1d:5m]",
)


def ask_as_opencost(url: str, window: Window) -> dict[str, float]:
    """Ask all of them for each day of ``window``, one after the other, and throw the answers away: the
    seconds, those of our processor, and the bytes of the answers."""
    began, own, size = time.perf_counter(), _own_s(), 0
    for day in window.split(DAY_MS):
        for query in QUERIES:
            form = urllib.parse.urlencode({"query": query, "time": day.end_ms / SECOND_MS}).encode()
            with urllib.request.urlopen(f"{url}/api/v1/query", form) as answer:
                size += len(answer.read())
    return {"wall_s": time.perf_counter() - began, "own_s": _own_s() - own, "answer_mb": size / 1e6}


def _own_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
