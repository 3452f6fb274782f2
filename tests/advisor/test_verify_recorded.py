"""Kueue's own decisions: every fact that was recorded of its real scheduler follows from the rules here."""

from __future__ import annotations

import pytest

from gpucost.advisor.verify.case_files import MOST_BYTES, read_cases
from gpucost.advisor.verify.replay import FACTS, verify
from gpucost.kube.dumps.dump import content_of
from tests.support.recorded import KUEUE_SCHEDULER

RECORDED = {"kueue-cases.json": 14, "kueue-recorded.json.gz": 300}


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_fact_agrees(name: str) -> None:
    found = read_cases(content_of(KUEUE_SCHEDULER / name, MOST_BYTES), name)
    assert len(found.cases) == RECORDED[name]
    assert not found.unread
    report = verify(found.cases)
    assert report.disagreements == ()
    assert report.cases.agree == RECORDED[name]
    assert report.facts.of > 5 * RECORDED[name]
    assert set(report.by_fact) <= set(FACTS)
