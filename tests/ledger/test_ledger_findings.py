"""Findings in the ledger: evaluations write them, people answer, and neither undoes the other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from gpucost.contract.frames import MAX_TEXT
from gpucost.domain.errors import InputError, LedgerConflict
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.ledger.db.records import FindingEvent, FindingRecord, FindingState, FindingSum
from gpucost.ledger.ledger import Ledger
from tests.ledger.builders import CLUSTER, NOW_MS

RED = Scope(frozenset({"red"}))


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, now=lambda: NOW_MS) as opened:
        yield opened


def finding(fingerprint: str = "f1", **values: Any) -> FindingRecord:
    """An idle job of team red, unless ``values`` say otherwise."""
    given = {
        "cluster": CLUSTER,
        "fingerprint": fingerprint,
        "episode": 1,
        "pattern": "idle_allocation",
        "variant": "",
        "subject_kind": "job",
        "subject_name": "train",
        "subject_namespace": "ml",
        "subject_uid": "job-1",
        "team": "red",
        "queue": "research",
        "severity": "medium",
        "opened_at_ms": NOW_MS - HOUR_MS,
        "since_ms": NOW_MS - 2 * HOUR_MS,
        "last_seen_ms": NOW_MS,
        "content": json.dumps({"summary": "idle"}),
        "board_ms": 5 * HOUR_MS,
        "nano": 7,
        "counted": True,
        "boards_now": 2.5,
    }
    return FindingRecord(**(given | values))


def save(
    ledger: Ledger, *records: FindingRecord, events: tuple[FindingEvent, ...] = ()
) -> list[FindingRecord]:
    return list(ledger.save_findings(CLUSTER, records, events))


def opened(record: FindingRecord) -> FindingEvent:
    return FindingEvent(record.fingerprint, record.episode, NOW_MS, "gpucost", "open", "")


def resolved(record: FindingRecord, at_ms: int = NOW_MS) -> FindingRecord:
    return replace(record, state=FindingState.RESOLVED, closed_at_ms=at_ms)


def test_a_finding_comes_back_as_it_was_saved(ledger: Ledger) -> None:
    everything = finding(
        state=FindingState.MUTED,
        closed_at_ms=None,
        clean_evaluations=2,
        rehearsal=True,
        exempt_until_ms=NOW_MS + 1,
        muted_until_ms=NOW_MS + 2,
        acknowledged_by="ann",
        acknowledged_at_ms=NOW_MS,
        acknowledged_note="we know",
        nano=None,
        counted=False,
    )
    [first, second] = save(ledger, everything, finding("f2"), events=(opened(everything),))
    assert (first.id, first.revision) == (1, 1)
    assert first == replace(everything, id=1, revision=1)
    assert ledger.live_findings(CLUSTER) == (first, second)
    assert ledger.live_findings("beta") == ()
    assert ledger.finding(EVERYTHING, 1) == first
    assert ledger.finding_events(EVERYTHING, 1) == (opened(everything),)
    assert ledger.finding_events(EVERYTHING, 2) == ()


def test_an_evaluation_changes_resolves_and_opens_again(ledger: Ledger) -> None:
    [first] = save(ledger, finding())
    [seen] = save(ledger, replace(first, last_seen_ms=NOW_MS + 5, nano=9, severity="high"))
    assert seen == replace(first, last_seen_ms=NOW_MS + 5, nano=9, severity="high", revision=2)
    [over] = save(ledger, resolved(seen))
    assert ledger.live_findings(CLUSTER) == ()
    assert ledger.live_findings(CLUSTER, resolved_since_ms=NOW_MS) == (over,)
    assert ledger.live_findings(CLUSTER, resolved_since_ms=NOW_MS + 1) == ()
    event = FindingEvent("f1", 1, NOW_MS, "gpucost", "resolve", "ended")
    [again] = save(ledger, finding(episode=2), events=(event,))
    assert ledger.live_findings(CLUSTER) == (again,)
    assert ledger.finding_events(EVERYTHING, 1) == (event,), "an event of a finding that was there already"


def test_one_episode_may_follow_another_in_one_evaluation(ledger: Ledger) -> None:
    [first] = save(ledger, finding())
    second, over = save(ledger, finding(episode=2), resolved(first))
    assert (second.episode, over.state) == (2, FindingState.RESOLVED)


def test_a_finding_is_opened_once(ledger: Ledger) -> None:
    save(ledger, finding())
    for again in (finding(), finding(episode=2)):
        with pytest.raises(
            LedgerConflict, match=r"f1 of alpha is there already.*read the live findings again"
        ):
            save(ledger, finding("f2"), again)
    assert [record.fingerprint for record in ledger.live_findings(CLUSTER)] == ["f1"], "all or nothing"
    ledger.save_findings("beta", [finding(cluster="beta")])
    assert len(ledger.findings(EVERYTHING)) == 2


def test_two_processes_that_evaluate_at_once_open_it_once(ledger_url: str) -> None:
    def evaluate(_: int) -> bool:
        with Ledger.open(ledger_url, now=lambda: NOW_MS, wait_ms=60_000) as ledger:
            try:
                save(ledger, *(finding(f"f{n}") for n in range(20)))
            except LedgerConflict:
                return False
            return True

    Ledger.open(ledger_url, now=lambda: NOW_MS).close()
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(evaluate, range(4))) == [False, False, False, True]
    with Ledger.open(ledger_url, now=lambda: NOW_MS) as ledger:
        assert len(ledger.live_findings(CLUSTER)) == 20


def test_the_database_itself_holds_one_live_episode(ledger: Ledger, ledger_url: str) -> None:
    [first] = save(ledger, finding())
    save(ledger, resolved(first))
    save(ledger, finding(episode=2), events=(FindingEvent("f1", 2, NOW_MS, "gpucost", "open"),))
    engine = create_engine(ledger_url)
    with pytest.raises(DBAPIError, match=r"(?i)unique"), engine.begin() as connection:
        connection.execute(text("UPDATE finding SET state = 'open'"))
    for statement in ("UPDATE finding_event SET author = 'x'", "DELETE FROM finding_event"):
        with pytest.raises(DBAPIError, match="finding_event is append-only"), engine.begin() as connection:
            connection.execute(text(statement))
    engine.dispose()


def test_an_evaluation_does_not_undo_what_people_said_meanwhile(ledger: Ledger) -> None:
    [read] = save(ledger, finding())
    told = ledger.acknowledge(RED, 1, "ann", "on it")
    with pytest.raises(LedgerConflict, match="has changed since it was read"):
        save(ledger, replace(read, last_seen_ms=NOW_MS + 5))
    assert ledger.live_findings(CLUSTER) == (told,)
    [seen] = save(ledger, replace(told, last_seen_ms=NOW_MS + 5))
    assert seen.acknowledged_by == "ann"
    with pytest.raises(LedgerConflict, match="has changed"):
        save(ledger, replace(seen, id=99))
    with pytest.raises(LedgerConflict, match="has changed"):
        save(ledger, replace(seen, episode=4))


def test_names_that_databases_dislike_are_kept_as_far_as_they_can_be(ledger: Ledger) -> None:
    hostile = "\0a\ud800b" + "é" * 2_000
    kept = ("ab" + "é" * 2_000)[:MAX_TEXT]
    names = dict.fromkeys(("subject_name", "subject_namespace", "subject_uid", "team", "queue"), hostile)
    odd = finding("'; DROP TABLE finding; --", **names, content=json.dumps({"summary": hostile}))
    event = FindingEvent(odd.fingerprint, 1, NOW_MS, hostile, "open", hostile)
    raw = finding("f2", content="\0\ud800" + "x" * 5_000)
    [first, second] = save(ledger, odd, raw, events=(event,))
    [found, other] = ledger.live_findings(CLUSTER)
    assert (found, other) == (first, second)
    assert {getattr(found, name) for name in names} == {kept}
    assert json.loads(found.content) == {"summary": hostile}, "escaped, and not cut"
    assert other.content == "x" * 5_000
    [told] = ledger.finding_events(EVERYTHING, 1)
    assert (told.author, told.detail) == (kept, "ab" + "é" * 2_000)
    assert ledger.findings(EVERYTHING, teams=[kept]) == (found,)


@pytest.mark.parametrize(
    "values",
    [
        {"board_ms": -1},
        {"nano": -1},
        {"nano": 2**63},
        {"boards_now": float("nan")},
        {"fingerprint": ""},
        {"fingerprint": "f" * 65},
        {"cluster": "beta"},
    ],
)
def test_numbers_that_cannot_be_are_refused(ledger: Ledger, values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="finding"):
        save(ledger, finding("f2"), finding(**values))
    with pytest.raises(InputError, match="a finding of alpha with episode 1"):
        save(ledger, finding("f2"), events=(opened(finding("f9")),))
    assert ledger.live_findings(CLUSTER) == ()


def test_pages_hold_every_finding_once_the_dearest_first(ledger: Ledger) -> None:
    costs = [5, None, 9, 5, 0, None, 9, 5]
    save(ledger, *(finding(f"f{n}", nano=cost) for n, cost in enumerate(costs)))
    wanted = sorted(range(8), key=lambda n: (-(-1 if costs[n] is None else costs[n]), n))
    for limit in (1, 2, 3, 100):
        found: list[FindingRecord] = []
        after = None
        while page := ledger.findings(EVERYTHING, limit=limit, after=after):
            assert len(page) <= limit
            found += page
            after = (page[-1].nano, page[-1].id or 0)
        assert [record.fingerprint for record in found] == [f"f{n}" for n in wanted]
    for limit in (0, 1_001):
        with pytest.raises(InputError, match="limit"):
            ledger.findings(EVERYTHING, limit=limit)


def test_filters(ledger: Ledger) -> None:
    save(
        ledger,
        finding("f1"),
        finding("f2", team="blue", pattern="gang_stall", severity="high"),
        finding("f3", state=FindingState.ACKNOWLEDGED, last_seen_ms=NOW_MS - DAY_MS),
        finding("f4", team="", pattern="fragmentation", state=FindingState.RESOLVED, closed_at_ms=NOW_MS),
    )
    ledger.save_findings("beta", [finding("f5", cluster="beta")])

    def names(**asked: Any) -> list[str]:
        return sorted(
            record.fingerprint for record in ledger.findings(asked.pop("scope", EVERYTHING), **asked)
        )

    assert names() == ["f1", "f2", "f3", "f4", "f5"]
    assert names(cluster="beta") == ["f5"]
    assert names(states=[FindingState.OPEN, "acknowledged"], cluster=CLUSTER) == ["f1", "f2", "f3"]
    assert names(patterns=["gang_stall", "fragmentation"]) == ["f2", "f4"]
    assert names(teams=["blue", ""]) == ["f2", "f4"]
    assert names(severities={"high"}) == ["f2"]
    assert names(since_ms=NOW_MS, states=["open"]) == ["f1", "f2", "f5"]
    assert names(states=[]) == []
    assert names(scope=RED) == ["f1", "f3", "f5"]
    assert names(scope=RED, teams=["blue", ""]) == []
    assert names(scope=Scope(frozenset({""}))) == [], "the platform's own are for those who see everything"
    with pytest.raises(InputError, match="team"):
        names(teams=["\0"])


def test_another_teams_finding_is_not_there(ledger: Ledger) -> None:
    save(ledger, finding(team="blue"))
    assert ledger.finding(RED, 1) is None
    assert ledger.finding(EVERYTHING, 2) is None
    for ask in (
        lambda: ledger.finding_events(RED, 1),
        lambda: ledger.acknowledge(RED, 1, "ann"),
        lambda: ledger.mute(RED, 1, "ann", NOW_MS + 1),
        lambda: ledger.unmute(RED, 1, "ann"),
        lambda: ledger.unmute(EVERYTHING, 2, "ann"),
    ):
        with pytest.raises(InputError, match=r"finding: \d is not allowed; allowed: the id of a finding"):
            ask()
    assert ledger.live_findings(CLUSTER)[0].revision == 1


def test_what_people_say_to_a_finding(ledger: Ledger) -> None:
    save(ledger, finding())
    until = NOW_MS + DAY_MS
    muted = ledger.mute(RED, 1, "ben", until, "a holiday")
    assert (muted.state, muted.muted_until_ms) == (FindingState.MUTED, until)
    opened_again = ledger.unmute(RED, 1, "ben")
    assert (opened_again.state, opened_again.muted_until_ms) == (FindingState.OPEN, None)
    assert ledger.unmute(RED, 1, "ben") == opened_again, "nothing to do"
    known = ledger.acknowledge(RED, 1, "ann", "on it")
    assert (known.state, known.acknowledged_by, known.acknowledged_at_ms, known.acknowledged_note) == (
        FindingState.ACKNOWLEDGED,
        "ann",
        NOW_MS,
        "on it",
    )
    ledger.mute(RED, 1, "ben", until)
    still = ledger.acknowledge(RED, 1, "cleo")
    assert (still.state, still.acknowledged_by) == (FindingState.MUTED, "cleo")
    assert ledger.unmute(RED, 1, "ben").state is FindingState.ACKNOWLEDGED
    assert ledger.finding(RED, 1) == replace(
        still, state=FindingState.ACKNOWLEDGED, muted_until_ms=None, revision=7
    )
    told = [(event.author, event.action, event.detail) for event in ledger.finding_events(RED, 1)]
    assert told == [
        ("ben", "mute", "until 2026-12-02T00:00:00Z: a holiday"),
        ("ben", "unmute", ""),
        ("ann", "acknowledge", "on it"),
        ("ben", "mute", "until 2026-12-02T00:00:00Z"),
        ("cleo", "acknowledge", ""),
        ("ben", "unmute", ""),
    ]


def test_a_resolved_finding_takes_no_answer(ledger: Ledger) -> None:
    save(ledger, resolved(finding()))
    with pytest.raises(LedgerConflict, match="finding 1 is resolved since 2026-12-01T00:00:00Z"):
        ledger.acknowledge(EVERYTHING, 1, "ann")
    with pytest.raises(LedgerConflict, match="is resolved"):
        ledger.mute(EVERYTHING, 1, "ann", NOW_MS + 1)
    assert ledger.unmute(EVERYTHING, 1, "ann").state is FindingState.RESOLVED


def test_answers_out_of_bounds_are_refused(ledger: Ledger) -> None:
    save(ledger, finding())
    for author in ("", "  ", "\0", "a" * 601, "\ud800"):
        with pytest.raises(InputError, match="author"):
            ledger.acknowledge(RED, 1, author)
        with pytest.raises(InputError, match="author"):
            ledger.unmute(RED, 1, author)
    for words in ("n" * 1_001, "\0", "\ud800"):
        with pytest.raises(InputError, match="note"):
            ledger.acknowledge(RED, 1, "ann", words)
        with pytest.raises(InputError, match="reason"):
            ledger.mute(RED, 1, "ann", NOW_MS + 1, words)
    for until in (NOW_MS, NOW_MS - 1, NOW_MS + 366 * DAY_MS + 1, 2**70):
        with pytest.raises(InputError, match="until"):
            ledger.mute(RED, 1, "ann", until)
    with pytest.raises(InputError, match="finding"):
        ledger.acknowledge(RED, 2**70, "ann")
    ledger.acknowledge(RED, 1, "ann", "n" * 1_000)
    assert ledger.mute(RED, 1, "ann", NOW_MS + 366 * DAY_MS).acknowledged_note == "n" * 1_000


def test_sums_are_those_of_the_list(ledger: Ledger) -> None:
    """By pattern, team and state; of what is counted, and no price is not 0."""
    blue = {"team": "blue", "pattern": "monopoly"}
    saved = save(
        ledger,
        finding("f1", nano=2**60),
        finding("f2", nano=None),
        finding("f3", counted=False, nano=100),
        resolved(finding("f4")),
        finding("f5", nano=None, **blue),
        finding("f6", last_seen_ms=NOW_MS - DAY_MS, **blue),
    )
    ledger.acknowledge(RED, saved[0].id or 0, "ann")
    found = ledger.finding_sums(EVERYTHING)
    acknowledged, live, over, others = (
        FindingSum("idle_allocation", "red", FindingState.ACKNOWLEDGED, 1, 1, 5 * HOUR_MS, 2**60),
        FindingSum("idle_allocation", "red", FindingState.OPEN, 2, 0, 5 * HOUR_MS, None),
        FindingSum("idle_allocation", "red", FindingState.RESOLVED, 1, 0, 5 * HOUR_MS, 7),
        FindingSum("monopoly", "blue", FindingState.OPEN, 2, 0, 10 * HOUR_MS, 7),
    )
    assert found == (acknowledged, live, over, others)
    assert sum(each.count for each in found) == len(ledger.findings(EVERYTHING))
    assert ledger.finding_sums(RED) == (acknowledged, live, over)
    assert ledger.finding_sums(EVERYTHING, states=["resolved"]) == (over,)
    assert ledger.finding_sums(EVERYTHING, patterns=["monopoly"], since_ms=NOW_MS) == (
        replace(others, count=1, board_ms=5 * HOUR_MS, nano=None),
    )
    assert ledger.finding_sums(EVERYTHING, teams=["nobody"]) == ()
    assert ledger.finding_sums(EVERYTHING, cluster="beta") == ()
