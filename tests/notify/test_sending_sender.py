"""The sender, over a real ledger and a loopback chat: nothing is lost, nothing is blocked."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucost.domain.backoff import FullJitter
from gpucost.domain.errors import LedgerUnavailable
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from gpucost.ledger.ledger import Ledger
from gpucost.notify.channels import ChannelService, NotificationChannel
from gpucost.notify.message import NotificationMessage
from gpucost.notify.notices import Conversation, DeliveryAct, NoticeDelivery, NoticeKind
from gpucost.notify.sending.delivery import OutgoingDelivery
from gpucost.notify.sending.sender import CLAIM_MS, LEAST_TRIES, MOST_ASKED_MS, NoticeSender
from tests.notify.sending_worlds import NOW_MS, channel, slack_bot, slack_webhook
from tests.support.chat_server import ChatServer, Trouble, chat_server

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.fault(62)


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.slept: list[float] = []

    def __call__(self) -> int:
        return self.now_ms

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ms += round(seconds * SECOND_MS)


class Highest(random.Random):
    """The longest pause of all."""

    def random(self) -> float:
        return 1.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(sqlite_url: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger.open(sqlite_url, now=clock) as opened:
        yield opened


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    with chat_server() as server:
        yield server


def sender(ledger: Ledger, clock: Clock, *channels: NotificationChannel) -> NoticeSender:
    backoff = FullJitter(base_s=2.0, cap_s=60.0)
    return NoticeSender(ledger, channels, now=clock, sleep=clock.sleep, rng=Highest(), backoff=backoff)


def tell(ledger: Ledger, *keys: str, channel: str = "ops") -> None:
    conversations = [Conversation(channel, key, "g", NoticeKind.FINDING, "red", "1", NOW_MS) for key in keys]
    posts = [
        NoticeDelivery(
            channel, key, DeliveryAct.OPEN, NotificationMessage(f"about {key}", "words"), NOW_MS, NOW_MS
        )
        for key in keys
    ]
    assert ledger.tell(conversations, posts) == len(keys)


def shown(chat: ChatServer) -> list[str]:
    return [each.payload["text"].partition(":")[0] for each in chat.shown]


def test_posts_go_out_in_order_at_one_a_second(ledger: Ledger, clock: Clock, chat: ChatServer) -> None:
    tell(ledger, "a", "b", "c")
    status = sender(ledger, clock, slack_webhook(chat)).turn()
    assert shown(chat) == ["about a", "about b", "about c"]
    assert clock.slept == [1.0, 1.0, 1.0]
    assert status.posts == {("ops", "finding", "sent"): 3}
    assert status.last_success_ms == {"ops": NOW_MS + 2 * SECOND_MS}
    assert ledger.waiting_posts() == {}


def test_a_conversation_is_one_message(ledger: Ledger, clock: Clock, chat: ChatServer) -> None:
    sends = sender(ledger, clock, slack_bot(chat))
    tell(ledger, "a")
    for act, title in ((DeliveryAct.UPDATE, "worse"), (DeliveryAct.RESOLVE, "over")):
        sends.turn()
        over = NOW_MS if act is DeliveryAct.RESOLVE else None
        talk = Conversation("ops", "a", "g", NoticeKind.FINDING, "red", title, NOW_MS, NOW_MS, None, over)
        assert (
            ledger.tell(
                [talk], [NoticeDelivery("ops", "a", act, NotificationMessage(title, ""), NOW_MS, NOW_MS)]
            )
            == 1
        )
        clock.now_ms += MINUTE_MS
    sends.turn()
    first, answer = chat.shown
    assert (first.payload["text"], first.edits, answer.thread) == ("over", 2, first.id)


@pytest.mark.parametrize(
    "trouble", [Trouble(500), Trouble(cut=True), Trouble.json({"ok": False, "error": "ratelimited"})]
)
def test_what_fails_is_tried_again_after_a_growing_pause(
    ledger: Ledger, clock: Clock, chat: ChatServer, trouble: Trouble
) -> None:
    tell(ledger, "a")
    chat.script = [trouble] * 3
    sends = sender(ledger, clock, slack_webhook(chat))
    tries_ms = []
    while not chat.shown:
        asked = len(chat.asked)
        sends.turn()
        if len(chat.asked) > asked:
            tries_ms.append(clock.now_ms - NOW_MS)
        clock.now_ms += SECOND_MS
    assert tries_ms[:3] == [0, 2_000, 6_000]
    assert sends.status().posts == {("ops", "finding", "retried"): 3, ("ops", "finding", "sent"): 1}


@pytest.mark.parametrize(("asked", "waits_ms"), [("90", 90_000), ("999999", MOST_ASKED_MS)])
def test_the_service_says_how_long_to_wait(
    ledger: Ledger, clock: Clock, chat: ChatServer, asked: str, waits_ms: int
) -> None:
    tell(ledger, "a", "b")
    chat.script = [Trouble(429, headers={"Retry-After": asked})]
    sends = sender(ledger, clock, slack_webhook(chat))
    sends.turn()
    clock.now_ms = NOW_MS + waits_ms - 1
    sends.turn()
    assert len(chat.asked) == 1, "the whole channel rests"
    clock.now_ms += 1
    sends.turn()
    assert sorted(shown(chat)) == ["about a", "about b"]


def test_a_clock_that_was_set_back_makes_no_channel_rest(
    ledger: Ledger, clock: Clock, chat: ChatServer
) -> None:
    tell(ledger, "a")
    chat.script = [Trouble(503)]
    sends = sender(ledger, clock, slack_webhook(chat))
    clock.now_ms = NOW_MS + DAY_MS
    sends.turn()
    clock.now_ms = NOW_MS
    tell(ledger, "b")
    sends.turn()
    assert shown(chat) == ["about b"]
    clock.now_ms = NOW_MS + DAY_MS + MINUTE_MS
    sends.turn()
    assert shown(chat) == ["about b", "about a"]


def test_a_failure_that_stays_becomes_a_dead_letter(
    ledger: Ledger, clock: Clock, chat: ChatServer, caplog: pytest.LogCaptureFixture
) -> None:
    tell(ledger, "a")
    chat.always = Trouble(503)
    sends = sender(ledger, clock, slack_webhook(chat))
    while not ledger.dead_posts() and clock.now_ms < NOW_MS + 3 * DAY_MS:
        sends.turn()
        clock.now_ms += HOUR_MS
    (dead,) = ledger.dead_posts()
    assert dead.dead_ms == NOW_MS + DAY_MS
    assert dead.post.trouble == ("127.0.0.1: answered 503 (an error without a code); given up after 25 tries")
    assert sends.status().posts["ops", "finding", "dead"] == 1
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "is a dead letter" in line.getMessage()
    assert "hunter2" not in caplog.text
    chat.always = None
    assert ledger.revive_post(dead.post.id, clock.now_ms)
    sends.turn()
    assert shown(chat) == ["about a"]


def test_what_waited_while_the_service_stood_still_is_tried_first(
    ledger: Ledger, clock: Clock, chat: ChatServer
) -> None:
    tell(ledger, "a")
    clock.now_ms += 3 * DAY_MS
    chat.script = [Trouble(500)] * (LEAST_TRIES - 1)
    sends = sender(ledger, clock, slack_webhook(chat))
    for _ in range(LEAST_TRIES):
        sends.turn()
        clock.now_ms += HOUR_MS
    assert shown(chat) == ["about a"]


def test_what_is_refused_dies_at_once_and_the_next_goes_on(
    ledger: Ledger, clock: Clock, chat: ChatServer
) -> None:
    tell(ledger, "a", "b")
    chat.script = [Trouble(400, b"invalid_payload")]
    sender(ledger, clock, slack_webhook(chat)).turn()
    assert shown(chat) == ["about b"]
    (dead,) = ledger.dead_posts()
    assert (dead.post.key, dead.post.trouble) == ("a", "127.0.0.1: answered 400 (invalid_payload)")


def test_a_channel_that_hangs_holds_up_no_other(ledger: Ledger, clock: Clock, chat: ChatServer) -> None:
    tell(ledger, "a", "b")
    tell(ledger, "a", channel="red")
    hangs, let_go = threading.Event(), threading.Event()

    def deliver(to: NotificationChannel, outgoing: OutgoingDelivery) -> str:
        if to.name == "ops":
            hangs.set()
            assert let_go.wait(30)
        else:
            chat.shown.append(chat._show({"text": f"{to.name} {outgoing.post.key}"}))
        return ""

    channels = [slack_webhook(chat, "ops"), slack_webhook(chat, "red")]
    sends = NoticeSender(ledger, channels, now=clock, sleep=lambda _: None, deliver=deliver)
    sends.turn(0.2)
    assert hangs.wait(30)
    tell(ledger, "c", channel="red")
    while ("red", "finding", "sent") not in sends.status().posts or ledger.waiting_posts()["ops"].count != 2:
        sends.turn(0.2)
    while "red" in ledger.waiting_posts():
        sends.turn(0.2)
    assert not sends.stop(0.01)
    let_go.set()
    assert sends.stop(30)
    assert ledger.waiting_posts()["ops"].count == 1, "what was on its way is done, and nothing more begun"


def test_a_fault_of_our_own_says_no_secret(
    ledger: Ledger, clock: Clock, chat: ChatServer, caplog: pytest.LogCaptureFixture
) -> None:
    def deliver(_: NotificationChannel, __: OutgoingDelivery) -> str:
        raise RuntimeError(chat.slack_webhook)

    tell(ledger, "a")
    with caplog.at_level(logging.DEBUG):
        NoticeSender(ledger, [slack_webhook(chat)], now=clock, sleep=clock.sleep, deliver=deliver).turn()
    (found,) = ledger.due_posts(NOW_MS + DAY_MS, ("ops",), 1)
    assert found.post.trouble == "unexpected RuntimeError"
    assert "hunter2" not in caplog.text


class Failing:
    """A ledger that cannot be written once a message was sent, so many times."""

    def __init__(self, ledger: Ledger, times: int) -> None:
        self._ledger = ledger
        self.times = times

    def __getattr__(self, name: str) -> object:
        return getattr(self._ledger, name)

    def post_sent(self, post_id: int, at_ms: int, reference: str) -> None:
        self.times -= 1
        if self.times >= 0:
            raise LedgerUnavailable("disk full")
        self._ledger.post_sent(post_id, at_ms, reference)


def test_a_ledger_that_cannot_be_written_repeats_nothing(
    ledger: Ledger, clock: Clock, chat: ChatServer
) -> None:
    tell(ledger, "a", "b")
    failing = Failing(ledger, 3)
    sends = NoticeSender(failing, [slack_webhook(chat)], now=clock, sleep=clock.sleep)  # type: ignore[arg-type]
    for _ in range(6):
        sends.turn()
        clock.now_ms += CLAIM_MS
    assert shown(chat) == ["about a", "about b"]
    assert ledger.waiting_posts() == {}
    assert sends.status().errors == 3


def test_a_ledger_that_cannot_be_read_raises_nothing(clock: Clock, chat: ChatServer) -> None:
    class Gone:
        def __getattr__(self, _: str) -> object:
            raise LedgerUnavailable("connection lost")

    sends = NoticeSender(Gone(), [slack_webhook(chat)], now=clock)  # type: ignore[arg-type]
    assert sends.turn().errors == 1


def test_channels_that_the_settings_lost(ledger: Ledger, clock: Clock, chat: ChatServer) -> None:
    tell(ledger, "a", channel="gone")
    sender(ledger, clock, slack_webhook(chat)).turn()
    assert [each.post.channel for each in ledger.dead_posts()] == ["gone"]


def test_two_processes_send_each_post_once(sqlite_url: str, clock: Clock, chat: ChatServer) -> None:
    with Ledger.open(sqlite_url, now=clock) as one, Ledger.open(sqlite_url, now=clock) as other:
        tell(one, *(f"k{n}" for n in range(10)))
        both = [
            NoticeSender(each, [slack_webhook(chat)], now=clock, sleep=lambda _: None)
            for each in (one, other)
        ]
        while one.waiting_posts():
            threads = [threading.Thread(target=each.turn) for each in both]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert sorted(shown(chat)) == [f"about k{n}" for n in range(10)]


@pytest.mark.fault(69)
def test_a_kill_in_the_middle_loses_nothing(sqlite_url: str, ledger: Ledger, chat: ChatServer) -> None:
    keys = [f"k{n:02}" for n in range(12)]
    tell(ledger, *keys)
    chat.always = Trouble(200, b"ok", after=True, slow_s=0.5)  # else all may be sent before it is killed
    command = [sys.executable, "-m", "tests.notify.sending_child", sqlite_url, chat.slack_webhook]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        while len(set(shown(chat))) < 3:
            assert child.poll() is None
            time.sleep(0.01)
        child.kill()
    chat.always = None
    assert ledger.waiting_posts(), "it was killed before the end"
    # What begins now does so after the claims of the one that was killed have run out.
    clock = Clock()
    clock.now_ms += CLAIM_MS + HOUR_MS
    with Ledger.open(sqlite_url, now=clock) as opened:
        after = sender(opened, clock, channel(ChannelService.SLACK, chat.slack_webhook))
        for _ in keys:
            after.turn()
    told = shown(chat)
    assert sorted(set(told)) == [f"about {key}" for key in keys]
    assert len(told) <= len(keys) + 1, "at most one is repeated"
    assert ledger.waiting_posts() == {}


def test_stop_begins_nothing(ledger: Ledger, clock: Clock, chat: ChatServer) -> None:
    tell(ledger, "a")
    sends = sender(ledger, clock, channel(ChannelService.SLACK, chat.slack_webhook))
    assert sends.stop()
    sends.turn()
    assert chat.asked == []
