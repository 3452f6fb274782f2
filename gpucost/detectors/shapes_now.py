"""Who of those that wait would fit by GPUs alone, but not by what else the cluster's state says now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from gpucost.cluster.fit import FreeNodes
from gpucost.cluster.overview import Overview
from gpucost.cluster.pods import PodTemplate, Toleration
from gpucost.cluster.quota_reasons import cluster_queue_of
from gpucost.detectors.exact_fit import Fitter


def unfit_now(overview: Overview, waiting: pd.DataFrame) -> Mapping[int, str]:
    """Why rows of demand that wait now would find no node, by their index; those that would are left out, and
    so are those of which the state knows no pods.

    Pods are asked as they are; of a job without pods the templates of its workload, with all that Kueue may
    add to them on admission.
    """
    fitter, free = Fitter(overview), FreeNodes(overview.state, overview.catalog)
    found: dict[int, str] = {}
    names = ("job_uid", "namespace", "workload", "resource", "min_pods")
    for row, *values in zip(waiting.index, *(waiting[name].tolist() for name in names), strict=True):
        uid, namespace, workload, resource, least = values
        fit = fitter.of(uid, resource, least)
        if fit is not None:
            if not fit.fits:
                found[int(row)] = _said(fit.lacking, fit.barred)
        elif not _fits(overview, free, (namespace, workload), resource):
            found[int(row)] = "no node that its labels and taints admit has room for one of its pods"
    return found


def _said(lacking: tuple[tuple[str, int], ...], barred: tuple[str, ...]) -> str:
    if lacking:
        resource, nodes = lacking[0]
        return f"{nodes} nodes with GPUs enough for one of its pods have too little {resource}"
    if barred:
        return f"labels or taints keep it from {barred[0]} and {len(barred) - 1} other nodes with GPUs enough"
    return "its pods do not find places all at once"


def _fits(overview: Overview, free: FreeNodes, name: tuple[str, str], resource: str) -> bool:
    """Whether one pod of each of the workload's pod sets that want GPUs would; so it does if nobody knows."""
    workload = overview.state.workload_by_name.get(name)
    if workload is None:
        return True
    queue = cluster_queue_of(overview.state, workload)
    flavors = {key.flavor for key in queue.quotas if key.resource == resource} if queue is not None else set()
    added = [
        toleration
        for flavor in sorted(flavors)
        if (known := overview.state.flavor_by_name.get(flavor)) is not None
        for toleration in known.tolerations
    ]
    # Kubernetes lets pods onto nodes tainted with the name of the resource they ask for
    # (the ExtendedResourceToleration admission plugin).
    extra = (*added, Toleration(resource, exists=True))
    return all(
        free.fits(_with(each.template, extra))
        for each in workload.pod_sets
        if each.template.requests.get(resource, 0) > 0
    )


def _with(template: PodTemplate, tolerations: tuple[Toleration, ...]) -> PodTemplate:
    return replace(template, tolerations=(*template.tolerations, *tolerations))
