"""Kueue's own decisions: every fact that was recorded of its real scheduler follows from the rules here.

The recordings are large and lie beside the project, not in it. Where they are not there, nothing was checked.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucost.advisor.verify.facts import FACTS
from gpucost.advisor.verify.read import MOST_BYTES, read_cases
from gpucost.advisor.verify.replay import verify
from gpucost.kube.dumps.dump_files import content_of

_ROOT = Path(__file__).parents[2]
_PLACES = [parent.joinpath("shared", "reference") for parent in (_ROOT.parent, _ROOT)]
RECORDED = {"kueue-cases.json": 14, "kueue-recorded.json.gz": 300}


def _found(name: str) -> Path:
    for place in _PLACES:
        if place.joinpath(name).is_file():
            return place.joinpath(name)
    pytest.skip(f"{name} is not there: the rules were NOT held against the decisions recorded in it")


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_fact_agrees(name: str) -> None:
    found = read_cases(content_of(_found(name), MOST_BYTES), name)
    assert len(found.cases) == RECORDED[name]
    assert not found.unread
    report = verify(found.cases)
    assert report.disagreements == ()
    assert report.cases.agree == RECORDED[name]
    assert report.facts.of > 5 * RECORDED[name]
    assert set(report.by_fact) <= set(FACTS)
