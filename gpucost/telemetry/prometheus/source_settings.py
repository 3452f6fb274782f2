"""Settings of a PrometheusSource; every value is checked when it is set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpucost.contract.metrics import node_label_name
from gpucost.domain.errors import InputError
from gpucost.domain.time import DAY_MS, EARLIEST_MS, HOUR_MS, LATEST_MS, MINUTE_MS
from gpucost.telemetry.prometheus.promql import label_name, metric_name


@dataclass(frozen=True, slots=True)
class ProgressMetric:
    """A series with the progress of a job. ``pod_label`` holds the pod's uid, or its name.

    With a name, ``namespace_label`` holds the namespace; leave it empty where ``pod_label`` is a uid. The
    labels are those that Prometheus gave the scrape, so that a pod speaks for itself alone; those of the
    series itself are believed in what is scraped in ``from_namespaces``.
    """

    name: str
    metric: str
    pod_label: str = "pod"
    namespace_label: str = "namespace"
    from_namespaces: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        field_name = f"progress.{self.name}"
        metric_name(self.metric, f"{field_name}.metric")
        label_name(self.pod_label, f"{field_name}.pod_label")
        if self.namespace_label:
            label_name(self.namespace_label, f"{field_name}.namespace_label")


UNIT_COUNTERS: Mapping[str, tuple[str, ...]] = {
    "tokens": (
        *("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
        *("sglang:prompt_tokens_total", "sglang:generation_tokens_total"),
        *("tgi_request_input_length_sum", "tgi_request_generated_tokens_sum"),
    ),
    "requests": (
        *("vllm:request_success_total", "sglang:num_requests_total", "tgi_request_count"),
        "nv_inference_request_success",
    ),
}
"""What serving stacks count, by the name that reports give it: vLLM (docs/usage/metrics.md, whose names NIM
and llm-d use too), SGLang (references/production_metrics), Hugging Face TGI (reference/metrics: its tokens
are sums of histograms), Triton (user guide, metrics: it counts requests, and no tokens)."""


@dataclass(frozen=True, slots=True)
class ServingCounter:
    """A counter of requests to servers, or of bytes with ``is_bytes``.

    By pod, ``namespace_label`` and ``name_label`` are those that Prometheus gave the scrape. By workload,
    they are the series' own, ``name_label`` holds the name of a workload or of a service called like it, and
    only what is scraped in ``from_namespaces`` is believed. ``only``: labels that a series must have.
    """

    metric: str
    by: str = "pod"
    name_label: str = "pod"
    namespace_label: str = "namespace"
    only: Mapping[str, str] = field(default_factory=dict)
    from_namespaces: tuple[str, ...] = ()
    is_bytes: bool = False

    def __post_init__(self) -> None:
        metric_name(self.metric, "serving.metric")
        for label in (self.name_label, self.namespace_label, *self.only):
            label_name(label, f"serving.{self.metric}: labels")
        if self.by not in ("pod", "workload"):
            raise InputError(f"serving.{self.metric}.by", self.by, "pod or workload")
        if self.by == "workload" and not self.from_namespaces:
            allowed = "the namespaces of whoever may count other people's requests"
            raise InputError(f"serving.{self.metric}.from_namespaces", "none", allowed)


SERVING_COUNTERS = (
    ServingCounter("vllm:request_success_total"),
    ServingCounter("sglang:num_requests_total"),
    ServingCounter("tgi_request_count"),
    ServingCounter("nv_inference_request_success"),
    ServingCounter("nv_inference_request_failure"),
    ServingCounter("request_predict_seconds_count"),
    ServingCounter("revision_request_count"),
    ServingCounter("revision_app_request_count"),
    ServingCounter("ray_serve_deployment_request_counter_total"),
    ServingCounter("istio_requests_total", only={"reporter": "destination"}),
    ServingCounter(
        "nginx_ingress_controller_requests", "workload", "service", from_namespaces=("ingress-nginx",)
    ),
    ServingCounter("container_network_receive_bytes_total", is_bytes=True),
)
"""What serving stacks export (vLLM docs/usage/metrics.md; SGLang; Hugging Face TGI reference/metrics; Triton
user guide, metrics; KServe's Python ModelServer; Knative serving/services/service-metrics, queue-proxy; Ray
Serve monitoring, 2.10 and later; Istio reference/config/metrics, as the server's sidecar reports it;
ingress-nginx), and what the kubelet's cAdvisor counts for every pod. Envoy's ``envoy_cluster_upstream_rq``
says which cluster of Envoy's was called, and that is no pod's name, so it is not among them."""


@dataclass(frozen=True, slots=True)
class PrometheusSourceSettings:
    """Settings of one PrometheusSource. Durations are in milliseconds.

    ``cluster_label`` is the label that names the cluster; series without it belong to ``fallback_cluster``.
    ``replica_labels`` tell the members of an HA pair apart. ``matchers`` are labels that every series must
    have. ``max_gap_ms`` is how far apart two heartbeats may lie without a gap between them; ``lateness_ms``
    is how late the collector may learn of a start or an end, and so how long after its end a window is read;
    ``max_outage_ms`` is the longest gap over which a heartbeat is searched. ``activity_step_ms`` is the step
    of the activity that detectors read. ``jobs`` are the scrape jobs that are believed, by prefix of the
    series' names (``gpucost_``); for other names ``trust`` finds them. ``own_namespace`` is where gpucost's
    own exporters run: a target that ``up`` places elsewhere is not believed. ``node_labels`` are the
    Kubernetes node labels that the collector exports as ``label_*``. ``as_of_ms`` is the instant of a reading
    that is not stored: no later sample is queried, and windows are read up to the last heartbeat before it,
    with what is known by then. Without it, windows are read once ``lateness_ms`` has passed. Without
    ``reads_use``, only what is paid for is read: no signals and no progress.
    """

    cluster_label: str = "cluster"
    fallback_cluster: str = "default"
    replica_labels: tuple[str, ...] = ()
    matchers: Mapping[str, str] = field(default_factory=dict)
    max_gap_ms: int = 5 * MINUTE_MS
    lateness_ms: int = 5 * MINUTE_MS
    max_outage_ms: int = 31 * DAY_MS
    max_span_ms: int = DAY_MS
    history_ms: int = 400 * DAY_MS
    signal_step_ms: int = HOUR_MS
    activity_step_ms: int = 5 * MINUTE_MS
    node_labels: tuple[str, ...] = ()
    progress: tuple[ProgressMetric, ...] = ()
    serving: tuple[ServingCounter, ...] = SERVING_COUNTERS
    jobs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    own_namespace: str = ""
    as_of_ms: int | None = None
    reads_use: bool = True

    def upto(self, instant_ms: int) -> int:
        """``instant_ms``, or ``as_of_ms`` where that is earlier."""
        return instant_ms if self.as_of_ms is None else min(instant_ms, self.as_of_ms)

    def __post_init__(self) -> None:
        label_name(self.cluster_label, "cluster_label")
        for label in (*self.replica_labels, *self.matchers):
            label_name(label, "replica_labels and matchers")
        for name in self.__slots__:
            if name.endswith("_ms") and name != "as_of_ms" and getattr(self, name) <= 0:
                raise InputError(name, getattr(self, name), "a positive duration")
        if self.lateness_ms < self.max_gap_ms:
            raise InputError("lateness_ms", self.lateness_ms, f"at least max_gap_ms, {self.max_gap_ms}")
        if self.as_of_ms is not None and not EARLIEST_MS <= self.as_of_ms <= LATEST_MS:
            raise InputError("as_of_ms", self.as_of_ms, "an instant between 2010 and 2100")
        names = [metric.name for metric in self.progress]
        if len(set(names)) < len(names):
            raise InputError("progress", names, "names that differ from each other")
        if len({node_label_name(label) for label in self.node_labels}) < len(self.node_labels):
            raise InputError("node_labels", self.node_labels, "labels that differ in letters and digits")
