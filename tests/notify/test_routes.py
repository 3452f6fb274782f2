"""Which channel gets which message when: one thing after the other, on fixed clocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import SecretStr

from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, parse_instant
from gpucost.notify.channels import ChannelService, NotificationChannel
from gpucost.notify.message import NotificationMessage
from gpucost.notify.notices import (
    Conversation,
    DeliveryAct,
    Notice,
    NoticeDelivery,
    NoticeKind,
    NoticeRank,
    NoticeStage,
)
from gpucost.notify.routes import HoldReason, RoutingDecision, RoutingRules, decide
from gpucost.notify.routes.rules import NotificationRoute, QuietHours, RouteEscalation

T0 = parse_instant("2026-10-12T12:00:00Z")
NIGHT = QuietHours(20 * 60, 7 * 60, ZoneInfo("UTC"))


def channel(name: str, *, bot: bool = True, sees_all: bool = False) -> NotificationChannel:
    token = SecretStr("t") if bot else None
    return NotificationChannel(
        name, ChannelService.SLACK, SecretStr("https://s"), token, "R" if bot else "", sees_all=sees_all
    )


CHANNELS = {
    each.name: each
    for each in (
        channel("nlp"),
        channel("hook", bot=False),
        channel("platform", sees_all=True),
        channel("oncall", sees_all=True),
    )
}
NLP = NotificationRoute(("nlp",), teams=frozenset({"nlp"}))
ALL = NotificationRoute(("platform",))


def notice(key: str = "f1:1", stage: NoticeStage = NoticeStage.OPEN, **changes: Any) -> Notice:
    base = Notice(
        key=key,
        group=key.partition(":")[0],
        kind=NoticeKind.FINDING,
        stage=stage,
        rank=NoticeRank.HIGH,
        team="nlp",
        cluster="demo",
        since_ms=T0,
        version="v1",
        message=NotificationMessage("title", "own words"),
        full=NotificationMessage("title", "all words"),
        name="idle_allocation",
    )
    return replace(base, **changes)


@dataclass
class World:
    """Channels and the messages they got, from round to round."""

    rules: RoutingRules
    known: dict[tuple[str, str], Conversation] = field(default_factory=dict)
    last: RoutingDecision = field(default_factory=RoutingDecision)

    def at(self, now_ms: int, *notices: Notice) -> list[tuple[str, DeliveryAct]]:
        self.last = decide(notices, self.known.values(), self.rules, now_ms)
        self.known |= {(each.channel, each.key): each for each in self.last.conversations}
        assert not decide(notices, self.known.values(), self.rules, now_ms).posts, "said twice"
        return [(each.channel, each.act) for each in self.last.posts]

    @property
    def post(self) -> NoticeDelivery:
        (post,) = self.last.posts
        return post

    @property
    def reasons(self) -> set[HoldReason]:
        return {each.reason for each in self.last.held}


def world(*routes: NotificationRoute) -> World:
    return World(RoutingRules(CHANNELS, routes))


def test_told_once_and_resolved_once() -> None:
    it = world(NLP)
    assert it.at(T0, notice()) == [("nlp", DeliveryAct.OPEN)]
    assert it.post.message.summary == "own words"
    assert it.at(T0 + HOUR_MS, notice()) == []
    over = notice(stage=NoticeStage.RESOLVED)
    assert it.at(T0 + 2 * HOUR_MS, over) == [("nlp", DeliveryAct.RESOLVE)]
    assert it.at(T0 + 3 * HOUR_MS, over) == []


def test_what_was_never_told_is_not_told_when_it_is_over() -> None:
    it = world(NLP)
    assert it.at(T0, notice(stage=NoticeStage.RESOLVED)) == []
    assert it.known == {}


def test_what_is_no_longer_given_is_not_over() -> None:
    it = world(NLP)
    it.at(T0, notice())
    assert it.at(T0 + HOUR_MS) == []
    assert it.at(T0 + 2 * DAY_MS, notice()) == []


@pytest.mark.fault(61)
def test_a_group_that_is_sent_again_updates_one_message() -> None:
    """State's part of it: the payload's is in test_alertmanager_payload."""
    it = world(NLP)
    alert = notice("alert:1", kind=NoticeKind.ALERT)
    assert it.at(T0, alert) == [("nlp", DeliveryAct.OPEN)]
    assert it.at(T0 + MINUTE_MS, alert) == []
    more = replace(alert, version="v2")
    assert it.at(T0 + 4 * MINUTE_MS, more) == []  # not yet
    assert it.at(T0 + 5 * MINUTE_MS, more) == [("nlp", DeliveryAct.UPDATE)]
    assert it.at(T0 + 10 * MINUTE_MS, more) == []
    over = replace(more, stage=NoticeStage.RESOLVED, version="over")
    assert it.at(T0 + 11 * MINUTE_MS, over) == [("nlp", DeliveryAct.RESOLVE)]
    assert it.at(T0 + 12 * MINUTE_MS, over) == []
    assert it.at(T0 + 13 * MINUTE_MS, replace(over, version="again")) == []


def test_a_webhook_cannot_be_updated_and_is_not() -> None:
    it = world(replace(NLP, channels=("hook",)))
    it.at(T0, notice())
    assert it.at(T0 + HOUR_MS, notice(version="v2")) == []
    assert it.at(T0 + 2 * HOUR_MS, notice(stage=NoticeStage.RESOLVED)) == [("hook", DeliveryAct.RESOLVE)]


@pytest.mark.fault(64)
def test_the_same_every_hour_is_one_post_in_a_cool_down() -> None:
    """Three days of a finding that is there for half of each hour, each time as another episode."""
    it, opened = world(NLP), []
    for hour in range(72):
        key = f"f1:{hour}"
        opened += [hour for _, act in it.at(T0 + hour * HOUR_MS, notice(key)) if act is DeliveryAct.OPEN]
        it.at(T0 + hour * HOUR_MS + HOUR_MS // 2, notice(key, NoticeStage.RESOLVED))
    assert opened == [0, 24, 48]
    assert it.last.suppressed == {}


def test_what_is_held_by_a_cool_down_is_counted_and_told_after_it() -> None:
    it = world(NLP)
    it.at(T0, notice("f1:1"))
    it.at(T0 + HOUR_MS, notice("f1:1", NoticeStage.RESOLVED))
    assert it.at(T0 + 2 * HOUR_MS, notice("f1:2")) == []
    assert it.last.suppressed == {(NoticeKind.FINDING, HoldReason.COOL_DOWN): 1}
    assert it.at(T0 + DAY_MS - 1, notice("f1:2")) == []
    assert it.at(T0 + DAY_MS, notice("f1:2")) == [("nlp", DeliveryAct.OPEN)]


def test_an_alert_that_fires_again_under_its_key_opens_anew_after_the_cool_down() -> None:
    it = world(replace(NLP, cool_down_ms=HOUR_MS))
    it.at(T0, notice())
    it.at(T0 + MINUTE_MS, notice(stage=NoticeStage.RESOLVED))
    assert it.at(T0 + 2 * MINUTE_MS, notice()) == []
    assert it.at(T0 + HOUR_MS, notice()) == [("nlp", DeliveryAct.OPEN)]
    assert it.at(T0 + 2 * HOUR_MS, notice(stage=NoticeStage.RESOLVED)) == [("nlp", DeliveryAct.RESOLVE)]


def test_a_cool_down_of_one_route_is_not_that_of_another() -> None:
    it = world(NLP, replace(ALL, cool_down_ms=0))
    it.at(T0, notice("f1:1"))
    assert it.at(T0 + HOUR_MS, notice("f1:2")) == [("platform", DeliveryAct.OPEN)]


EVENING, MORNING = parse_instant("2026-10-12T22:00:00Z"), parse_instant("2026-10-13T07:00:00Z")


def test_quiet_hours_hold_what_is_not_critical() -> None:
    it = world(replace(NLP, quiet=(NIGHT,)))
    assert it.at(EVENING, notice()) == []
    assert it.reasons == {HoldReason.QUIET_HOURS}
    assert it.at(EVENING, notice("c:1", rank=NoticeRank.CRITICAL)) == [("nlp", DeliveryAct.OPEN)]
    assert it.at(MORNING - 1, notice()) == []
    assert it.at(MORNING, notice()) == [("nlp", DeliveryAct.OPEN)]


def test_what_is_over_by_the_end_of_quiet_hours_is_left_out() -> None:
    it = world(replace(NLP, quiet=(NIGHT,)))
    it.at(EVENING, notice())
    it.at(EVENING + HOUR_MS, notice(stage=NoticeStage.RESOLVED))
    assert it.at(MORNING, notice(stage=NoticeStage.RESOLVED)) == []


def test_what_is_over_within_quiet_hours_is_posted_at_their_end() -> None:
    """Decided at once: by the morning it may be forgotten."""
    it = world(replace(NLP, quiet=(NIGHT,)))
    it.at(T0, notice())
    assert it.at(EVENING, notice(stage=NoticeStage.RESOLVED)) == [("nlp", DeliveryAct.RESOLVE)]
    assert (it.post.created_ms, it.post.due_ms) == (EVENING, MORNING)


def test_a_digest_is_told_once_for_ever_and_waits_in_the_outbox() -> None:
    it = world(replace(NLP, quiet=(NIGHT,)))
    digest = notice(
        "digest:week:2026-W42:nlp", NoticeStage.ONCE, kind=NoticeKind.DIGEST, rank=NoticeRank.INFO
    )
    assert it.at(EVENING, digest) == [("nlp", DeliveryAct.OPEN)]
    assert it.post.due_ms == MORNING
    assert it.at(EVENING + 30 * DAY_MS, replace(digest, version="whole")) == []


def test_what_costs_less_than_the_floor_waits_until_it_costs_more() -> None:
    it = world(replace(NLP, floor_nano=50), ALL)
    assert it.at(T0, notice(costs_nano=49)) == [("platform", DeliveryAct.OPEN)]
    assert it.reasons == {HoldReason.FLOOR}
    assert it.at(T0 + HOUR_MS, notice(costs_nano=50)) == [("nlp", DeliveryAct.OPEN)]
    assert it.at(T0 + 2 * HOUR_MS, notice(costs_nano=1, version="v2")) == [
        ("nlp", DeliveryAct.UPDATE),
        ("platform", DeliveryAct.UPDATE),
    ], "what was told goes on"


@pytest.mark.parametrize(
    "changes",
    [{"costs_nano": None}, {"costs_nano": 1, "rank": NoticeRank.CRITICAL}],
    ids=["no figure", "critical"],
)
def test_the_floor_holds_nothing_back_that_is_critical_or_has_no_figure(changes: dict[str, Any]) -> None:
    assert world(replace(NLP, floor_nano=50)).at(T0, notice(**changes)) == [("nlp", DeliveryAct.OPEN)]


def test_a_receipt_is_told_once_and_nothing_stays_open() -> None:
    it = world(replace(NLP, quiet=(NIGHT,), floor_nano=50))
    receipt = notice(
        "receipt:c:u:2026-10-12:nlp", NoticeStage.ONCE, kind=NoticeKind.RECEIPT, rank=NoticeRank.INFO
    )
    assert it.at(EVENING, replace(receipt, costs_nano=49)) == []
    assert it.reasons == {HoldReason.FLOOR}
    assert it.at(EVENING, replace(receipt, costs_nano=50)) == [("nlp", DeliveryAct.OPEN)]
    assert it.post.due_ms == MORNING
    assert [each.resolved_ms for each in it.known.values()] == [EVENING]
    assert it.at(EVENING + 30 * DAY_MS, replace(receipt, version="v9")) == []


ESCALATING = replace(NLP, escalation=RouteEscalation(("oncall",)))


def test_escalated_once_with_a_mention_and_told_when_over() -> None:
    it = world(ESCALATING)
    it.at(T0, notice())
    assert it.at(T0 + 4 * HOUR_MS - 1, notice()) == []
    assert it.at(T0 + 4 * HOUR_MS, notice()) == [("oncall", DeliveryAct.ESCALATE)]
    assert it.post.message.mentions
    assert it.post.message.summary == "all words"
    assert it.at(T0 + 9 * HOUR_MS, notice()) == []
    assert it.at(T0 + 10 * HOUR_MS, notice(version="v2")) == [
        ("nlp", DeliveryAct.UPDATE),
        ("oncall", DeliveryAct.UPDATE),
    ]
    over = it.at(T0 + 11 * HOUR_MS, notice(stage=NoticeStage.RESOLVED))
    assert over == [("nlp", DeliveryAct.RESOLVE), ("oncall", DeliveryAct.RESOLVE)]


@pytest.mark.parametrize(
    "changes",
    [
        {"acknowledged": True},
        {"rank": NoticeRank.MEDIUM},
        {"kind": NoticeKind.ADVICE},
        {"since_ms": T0 + 9 * DAY_MS},
    ],
    ids=["acknowledged", "not severe", "advice", "began later by a wrong clock"],
)
def test_what_is_not_escalated(changes: dict[str, Any]) -> None:
    it = world(ESCALATING)
    it.at(T0, notice())
    expected = [("oncall", DeliveryAct.ESCALATE)] if "since_ms" in changes else []
    assert it.at(T0 + 5 * HOUR_MS, notice(**changes)) == expected


def test_nobody_is_called_about_what_was_not_told_yet() -> None:
    """It has been so for a day when it is found: the team has its four hours all the same."""
    it = world(ESCALATING)
    assert it.at(T0, notice(since_ms=T0 - DAY_MS)) == [("nlp", DeliveryAct.OPEN)]


def test_escalation_to_a_channel_that_was_told_already() -> None:
    it = world(replace(NLP, escalation=RouteEscalation(("nlp",))))
    it.at(T0, notice())
    assert it.at(T0 + 4 * HOUR_MS, notice()) == [("nlp", DeliveryAct.ESCALATE)]
    assert it.at(T0 + 8 * HOUR_MS, notice()) == []


def test_two_routes_to_one_channel_tell_it_once() -> None:
    it = world(NLP, NLP)
    assert it.at(T0, notice()) == [("nlp", DeliveryAct.OPEN)]
    assert it.reasons == {HoldReason.DUPLICATE}
    assert it.at(T0 + HOUR_MS, notice()) == []
    assert it.reasons == set()


def test_every_route_tells_unless_one_stops() -> None:
    assert world(NLP, ALL).at(T0, notice()) == [("nlp", DeliveryAct.OPEN), ("platform", DeliveryAct.OPEN)]
    stopping = world(replace(NLP, stop=True), ALL)
    assert stopping.at(T0, notice()) == [("nlp", DeliveryAct.OPEN)]
    assert stopping.at(T0, notice("x:1", team="cv")) == [("platform", DeliveryAct.OPEN)]


def test_what_no_route_takes_is_counted() -> None:
    it = world(NLP)
    assert it.at(T0, notice(team="cv")) == []
    assert it.last.suppressed == {(NoticeKind.FINDING, HoldReason.NO_CHANNEL): 1}


def test_readers_of_one_team_are_told_of_no_other() -> None:
    """Also with rules that the settings would refuse."""
    everything = NotificationRoute(("nlp", "platform"))
    assert world(everything).at(T0, notice(team="cv")) == [("platform", DeliveryAct.OPEN)]
    assert world(NotificationRoute(("nlp",), platform=True)).at(T0, notice(team="")) == []


def test_who_sees_all_reads_all_words() -> None:
    it = world(ALL)
    it.at(T0, notice())
    assert it.post.message.summary == "all words"
    it.at(T0, notice("f2:1", full=None))
    assert it.post.message.summary == "own words"


def test_the_new_team_of_a_finding_is_not_told_to_the_old_one() -> None:
    it = world(NLP)
    it.at(T0, notice())
    assert it.at(T0 + HOUR_MS, notice(stage=NoticeStage.RESOLVED, team="cv")) == [
        ("nlp", DeliveryAct.RESOLVE)
    ]
    assert it.last.posts[-1].message.title == "Over"


MATCHES: Iterable[tuple[NotificationRoute, dict[str, Any], bool]] = [
    (NotificationRoute(("c",)), {}, True),
    (NotificationRoute(("c",)), {"team": ""}, True),
    (NotificationRoute(("c",), teams=frozenset({"cv"})), {}, False),
    (NotificationRoute(("c",), teams=frozenset({"nlp"})), {"team": ""}, False),
    (NotificationRoute(("c",), teams=frozenset({"nlp"}), platform=True), {"team": ""}, True),
    (NotificationRoute(("c",), platform=True), {}, False),
    (NotificationRoute(("c",), kinds=frozenset({NoticeKind.ALERT})), {}, False),
    (NotificationRoute(("c",), least=NoticeRank.HIGH), {}, True),
    (NotificationRoute(("c",), least=NoticeRank.CRITICAL), {}, False),
    (NotificationRoute(("c",), least=NoticeRank.CRITICAL), {"kind": NoticeKind.DIGEST}, True),
    (NotificationRoute(("c",), clusters=("prod-*",)), {}, False),
    (NotificationRoute(("c",), clusters=("prod-*",)), {"cluster": "prod-1"}, True),
    (NotificationRoute(("c",), clusters=("prod-*",)), {"cluster": ""}, True),
    (NotificationRoute(("c",), names=("idle_*",)), {}, True),
    (NotificationRoute(("c",), names=("GpuCost*",)), {}, False),
    (NotificationRoute(("c",), names=("GpuCost*",)), {"kind": NoticeKind.ALERT, "name": "GpuCostLag"}, True),
    (NotificationRoute(("c",), names=("*",)), {"kind": NoticeKind.DIGEST, "name": ""}, False),
    (NotificationRoute(("c",), users=frozenset({"ada"})), {}, False),
    (NotificationRoute(("c",), users=frozenset({"ada"})), {"users": ("ben", "ada")}, True),
    (NotificationRoute(("c",), users=frozenset({"ada"})), {"users": ("ben",)}, False),
    (NotificationRoute(("c",)), {"users": ("ben",)}, True),
    (NotificationRoute(("c",)), {"users": ("ben",), "personal": True}, False),
    (NotificationRoute(("c",), users=frozenset({"ben"})), {"users": ("ben",), "personal": True}, True),
]


@pytest.mark.parametrize(("route", "changes", "expected"), MATCHES)
def test_what_a_route_takes(route: NotificationRoute, changes: dict[str, Any], expected: bool) -> None:
    assert route.applies(notice(**changes)) is expected


def test_what_matters_less_than_it_did_is_still_resolved_and_in_its_hours() -> None:
    it = world(replace(NLP, least=NoticeRank.HIGH, quiet=(NIGHT,)))
    it.at(T0, notice())
    assert it.at(T0 + HOUR_MS, notice(rank=NoticeRank.LOW)) == []
    assert it.reasons == set()
    assert it.at(EVENING, notice(stage=NoticeStage.RESOLVED, rank=NoticeRank.LOW)) == [
        ("nlp", DeliveryAct.RESOLVE)
    ]
    assert it.post.due_ms == MORNING


def test_nothing_is_posted_to_a_channel_that_is_no_longer_there() -> None:
    it = world(NLP)
    it.at(T0, notice())
    it.rules = RoutingRules()
    assert it.at(T0 + HOUR_MS, notice(stage=NoticeStage.RESOLVED)) == []


def test_an_acknowledged_finding_is_not_told_anew() -> None:
    it = world(NLP)
    assert it.at(T0, notice(acknowledged=True)) == []
    assert it.at(T0, notice()) == [("nlp", DeliveryAct.OPEN)]
