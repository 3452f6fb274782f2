"""Small clusters as a Prometheus would have scraped them, for ``gpucost doctor``: each lacks something."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Month
from tests.support.prometheus import create_blocks

START = Month(2026, 10).window.start_ms
NOW = START + 2 * DAY_MS + HOUR_MS
"""Two days into the month: what is asked for is the month so far."""
KSM = {
    "job": "kube-state-metrics",
    "instance": "10.0.0.5:8080",
    "namespace": "monitoring",
    "pod": "kube-state-metrics-0",
}
_ENERGY, _MILLIWATTS = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 300_000
OWNED = ("namespace", "pod", "container", "uid", "node")
Labels = dict[str, str]


@dataclass(frozen=True)
class Setup:
    """How a cluster of two nodes was scraped. ``honors`` is honor_labels; ``extra`` are further series.

    ``up`` is scraped every ``beat``, all else so often in the last hour, of which a part is read as a report
    would read it, and before that ``every`` so often: of the month the doctor looks at whole hours. ``drops``
    are labels that a relabelling takes off, ``without`` series that kube-state-metrics does not give.
    """

    honors: bool = True
    has_state: bool = True
    has_gpus: bool = True
    labels: bool = True
    replicas: tuple[str, ...] = ("",)
    start_ms: int = START
    now_ms: int = NOW
    team: str = "research"
    without: frozenset[str] = frozenset()
    gpu_fields: tuple[str, ...] = (
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "DCGM_FI_PROF_SM_ACTIVE",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "DCGM_FI_DEV_FB_USED",
        "DCGM_FI_DEV_FB_FREE",
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "DCGM_FI_DEV_XID_ERRORS",
    )
    extra: tuple[tuple[str, Mapping[str, str]], ...] = ()
    gap: tuple[int, int] = (0, 0)
    cluster: Mapping[str, str] = field(default_factory=dict)
    every: int = HOUR_MS
    beat: int = 2 * MINUTE_MS
    drops: frozenset[str] = frozenset()


FULL = Setup(
    extra=(
        ("kueue_pending_workloads", {"cluster_queue": "research", "status": "active", "job": "kueue"}),
        ("kueue_cluster_queue_nominal_quota", {"cluster_queue": "research", "job": "kueue"}),
        ("node_gpu_hourly_cost", {"node": "gpu-1", "job": "opencost"}),
    )
)


def write(setup: Setup, data: Path) -> None:
    """Blocks with the samples of ``setup``."""
    create_blocks(_text(setup), data)


def _text(setup: Setup) -> Iterator[str]:
    rows: dict[str, list[Labels]] = {}
    for name, labels in _series(setup):
        kept = {key: value for key, value in labels.items() if key not in setup.drops}
        rows.setdefault(name, []).append({**kept, **setup.cluster})
    for name, found in rows.items():
        step = setup.beat if name == "up" else setup.every
        beats = range(setup.start_ms, setup.now_ms + 1, setup.beat)
        times = {*range(setup.start_ms, setup.now_ms + 1, step), *beats[-HOUR_MS // setup.beat :]}
        for labels in found:
            value = _values(setup).get(name, 1)
            shown = ",".join(f"{key}={_quoted(value)}" for key, value in labels.items())
            for at in sorted(times):
                if not setup.gap[0] <= at < setup.gap[1]:
                    counted = (at - setup.start_ms) * _MILLIWATTS // 1000
                    yield f"{name}{{{shown}}} {counted if name == _ENERGY else value} {at // 1000}\n"
    yield "# EOF\n"


def _values(setup: Setup) -> dict[str, int]:
    """Of what is not 1: the pod was there before the first scrape."""
    times = ("kube_pod_created", "kube_pod_start_time", "kube_pod_status_scheduled_time", "kube_node_created")
    return {
        "DCGM_FI_DEV_GPU_UTIL": 50,
        "kube_node_spec_unschedulable": 0,
        **dict.fromkeys(times, (setup.start_ms - HOUR_MS) // 1000),
    }


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") + '"'


def _series(setup: Setup) -> Iterator[tuple[str, Labels]]:
    for replica in setup.replicas:
        beside = {"prometheus_replica": replica} if replica else {}
        for name, labels in _of_one(setup):
            yield name, {**labels, **beside}


def _of_one(setup: Setup) -> Iterator[tuple[str, Labels]]:
    if setup.has_state:
        yield "up", KSM
        for name, labels in _state(setup):
            if name not in setup.without:
                yield name, _scraped(labels, KSM, honors=setup.honors)
    if setup.has_gpus:
        yield from _gpus(setup)
    for name, given in setup.extra:
        yield name, dict(given)


def _scraped(own: Labels, target: Labels, *, honors: bool) -> Labels:
    """The labels of a series after a scrape."""
    if honors:
        return {**target, **own}
    renamed = {f"exported_{key}" if key in target else key: value for key, value in own.items()}
    return {**target, **renamed}


def _state(setup: Setup) -> Iterator[tuple[str, Labels]]:
    for node in ("gpu-1", "gpu-2"):
        of_node = {"node": node}
        for metric in ("kube_node_info", "kube_node_created", "kube_node_spec_unschedulable"):
            yield metric, of_node
        for metric in ("kube_node_status_capacity", "kube_node_status_allocatable"):
            yield metric, {**of_node, "resource": "nvidia_com_gpu", "unit": "integer"}
        yield "kube_node_status_condition", {**of_node, "condition": "Ready", "status": "true"}
        labels = {
            "label_nvidia_com_gpu_product": "NVIDIA-H100-80GB-HBM3",
            "label_nvidia_com_gpu_count": "1",
            "label_nvidia_com_gpu_replicas": "1",
            "label_node_kubernetes_io_instance_type": "p5.48xlarge",
        }
        yield "kube_node_labels", {**of_node, **(labels if setup.labels else {})}
    pod = {"namespace": "research", "pod": "train-0", "uid": "6d1f"}
    yield (
        "kube_pod_container_resource_requests",
        {**pod, "container": "main", "node": "gpu-1", "resource": "nvidia_com_gpu", "unit": "integer"},
    )
    for metric in (
        "kube_pod_info",
        "kube_pod_created",
        "kube_pod_start_time",
        "kube_pod_status_scheduled_time",
    ):
        yield metric, pod
    yield "kube_pod_status_phase", {**pod, "phase": "Running"}
    yield "kube_pod_container_status_running", {**pod, "container": "main"}
    yield "kube_pod_owner", {**pod, "owner_kind": "Job", "owner_name": "train"}
    yield "kube_job_owner", {"namespace": "research", "job_name": "train", "owner_kind": "<none>"}
    if setup.labels:
        owners = {"label_team": setup.team, "label_gpucost_io_project": "llm", "label_user": "ada"}
        yield (
            "kube_pod_labels",
            {**pod, **owners, "label_kueue_x_k8s_io_queue_name": "research"},
        )
    yield "kube_namespace_labels", {"namespace": "research"}


def _gpus(setup: Setup) -> Iterator[tuple[str, Labels]]:
    for index, holder in enumerate(("train-0", "")):
        node = f"gpu-{index + 1}"
        target = {
            "job": "dcgm-exporter",
            "instance": f"10.0.0.{index}:9400",
            "namespace": "gpu-operator",
            "pod": f"nvidia-dcgm-exporter-{index}",
            "container": "nvidia-dcgm-exporter",
        }
        yield "up", target
        own = {"gpu": "0", "UUID": f"GPU-{index}", "modelName": "NVIDIA H100 80GB HBM3", "Hostname": node}
        if holder:
            own |= {"namespace": "research", "pod": holder, "container": "main"}
        for name in setup.gpu_fields:
            yield name, _scraped(own, target, honors=setup.honors)
