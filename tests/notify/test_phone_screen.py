"""Every message fits one screen of a phone, in every renderer, and leads to a page with the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from textwrap import wrap
from typing import Any

import pytest

from gpucost.detectors.engine.lifecycle import FindingLifeState
from gpucost.domain.buckets import Waste
from gpucost.domain.time import HOUR_MS
from gpucost.notify.alertmanager import parse
from gpucost.notify.compose.alert import with_alerts
from gpucost.notify.compose.digest import digest_brief
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.compose.month import month_message
from gpucost.notify.compose.receipt import day_message, receipt_message
from gpucost.notify.compose.wording import SENTENCE, brief
from gpucost.notify.message import NotificationMessage
from gpucost.notify.render import email, mattermost, plain, slack, teams
from gpucost.reports.base.values import CostAmount
from gpucost.reports.digest.week_builder import build_week
from gpucost.reports.job.job_receipt import DayReceipts, JobEndFacts, JobEnding
from tests.notify import test_compose_advice, test_compose_alert, test_compose_finding, test_compose_month
from tests.reports.test_job_receipt import receipt
from tests.reports.test_terminal_job import told
from tests.reports.test_waste import line
from tests.reports.waste_builders import known
from tests.reports.week_builders import week_inputs

WIDTH, MOST_LINES, MOST_CHARACTERS = 40, 14, 520
"""A phone held upright; more than this has to be scrolled."""
LINKS = MessageLinks(
    "https://gpucost.example.com",
    "https://grafana.example.com",
    "https://wiki.example.com",
    ("am.example.com",),
)
LONG = (
    "It holds 8 GPUs of node pool a3-highgpu-8g and has run no kernel on any of them for 5 h 20 min, while "
    * 3
)
_ENDINGS = {
    JobEnding.SUCCEEDED: "",
    JobEnding.FAILED: "BackoffLimitExceeded",
    JobEnding.PREEMPTED: "others needed its quota; it waits to run again",
    JobEnding.UNKNOWN: "",
}


def _findings() -> Iterator[tuple[str, NotificationMessage]]:
    made = test_compose_finding
    draft = replace(made.DRAFT, summary=LONG, action=replace(made.DRAFT.action, text=LONG))
    notice = made.noticed(made.a_life(draft), links=LINKS)
    yield "finding", notice.message
    alerts = [test_compose_alert.an_alert()] * 3
    group = parse({"version": "4", "groupKey": "k", "status": "firing", "alerts": alerts})
    yield "finding with alerts", with_alerts(notice, group.alerts).message
    over = made.a_life(state=FindingLifeState.RESOLVED, closed_at_ms=made.T0 + 5 * HOUR_MS)
    yield "resolved", made.noticed(over, links=LINKS, total=CostAmount(40 * HOUR_MS, 10**11)).message


def _alerts() -> Iterator[tuple[str, NotificationMessage]]:
    made = test_compose_alert
    words = {"description": LONG, "summary": LONG, "runbook_url": "RUNBOOKS/GpuCostIdle.md"}
    many = [made.an_alert(f"train-{n}", annotations=words) for n in range(12)]
    yield "alert", made.noticed(many[0], links=LINKS, commonAnnotations=words).message
    yield "alerts", made.noticed(*many, links=LINKS, commonAnnotations=words).message
    elsewhere = {**words, "runbook_url": "https://wiki.elsewhere.example/runbooks/GpuCostIdle"}
    foreign = [
        made.an_alert(f"n-{n}", annotations=elsewhere, labels={"alertname": "NodeDown"}) for n in range(3)
    ]
    yield "foreign alerts", made.noticed(*foreign, links=LINKS, commonAnnotations=elsewhere).message


def _advice() -> Iterator[tuple[str, NotificationMessage]]:
    made = test_compose_advice
    long = replace(made.OWN, says=LONG, caveat=LONG)
    yield "advice", made.sure(made.noticed(links=LINKS)).message
    longest = replace(made.ADVICE, says=LONG, suggestions=(long,))
    yield "long advice", made.sure(made.noticed(longest, links=LINKS)).message


def _weeks() -> Iterator[tuple[str, NotificationMessage]]:
    yield "week of the platform", digest_brief(build_week(week_inputs()), LINKS)
    findings = [known(n, job=f"job-{n}", team=f"team-{n}", hourly=10**10) for n in range(5)]
    yield "week with findings", digest_brief(build_week(week_inputs(findings=findings)), LINKS)
    yield "week of a team", digest_brief(build_week(week_inputs(team="nlp")), LINKS)


def _months() -> Iterator[tuple[str, NotificationMessage]]:
    made = test_compose_month
    yield "month of the platform", month_message(made.report(waste=made.small_waste()), LINKS)
    yield "month of a team", month_message(made.report("nlp", (made.credit("nlp", -50),)), LINKS)


def _receipts() -> Iterator[tuple[str, NotificationMessage]]:
    wasted = (line(Waste.IDLE, 5), line(Waste.PREEMPTED, 2), line(Waste.PRODUCTIVE, 22))
    for ending, reason in _ENDINGS.items():
        found = receipt(*wasted, end=JobEndFacts(ending, reason, 5_400_000), findings=(told(7, LONG),))
        yield f"receipt, {ending}", receipt_message(found, LINKS, cluster="prod-eu1", team="nlp")
    jobs = tuple(replace(found, job=f"pretraining-llama-{n}-of-the-team") for n in range(5))
    day = DayReceipts("2026-10-05", "nlp", "USD", 40, CostAmount(900 * HOUR_MS, 2 * 10**12), jobs)
    yield "receipts of a day", day_message(day, LINKS)


MESSAGES = dict(each for some in (_findings, _alerts, _advice, _weeks, _months, _receipts) for each in some())


def _slack(message: NotificationMessage) -> Iterator[str]:
    for block in slack.render(message)["blocks"]:
        for part in (block.get("text"), *block.get("fields", ()), *block.get("elements", ())):
            yield from _seen(part["text"]) if part else ()


def _seen(markup: str) -> Iterator[str]:
    """Without the marks of links and bold text."""
    yield from re.sub(r"\*(.+?)\*", r"\1", re.sub(r"<[^|>]+\|([^>]+)>", r"\1", markup)).split("\n")


def _teams(message: NotificationMessage) -> Iterator[str]:
    card = teams.render(message)["attachments"][0]["content"]
    for element in card["body"]:
        for part in element.get("items", (element,)):
            yield from part.get("text", "").split("\n")
            yield from (f"{fact['title']} {fact['value']}" for fact in part.get("facts", ()))
    yield from (action["title"] for action in card.get("actions", ()))


def _mattermost(message: NotificationMessage) -> Iterator[str]:
    payload = mattermost.render(message)
    yield from payload["text"].removeprefix("#### ").split("\n")
    for part in payload["attachments"]:
        for field in part.get("fields", ()):
            yield from (field["title"], field["value"])
        yield from re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", part.get("text", "")).split("\n")
        yield part.get("footer", "")


def _plain(message: NotificationMessage) -> Iterator[str]:
    """A phone wraps lines anew. An address is one line, however long: it is tapped, and not read."""
    written = re.sub(r":\s+https?://\S+", ": https", plain.render(message))
    written = re.sub(r"(?<=[^\n]{58})\n *(?=[^\n*=-])", " ", written)
    yield from (line[:WIDTH] if line.startswith("==") else line for line in written.split("\n"))


def _email(message: NotificationMessage) -> Iterator[str]:
    body = email.render(message).html.partition("<body")[2].partition(">")[2]
    for part in re.split(r"</?(?:p|div|h1|h2|td|th|tr|li|pre|table)\b[^>]*>", body):
        yield re.sub(r"<[^>]+>|\s+", " ", part)


RENDERERS: dict[str, Callable[[NotificationMessage], Iterator[str]]] = {
    "slack": _slack,
    "teams": _teams,
    "mattermost": _mattermost,
    "plain": _plain,
    "email": _email,
}


def screen(service: str, message: NotificationMessage) -> list[str]:
    """The lines of a phone; empty ones take no room worth the name."""
    return [row for each in RENDERERS[service](message) for row in wrap(each.strip(), WIDTH)]


@pytest.mark.parametrize("service", RENDERERS)
@pytest.mark.parametrize("name", MESSAGES)
def test_it_fits_one_screen(name: str, service: str) -> None:
    lines = screen(service, MESSAGES[name])
    assert len(lines) <= MOST_LINES, "\n".join(lines)
    assert sum(map(len, lines)) <= MOST_CHARACTERS


@pytest.mark.parametrize("name", MESSAGES)
def test_it_leads_to_a_page(name: str) -> None:
    message = MESSAGES[name]
    if name == "foreign alerts":
        assert "gpucost.example.com" not in repr(message.links)
        return
    [page] = [each.url for each in message.links if each.url.startswith(f"{LINKS.service}/")]
    assert not page.startswith(f"{LINKS.service}/v1/"), "an answer for programs is no page"


@pytest.mark.parametrize("name", MESSAGES)
def test_evidence_and_patches_stand_on_the_page(name: str) -> None:
    sections: Any = MESSAGES[name].sections
    assert [each for each in sections if each.code or each.chart is not None] == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("short", "short"),
        ("One. Two.", "One. Two."),
        ("a" * 200, f"{'a' * (SENTENCE - 2)} …"),
        (f"First. {'second ' * 30}", "First."),
        ("one two " * 30, f"{'one two ' * 13}one …"),
        ("several\nlines\tof it", "several lines of it"),
        ("", ""),
    ],
)
def test_words_are_cut_between_sentences_else_between_words(words: str, expected: str) -> None:
    assert brief(words) == expected
    assert len(brief(words)) <= SENTENCE
