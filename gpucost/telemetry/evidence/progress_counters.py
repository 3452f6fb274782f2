"""The progress of jobs, from counters that their own pods export: steps, epochs, tokens, requests.

These are the word of whoever runs the pod. A series is about the pod that Prometheus scraped it from
(``namespace`` and ``pod`` of the target), whatever the series says of itself: so a tenant can change the cost
of a unit of its own work, and nothing else. Money never depends on it. Series about others' pods are believed
from the namespaces of the settings alone, and under gpucost's own names, which ``trust`` guards.

Such counters promise no start and no end, so ``increase()`` is used: a fall is a new beginning at 0. What is
no number, negative, or more than ``MOST_IN_A_STEP`` is no reading: that step is not counted, and is no zero.

What serving stacks export is counted without being named (``UNIT_COUNTERS``), prompts and answers of a model
together: what either cost cannot be told apart. A pod names a counter of its own by an annotation, which is
read where kube-state-metrics exports it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from gpucost.contract import kube_state as ksm
from gpucost.domain.errors import InputError
from gpucost.domain.time import Window
from gpucost.telemetry.evidence.frame_rows import FrameRow
from gpucost.telemetry.evidence.gauge_runs import equal_steps, step_values
from gpucost.telemetry.prometheus import trust
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader, own_label, with_renamed
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    by,
    metric_name,
    one_of,
    other_than,
    over_time,
    tagged,
    union,
    without,
)
from gpucost.telemetry.prometheus.query_response import ResultSeries
from gpucost.telemetry.prometheus.source_settings import UNIT_COUNTERS, ProgressMetric

# (namespace, pod) -> uids with the start of what they held, newest last: names are reused, uids are not.
PodNames = Mapping[tuple[str, str], list[tuple[int, str]]]

MOST_IN_A_STEP = 2.0**53
"""Of one pod in one step: beyond it a float does not count by ones."""
ANNOTATION = "gpucost.io/progress"
"""``steps=trainer_steps_total``: a name for reports, and the counter; several with commas between."""
MOST_NAMED = 8
"""Counters that one namespace may name; further ones are left out, in the order of their names."""
_LONGEST_NAME = 63
_TARGET = ("namespace", "pod")
_TAG = "counted"
_Amounts = dict[tuple[str, str, Window], float]


def read_progress(reader: ClusterReader, window: Window, pods: PodNames) -> list[FrameRow]:
    """Rows of frames.PROGRESS; series of unknown pods are left out. A name of the settings hides the same
    name of ``UNIT_COUNTERS``, and either hides that of an annotation."""
    found: _Amounts = {}
    for steps in equal_steps(window, reader.settings.signal_step_ms):
        own: _Amounts = defaultdict(float)
        for metric in reader.settings.progress:
            _add(own, metric.name, _configured(reader, metric, steps, pods))
        hidden = {metric.name for metric in reader.settings.progress}
        for name, rises in _known(reader, steps, pods, hidden):
            _add(own, name, rises)
        for name, rises in _annotated(reader, steps, pods, hidden | set(UNIT_COUNTERS)):
            _add(own, name, rises)
        found.update(own)
    return [
        (reader.cluster, uid, step.start_ms, step.end_ms, name, amount)
        for (name, uid, step), amount in found.items()
        if amount <= MOST_IN_A_STEP
    ]


_Rises = Iterator[tuple[str, Window, float]]


def _add(own: _Amounts, name: str, rises: _Rises) -> None:
    for uid, step, amount in rises:
        # The others' sum is too little where one of several is no count: then the step has no reading.
        own[name, uid, step] += amount if 0 <= amount <= MOST_IN_A_STEP else math.inf


def _configured(
    reader: ClusterReader, metric: ProgressMetric, steps: Sequence[Window], pods: PodNames
) -> _Rises:
    labels = [metric.pod_label, metric.namespace_label or "namespace"]
    is_believed = bool(metric.from_namespaces) or trust.kind_of(metric.metric) is not None
    only = [one_of("namespace", metric.from_namespaces)] if metric.from_namespaces else []
    read = with_renamed(labels) if is_believed else labels
    rises = by("max", read, _increase(reader, metric.metric, steps, *only))
    namespace_of = {uid: namespace for (namespace, _), held in pods.items() for _, uid in held}
    for series, step, amount in step_values(reader, rises, steps):
        pod, namespace = (
            own_label(series, label) if is_believed else series["metric"].get(label, "") for label in labels
        )
        if metric.namespace_label:
            uid = _uid(pods, namespace, pod, step)
        else:
            uid = pod if is_believed or namespace_of.get(pod) == namespace else ""
        if uid:
            yield uid, step, amount


def _known(
    reader: ClusterReader, steps: Sequence[Window], pods: PodNames, hidden: set[str]
) -> Iterator[tuple[str, _Rises]]:
    """By name, of the counters that are known: one query for all of them."""
    units = {
        metric: name for name, metrics in UNIT_COUNTERS.items() if name not in hidden for metric in metrics
    }
    if not units or not pods:
        return
    parts = [tagged(_of_pods("sum", _increase(reader, metric, steps)), _TAG, metric) for metric in units]
    of_name: dict[str, list[tuple[str, Window, float]]] = defaultdict(list)
    for series, step, amount in step_values(reader, union(*parts), steps):
        uid = _target_uid(series, step, pods)
        if uid:
            of_name[units[series["metric"][_TAG]]].append((uid, step, amount))
    for name, rows in of_name.items():
        yield name, iter(rows)


def _annotated(
    reader: ClusterReader, steps: Sequence[Window], pods: PodNames, hidden: set[str]
) -> Iterator[tuple[str, _Rises]]:
    """By name, of the counters that pods name: only those pods are read."""
    if not pods:
        return
    for metric, by_name in sorted(_named(reader, steps, pods).items()):
        for name, named in sorted(by_name.items()):
            if name in hidden:
                continue
            only = [one_of(label, sorted({pod[n] for pod in named})) for n, label in enumerate(_TARGET)]
            rises = _of_pods("max", _increase(reader, metric, steps, *only))
            yield (
                name,
                (
                    (uid, step, amount)
                    for series, step, amount in step_values(reader, rises, steps)
                    if _target(series) in named and (uid := _target_uid(series, step, pods))
                ),
            )


def _named(
    reader: ClusterReader, steps: Sequence[Window], pods: PodNames
) -> dict[str, dict[str, set[tuple[str, str]]]]:
    """By metric and name, the pods whose annotation says so."""
    label = ksm.annotation_name(ANNOTATION)
    some = other_than(label, "")
    length = steps[-1].end_ms - steps[0].start_ms
    every = over_time("last_over_time", reader.select_of_all(ksm.POD_ANNOTATIONS, some), length)
    # Whom to believe is asked where there is something to believe: nobody names a counter in most clusters.
    if not reader.vector(every, steps[-1].end_ms):
        return {}
    believed = over_time("last_over_time", reader.select(ksm.POD_ANNOTATIONS, some), length)
    by_namespace: dict[str, dict[tuple[str, str], set[tuple[str, str]]]] = defaultdict(dict)
    for series in reader.vector(believed, steps[-1].end_ms):
        pod = own_label(series, "namespace"), own_label(series, "pod")
        if pod in pods:
            for named in counters_named(series["metric"].get(label, "")):
                by_namespace[pod[0]].setdefault(named, set()).add(pod)
    found: dict[str, dict[str, set[tuple[str, str]]]] = defaultdict(dict)
    for named_there in by_namespace.values():
        for (name, metric), of in sorted(named_there.items())[:MOST_NAMED]:
            found[metric].setdefault(name, set()).update(of)
    return found


def counters_named(annotation: str) -> list[tuple[str, str]]:
    """``steps=a_total, tokens=b_total`` -> names and counters; parts that are neither are left out, and so
    are counters of Kubernetes, of GPUs and of gpucost, which are not the pod's own."""
    found = []
    for part in annotation[:1024].split(","):
        name, _, metric = (text.strip() for text in part.partition("="))
        try:
            metric = metric_name(metric)
        except InputError:
            continue
        if name and len(name) <= _LONGEST_NAME and name.isprintable() and trust.kind_of(metric) is None:
            found.append((name, metric))
    return found


def _of_pods(operator: str, increase: PromQL) -> PromQL:
    """By pod of the target. A pod that several jobs scrape counts once."""
    return by("max", _TARGET, by(operator, (*_TARGET, "job"), increase))


def _target(series: ResultSeries) -> tuple[str, str]:
    labels: dict[str, str] = series["metric"]
    return labels.get("namespace", ""), labels.get("pod", "")


def _target_uid(series: ResultSeries, step: Window, pods: PodNames) -> str:
    return _uid(pods, *_target(series), step)


def _uid(pods: PodNames, namespace: str, pod: str, step: Window) -> str:
    held = pods.get((namespace, pod), [])
    return next((uid for start, uid in reversed(held) if start < step.end_ms), "")


def _increase(reader: ClusterReader, metric: str, steps: Sequence[Window], *only: PromQL) -> PromQL:
    increase = over_time("increase", reader.select(metric, *only), steps[0].length_ms)
    replicas = reader.settings.replica_labels
    return without("max", replicas, increase) if replicas else increase
