"""Unit costs out of the ledger: of one job, and of the jobs of every team in a month."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction

import pandas as pd

from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import InputError
from gpucost.domain.scope import Scope
from gpucost.domain.time import Window
from gpucost.ledger import Ledger
from gpucost.ledger.usage.progress_counts import COUNT_COLUMNS, JOB_COLUMNS
from gpucost.reports.base.unit_costs import JobUnitCost, ProgressFacts, idle_share, unit_cost

_MOST_OF_A_TEAM = 10


def job_progress(
    ledger: Ledger, scope: Scope, window: Window, job_uid: str, wanted: str | None
) -> tuple[ProgressFacts, ...]:
    """What a job counted, by name; what it counted as each of several teams is added up. Raises InputError
    where it has nothing called ``wanted``."""
    by_name: dict[str, ProgressFacts] = {}
    for _, facts in _rows(ledger.progress(scope, window, job_uid)):
        by_name[facts.name] = by_name[facts.name] + facts if facts.name in by_name else facts
    found = tuple(by_name.values())
    if wanted is None:
        return found
    chosen = tuple(facts for facts in found if facts.name == wanted)
    if not chosen:
        names = ", ".join(facts.name for facts in found) or "nothing: this job has no progress metric"
        raise InputError("progress", wanted, names)
    return chosen


def unit_costs_by_team(ledger: Ledger, scope: Scope, window: Window) -> dict[str, tuple[JobUnitCost, ...]]:
    """By team, of the jobs that counted something: those whose counted time cost most, at most ten."""
    rows = list(_rows(ledger.progress(scope, window)))
    idle = _idle(ledger, scope, window, {key[-1] for key, _ in rows})
    found: dict[str, list[JobUnitCost]] = defaultdict(list)
    for (cluster, team, namespace, job, _, uid), facts in rows:
        cost = unit_cost(facts, idle.get((cluster, team, uid)))
        found[team].append(JobUnitCost(cluster, namespace, job, uid, cost))
    return {team: tuple(sorted(units, key=_dearest_first)[:_MOST_OF_A_TEAM]) for team, units in found.items()}


def _dearest_first(unit: JobUnitCost) -> tuple[int, str, str, str]:
    return -(unit.cost.counted_nano or 0), unit.cluster, unit.job_uid, unit.cost.name


def _idle(
    ledger: Ledger, scope: Scope, window: Window, uids: Iterable[str]
) -> dict[tuple[str, str, str], Fraction | None]:
    """By cluster, team and job."""
    filters = {"job_uid": frozenset(uids), "bucket": frozenset({Bucket.HELD.value})}
    if not filters["job_uid"]:
        return {}
    lines = ledger.waste(scope, window, ("cluster", "team", "job_uid"), filters=filters)
    held: dict[tuple[str, str, str], list[tuple[str, int]]] = defaultdict(list)
    columns = ["cluster", "team", "job_uid", "waste", "board_ms"]
    for cluster, team, uid, waste, board_ms in lines[columns].itertuples(index=False, name=None):
        held[str(cluster), str(team), str(uid)].append((str(waste), int(board_ms)))
    return {key: idle_share(parts) for key, parts in held.items()}


def _rows(frame: pd.DataFrame) -> Iterator[tuple[tuple[str, ...], ProgressFacts]]:
    """Of each row of ``Ledger.progress``: JOB_COLUMNS, and what was counted."""
    at = len(JOB_COLUMNS)
    for row in frame[list(COUNT_COLUMNS)].itertuples(index=False, name=None):
        name, amount, *numbers = row[at:]
        yield tuple(map(str, row[:at])), ProgressFacts(str(name), float(amount), *map(int, numbers))
