"""A finding as a notice: what and whom, what it costs, what to do, in words for any reader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucost.detectors.engine.lifecycle import FindingLife, FindingLifeState
from gpucost.detectors.findings import (
    Finding,
    FindingAction,
    FindingDraft,
    FindingEvidence,
    FindingSeverity,
    FindingSubject,
    FindingWaste,
    SubjectKind,
    TeamView,
    WastePattern,
)
from gpucost.domain.buckets import NO_TEAM
from gpucost.domain.money import NANO
from gpucost.domain.time import HOUR_MS, parse_instant
from gpucost.notify.compose.finding import TITLES, of_life
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.message import MessageTone, NotificationMessage
from gpucost.notify.notices import Notice, NoticeKind, NoticeRank, NoticeStage
from gpucost.reports.base.values import CostAmount

T0 = parse_instant("2026-10-12T08:20:30Z")
LINKS = MessageLinks(
    "https://gpucost.example.com", "https://grafana.example.com", "https://wiki.example.com/runbooks"
)
JOB = FindingSubject(SubjectKind.JOB, "demo", "train-7", "nlp-prod", "uid-7")
DRAFT = FindingDraft(
    WastePattern.IDLE_ALLOCATION,
    "whole",
    JOB,
    T0,
    "train-7 holds 8 GPUs and has not used them for 3 h",
    (FindingEvidence("GPUs", 8.0), FindingEvidence("busy", 0.0015, "%"), FindingEvidence("node", "gpu-01")),
    FindingAction("suspend it", "spec:\n  suspend: true\n", 8),
    "8 × 3 h",
    team="nlp",
)


def a_life(
    draft: FindingDraft = DRAFT, state: FindingLifeState = FindingLifeState.OPEN, **changes: Any
) -> FindingLife:
    wasted = FindingWaste(24 * HOUR_MS, 60 * NANO, "f", True)
    found = Finding(draft, FindingSeverity.HIGH, wasted, 8.0, 20 * NANO)
    found = replace(found, **{key: changes.pop(key) for key in ("wasted", "nano_per_hour") if key in changes})
    return replace(FindingLife(found, state, T0 + HOUR_MS, T0, T0 + 3 * HOUR_MS), **changes)


def noticed(life: FindingLife, **changes: Any) -> Notice:
    return of_life(life, **{"record_id": 12, "episode": 2, "links": LINKS, "currency": "USD", **changes})


def facts(message: NotificationMessage) -> dict[str, str]:
    return {each.name: each.value for each in message.facts}


def test_an_open_finding() -> None:
    notice = noticed(a_life())
    assert notice.key == f"finding:demo:{DRAFT.fingerprint}:2"
    assert notice.group == f"finding:demo:{DRAFT.fingerprint}"
    assert (notice.kind, notice.stage, notice.rank) == (NoticeKind.FINDING, NoticeStage.OPEN, NoticeRank.HIGH)
    assert (notice.team, notice.name, notice.acknowledged) == ("nlp", "idle_allocation", False)
    message = notice.message
    assert message.title == "Idle allocation: train-7 (team nlp)"
    assert message.summary == f"{DRAFT.summary}."
    assert facts(message) == {"Costs": "USD 480 a day, 8 GPUs now"}
    [to_do] = message.sections
    assert (to_do.text, to_do.code) == ("What to do: suspend it", ""), "the patch stands on the page"
    assert [(each.text, each.url) for each in message.links] == [
        ("Finding", "https://gpucost.example.com/finding/12")
    ]


def test_without_a_price_none_is_invented() -> None:
    life = a_life(wasted=FindingWaste(HOUR_MS, None, "f", True), nano_per_hour=None)
    assert facts(noticed(life).message) == {"Costs": "no price, 8 GPUs now"}
    rested = replace(life, finding=replace(life.finding, boards_now=0.0))
    assert facts(noticed(rested).message) == {"Wasted in its last day": "no price, 1.0 GPU-hours"}


def test_what_is_in_no_sum_says_so() -> None:
    life = a_life(wasted=FindingWaste(HOUR_MS, NANO, "f", False))
    life = replace(life, finding=replace(life.finding, boards_now=0.0))
    assert (
        facts(noticed(life).message)["About in its last day"]
        == "USD 1.00, 1.0 GPU-hours: shown, and in no sum"
    )


def test_a_resolved_one_says_how_long_and_what_it_cost() -> None:
    life = a_life(state=FindingLifeState.RESOLVED, closed_at_ms=T0 + 5 * HOUR_MS)
    message = noticed(life, total=CostAmount(40 * HOUR_MS, 100 * NANO)).message
    assert noticed(life).stage is NoticeStage.RESOLVED
    assert message.title == "Resolved: Idle allocation: train-7 (team nlp)"
    assert message.summary == "Over after 5 h. It wasted 40.0 GPU-hours, which cost USD 100."
    assert message.tone is MessageTone.GOOD
    assert facts(message) == {}, "the summary has the amount"
    assert message.sections == ()


def test_a_resolved_one_of_which_nobody_knows_the_sum() -> None:
    life = a_life(state=FindingLifeState.RESOLVED, closed_at_ms=T0 + 5 * HOUR_MS)
    message = noticed(life).message
    assert message.summary == "Over after 5 h."
    assert facts(message) == {"Wasted in its last day": "USD 60.00, 24.0 GPU-hours"}
    unpriced = noticed(life, total=CostAmount(HOUR_MS, None)).message
    assert unpriced.summary == "Over after 5 h. It wasted 1.0 GPU-hours, which have no price."


def test_the_team_reads_no_name_of_others() -> None:
    secret = "job-of-cv"
    view = TeamView("others wait", (FindingEvidence("waiting", 3),), FindingAction("give back 4"))
    draft = replace(
        DRAFT,
        summary=secret,
        evidence=(FindingEvidence(secret, secret),),
        action=FindingAction(secret, secret),
    )
    notice = noticed(a_life(replace(draft, team_view=view)))
    assert secret not in repr(notice.message)
    assert notice.full is not None
    assert notice.full.summary == f"{secret}."


def test_one_text_where_all_of_it_is_for_the_team() -> None:
    assert noticed(a_life()).full is None


@pytest.mark.parametrize("team", ["", NO_TEAM])
def test_what_is_nobodys_is_the_platforms(team: str) -> None:
    view = TeamView("fewer words", (), FindingAction(""))
    notice = noticed(a_life(replace(DRAFT, team=team, team_view=view)))
    assert notice.team == ""
    assert notice.message.summary == f"{DRAFT.summary}."


def test_versions_change_with_what_is_news() -> None:
    first = noticed(a_life()).version
    moved = replace(DRAFT, summary="train-7 … for 4 h", evidence=())
    assert noticed(a_life(moved, wasted=FindingWaste(25 * HOUR_MS, 63 * NANO, "f", True))).version == first
    news = [
        a_life(state=FindingLifeState.ACKNOWLEDGED),
        a_life(wasted=FindingWaste(50 * HOUR_MS, NANO, "f", True)),
        a_life(replace(DRAFT, action=FindingAction("suspend it", "other"))),
    ]
    assert first not in {noticed(each).version for each in news}


def test_an_acknowledged_one_says_so() -> None:
    notice = noticed(a_life(state=FindingLifeState.ACKNOWLEDGED))
    assert notice.acknowledged
    assert facts(notice.message)["Costs"].endswith(" (acknowledged)")


def test_other_subjects() -> None:
    node = replace(DRAFT, subject=FindingSubject(SubjectKind.NODE, "demo", "gpu-01"), team="")
    assert noticed(a_life(node)).message.title == "Idle allocation: gpu-01"
    team = replace(
        DRAFT, pattern=WastePattern.MONOPOLY, subject=FindingSubject(SubjectKind.TEAM, "demo", "nlp")
    )
    assert noticed(a_life(team)).message.title == "Single-tenant monopoly: team nlp"


def test_no_links_where_nobody_said_where_things_are() -> None:
    assert noticed(a_life(), links=MessageLinks()).message.links == ()
    job = "https://grafana.example.com/d/gpucost-job?var-cluster=demo&var-namespace=nlp-prod&var-job=train-7"
    assert [each.url for each in noticed(a_life(), record_id=None).message.links] == [job]
    runbooks = MessageLinks(runbooks="https://wiki")
    assert [each.text for each in noticed(a_life(), links=runbooks).message.links] == ["Runbook"]


def test_every_pattern_has_the_title_of_its_page() -> None:
    pages = Path(__file__).parents[2] / "docs" / "detectors"
    for pattern in WastePattern:
        head = (pages / f"{pattern.value}.md").read_text(encoding="utf-8").splitlines()[0]
        assert head == f"# {TITLES[pattern]}"


def test_every_pattern_has_a_runbook_under_the_name_of_its_alert() -> None:
    runbooks = Path(__file__).parents[2] / "alerts" / "runbooks"
    assert [each for each in WastePattern if not (runbooks / f"{each.alert}.md").is_file()] == []


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        (SubjectKind.CLUSTER, "gpucost-fleet?var-cluster=demo"),
        (SubjectKind.QUEUE, "gpucost-queues?var-cluster=demo&var-queue=x"),
        (SubjectKind.NODE, "gpucost-nodes?var-cluster=demo&var-node=x"),
    ],
)
def test_what_is_no_job_links_to_a_dashboard_too(kind: SubjectKind, url: str) -> None:
    draft = replace(DRAFT, subject=FindingSubject(kind, "demo", "x"), team="")
    links = noticed(a_life(draft), links=MessageLinks(dashboards="https://g")).message.links
    assert [each.url for each in links] == [f"https://g/d/{url}"]


def test_the_footer_names_the_command() -> None:
    assert noticed(a_life()).message.footer == "gpucost findings show 12"


@pytest.mark.parametrize(("boards", "shown"), [(6 / 7, "0.86"), (8.0, "8"), (1.5, "1.5"), (0.001, "0.001")])
def test_gpus_are_counted_with_two_decimals(boards: float, shown: str) -> None:
    life = a_life()
    life = replace(life, finding=replace(life.finding, boards_now=boards))
    assert facts(noticed(life).message)["Costs"].endswith(f" a day, {shown} GPUs now")


def test_long_words_are_cut_between_sentences_and_words() -> None:
    long = "It holds 8 GPUs. " + "They wait for other members of its gang; " * 9
    draft = replace(DRAFT, summary=long, action=FindingAction("word " * 90))
    message = noticed(a_life(draft)).message
    assert (
        message.summary == "It holds 8 GPUs. They wait for other members of its gang; "
        "They wait for other members of its gang."
    )
    assert message.sections[0].text.endswith("word …")
    assert len(message.sections[0].text) <= 125
