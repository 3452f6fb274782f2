"""Notifications in the ledger: delivered once, kept in order, never lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from gpucost.domain.errors import InputError
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.outbox import (
    BATCH,
    CONVERSATIONS_KEPT_MS,
    DEAD_KEPT_MS,
    SENT_KEPT_MS,
    URGENT_TRIES,
)
from gpucost.notify.message import NotificationMessage
from gpucost.notify.notices import Conversation, DeliveryAct, NoticeDelivery, NoticeKind
from gpucost.notify.sending.delivery import ChannelBacklog, OutgoingDelivery
from tests.ledger.builders import NOW_MS

ALL = ("ops", "red")
# The same queries as of other tests, which run on both databases.
SQLITE = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(ledger_url: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, now=clock) as opened:
        yield opened


def talk(key: str = "finding:1", **values: Any) -> Conversation:
    given: dict[str, Any] = {
        "channel": "ops",
        "key": key,
        "group": "finding",
        "kind": NoticeKind.FINDING,
        "team": "red",
        "version": "1",
        "posted_ms": NOW_MS,
    }
    return Conversation(**(given | values))


def post(
    key: str = "finding:1", act: DeliveryAct = DeliveryAct.OPEN, title: str = "GPUs idle", **values: Any
) -> NoticeDelivery:
    at_ms = values.pop("at_ms", NOW_MS)
    return NoticeDelivery(
        values.pop("channel", "ops"), key, act, NotificationMessage(title, "8 GPUs"), at_ms, at_ms, **values
    )


def due(ledger: Ledger, at_ms: int = NOW_MS, most: int = 10) -> tuple[OutgoingDelivery, ...]:
    return ledger.due_posts(at_ms, ALL, most)


def titles(found: tuple[OutgoingDelivery, ...]) -> list[str]:
    return [each.post.message.title for each in found]


def drain(ledger: Ledger, at_ms: int = NOW_MS) -> list[tuple[str, DeliveryAct]]:
    """Sends all that is due, one after the other; titles and acts in that order."""
    seen = []
    while found := due(ledger, at_ms, 1):
        seen.append((found[0].post.message.title, found[0].post.act))
        ledger.post_sent(found[0].post.id, at_ms, "")
    return seen


def test_a_conversation_and_its_post_come_back_as_they_were_written(ledger: Ledger) -> None:
    told, sent = talk(), post()
    assert ledger.tell([told], [sent]) == 1
    assert ledger.conversations(since_ms=0) == (told,)
    assert ledger.conversations("red", since_ms=0) == ()
    (found,) = due(ledger)
    assert (replace(found.post, id=0), found.kind, found.reference) == (sent, NoticeKind.FINDING, "")
    assert due(ledger, NOW_MS - 1) == ()
    assert ledger.due_posts(NOW_MS, ("red",), 10) == ()
    assert ledger.waiting_posts() == {"ops": ChannelBacklog(1, NOW_MS)}


def test_open_ones_and_those_with_news(ledger: Ledger) -> None:
    over = talk("finding:2", resolved_ms=NOW_MS + HOUR_MS)
    digest = talk("digest:week:2026-W43:red", kind=NoticeKind.DIGEST)
    ledger.tell([talk(), talk("finding:2"), digest], [])
    ledger.tell([over], [])
    assert ledger.conversations(since_ms=NOW_MS + HOUR_MS) == (digest, talk(), over)
    assert ledger.conversations(since_ms=NOW_MS + HOUR_MS + 1) == (digest, talk())


@SQLITE
def test_what_was_told_is_not_told_again(ledger: Ledger) -> None:
    assert ledger.tell([talk()], [post()]) == 1
    assert ledger.tell([talk(posted_ms=NOW_MS + 9)], [post(at_ms=NOW_MS + 9)]) == 0
    updated = talk(version="2", updated_ms=NOW_MS + 10)
    assert ledger.tell([updated], [post(act=DeliveryAct.UPDATE)]) == 1
    assert ledger.tell([replace(updated, updated_ms=NOW_MS + 11)], [post(act=DeliveryAct.UPDATE)]) == 0
    escalated = replace(updated, escalated_ms=NOW_MS + 12)
    assert ledger.tell([escalated], [post(act=DeliveryAct.ESCALATE)]) == 1
    assert ledger.tell([replace(escalated, escalated_ms=NOW_MS + 13)], [post(act=DeliveryAct.ESCALATE)]) == 0
    resolved = replace(escalated, resolved_ms=NOW_MS + 14)
    assert ledger.tell([resolved], [post(act=DeliveryAct.RESOLVE)]) == 1
    assert ledger.tell([replace(resolved, resolved_ms=NOW_MS + 15)], [post(act=DeliveryAct.RESOLVE)]) == 0
    assert ledger.tell([replace(escalated, version="3")], [post(act=DeliveryAct.UPDATE)]) == 0, "it is over"
    assert ledger.conversations(since_ms=0) == (resolved,)


@SQLITE
def test_a_version_that_comes_back_is_news(ledger: Ledger) -> None:
    ledger.tell([talk()], [post()])
    for version in ("2", "1", "2"):
        assert ledger.tell([talk(version=version, updated_ms=NOW_MS)], [post(act=DeliveryAct.UPDATE)]) == 1


@SQLITE
def test_what_was_over_may_begin_anew(ledger: Ledger) -> None:
    key = "alert:abc"
    ledger.tell([talk(key, kind=NoticeKind.ALERT)], [post(key)])
    ledger.post_sent(due(ledger)[0].post.id, NOW_MS, "C1:1.0")
    ledger.tell([talk(key, kind=NoticeKind.ALERT, resolved_ms=NOW_MS + 1)], [post(key, DeliveryAct.RESOLVE)])
    again = talk(key, kind=NoticeKind.ALERT, posted_ms=NOW_MS + 2)
    assert ledger.tell([again], [post(key)]) == 1
    assert ledger.conversations(since_ms=0) == (again,), "and the old message is not replaced"


@SQLITE
def test_an_escalation_may_begin_anew_too(ledger: Ledger) -> None:
    key = "alert:abc"
    ledger.tell([talk(key, kind=NoticeKind.ALERT)], [post(key)])
    ledger.tell([talk(key, kind=NoticeKind.ALERT, resolved_ms=NOW_MS + 1)], [post(key, DeliveryAct.RESOLVE)])
    again = talk(key, kind=NoticeKind.ALERT, posted_ms=NOW_MS + 2, escalated_ms=NOW_MS + 2)
    assert ledger.tell([again], [post(key, DeliveryAct.ESCALATE)]) == 1
    assert ledger.conversations(since_ms=0) == (again,)


def test_an_end_that_waits_for_quiet_hours_gives_way_to_a_new_beginning(ledger: Ledger) -> None:
    key, morning_ms = "alert:abc", NOW_MS + 9 * HOUR_MS
    ledger.tell([talk(key, kind=NoticeKind.ALERT)], [post(key, title="first")])
    assert drain(ledger) == [("first", DeliveryAct.OPEN)]
    over = replace(post(key, DeliveryAct.RESOLVE, title="over"), due_ms=morning_ms)
    ledger.tell([talk(key, kind=NoticeKind.ALERT, resolved_ms=NOW_MS + 1)], [over])
    assert ledger.waiting_posts() == {"ops": ChannelBacklog(1, morning_ms)}
    ledger.tell([talk(key, kind=NoticeKind.ALERT, posted_ms=NOW_MS + 2)], [post(key, title="again")])
    assert drain(ledger) == [("again", DeliveryAct.OPEN)]
    assert due(ledger, morning_ms) == ()


@SQLITE
@pytest.mark.parametrize(
    "before",
    [
        {"posted_ms": NOW_MS + 2 * DAY_MS, "resolved_ms": NOW_MS + 2 * DAY_MS + 1},
        {"posted_ms": NOW_MS - DAY_MS, "resolved_ms": NOW_MS + 2 * DAY_MS},
    ],
    ids=["told and ended by a clock ahead", "ended by a clock ahead"],
)
def test_it_begins_anew_when_a_clock_that_was_ahead_is_set_back(
    ledger: Ledger, before: dict[str, int]
) -> None:
    key = "alert:abc"
    ledger.tell([talk(key, kind=NoticeKind.ALERT, posted_ms=before["posted_ms"])], [post(key)])
    ledger.tell([talk(key, kind=NoticeKind.ALERT, **before)], [post(key, DeliveryAct.RESOLVE)])
    again = talk(key, kind=NoticeKind.ALERT)
    assert ledger.tell([again], [post(key)]) == 1
    assert ledger.conversations(since_ms=0) == (again,)
    assert ledger.tell([again], [post(key)]) == 0


@SQLITE
def test_digests_are_told_once_for_ever(ledger: Ledger) -> None:
    digest = talk("month:2026-10", kind=NoticeKind.MONTH, resolved_ms=NOW_MS)
    assert ledger.tell([digest], [post(digest.key)]) == 1
    assert ledger.tell([replace(digest, posted_ms=NOW_MS + 5, resolved_ms=None)], [post(digest.key)]) == 0
    assert ledger.conversations(since_ms=0) == (digest,)


def test_two_processes_with_the_same_news_tell_it_once(ledger_url: str) -> None:
    start = threading.Barrier(4)

    def process(_: int) -> int:
        with Ledger.open(ledger_url, now=lambda: NOW_MS) as ledger:
            start.wait(30)
            return sum(ledger.tell([talk(f"finding:{n}")], [post(f"finding:{n}")]) for n in range(10))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(process, range(4))) == 10
    with Ledger.open(ledger_url, now=lambda: NOW_MS) as ledger:
        assert len(due(ledger, most=100)) == 10


@SQLITE
def test_posts_of_a_conversation_go_one_after_the_other(ledger: Ledger) -> None:
    ledger.tell([talk(), talk("finding:2")], [post(title="first"), post("finding:2", title="other")])
    ledger.tell([talk(resolved_ms=NOW_MS)], [post(act=DeliveryAct.RESOLVE, title="end")])
    found = due(ledger)
    assert titles(found) == ["first", "other"]
    ledger.post_failed(found[0].post.id, NOW_MS + HOUR_MS, "down")
    assert titles(due(ledger)) == ["other"], "the end waits for its beginning"
    assert titles(due(ledger, NOW_MS + HOUR_MS)) == ["other", "first"], "what failed lets others pass"
    ledger.post_dead(found[0].post.id, NOW_MS, "gone")
    assert titles(due(ledger)) == ["other", "end"]


def test_what_is_urgent_goes_first_and_what_waits_before_it(ledger: Ledger) -> None:
    keys = [f"finding:{n}" for n in range(5)]
    ledger.tell([talk(key) for key in keys], [post(key, title=key) for key in keys])
    urgent = [
        post(keys[3], DeliveryAct.ESCALATE, title="call", urgent=True),
        post("alert:1", title="fire", urgent=True),
    ]
    ledger.tell([talk(keys[3], escalated_ms=NOW_MS), talk("alert:1", kind=NoticeKind.ALERT)], urgent)
    assert [found.post.urgent for found in due(ledger, most=3)] == [True, True, False]
    order = ["finding:3", "call", "fire", "finding:0", "finding:1", "finding:2", "finding:4"]
    assert [title for title, _ in drain(ledger)] == order


@SQLITE
def test_what_is_urgent_and_always_fails_lets_the_others_pass(ledger: Ledger) -> None:
    ledger.tell([talk(), talk("alert:1")], [post(title="old"), post("alert:1", title="fire", urgent=True)])
    for _ in range(URGENT_TRIES):
        assert titles(due(ledger)) == ["fire", "old"]
        ledger.post_failed(due(ledger)[0].post.id, NOW_MS, "down")
    assert titles(due(ledger)) == ["old", "fire"]


@SQLITE
def test_more_than_one_transaction_holds(ledger: Ledger) -> None:
    many = [talk(f"finding:{n:04}") for n in range(BATCH + 1)]
    posts = [post(each.key) for each in many]
    assert ledger.tell(many, posts) == len(many)
    assert ledger.tell(many, posts) == 0
    assert ledger.conversations(since_ms=0) == tuple(many)
    over = [replace(each, resolved_ms=NOW_MS) for each in many]
    assert ledger.tell(over, [post(each.key, DeliveryAct.RESOLVE) for each in over]) == len(over)
    assert ledger.waiting_posts()["ops"].count == 2 * len(many)


def test_updates_that_wait_are_overtaken(ledger: Ledger) -> None:
    ledger.tell([talk()], [post(title="first")])
    for version in ("2", "3"):
        ledger.tell([talk(version=version, updated_ms=NOW_MS)], [post(act=DeliveryAct.UPDATE, title=version)])
    ledger.tell([talk(version="3", escalated_ms=NOW_MS)], [post(act=DeliveryAct.ESCALATE, title="call")])
    assert ledger.waiting_posts()["ops"].count == 3
    ledger.tell([talk(version="3", resolved_ms=NOW_MS)], [post(act=DeliveryAct.RESOLVE, title="end")])
    assert drain(ledger) == [
        ("first", DeliveryAct.OPEN),
        ("call", DeliveryAct.ESCALATE),
        ("end", DeliveryAct.RESOLVE),
    ]
    assert ledger.waiting_posts() == {}


@SQLITE
def test_the_reference_of_the_message_is_kept(ledger: Ledger) -> None:
    ledger.tell([talk()], [post()])
    ledger.post_sent(due(ledger)[0].post.id, NOW_MS, "C1:1.0")
    assert ledger.conversations(since_ms=0)[0].reference == "C1:1.0"
    ledger.tell([talk(version="2", updated_ms=NOW_MS)], [post(act=DeliveryAct.UPDATE)])
    assert due(ledger)[0].reference == "C1:1.0"
    ledger.post_sent(due(ledger)[0].post.id, NOW_MS, "")
    assert ledger.conversations(since_ms=0)[0].reference == "C1:1.0"


def test_each_channel_has_its_turn(ledger: Ledger) -> None:
    conversations = [talk(f"finding:{n}", channel=name) for name in ALL for n in range(5)]
    ledger.tell(conversations, [post(each.key, channel=each.channel) for each in conversations])
    assert [each.post.channel for each in due(ledger, most=2)] == ["ops", "ops", "red", "red"]
    with pytest.raises(InputError, match=r"most.*1 to 1000"):
        due(ledger, most=0)


def test_a_post_is_taken_by_one(ledger: Ledger) -> None:
    ledger.tell([talk()], [post()])
    number = due(ledger)[0].post.id
    with ThreadPoolExecutor(4) as pool:
        took = list(pool.map(lambda _: ledger.claim_post(number, NOW_MS, NOW_MS + MINUTE_MS), range(4)))
    assert sorted(took) == [False, False, False, True]
    assert due(ledger) == ()
    assert len(due(ledger, NOW_MS + MINUTE_MS)) == 1, "who took it may have died"


def test_failures_and_dead_letters(ledger: Ledger) -> None:
    ledger.tell([talk()], [post()])
    number = due(ledger)[0].post.id
    ledger.post_failed(number, NOW_MS + 5, "down " * 500)
    (found,) = due(ledger, NOW_MS + 5)
    assert (found.post.tries, len(found.post.trouble)) == (1, 500)
    ledger.post_dead(number, NOW_MS + 6, "no such room")
    assert (due(ledger, NOW_MS + DAY_MS), ledger.waiting_posts()) == ((), {})
    (dead,) = ledger.dead_posts()
    assert (dead.post.trouble, dead.post.tries, dead.dead_ms) == ("no such room", 2, NOW_MS + 6)
    assert dead.post.message == post().message
    assert ledger.count_dead_posts() == {"ops": 1}
    assert ledger.revive_post(number, NOW_MS + 7)
    assert not ledger.revive_post(number, NOW_MS + 7), "it is not dead any more"
    (found,) = due(ledger, NOW_MS + 7)
    assert (found.post.tries, found.since_ms) == (0, NOW_MS + 7), "its time counts anew"
    assert ledger.dead_posts() == ()


def test_posts_of_channels_that_are_gone_are_given_up(ledger: Ledger) -> None:
    ledger.tell([talk(), talk(channel="red")], [post(), post(channel="red")])
    assert ledger.bury_posts(("red",), NOW_MS) == 1
    assert [(each.post.channel, each.post.trouble) for each in ledger.dead_posts()] == [
        ("ops", "the settings have no channel of this name")
    ]
    assert len(due(ledger)) == 1


def test_what_another_version_wrote_is_a_dead_letter_and_holds_nothing_up(
    ledger_url: str, ledger: Ledger
) -> None:
    ledger.tell([talk(), talk("finding:2")], [post(), post("finding:2", title="other")])
    engine = create_engine(ledger_url)
    with engine.begin() as connection:
        statement = "UPDATE notify_post SET message = '{\"version\": 2}' WHERE key = 'finding:1'"
        connection.execute(text(statement))
    engine.dispose()
    assert titles(due(ledger)) == ["other"]
    assert [each.post.message.title for each in ledger.dead_posts()] == ["(not readable)"]


@SQLITE
def test_all_of_it_or_nothing(ledger: Ledger) -> None:
    with pytest.raises(InputError, match="posts whose conversation is given too"):
        ledger.tell([talk()], [post(), post("finding:2")])
    with pytest.raises(InputError, match="created_ms"):
        ledger.tell([talk()], [post(), post(act=DeliveryAct.UPDATE, at_ms=-1)])
    with pytest.raises(InputError, match="key"):
        ledger.tell([talk(""), talk()], [])
    assert (ledger.conversations(since_ms=0), ledger.waiting_posts()) == ((), {})


def test_hostile_words_are_kept_as_far_as_they_can_be(ledger: Ledger) -> None:
    ledger.tell([talk(team="a\0b", group="\ud800g")], [post(title="<!channel> \0 '; DROP \ud800 \U0001f4a5")])
    assert titles(due(ledger)) == ["<!channel> \0 '; DROP ? \U0001f4a5"]
    (found,) = ledger.conversations(since_ms=0)
    assert (found.team, found.group) == ("ab", "g")


def test_what_is_old_is_deleted_by_the_next_writer(ledger: Ledger, clock: Clock) -> None:
    ledger.tell(
        [talk(), talk("finding:2")], [post(), post("finding:2"), post("finding:2", DeliveryAct.UPDATE)]
    )
    first, second = due(ledger)
    ledger.post_sent(first.post.id, NOW_MS, "")
    ledger.post_dead(second.post.id, NOW_MS, "gone")
    ledger.tell([talk(resolved_ms=NOW_MS)], [])

    def after(kept_ms: int) -> None:
        clock.now_ms = NOW_MS + kept_ms
        ledger.tell([], [])
        clock.now_ms += 1
        ledger.tell([], [])

    after(SENT_KEPT_MS)
    clock.now_ms = NOW_MS + DEAD_KEPT_MS
    ledger.tell([], [])
    assert len(ledger.dead_posts()) == 1
    after(DEAD_KEPT_MS)
    assert ledger.dead_posts() == ()
    clock.now_ms = NOW_MS + CONVERSATIONS_KEPT_MS
    ledger.tell([], [])
    assert len(ledger.conversations(since_ms=0)) == 2
    after(CONVERSATIONS_KEPT_MS)
    assert [each.key for each in ledger.conversations(since_ms=0)] == ["finding:2"], "it is still open"
