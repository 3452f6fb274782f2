"""Jobs on GPUs with twice the memory they ever use: shown, since only the price differs."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from gpucost.detectors.findings import Action, Draft, Evidence, Subject
from gpucost.detectors.held import LEAST_COVERAGE, amount
from gpucost.detectors.rule_settings import OversizedRequestSettings
from gpucost.detectors.rules.gpu_use import quantile
from gpucost.detectors.rules.oversized_common import GIB, NAME, OOM_UNKNOWN, Search
from gpucost.detectors.rules.workloads import JobRow
from gpucost.domain.gpu import parse_product
from gpucost.settings.types import milliseconds

VARIANT = "memory_over_ask"
_SMALLER = {"A100-80GB": "A100-40GB", "V100-32GB": "V100-16GB"}
"""The GPU of the same family with half the memory, where there is one."""


def memory_over_ask(search: Search, told: Collection[Subject]) -> Iterator[Draft]:
    """``told`` are jobs of which another variant already says that they are too large."""
    table, use = search.table, search.use
    large = {node for node, model in search.models.items() if model in _SMALLER}
    if not large or not len(table.activity):
        return
    busy, time = use.busy_ms, use.memory_ms
    there = table.whole & table.pods["node"].isin(list(large)).to_numpy(np.bool_)
    elsewhere = np.bincount(table.job, weights=~there, minlength=len(table.jobs))
    for job in np.flatnonzero(elsewhere == 0).tolist():
        row = table.row(job)
        settings = search.settings(row)
        least = milliseconds(settings.least_run)
        if row.subject in told or search.held_ms[job] < least or busy[job] == 0:
            continue
        if time[job] < LEAST_COVERAGE * search.expected[job]:
            because = "data are missing: GPU memory was not observed"
            search.hold_back(row.subject, because, VARIANT, lacks_data=True)
            continue
        draft = _judge(search, job, row, settings)
        if draft is not None:
            yield draft


def _judge(search: Search, job: int, row: JobRow, settings: OversizedRequestSettings) -> Draft | None:
    use, activity = search.use, search.table.activity
    rows = use.rows(search.table.series_of_job[job])
    rows = rows[use.memory_seen[rows]]
    # Of every GPU: the fullest decides, and it may be one of many.
    full = [
        quantile(use.memory_part[mine], use.length[mine], 0.99)
        for mine in np.split(rows, np.flatnonzero(np.diff(activity.code[rows])) + 1)
    ]
    part = max(full)
    if part > settings.half_memory:
        return None
    total = float(activity.values["memory_total_bytes"][rows].max()) / GIB
    model = search.models[search.table.nodes[int(search.table.pods_of_job[job][-1])]]
    smaller = _SMALLER[model]
    ended = search.ended(job)
    products = search.facts.history.frames.nodes["product"].unique().tolist()
    label = next((each for each in sorted(products) if parse_product(each).model == smaller), "")
    there = "" if label else "; this cluster has none now"
    patch = f'nodeSelector:\n  "nvidia.com/gpu.product": "{label}"' if label else ""
    return Draft(
        NAME,
        VARIANT,
        row.subject,
        int(use.start[rows].min()),
        f"{row.job_kind} {row.subject} has at most {100 * part:.0f} % of the memory of its {model} in use: "
        f"{smaller} would do",
        (
            Evidence("GPU memory, 99th percentile", round(part * total, 2), "GiB", "of the fullest GPU"),
            Evidence("GPU memory", round(total, 1), "GiB"),
            Evidence("GPUs", amount(len(full), "GPU")),
        ),
        Action(f"Ask for {smaller} where it is cheaper{there}", patch),
        f"nothing is counted: it is the difference in price between {model} and {smaller}",
        team=row.team,
        queue=row.queue,
        user=row.user,
        ended_ms=ended,
        checked=(OOM_UNKNOWN,),
    )
