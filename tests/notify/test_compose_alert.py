"""A group of alerts as a notice: one for the group, with what fires, and links that lead where they may."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucost.domain.time import parse_instant
from gpucost.notify.alertmanager import parse
from gpucost.notify.compose.alert import MOST_ITEMS, of_group
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.message import MessageTone
from gpucost.notify.notices import Notice, NoticeKind, NoticeRank, NoticeStage

NOW_MS = parse_instant("2026-10-12T12:00:00Z")
LINKS = MessageLinks(
    "https://gpucost.example.com",
    "https://grafana.example.com",
    "https://docs.example.com/runbooks",
    ("AM.example.com", "wiki"),
)
LABELS = {"alertname": "GpuCostIdle", "team": "nlp", "cluster": "demo", "severity": "warning"}


NO_PAGES = replace(LINKS, service="")


@pytest.mark.parametrize(
    ("labels", "path"),
    [
        ({"finding": "12"}, "/finding/12"),
        ({"finding": "\u0661", "node": "gpu-01"}, "/nodes?cluster=demo&node=gpu-01"),
        ({"cluster_queue": "a/b"}, "/queues?cluster=demo&queue=a%2Fb"),
        ({}, "/month/2026-10/team?team=nlp"),
        ({"team": ""}, "/month/2026-10/data"),
    ],
)
def test_our_own_alerts_lead_to_the_page_of_what_they_are_about(labels: dict[str, str], path: str) -> None:
    notice = noticed(an_alert(labels=labels), commonLabels={}, groupLabels={})
    assert notice.message.links[0].url == f"https://gpucost.example.com{path}"
    foreign = noticed(an_alert(labels={**labels, "alertname": "NodeDown"}))
    assert not any(each.url.startswith("https://gpucost.example.com") for each in foreign.message.links)


def an_alert(pod: str = "train-7", status: str = "firing", **changes: Any) -> dict[str, Any]:
    return {
        "status": status,
        "labels": {**LABELS, "pod": pod, **changes.pop("labels", {})},
        "annotations": {
            "summary": "GPUs idle",
            "description": f"{pod} idles",
            **changes.pop("annotations", {}),
        },
        "startsAt": "2026-10-12T08:20:30.5Z",
        "endsAt": "2026-10-12T11:00:00Z" if status == "resolved" else "0001-01-01T00:00:00Z",
        "fingerprint": pod,
        **changes,
    }


def noticed(*alerts: dict[str, Any], links: MessageLinks = LINKS, **changes: Any) -> Notice:
    payload = {
        "version": "4",
        "groupKey": "{}:{}",
        "status": "firing" if any(each["status"] == "firing" for each in alerts) else "resolved",
        "alerts": list(alerts),
        "groupLabels": {"alertname": "GpuCostIdle", "team": "nlp"},
        "commonLabels": LABELS,
        "commonAnnotations": {"summary": "GPUs idle"},
        "externalURL": "https://am.example.com",
        **changes,
    }
    return of_group(parse(payload), links, received_ms=NOW_MS)


def urls(notice: Notice) -> dict[str, str]:
    return {each.text: each.url for each in notice.message.links}


def test_what_fires() -> None:
    notice = noticed(an_alert(), an_alert("train-8"), an_alert("train-9", "resolved"))
    assert (notice.kind, notice.stage, notice.rank) == (NoticeKind.ALERT, NoticeStage.OPEN, NoticeRank.MEDIUM)
    assert (notice.team, notice.cluster, notice.name) == ("nlp", "demo", "GpuCostIdle")
    message = notice.message
    assert message.title == "GpuCostIdle (team nlp)"
    assert (message.summary, message.tone) == ("GPUs idle", MessageTone.WARNING)
    assert message.sections[0].items == ("train-7 idles", "train-8 idles")
    assert message.footer == "2 firing, 1 resolved, since 2026-10-12 08:20 UTC"
    assert message.facts == ()


@pytest.mark.fault(61)
def test_the_version_changes_with_what_fires_and_with_nothing_else() -> None:
    first = noticed(an_alert(), an_alert("train-8"))
    assert noticed(an_alert("train-8"), an_alert(), receiver="other").version == first.version
    assert (
        noticed(an_alert(annotations={"description": "now 71%"}), an_alert("train-8")).version
        == first.version
    )
    assert noticed(an_alert()).version != first.version
    assert noticed(an_alert(), an_alert("train-8"), truncatedAlerts=1).version != first.version
    assert noticed(an_alert()).key == first.key
    assert noticed(an_alert(), groupKey="{}:{x}").key != first.key


@pytest.mark.fault(61)
def test_resolved_when_all_are() -> None:
    notice = noticed(an_alert(status="resolved"), an_alert("train-8", "resolved"))
    assert notice.stage is NoticeStage.RESOLVED
    assert notice.message.title == "Resolved: GpuCostIdle (team nlp)"
    assert notice.message.tone is MessageTone.GOOD
    assert notice.message.sections == ()
    assert notice.message.footer.startswith("2 resolved, since ")
    assert "Silence" not in urls(notice)


@pytest.mark.fault(61)
def test_what_was_cut_off_is_said_and_keeps_it_open() -> None:
    notice = noticed(an_alert(status="resolved"), status="firing", truncatedAlerts=3)
    assert notice.stage is NoticeStage.OPEN
    assert notice.message.sections[0].items == ("and 3 more alerts",)
    assert "3 more cut off from what Alertmanager sent" in notice.message.footer


def test_many_alerts_are_counted_and_not_all_written() -> None:
    notice = noticed(*(an_alert(f"train-{n}") for n in range(MOST_ITEMS + 5)))
    items = notice.message.sections[0].items
    assert len(items) == MOST_ITEMS + 1
    assert items[-1] == "and 5 more alerts"


def test_alerts_of_two_teams_are_the_platforms() -> None:
    other = an_alert("x", labels={"team": "cv"})
    assert noticed(an_alert(), other, commonLabels={}, groupLabels={}).team == ""
    assert noticed(an_alert(labels={"team": "__unallocated__"})).team == ""


def test_what_was_cut_off_may_be_of_another_team() -> None:
    notice = noticed(an_alert(), truncatedAlerts=1, commonLabels={"alertname": "X"}, groupLabels={})
    assert notice.team == ""


@pytest.mark.parametrize(
    ("severity", "rank"),
    [
        ("critical", NoticeRank.CRITICAL),
        ("WARNING", NoticeRank.MEDIUM),
        ("info", NoticeRank.INFO),
        ("hgih", NoticeRank.MEDIUM),
    ],
)
def test_severity(severity: str, rank: NoticeRank) -> None:
    assert noticed(an_alert(labels={"severity": severity})).rank is rank


def test_the_worst_that_fires_counts() -> None:
    worst = an_alert("b", labels={"severity": "critical"})
    assert noticed(an_alert(), worst).rank is NoticeRank.CRITICAL
    over = an_alert("b", "resolved", labels={"severity": "critical"})
    assert noticed(an_alert(), over).rank is NoticeRank.MEDIUM


def test_links_from_annotations_and_to_a_silence() -> None:
    given = {"runbook_url": "https://wiki/a?b=1", "dashboard_url": "http://Grafana.example.com:3000/d/x"}
    found = urls(noticed(an_alert(annotations=given), links=NO_PAGES))
    assert found["Runbook"] == "https://wiki/a?b=1"
    assert found["Dashboard"] == "http://Grafana.example.com:3000/d/x"
    assert found["Silence"] == (
        "https://am.example.com/#/silences/new?filter=%7Balertname%3D%22GpuCostIdle%22%2Cteam%3D%22nlp%22%7D"
    )


def test_placeholders_of_our_own_rules_are_filled_in() -> None:
    given = {"runbook_url": "RUNBOOKS/GpuCostIdle.md", "dashboard_url": "DASHBOARDS/d/gpucost-team"}
    found = urls(noticed(an_alert(annotations=given), links=NO_PAGES))
    assert found["Runbook"] == "https://docs.example.com/runbooks/GpuCostIdle.md"
    assert found["Dashboard"] == "https://grafana.example.com/d/gpucost-team"
    assert set(urls(noticed(an_alert(annotations=given), links=MessageLinks()))) == set()


@pytest.mark.fault(55)
def test_addresses_of_hosts_that_no_setting_names_are_text() -> None:
    elsewhere = "https://wiki.evil.example/a?b=1"
    given = {"runbook_url": elsewhere, "dashboard_url": "http://169.254.169.254/latest"}
    notice = noticed(an_alert(annotations=given), externalURL="https://docs.example.com.evil.example")
    assert set(urls(notice)) == {"Team"}
    facts = {each.name: each.value for each in notice.message.facts}
    assert facts == {"Runbook": elsewhere}
    assert [len(each.items) for each in notice.message.sections] == [1], "it takes the room of one alert"
    both = [an_alert(annotations={"runbook_url": each}) for each in (elsewhere, "https://wiki/a")]
    assert urls(noticed(*both))["Runbook"] == "https://wiki/a", "the first that may be linked"


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "https://user:secret@example.com/",
        "https://exa\u202emple.com",
        "//example.com",
        "https://",
        "http://a b/",
        "https://[",
    ],
)
def test_addresses_that_are_none_are_not_linked(url: str) -> None:
    given = {"runbook_url": url, "dashboard_url": url}
    found = urls(noticed(an_alert(annotations=given), externalURL=url))
    assert set(found) == {"Team"}
    assert url not in [each.value for each in noticed(an_alert(annotations=given)).message.facts]


def test_without_any_words_labels_speak() -> None:
    bare = an_alert(annotations={})
    bare["annotations"] = {}
    bare["labels"] = {"alertname": "X", "b": "2", "a": "1"}
    notice = noticed(bare, commonAnnotations={}, commonLabels={}, groupLabels={})
    assert notice.message.summary == "1 firing."
    assert notice.message.sections[0].items == ("a=1, b=2",)


def test_the_rest_of_a_group_of_findings() -> None:
    """No alert at all: what is left when those of findings are sent elsewhere."""
    payload = {
        "version": "4",
        "groupKey": "k",
        "status": "firing",
        "groupLabels": {"alertname": "GpuCostIdle", "team": "nlp"},
        "alerts": [an_alert(labels={"finding": "3"})],
    }
    group = parse(payload)
    notice = of_group(group.without(lambda _: True), LINKS, received_ms=NOW_MS)
    assert (notice.stage, notice.team, notice.since_ms) == (NoticeStage.RESOLVED, "nlp", NOW_MS)
    assert notice.message.title == "Resolved: GpuCostIdle (team nlp)"
