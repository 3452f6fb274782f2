"""Tables over held lines: one row per group, and rankings of jobs. Costliest first, ties by key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from gpucost.domain.time import Window
from gpucost.reports.frame_sums import integers, records, summed, sums, total
from gpucost.reports.inputs import JOB_KEY
from gpucost.reports.model import GroupRow, JobRow
from gpucost.reports.values import EMPTY, NOTHING, Amount, Change, costliest_first, named, ratio


class Tables:
    """Group tables over the held lines, with the previous month beside them."""

    def __init__(self, held: pd.DataFrame, previous: pd.DataFrame | None) -> None:
        self.held = held
        self.previous = previous
        self.total = total(held)
        self._job = held.groupby(list(JOB_KEY), sort=False, observed=True).ngroup()
        self.jobs = self._job.nunique()

    def by(self, *keys: str) -> tuple[GroupRow, ...]:
        """One row per value of ``keys``, in this month or the previous one, costliest first."""
        now = sums(self.held, keys)
        before = {} if self.previous is None else sums(self.previous, keys)
        jobs = self._job_counts(keys)
        rows = []
        for key in {*now, *before}:
            found = now.get(key, EMPTY)
            rows.append(
                GroupRow(
                    group=named(keys, key),
                    held=found.amount,
                    jobs=jobs.get(key, 0),
                    share_of_cost=ratio(found.nano, self.total.nano),
                    utilisation=found.utilisation,
                    change=self._change(found.amount, before.get(key, EMPTY).amount),
                )
            )
        return tuple(sorted(rows, key=lambda row: costliest_first(row.held, tuple(row.group.values()))))

    def change_of_total(self) -> Change | None:
        before = NOTHING if self.previous is None else total(self.previous).amount
        return self._change(self.total.amount, before)

    def _change(self, now: Amount, before: Amount) -> Change | None:
        return None if self.previous is None else Change.between(now, before)

    def _job_counts(self, keys: Sequence[str]) -> dict[tuple[Any, ...], int]:
        distinct = self.held[list(keys)].assign(_job=self._job).drop_duplicates()
        counts = distinct.groupby(list(keys), sort=False, observed=True).size()
        return {
            (key if isinstance(key, tuple) else (key,)): int(count)
            for key, count in zip(counts.index.tolist(), counts.tolist(), strict=True)
        }


def ranked(held: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Sums per key, costliest first: the order of ``costliest_first``."""
    frame = summed(held, keys)
    frame = frame.assign(_cost=frame["nano"].fillna(0))
    return frame.sort_values(["_cost", "board_ms", *keys], ascending=[False, False, *[True] * len(keys)])


def job_rows(ranking: pd.DataFrame) -> tuple[JobRow, ...]:
    """``ranking`` has the job's key and its ``team``."""
    spans = zip(integers(ranking["first_ms"]), integers(ranking["last_ms"]), strict=True)
    identities = zip(*(ranking[column].tolist() for column in JOB_KEY), strict=True)
    return tuple(
        JobRow(
            cluster,
            namespace,
            job_kind,
            job,
            job_uid,
            teams=(team,),
            held=found.amount,
            utilisation=found.utilisation,
            span=Window(first, last) if first is not None and last is not None and first < last else None,
        )
        for (cluster, namespace, job_kind, job, job_uid), team, found, (first, last) in zip(
            identities, ranking["team"].tolist(), records(ranking), spans, strict=True
        )
    )


def job_rows_with_teams(ranking: pd.DataFrame, held: pd.DataFrame) -> tuple[JobRow, ...]:
    """Job rows of a ranking that does not know the teams, with all teams that held the job."""
    keys = list(JOB_KEY)
    teams = held[[*keys, "team"]].merge(ranking[keys], on=keys).drop_duplicates()
    by_job: dict[tuple[str, ...], list[str]] = {}
    for *identity, team in teams.itertuples(index=False, name=None):
        by_job.setdefault(tuple(identity), []).append(team)
    return tuple(
        replace(
            row, teams=tuple(sorted(by_job[(row.cluster, row.namespace, row.job_kind, row.job, row.job_uid)]))
        )
        for row in job_rows(ranking.assign(team=""))
    )
