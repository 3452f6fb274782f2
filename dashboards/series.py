"""PromQL over series as they stand: one row per thing, whatever the number of collectors.

Replicas of the collector and instances of the service give the same series with another ``instance``:
gauges are collapsed by ``max by`` before anything is added up. Joins hold on uids, since a pod's name may
come again, and the side that gives labels has one row per uid (``one_per``): two for a moment are no error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dashboards.queries import CLUSTER, GPU_CLUSTER


def latest(metric: str, by: Sequence[str], *matchers: str) -> str:
    """A gauge of the exporters by ``cluster`` and the labels ``by``."""
    return f"max by ({_names('cluster', by)}) ({of(metric, *matchers)})"


def of(metric: str, *matchers: str) -> str:
    """The series of an exporter's metric in the clusters chosen."""
    return f"{metric}{{{', '.join((CLUSTER, *matchers))}}}"


def told(metric: str, by: Sequence[str], *matchers: str) -> str:
    """A gauge of the service by ``gpu_cluster`` and the labels ``by``."""
    return f"max by ({_names('gpu_cluster', by)}) ({metric}{{{', '.join((GPU_CLUSTER, *matchers))}}})"


def one_per(expr: str, *by: str) -> str:
    """One row of ``expr`` per value of ``cluster`` and ``by``, where two may be there for a moment."""
    return f"topk by ({_names('cluster', by)}) (1, {expr})"


def grown(metric: str, by: Sequence[str], span: str, *matchers: str) -> str:
    """How much a counter that begins with its first event grew over ``span``, by ``cluster`` and ``by``.

    ``increase`` leaves out a series' first sample, and so an error or an eviction that happens once. ``by``
    has all labels of the metric but the target's. One that began again in between is counted too low, and
    one that was there before Prometheus first saw it too high for one ``span``.
    """
    names, series = _names("cluster", by), of(metric, *matchers)
    high = f"max by ({names}) (max_over_time({series}[{span}]))"
    return f"clamp_min({high} - (max by ({names}) ({series} offset {span}) or 0 * {high}), 0)"


WASTE_BY = "gpu_cluster, bucket, owner_team"


def waste(span: str, *matchers: str) -> str:
    """By how many GPU seconds the totals of the waste ledger grew over ``span``, by ``WASTE_BY``.

    The total is the ledger's and does not begin anew with the service, so: first one series per thing,
    whatever the number of instances; then its difference, since where it is less than before, a window was
    assessed again, and ``increase`` would take that for a restart and add all there ever was. ``span``:
    ``$__rate_interval`` or ``$__range``.
    """
    total = f"max by ({WASTE_BY}) ({_WASTE}{{{', '.join((GPU_CLUSTER, *matchers))}}})"
    return f"clamp_min(delta({total}[{_in_steps(span)}]), 0)"


def waste_per_second(span: str, *matchers: str) -> str:
    """GPUs, on average over ``span``."""
    return f"{waste(span, *matchers)} / scalar(delta(vector(time())[{_in_steps(span)}]))"


def in_words(expr: str, words: Mapping[str, str]) -> str:
    """``expr`` by ``bucket`` with the words that reports have for it: metrics keep their values."""
    for value, word in words.items():
        expr = f'label_replace({expr}, "bucket", "{word}", "bucket", "{value}")'
    return expr


CAPACITY_WORDS = {"unknown": "not observed"}
WASTE_WORDS = {"productive": "in use", "unavailable": "unusable"}
"""Where a part of capacity and a bucket of the waste ledger have one value, or a value says too much."""


def _in_steps(span: str) -> str:
    """Of a subquery: fine enough for a window of an hour, and few enough for a month."""
    return f"{span}:{'5m' if span == '$__range' else '1m'}"


def or_zero(expr: str, alive: str) -> str:
    """``expr``, an aggregate without labels, and 0 where it has no value while ``alive`` has series: none is
    0 only as long as somebody would tell."""
    return f"{expr} or 0 * count({alive})"


COLLECTOR_ALIVE = f"{of('gpucost_state_up')} == 1"
SERVICE_ALIVE = "gpucost_ledger_up == 1"


_WASTE = "gpucost_waste_gpu_seconds_total"


def _names(first: str, more: Sequence[str]) -> str:
    return ", ".join((first, *more))
