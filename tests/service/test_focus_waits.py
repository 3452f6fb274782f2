"""How long a run waited stands in its own rows of FOCUS, whoever else uses the name of its workload."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import HOUR_MS, SECOND_MS
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.predictions import WaitPrediction
from gpucost.reports.focus.focus_columns import FocusDataset
from gpucost.service.reporting.focus_exports import FocusExports, FocusRequest
from tests.ledger.builders import CLUSTER, MONTH, NOW_MS, hour, ingest, line
from tests.support.focus_rules import rows_of
from tests.support.ledgers import new_ledger

RUNS = {"red-1": ("red", 0, 2), "red-2": ("red", 6, 26), "blue": ("blue", 8, 10), "green": ("green", 12, 14)}
"""Uid of a job -> its team, and its hours from the first to the one after the last. All are named alike."""
WAITED = {"red-1": ("red", 0, 2), "red-2": ("red", 6, 3), "blue": ("blue", 8, 7), "later": ("blue", 20, 9)}
"""Uid of a workload -> its team, the hour in which it started, and the hours that it waited."""


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    url = new_ledger(tmp_path_factory.mktemp("waits") / "l.db")
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        _fill(ledger)
        yield ledger


def _fill(ledger: Ledger) -> None:
    for number in range(26):
        window = hour(number)
        rows = [
            line(window, team=team, job_uid=uid, pod=uid, pod_uid=uid, workload="train")
            for uid, (team, first, end) in RUNS.items()
            if first <= number < end
        ]
        free = line(window, bucket="unallocated", node="node-2")
        ingest(ledger, window, *rows, free)
    foretold, started_ms = [], {}
    for uid, (team, number, waited) in WAITED.items():
        # Within the second in which its pods began, of which only the second is known.
        started_ms[uid] = hour(number).start_ms + SECOND_MS // 2
        asked_ms = started_ms[uid] - waited * HOUR_MS
        foretold.append(WaitPrediction(uid, "ml", "train", "q", team, asked_ms, HOUR_MS, None, 24 * HOUR_MS))
    ledger.foretell(CLUSTER, foretold)
    ledger.score_foretold(CLUSTER, started_ms=started_ms, gone_ms={})


@pytest.mark.parametrize("grain", ["hour", "day"])
@pytest.mark.parametrize("team", ["", "red", "blue", "green"])
def test_a_wait_is_of_the_run_of_its_team_that_started_last(ledger: Ledger, grain: str, team: str) -> None:
    scope = Scope(frozenset({team})) if team else EVERYTHING
    target = io.BytesIO()
    request = FocusRequest(MONTH, grain=grain)
    FocusExports(ledger, scope, "1").write(request, FocusDataset.COST_AND_USAGE, "csv", target)
    found: dict[str, set[str]] = {}
    for row in rows_of(target.getvalue()):
        if row["AllocatedResourceId"]:
            found.setdefault(row["AllocatedResourceId"].rpartition("/")[2], set()).add(row["x_WaitHours"])
    expected = {"red-1": {"2.0"}, "red-2": {"3.0"}, "blue": {"7.0"}, "green": {""}}
    assert found == {uid: waits for uid, waits in expected.items() if not team or RUNS[uid][0] == team}
