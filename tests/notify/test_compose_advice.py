"""Advice as a notice: only what starts a waiting job earlier, in words its team may read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucost.advisor.model.answers import (
    Advice,
    AdviceSubject,
    JobSuggestion,
    SchedulingDecision,
    SchedulingLayer,
    SuggestedChange,
    SuggestedChangeKind,
    WaitEstimate,
)
from gpucost.advisor.model.redaction import OTHERS, AnswerReader
from gpucost.domain.money import NANO
from gpucost.domain.time import HOUR_MS, parse_instant
from gpucost.notify.compose.advice import best, of_advice, over
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.message import NotificationMessage
from gpucost.notify.notices import Notice, NoticeKind, NoticeStage

T0 = parse_instant("2026-10-12T08:20:00Z")
WAIT = WaitEstimate(3 * HOUR_MS, 9 * HOUR_MS, 168 * HOUR_MS, "", 40)
OWN = JobSuggestion(
    "fewer-gpus",
    "8 GPUs in place of 16",
    SuggestedChange(
        SuggestedChangeKind.MANIFEST, "job/train", "spec:\n  parallelism: 1\n", (), "kubectl apply -f -"
    ),
    SchedulingDecision.NOW,
    price_per_hour=98 * NANO,
    caveat="it takes longer",
)
QUOTA = JobSuggestion(
    "raise-limit",
    "8 more GPUs for queue ml",
    SuggestedChange(
        SuggestedChangeKind.CLUSTER, "clusterqueue/secret-of-cv", "spec: {}", (), "kubectl patch secret-of-cv"
    ),
    SchedulingDecision.WAITS,
    wait=replace(WAIT, p50_ms=HOUR_MS),
)
ADVICE = Advice(
    AdviceSubject("workload", "nlp-prod", "train", "uid"),
    SchedulingDecision.WAITS,
    SchedulingLayer.QUOTA,
    "WaitingForQuota",
    "waits about 3 h (p90 9 h): ml lends no more to secret-of-cv",
    ("quota: 8 short", "its priority is 0"),
    "kueue",
    "Kueue 0.19.2",
    "ml",
    wait=WAIT,
    suggestions=(OWN,),
)
READER = AnswerReader(lambda _: False, lambda word: word == "secret-of-cv", lambda _: False, lambda _: False)


def noticed(advice: Advice = ADVICE, **changes: Any) -> Notice | None:
    given: dict[str, Any] = {
        "cluster": "demo",
        "workload_uid": "uid",
        "team": "nlp",
        "since_ms": T0,
        "links": MessageLinks(dashboards="https://g"),
        "currency": "USD",
        **changes,
    }
    return of_advice(advice, READER, **given)


def sure(notice: Notice | None) -> Notice:
    assert notice is not None
    return notice


def facts(message: NotificationMessage) -> dict[str, str]:
    return {each.name: each.value for each in message.facts}


def test_what_is_told() -> None:
    notice = sure(noticed())
    assert (notice.key, notice.kind, notice.stage) == ("advice:demo:uid", NoticeKind.ADVICE, NoticeStage.OPEN)
    message = notice.message
    assert message.title == "nlp-prod/train could start earlier (team nlp)"
    assert message.summary.startswith("waits about 3 h (p90 9 h)")
    assert facts(message) == {"With the change": "now, USD 98.00/h"}
    [change] = message.sections
    assert change.text == "What to change: 8 GPUs in place of 16. Mind: it takes longer"
    assert change.code == "", "the patch stands on the page"
    assert [each.url for each in message.links] == ["https://g/d/gpucost-queues?var-cluster=demo"]
    assert message.footer == "gpucost explain workload/train -n nlp-prod"
    page = sure(noticed(links=MessageLinks("https://c", "https://g"))).message.links
    assert [each.url for each in page] == ["https://c/explain?kind=workload&namespace=nlp-prod&name=train"]


def test_the_team_reads_no_name_of_others() -> None:
    notice = sure(noticed())
    assert "secret-of-cv" not in repr(notice.message)
    assert OTHERS in notice.message.summary
    assert notice.full is not None
    assert "secret-of-cv" in notice.full.summary


def test_what_only_an_administrator_may_read_is_the_platforms() -> None:
    notice = sure(noticed(replace(ADVICE, suggestions=(QUOTA,))))
    assert notice.team == ""
    assert "For an administrator, in clusterqueue/secret-of-cv: " in notice.message.sections[0].text
    both = sure(noticed(replace(ADVICE, suggestions=(QUOTA, OWN))))
    assert both.team == "nlp"
    assert OWN.says in both.message.sections[0].text


@pytest.mark.parametrize(
    ("decision", "wait", "suggested", "after", "helps"),
    [
        (SchedulingDecision.WAITS, 3, SchedulingDecision.NOW, None, True),
        (SchedulingDecision.WAITS, 3, SchedulingDecision.LATER, None, True),
        (SchedulingDecision.WAITS, 3, SchedulingDecision.WAITS, 2, True),
        (SchedulingDecision.WAITS, 3, SchedulingDecision.WAITS, 3, False),
        (SchedulingDecision.WAITS, 3, SchedulingDecision.WAITS, None, False),
        (SchedulingDecision.WAITS, None, SchedulingDecision.WAITS, 100, True),
        (SchedulingDecision.WAITS, None, SchedulingDecision.WAITS, None, False),
        (SchedulingDecision.NEVER, None, SchedulingDecision.WAITS, None, True),
        (SchedulingDecision.NEVER, None, SchedulingDecision.NEVER, None, False),
        (SchedulingDecision.WAITS, 3, SchedulingDecision.UNKNOWN, None, False),
        (SchedulingDecision.NOW, None, SchedulingDecision.NOW, None, False),
        (SchedulingDecision.UNKNOWN, None, SchedulingDecision.NOW, None, False),
    ],
)
def test_only_what_starts_it_earlier(
    decision: SchedulingDecision,
    wait: int | None,
    suggested: SchedulingDecision,
    after: int | None,
    helps: bool,
) -> None:
    def waiting(hours: int | None) -> WaitEstimate:
        return replace(WAIT, p50_ms=None if hours is None else hours * HOUR_MS)

    suggestion = replace(OWN, decision=suggested, wait=waiting(after))
    advice = replace(ADVICE, decision=decision, wait=waiting(wait), suggestions=(suggestion,))
    assert (best(advice) is not None) is helps
    assert (noticed(advice) is not None) is helps


def test_a_wait_that_moves_on_is_no_news() -> None:
    first = sure(noticed()).version
    assert (
        sure(noticed(replace(ADVICE, says="waits about 2 h", wait=replace(WAIT, p50_ms=HOUR_MS)))).version
        == first
    )
    assert sure(noticed(replace(ADVICE, layer=SchedulingLayer.PLACEMENT))).version != first


def test_when_it_runs_or_leaves() -> None:
    given: dict[str, Any] = {
        "cluster": "demo",
        "workload_uid": "uid",
        "team": "nlp",
        "since_ms": T0,
        "ended_ms": T0 + 5 * HOUR_MS,
        "namespace": "nlp-prod",
        "workload": "train",
    }
    runs = over(started_ms=T0 + 2 * HOUR_MS, **given)
    assert (runs.key, runs.stage) == (sure(noticed()).key, NoticeStage.RESOLVED)
    assert runs.message.summary == "It runs, after 2 h."
    assert over(started_ms=None, **given).message.summary == "It left after 5 h without a start."
