"""Killed again and again, gpucost ends where it would have ended: nothing is lost or sent twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucost.domain.time import parse_instant
from tests.support.killing import kill_in_turn
from tests.support.prometheus import needs_prometheus

START_MS = parse_instant("2026-10-11T10:00:00Z")
KILLS = int(os.environ.get("KILLS", "6"))
"""``benchmarks/kills.py`` does fifty, over the whole week."""


@pytest.mark.slow
@needs_prometheus
@pytest.mark.prometheus
@pytest.mark.fault(39, 44)
def test_kills_of_every_part_change_nothing(tmp_path: Path) -> None:
    found = kill_in_turn(tmp_path, START_MS, KILLS, seed=8)
    assert found.kills == KILLS
    assert min(found.victims[name] for name in ("service", "postgres", "prometheus")) >= KILLS // 4
    assert found.while_windows_were_due >= KILLS // 2, "they fall into work"
    assert found.undisturbed is not None
    assert len(found.undisturbed.windows) == found.windows
    assert found.disturbed == found.undisturbed
    assert {version for _, version, _ in found.undisturbed.windows} == {1}
    assert found.digests_told == 1
    assert (found.findings_told, found.findings_repeated) == (1, 0)
    assert found.receipts_told > 0
    assert found.receipts[0] == found.receipts[1] >= found.receipts_told, "one of a job, whoever decided"
    assert found.verified == "0: every month: the ledger holds what was written"
