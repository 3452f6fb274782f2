"""Of Kueue: what LocalQueues used lately where that decides who comes first, and
workloads that MultiKueue sends to other clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gpucost.cluster.objects.metadata import Resources, is_bytes, readable
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.queues import LAST, local_usages
from gpucost.cluster.views.quota import workload_units
from gpucost.cluster.views.workload_families import DispatchStage
from gpucost.reports.live.cluster_reader import ClusterReader


@dataclass(frozen=True, slots=True)
class FairUsageRow:
    """A LocalQueue under admission fair sharing: ``place`` among those of its ClusterQueue, from 1, by
    usage. ``consumed`` and ``penalty`` (of who has quota and is not admitted; None: not known) are in cores,
    bytes and units; ``order`` is what Kueue compares, None for a weight of 0. ``used_ms`` is when Kueue last
    wrote what was consumed, None where it has not yet."""

    cluster_queue: str
    namespace: str
    queue: str
    place: int
    weight: float
    consumed: Mapping[str, float]
    penalty: Mapping[str, float] | None
    order: float | None
    used_ms: int | None


@dataclass(frozen=True, slots=True)
class DispatchRow:
    """A workload with quota of MultiKueue's manager: ``clusters`` run it, or may, as ``stage`` says.
    ``units`` are GPUs of the quota it has here; ``since_ms`` is since when."""

    namespace: str
    workload: str
    job_kind: str
    job: str
    team: str
    queue: str
    units: Resources
    stage: str
    clusters: Sequence[str]
    since_ms: int | None


def usage_rows(overview: ClusterOverview) -> list[FairUsageRow]:
    """By ClusterQueue, who comes first; of equal ones by name."""
    usages = local_usages(overview.state, overview.state.schedulers.kueue)
    ordered = sorted((found.queue.cluster_queue, found.order, name, found) for name, found in usages.items())
    places: dict[str, int] = {}
    rows = []
    for cluster_queue, order, (namespace, queue), found in ordered:
        places[cluster_queue] = places.get(cluster_queue, 0) + 1
        penalty = None if found.penalty is None else _whole(found.penalty)
        rows.append(
            FairUsageRow(
                cluster_queue,
                namespace,
                queue,
                places[cluster_queue],
                float(found.queue.weight),
                _whole(found.consumed),
                penalty,
                None if order == LAST else float(order / 1000),
                found.queue.fair_usage_ms,
            )
        )
    return rows


def _whole(thousandths: Mapping[str, int] | Mapping[str, Fraction]) -> dict[str, float]:
    return {name: float(amount) / 1000 for name, amount in sorted(thousandths.items())}


def dispatch_rows(overview: ClusterOverview, reader: ClusterReader) -> list[DispatchRow]:
    """By namespace and name, of those that the reader may see."""
    rows = []
    for uid, sent in overview.dispatches.items():
        workload = overview.state.workloads[uid]
        if not reader.sees(workload):
            continue
        job = overview.ownership.job_of(workload)
        rows.append(
            DispatchRow(
                workload.meta.namespace,
                workload.meta.name,
                job.kind.value,
                job.name,
                reader.team_of(workload),
                workload.cluster_queue,
                workload_units(workload, overview.catalog),
                sent.stage.value,
                sent.clusters,
                workload.admitted_ms if sent.stage is DispatchStage.ASSIGNED else workload.reserved_ms,
            )
        )
    return sorted(rows, key=lambda row: (row.namespace, row.workload))


def used_text(row: FairUsageRow) -> str:
    """``7.5 nvidia.com/gpu and 2 cpu``, with the penalty."""
    said = f"used {_amounts(row.consumed) or 'nothing'} lately"
    if row.penalty is None:
        return f"{said}, penalties not known"
    penalty = _amounts(row.penalty)
    return f"{said}, and {penalty} of who just got quota" if penalty else said


def _amounts(amounts: Mapping[str, float]) -> str:
    return " and ".join(
        f"{readable(name, round(amount)) if is_bytes(name) else f'{amount:,.4g}'} {name}"
        for name, amount in amounts.items()
        if amount
    )


def sent_text(row: DispatchRow) -> str:
    """Where a workload is on its way."""
    match row.stage:
        case DispatchStage.ASSIGNED.value:
            return f"runs on cluster {', '.join(row.clusters)}"
        case DispatchStage.NOMINATED.value:
            return f"waits for one of the clusters {', '.join(row.clusters)}"
        case _:
            return "waits until clusters are named"
