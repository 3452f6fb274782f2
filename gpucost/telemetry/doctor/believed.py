"""Which scrape job is kube-state-metrics, and which others give series of its names.

OpenCost gives ``kube_*`` of its own by default, labels of nodes and pods among them (opencost 1.112,
pkg/metrics/kubemetrics.go and pkg/env/costmodelenv.go). A report does not read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from gpucost.contract import kube_state as ksm
from gpucost.contract.probe import OPENCOST_PRICES, UnbelievedJob
from gpucost.domain.time import Window
from gpucost.telemetry.answers import Series, needed, whole_count
from gpucost.telemetry.doctor.asking import KUBE, Asker, grouped
from gpucost.telemetry.promql import PromQL, by
from gpucost.telemetry.reader import column
from gpucost.telemetry.trust import KUBE as KUBE_KIND


def read_believed(asker: Asker, clusters: Iterable[str], asked: Window) -> None:
    """Whom a report of that time believes, by cluster; what is known already stays."""
    if asker.jobs(ksm.NODE_CREATED):
        return
    for cluster in set(clusters) - asker.believed.keys():
        reader = asker.reader(cluster, asked)
        choice = asker.tried("jobs of kube-state-metrics", partial(reader.choice, KUBE_KIND))
        if choice is not None:
            asker.believed[cluster] = sorted({each.job for each in choice.believed})


def counts_of(asker: Asker, found: Iterable[Series]) -> dict[str, dict[str, int]]:
    """By cluster, how many series of each name, out of counts by job: of kube-state-metrics those of the
    believed job. Who else gives its names is kept in ``asker.unbelieved``."""
    counts: dict[str, dict[str, int]] = {}
    for cluster, rows in grouped(asker, found).items():
        names = counts.setdefault(cluster, {})
        others: dict[str, set[str]] = {}
        prices = set()
        for series in rows:
            name, job = needed(series, "__name__"), series["metric"].get("job", "")
            if name in OPENCOST_PRICES:
                prices.add(job)
            if name.startswith(KUBE) and not asker.believes(cluster, job):
                others.setdefault(job, set()).add(name)
            else:
                names[name] = names.get(name, 0) + whole_count(float(series["value"][1]))
        asker.unbelieved[cluster] = tuple(
            UnbelievedJob(job, tuple(sorted(others[job])), is_opencost=job in prices)
            for job in sorted(others)
        )
    return counts


def read_hidden(asker: Asker, clusters: Iterable[str], of_gpus: PromQL, at_ms: int) -> None:
    """Of ``clusters``, in which the believed job tells of no pod with GPUs, the jobs that do."""
    wanted = set(clusters)
    if not wanted:
        return
    told = by(
        "count",
        ("job", asker.settings.cluster_label),
        asker.given(ksm.REQUESTS, of_gpus),
    )
    for cluster, rows in grouped(asker, asker.vector("jobs that tell of pods", told, at_ms)).items():
        known = {each.job: each for each in asker.unbelieved.get(cluster, ())}
        for job in column(rows, "job"):
            if cluster in wanted and not asker.believes(cluster, job):
                before = known.get(job, UnbelievedJob(job, ()))
                names = (*before.names, ksm.REQUESTS)
                known[job] = UnbelievedJob(job, names, is_opencost=before.is_opencost)
        asker.unbelieved[cluster] = tuple(known[job] for job in sorted(known))
