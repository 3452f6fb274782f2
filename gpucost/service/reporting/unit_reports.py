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
from gpucost.ledger.db.records import JOB_KEY_COLUMNS
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.usage.progress_counts import COUNT_COLUMNS
from gpucost.reports.base.unit_costs import JobUnitCost, ProgressFacts, idle_share, unit_cost

_MOST_OF_A_TEAM = 10
# Values of JOB_KEY_COLUMNS, and what was counted.
_Counted = tuple[tuple[str, ...], ProgressFacts]


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
    by_team: dict[str, list[_Counted]] = defaultdict(list)
    for key, facts in _rows(ledger.progress(scope, window)):
        by_team[key[1]].append((key, facts))
    shown = {team: sorted(rows, key=_dearest_first)[:_MOST_OF_A_TEAM] for team, rows in by_team.items()}
    idle = _idle(ledger, scope, window, {key[-1] for rows in shown.values() for key, _ in rows})
    return {
        team: tuple(
            JobUnitCost(key[0], key[2], key[3], key[-1], unit_cost(facts, idle.get((key[0], team, key[-1]))))
            for key, facts in rows
        )
        for team, rows in shown.items()
    }


def _dearest_first(counted: _Counted) -> tuple[int, str, str, str]:
    """What has no price comes last."""
    key, facts = counted
    return -(0 if facts.counted_unpriced_ms else facts.counted_nano), key[0], key[-1], facts.name


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


def _rows(frame: pd.DataFrame) -> Iterator[_Counted]:
    """Of each row of ``Ledger.progress``: JOB_KEY_COLUMNS, and what was counted."""
    at = len(JOB_KEY_COLUMNS)
    for row in frame[list(COUNT_COLUMNS)].itertuples(index=False, name=None):
        name, amount, *numbers = row[at:]
        yield tuple(map(str, row[:at])), ProgressFacts(str(name), float(amount), *map(int, numbers))
