"""The exact settings of others' software: names as their command lines and Helm charts have them.

kube-state-metrics: docs/cli-arguments.md and its chart; kube-prometheus-stack: values.yaml; dcgm-exporter and
GPU operator: their flags, environment and charts; Kueue: Configuration, field ``metrics``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from gpucost.contract.dcgm import DcgmField
from gpucost.contract.probe import KUBE_JOBS, ForeignJob
from gpucost.domain.time import HOUR_MS
from gpucost.reports.doctor.model import DiagnosisStep, DoctorFeature, LabelAllowlist, SettingSnippet

STACK = "kube-prometheus-stack (Helm)"
KSM = "kube-state-metrics (flag)"
KSM_CHART = "kube-state-metrics (Helm)"
OPERATOR = "GPU operator (Helm)"
DCGM_CHART = "dcgm-exporter (Helm)"
GPUCOST = "gpucost (settings file)"
PROMETHEUS = "Prometheus (flag)"
_MOST = 20
RETENTION = "62d"
"""A month, and the month after it in which its report is made."""

_CSV = {
    DcgmField.BUSY: "DCGM_FI_DEV_GPU_UTIL, gauge, GPU utilization (in %).",
    DcgmField.GRAPHICS: "DCGM_FI_PROF_GR_ENGINE_ACTIVE, gauge, Ratio of time the graphics engine is active.",
    DcgmField.SM: "DCGM_FI_PROF_SM_ACTIVE, gauge, Ratio of cycles an SM has at least 1 warp assigned.",
    DcgmField.TENSOR: "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, gauge, Ratio of cycles the tensor pipe is active.",
    DcgmField.MEMORY_USED: "DCGM_FI_DEV_FB_USED, gauge, Framebuffer memory used (in MiB).",
    DcgmField.MEMORY_FREE: "DCGM_FI_DEV_FB_FREE, gauge, Framebuffer memory free (in MiB).",
    DcgmField.ENERGY: "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Total energy since boot (in mJ).",
    DcgmField.XID: "DCGM_FI_DEV_XID_ERRORS, gauge, Value of the last XID error encountered.",
}


def kube_state() -> DiagnosisStep:
    return DiagnosisStep(
        "Let Prometheus scrape kube-state-metrics",
        (
            SettingSnippet(STACK, "kubeStateMetrics:\n  enabled: true"),
            SettingSnippet(KSM_CHART, "prometheus:\n  monitor:\n    enabled: true\n    honorLabels: true"),
        ),
        (DoctorFeature.COST, DoctorFeature.TEAMS, DoctorFeature.JOBS, DoctorFeature.SHARING),
        "It says which pods requested and held GPUs, and which nodes have them: nothing can be told without.",
    )


def kube_series(names: Iterable[str], gains: tuple[DoctorFeature, ...]) -> DiagnosisStep:
    """Series that kube-state-metrics exports by default, and that do not reach Prometheus."""
    listed = sorted(names)
    return DiagnosisStep(
        f"Keep {', '.join(listed)}",
        (
            SettingSnippet(KSM, "\n".join(f"--metric-denylist must not match {name}" for name in listed)),
            SettingSnippet("Prometheus (scrape job)", "metric_relabel_configs must not drop these names"),
        ),
        gains,
        "kube-state-metrics gives them by default; --metric-allowlist, where it is set, must name them.",
    )


def label_lists(allowed: Sequence[LabelAllowlist], gains: tuple[DoctorFeature, ...]) -> DiagnosisStep:
    lists = [str(each) for each in allowed]
    listed = "\n".join(f"    - {each}" for each in lists)
    return DiagnosisStep(
        "Export the labels that name teams, queues and GPU models",
        (
            SettingSnippet(KSM, f"--metric-labels-allowlist={','.join(lists)}"),
            SettingSnippet(KSM_CHART, "metricLabelsAllowlist:\n" + listed.replace("    -", "  -")),
            SettingSnippet(STACK, f"kube-state-metrics:\n  metricLabelsAllowlist:\n{listed}"),
        ),
        gains,
        f"What is listed replaces what was listed before. {_kept(allowed)} {_WILDCARDS}",
    )


_WILDCARDS = (
    "From kube-state-metrics 2.20 on nvidia.com/gpu.* and nvidia.com/mig-* do for NVIDIA's; older ones take "
    "whole names, and a list that is [*]."
)


def _kept(allowed: Sequence[LabelAllowlist]) -> str:
    """The other labels that are exported, under the names that Prometheus has."""
    others = [
        f"{each.kind} {', '.join(each.others[:_MOST])}"
        + (f" and {len(each.others) - _MOST} more" if len(each.others) > _MOST else "")
        for each in allowed
        if each.others
    ]
    unknown = ", ".join(each.kind for each in allowed if not each.is_known)
    says = [f"What is exported now of {unknown} is not known: keep it."] if unknown else []
    if others:
        renamed = "names as Prometheus has them, where . / - became _"
        says.append(
            f"Also exported now: keep them ({renamed}): {'; '.join(others)}. A list that is [*] can stay."
        )
    return " ".join(says) or "All that is exported now is in it."


def annotation_list(allowed: LabelAllowlist) -> DiagnosisStep:
    listed = str(allowed)
    return DiagnosisStep(
        "Export the annotations that name Volcano's queues",
        (
            SettingSnippet(KSM, f"--metric-annotations-allowlist={listed}"),
            SettingSnippet(KSM_CHART, f"metricAnnotationsAllowList:\n  - {listed}"),
            SettingSnippet(STACK, f"kube-state-metrics:\n  metricAnnotationsAllowList:\n    - {listed}"),
        ),
        (DoctorFeature.QUEUES,),
        f"What is listed replaces what was listed before. {_kept([allowed])}",
    )


def pod_uids() -> DiagnosisStep:
    return DiagnosisStep(
        "Keep the label uid of kube-state-metrics' series",
        (
            SettingSnippet(
                "Prometheus (scrape job)", "metric_relabel_configs must not drop uid (labeldrop, labelkeep)"
            ),
            SettingSnippet("kube-state-metrics (image)", "2.0 or later"),
        ),
        (DoctorFeature.COST, DoctorFeature.JOBS),
        "By uid pods of one name are told apart, and their requests, times and labels belong together.",
    )


def believed_jobs(setting: str, job: str, what: str) -> DiagnosisStep:
    """One of several scrape jobs that export the same kind of series."""
    return DiagnosisStep(
        f"Say which scrape job of {what} is right",
        (SettingSnippet(GPUCOST, f"prometheus:\n  {setting}: [{_quoted(job)}]"),),
        (),
        "Whoever can have a target of their own scraped can write such series. This job shows most of them; "
        "list several where each sees a part of the cluster.",
    )


def stranger(found: ForeignJob) -> DiagnosisStep:
    """A scrape job that exports series of an exporter, and is not trusted for it."""
    gpu_hours = (found.gpu_ms or 0) / HOUR_MS
    hours = f" Its series claim {gpu_hours:,.1f} GPU-hours of the last day." if gpu_hours else ""
    known = SettingSnippet(GPUCOST, f"prometheus:\n  {found.setting}: {_listed(found.believed)}")
    said = str(found)
    return DiagnosisStep(
        f"Find out who gives series of {found.what}",
        (known,) if found.believed else (),
        (),
        f"{said[0].upper()}{said[1:]}.{hours}",
    )


def foreign_series(job: str, believed: Sequence[str], *, is_opencost: bool) -> DiagnosisStep:
    """Series of kube-state-metrics' names that another exporter exports, and that no report reads. OpenCost's
    switches are EMIT_KSM_V1_METRICS, true unless set, and where that is false EMIT_KSM_V1_METRICS_ONLY, which
    leaves those of nodes, namespaces and labels of pods (opencost 1.112, pkg/env/costmodelenv.go).
    """
    drop = "metric_relabel_configs:\n  - source_labels: [__name__]\n    regex: kube_.+\n    action: drop"
    own = SettingSnippet(GPUCOST, f"prometheus:\n  {KUBE_JOBS}: {_listed(believed)}")
    relabel = SettingSnippet(f"Prometheus (scrape job {job})", drop)
    if not is_opencost:
        return DiagnosisStep(
            f"Keep kube_* of job {job} from Prometheus",
            (relabel, own),
            (),
            f"Job {job} gives series of kube-state-metrics' names and is not it; gpucost does not read them, "
            "other dashboards count twice.",
        )
    return DiagnosisStep(
        "Keep OpenCost's own kube_* from Prometheus",
        (
            SettingSnippet(
                "OpenCost (environment)",
                "EMIT_KSM_V1_METRICS=false\nEMIT_KSM_V1_METRICS_ONLY=false",
            ),
            SettingSnippet(
                "OpenCost (Helm)",
                "opencost:\n  metrics:\n    kubeStateMetrics:\n      emitKsmV1Metrics: false\n"
                "      emitKsmV1MetricsOnly: false",
            ),
            relabel,
            own,
        ),
        (),
        "gpucost does not read them; other dashboards count twice. OpenCost reads labels of nodes, pods and "
        "namespaces out of Prometheus: without its own it has those that kube-state-metrics' list allows, so "
        "where it divides by labels, set EMIT_KSM_V1_METRICS_ONLY=true instead, which keeps these alone.",
    )


def hidden_job(job: str, believed: Sequence[str], names: Iterable[str]) -> DiagnosisStep:
    """A part of kube-state-metrics that has a scrape job of its own."""
    listed = _listed(dict.fromkeys((*believed, job)))
    return DiagnosisStep(
        "Name all scrape jobs of kube-state-metrics",
        (SettingSnippet(GPUCOST, f"prometheus:\n  {KUBE_JOBS}: {listed}"),),
        (DoctorFeature.COST, DoctorFeature.TEAMS, DoctorFeature.JOBS, DoctorFeature.SHARING),
        f"Job {job} gives {', '.join(sorted(names))}, which the job that shows nodes does not. Only if it is "
        "kube-state-metrics too: whoever can have a target scraped can write such series.",
    )


def _listed(jobs: Iterable[str]) -> str:
    return f"[{', '.join(_quoted(job) for job in jobs)}]"


def other_job(
    setting: str, jobs: Sequence[str], what: str, gains: tuple[DoctorFeature, ...]
) -> DiagnosisStep:
    """No job that gpucost was configured to trust has such series, and ``jobs`` do."""
    listed = ", ".join(job or "a job without a name" for job in jobs[:4])
    return DiagnosisStep(
        f"Name the scrape job of {what} that is there",
        (SettingSnippet(GPUCOST, f"prometheus:\n  {setting}: [{_quoted(jobs[0])}]"),),
        gains,
        f"None of the jobs that prometheus.{setting} names has any of its series. Those that have: {listed}.",
    )


def _quoted(job: str) -> str:
    return job if _PLAIN.fullmatch(job) else json.dumps(job)


def retention(note: str) -> DiagnosisStep:
    return DiagnosisStep(
        "Keep samples for the month and the month after it",
        (
            SettingSnippet(PROMETHEUS, f"--storage.tsdb.retention.time={RETENTION}"),
            SettingSnippet(STACK, f"prometheus:\n  prometheusSpec:\n    retention: {RETENTION}"),
        ),
        (DoctorFeature.COST,),
        note,
    )


def dcgm() -> DiagnosisStep:
    return DiagnosisStep(
        "Let Prometheus scrape dcgm-exporter",
        (
            SettingSnippet(OPERATOR, "dcgmExporter:\n  enabled: true\n  serviceMonitor:\n    enabled: true"),
            SettingSnippet(DCGM_CHART, "serviceMonitor:\n  enabled: true"),
        ),
        (*USES, DoctorFeature.IDLE, DoctorFeature.BROKEN),
        "The ServiceMonitor needs the labels that your Prometheus selects (additionalLabels). Costs do not "
        "depend on it; gpucost's own exporter is the alternative, see docs/install.md.",
    )


def dcgm_fields(fields: Sequence[DcgmField], gains: tuple[DoctorFeature, ...]) -> DiagnosisStep:
    lines = "\n".join(_CSV[each] for each in fields)
    return DiagnosisStep(
        "Let dcgm-exporter give the fields that are missing",
        (
            SettingSnippet("dcgm-exporter (counters file, -f)", lines),
            SettingSnippet(
                OPERATOR, "dcgmExporter:\n  config:\n    name: dcgm-metrics  # key dcgm-metrics.csv"
            ),
        ),
        gains,
        "A file of your own replaces the default one: begin with a copy of it. Profiling fields (PROF) need "
        "a data centre GPU and the capability SYS_ADMIN; GPU utilization has no value on MIG slices.",
    )


def dcgm_pods() -> DiagnosisStep:
    return DiagnosisStep(
        "Let dcgm-exporter say which pod holds a GPU",
        (
            SettingSnippet("dcgm-exporter (environment)", "DCGM_EXPORTER_KUBERNETES=true"),
            SettingSnippet(
                OPERATOR, 'dcgmExporter:\n  env:\n    - name: DCGM_EXPORTER_KUBERNETES\n      value: "true"'
            ),
        ),
        (*USES, DoctorFeature.IDLE),
        "It needs the kubelet's socket in /var/lib/kubelet/pod-resources; on GKE also "
        "--kubernetes-gpu-id-type=device-name.",
    )


def shared_gpus() -> DiagnosisStep:
    name = "KUBERNETES_VIRTUAL_GPUS"
    return DiagnosisStep(
        "Let dcgm-exporter name every pod on a shared GPU",
        (
            SettingSnippet("dcgm-exporter (environment)", f"{name}=true"),
            SettingSnippet(OPERATOR, f'dcgmExporter:\n  env:\n    - name: {name}\n      value: "true"'),
        ),
        (DoctorFeature.SHARING,),
        "Without it one pod of several, which one is chance, has all the use. The copies that it brings are "
        "counted once.",
    )


def kueue() -> DiagnosisStep:
    setting = "metrics:\n  enableClusterQueueResources: true"
    return DiagnosisStep(
        "Let Kueue give quotas and their use",
        (
            SettingSnippet("Kueue (controller_manager_config.yaml)", setting),
            SettingSnippet(
                "Kueue (Helm)",
                "managerConfig:\n  controllerManagerConfigYaml: |-\n    metrics:\n"
                "      enableClusterQueueResources: true",
            ),
        ),
        (DoctorFeature.QUOTAS,),
        "In Helm the text is the whole configuration: add the line to the one that is there.",
    )


def replicas(labels: Sequence[str]) -> DiagnosisStep:
    return DiagnosisStep(
        "Name the labels that tell HA members apart",
        (SettingSnippet(GPUCOST, f"prometheus:\n  replica_labels: [{', '.join(labels)}]"),),
        (DoctorFeature.COST, *USES),
        "Or let the querier take copies out (Thanos: --query.replica-label; Mimir: its HA tracker).",
    )


def one_job(exporter: str, labels: Sequence[str]) -> DiagnosisStep:
    return DiagnosisStep(
        f"Scrape {exporter} once",
        (
            SettingSnippet(
                "Prometheus (scrape jobs)", f"one job for {exporter}; {', '.join(labels)} differ now"
            ),
        ),
        (),
        "gpucost counts each pod, node and GPU once all the same; the copies cost memory and can disagree.",
    )


def honor_labels() -> DiagnosisStep:
    return DiagnosisStep(
        "Keep kube-state-metrics' own labels",
        (
            SettingSnippet("Prometheus (scrape job)", "honor_labels: true"),
            SettingSnippet("ServiceMonitor (endpoint)", "honorLabels: true"),
            SettingSnippet(KSM_CHART, "prometheus:\n  monitor:\n    honorLabels: true"),
            SettingSnippet(
                STACK, "kube-state-metrics:\n  prometheus:\n    monitor:\n      honorLabels: true"
            ),
        ),
        (),
        "Not needed: gpucost reads exported_pod and its like as well. OpenCost and most dashboards do not.",
    )


def opencost() -> DiagnosisStep:
    return DiagnosisStep(
        "Let Prometheus scrape OpenCost",
        (
            SettingSnippet(
                "OpenCost (Helm)", "opencost:\n  metrics:\n    serviceMonitor:\n      enabled: true"
            ),
        ),
        (DoctorFeature.PRICES, DoctorFeature.COMPARE),
        "Only to take its prices or to explain differences: gpucost has a price book of its own.",
    )


def scrape_interval(job: str, gains: tuple[DoctorFeature, ...]) -> DiagnosisStep:
    return DiagnosisStep(
        "Scrape more often",
        (SettingSnippet(f"Prometheus (scrape job {job})", "scrape_interval: 30s"),),
        gains,
        "Pods that live between two scrapes are never seen, and scrapes further apart than "
        "prometheus.max_gap count as a gap.",
    )


def targets(job: str) -> DiagnosisStep:
    return DiagnosisStep(
        f"Mend the targets of {job} that are down",
        (SettingSnippet("Prometheus (query)", f'up{{job="{_escaped(job)}"}} == 0'),),
        (),
        "The page Status > Targets shows the error of each.",
    )


def again(last: str) -> DiagnosisStep:
    """What was scraped, and is no longer."""
    return DiagnosisStep(
        "Find out why kube-state-metrics is scraped no more",
        (SettingSnippet("Prometheus (query)", 'up{job=~".*kube-state-metrics.*"}'),),
        (DoctorFeature.COST,),
        f"Its last series in the month is of {last}. No result means that no scrape job finds it; 0, that it "
        "does not answer: the page Status > Targets shows the error.",
    )


def own_collector(gains: tuple[DoctorFeature, ...]) -> DiagnosisStep:
    return DiagnosisStep(
        "Install gpucost in the cluster",
        (SettingSnippet("gpucost (Helm)", "see docs/install.md"),),
        gains,
        "Its collector watches the API server, so nothing falls between two scrapes; its exporter measures "
        "every second.",
    )


_PLAIN = re.compile(r"[A-Za-z][\w./-]*")
USES = (
    DoctorFeature.BUSY,
    DoctorFeature.SM,
    DoctorFeature.TENSOR,
    DoctorFeature.MEMORY,
    DoctorFeature.ENERGY,
)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
