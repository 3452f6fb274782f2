"""What was measured on the time that pods held, and how far their jobs came: rises of counters.

Signals are the difference of two values of a counter, at most a scrape interval away from the edges of the
window; what one window leaves out the next one has, so that windows add up. ``increase()`` would do
neither: it leaves out the first sample of a series, with all that a short job ever was, and extrapolates.
The GPU exporter's counters begin at 0 at an instant it tells, and go on over its restarts. Progress comes
from other people's counters, of which none of this is known, so there it is ``increase()``. Money never
depends on either. What has no samples has no row, and no zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import groupby
from math import isfinite

from gpucost.contract.gpu_metrics import HOLDER_LABELS, POD_COUNTED_SINCE
from gpucost.contract.metrics import SIGNAL_METRICS
from gpucost.domain.time import MINUTE_MS, SECOND_MS, Window
from gpucost.telemetry.answers import Series
from gpucost.telemetry.promql import (
    PromQL,
    above,
    by,
    except_where,
    minus,
    not_negative,
    over_time,
    tagged,
    taken,
    union,
    where,
    within,
    without,
    zero,
)
from gpucost.telemetry.reader import ClusterReader, own_label, points, renamed, with_renamed
from gpucost.telemetry.settings import ProgressMetric

_TAG = "signal"
_POD = ("pod_uid", "node")
# How old the last value before a window may be: longer than any pause between scrapes that is no gap.
_LOOK_BACK_MS = 10 * MINUTE_MS

Row = tuple[object, ...]
# (namespace, pod) -> uids with the start of what they held, newest last: names are reused, uids are not.
PodNames = Mapping[tuple[str, str], list[tuple[int, str]]]


def read_signals(reader: ClusterReader, window: Window) -> list[Row]:
    """Rows of frames.SIGNALS, one per pod and step of the window."""
    measured: dict[tuple[str, str, Window], dict[str, float]] = defaultdict(dict)
    for steps in _equal_steps(reader, window):
        length = steps[0].length_ms
        parts = [
            tagged(by("sum", _POD, _rise(reader, spec.name, length)), _TAG, column)
            for column, spec in SIGNAL_METRICS.items()
        ]
        for series, step, value in _increases(reader, union(*parts), steps):
            labels = series["metric"]
            place = labels.get("pod_uid", ""), labels.get("node", ""), step
            known = measured[place].get(labels[_TAG], 0.0)
            measured[place][labels[_TAG]] = known + value * SECOND_MS
    return [
        (reader.cluster, node, uid, step.start_ms, step.end_ms, *map(values.get, SIGNAL_METRICS))
        for (uid, node, step), values in measured.items()
    ]


def read_progress(reader: ClusterReader, window: Window, pods: PodNames) -> list[Row]:
    """Rows of frames.PROGRESS for the metrics in the settings; series of unknown pods are left out."""
    rows: list[Row] = []
    for progress in reader.settings.progress:
        labels = [label for label in (progress.pod_label, progress.namespace_label) if label]
        for steps in _equal_steps(reader, window):
            increase = _increase(reader, progress.metric, steps[0].length_ms)
            amounts: dict[tuple[str, Window], float] = defaultdict(float)
            for series, step, value in _increases(reader, by("max", with_renamed(labels), increase), steps):
                uid = _uid(progress, series, step, pods)
                if uid:
                    amounts[uid, step] += value
            rows += [
                (reader.cluster, uid, step.start_ms, step.end_ms, progress.name, amount)
                for (uid, step), amount in amounts.items()
            ]
    return rows


def _uid(progress: ProgressMetric, series: Series, step: Window, pods: PodNames) -> str:
    pod = own_label(series, progress.pod_label)
    if not progress.namespace_label:
        return pod
    held = pods.get((own_label(series, progress.namespace_label), pod), [])
    return next((uid for start, uid in reversed(held) if start < step.end_ms), "")


def _rise(reader: ClusterReader, metric: str, range_ms: int) -> PromQL:
    """How much each counter of the GPU exporter rose in the range before the evaluation.

    From its last value before the range; from 0 if it began within; else from its first value in it. One
    counter may come from several targets, one after the other (a restarted exporter) or at once (an HA pair,
    two jobs scraping one exporter): as counters only rise, the largest value is the newest. Where one fell
    (the exporter lost its state) all that Prometheus knows is ``increase``.
    """
    counter = reader.select(metric)

    def latest(operator: str, function: str, range_ms: int, offset_ms: int = 0) -> PromQL:
        return by(operator, HOLDER_LABELS, _own(over_time(function, counter, range_ms, offset_ms)))

    last = latest("max", "last_over_time", range_ms)
    before = latest("max", "last_over_time", _LOOK_BACK_MS, range_ms)
    first = latest("min", "min_over_time", range_ms)
    since = _own(over_time("last_over_time", reader.select(POD_COUNTED_SINCE.name), range_ms))
    begun = within(by("max", _POD, since), range_ms + _LOOK_BACK_MS)
    # A row that appears beside others of its pod, such as another method of splitting, began at 0 too.
    begun_at_0 = union(begun, by("max", _POD, before))
    base = union(before, except_where(first, begun_at_0, _POD), zero(last))
    fell = above(latest("max", "resets", range_ms), 0)
    increase = by("max", HOLDER_LABELS, _own(_increase(reader, metric, range_ms)))
    # Less than before, and no fall within: it fell at the edge, so all of it is of this range.
    return union(where(increase, fell), not_negative(minus(last, base)), last)


def _own(expression: PromQL) -> PromQL:
    """The exporter's own labels under their own names, whatever the scrape renamed."""
    for label in HOLDER_LABELS:
        expression = taken(expression, label, renamed(label))
    return expression


def _increase(reader: ClusterReader, metric: str, range_ms: int) -> PromQL:
    increase = over_time("increase", reader.select(metric), range_ms)
    replicas = reader.settings.replica_labels
    return without("max", replicas, increase) if replicas else increase


def _increases(
    reader: ClusterReader, expression: PromQL, steps: list[Window]
) -> Iterator[tuple[Series, Window, float]]:
    """Series, step and value, for steps of equal length, one after the other."""
    by_end = {step.end_ms: step for step in steps}
    length = steps[0].length_ms
    for series in reader.matrix(expression, steps[0].end_ms, steps[-1].end_ms, length):
        for at, value in zip(*points(series), strict=True):
            if isfinite(value):
                yield series, by_end[at], value


def _equal_steps(reader: ClusterReader, window: Window) -> list[list[Window]]:
    """The window in steps, together while their lengths are equal: one query for each list."""
    steps = window.split(reader.settings.signal_step_ms)
    return [list(group) for _, group in groupby(steps, key=lambda step: step.length_ms)]
