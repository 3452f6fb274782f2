"""What a reader of some teams sees of a finding: never the names of what others run, and never labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucost.detectors.engine.lifecycle import FindingLife, FindingLifeState
from gpucost.detectors.findings import FindingAction, FindingEvidence, TeamView
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.reports.base.document import to_json
from gpucost.reports.job.job_report import build_job
from gpucost.reports.render.tables import findings_table
from gpucost.reports.waste.findings import FindingsReport, finding_row
from gpucost.reports.waste.recommendations import KnownFinding, to_do, view_for
from tests.reports.builders import START_MS
from tests.reports.test_job import job_inputs, part
from tests.reports.test_waste import PRICE, known

CANARY = "canary-of-another-team"
LABEL = "canary-of-a-label"
OWN = "of-its-own-team"
SOME = Scope(frozenset({"a"}))


def finding(view: TeamView | None) -> KnownFinding:
    found = known(7, PRICE)
    draft = replace(
        found.finding.draft,
        summary=CANARY,
        evidence=(FindingEvidence(CANARY, CANARY, CANARY, CANARY),),
        action=FindingAction(CANARY, CANARY, 1),
        labels={LABEL: LABEL},
        team_view=view,
    )
    return replace(found, finding=replace(found.finding, draft=draft))


def view() -> TeamView:
    return TeamView(OWN, (FindingEvidence(OWN, 1),), FindingAction(OWN, OWN, 1))


def forms(found: KnownFinding, scope: Scope) -> dict[str, Any]:
    """Everything that shows a finding."""
    life = FindingLife(found.finding, FindingLifeState.OPEN, START_MS, START_MS, START_MS)
    row = finding_row(7, life, START_MS, None, scope)
    listed = FindingsReport("USD", None, (row,))
    return {
        "row": to_json(row),
        "table": repr(findings_table(listed).rows),
        "to do": repr(to_do([found], scope)),
        "job": to_json(build_job(job_inputs(part(1, 0, 1), findings=(found,), scope=scope))),
    }


@pytest.mark.parametrize("name", ["row", "table", "to do", "job"])
def test_a_reader_of_some_teams_gets_the_words_for_them(name: str) -> None:
    text = forms(finding(view()), SOME)[name]
    assert OWN in text
    assert CANARY not in text
    assert LABEL not in text


@pytest.mark.parametrize("name", ["row", "table", "to do", "job"])
def test_who_sees_everything_gets_all_of_it_but_labels(name: str) -> None:
    text = forms(finding(view()), EVERYTHING)[name]
    assert CANARY in text
    assert OWN not in text
    assert LABEL not in text


def test_a_finding_without_other_words_is_told_as_it_is() -> None:
    draft = finding(None).finding.draft
    assert view_for(draft, SOME) == view_for(draft, EVERYTHING)
