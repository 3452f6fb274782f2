"""Jobs of the Helios cluster "Earth" in May 2020, made of its minutes: sizes and arrivals as they were.

The trace has for each virtual cluster and minute how many jobs run on how many GPUs, and no job. Where both
rise, so many jobs start, as even in size as can be. Where GPUs are given back, those end that started last
and are no larger: half of the jobs of this cluster ran for less than four minutes, and the mean is 86 (its
helios_cluster_summary). What no such job explains is taken from the last one. So GPU time is that of the
trace to the minute. Licence of the data: CC BY 4.0, cite Hu et al., SC 2021; it is read where it lies, never
copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

MINUTES = 44_640
GAPS = ((12_956, 14_401), (16_681, 16_802))
"""Minutes, half-open, in which every virtual cluster shows nothing running and nothing pending."""
_Ended = tuple[int, int, int]
"""GPUs, first minute, and the one after the last."""


def helios_jobs(trace: Path) -> pd.DataFrame:
    """In the order of submission: vc, gpus, submit and run in seconds. What was there at first counts as
    submitted then; what still runs at last ends then, and through gaps everything goes on."""
    rows = pd.read_csv(trace / "vc_minutes_rle.csv.gz", dtype={"vc": "str"}).sort_values(
        "minute", kind="stable"
    )
    for first, last in GAPS:
        rows.loc[rows["minute"].between(first, last), "minute"] = last
    rows = rows.drop_duplicates(["vc", "minute"], keep="last")
    found: list[tuple[str, int, int, int]] = []
    for vc, own in rows.groupby("vc"):
        minutes = own[["minute", "running_gpujob_num", "running_gpu_num"]].itertuples(index=False, name=None)
        found += ((str(vc), gpus, first * 60, (last - first) * 60) for gpus, first, last in _jobs(minutes))
    jobs = pd.DataFrame(found, columns=["vc", "gpus", "submit", "run"])
    return jobs.sort_values(["submit", "vc", "run"], kind="stable").reset_index(drop=True)


@dataclass(slots=True)
class _Holder:
    gpus: int
    since: int


def _jobs(minutes: Iterator[tuple[int, int, int]]) -> Iterator[_Ended]:
    running: list[_Holder] = []
    jobs = gpus = 0
    for minute, jobs_now, gpus_now in minutes:
        if gpus_now < gpus:
            yield from _given_back(running, gpus - gpus_now, minute)
        elif gpus_now > gpus:
            more = gpus_now - gpus
            count = min(max(1, jobs_now - jobs), more)
            running += (_Holder(more // count + (at < more % count), minute) for at in range(count))
        jobs, gpus = jobs_now, gpus_now
    yield from _given_back(running, gpus, MINUTES)


def _given_back(running: list[_Holder], gpus: int, minute: int) -> Iterator[_Ended]:
    for at in range(len(running) - 1, -1, -1):
        if gpus and running[at].gpus <= gpus:
            ended = running.pop(at)
            gpus -= ended.gpus
            yield ended.gpus, ended.since, minute
    if gpus:
        last = running[-1]
        last.gpus -= gpus
        yield gpus, last.since, minute
