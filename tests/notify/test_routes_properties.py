"""Whatever happens, and wherever the service stops: nothing is said twice, and nothing is over unopened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
from gpucost.notify.routes import RoutingRules, decide
from gpucost.notify.routes.rules import NotificationRoute, QuietHours, RouteEscalation

T0 = parse_instant("2026-10-22T00:00:00Z")  # three days before Berlin's clock is put back
BERLIN = ZoneInfo("Europe/Berlin")
CHANNELS = {
    "nlp": NotificationChannel("nlp", ChannelService.SLACK, SecretStr("u"), SecretStr("t"), "R"),
    "cv": NotificationChannel("cv", ChannelService.TEAMS, SecretStr("u")),
    "all": NotificationChannel(
        "all", ChannelService.MATTERMOST, SecretStr("u"), SecretStr("t"), "R", sees_all=True
    ),
}
TEAMS = ("", "nlp", "cv")
QUIET = st.lists(
    st.builds(
        QuietHours,
        start=st.integers(0, 1439),
        end=st.integers(1, 1440),
        zone=st.just(BERLIN),
        days=st.frozensets(st.integers(0, 6)),
    ).filter(lambda quiet: quiet.start != quiet.end),
    max_size=2,
).map(tuple)
ROUTES = st.lists(
    st.builds(
        NotificationRoute,
        channels=st.lists(st.sampled_from(list(CHANNELS)), min_size=1, max_size=3).map(tuple),
        teams=st.frozensets(st.sampled_from(TEAMS[1:])),
        platform=st.booleans(),
        least=st.sampled_from(list(NoticeRank)),
        stop=st.booleans(),
        quiet=QUIET,
        cool_down_ms=st.just(DAY_MS),
        escalation=st.none()
        | st.builds(RouteEscalation, channels=st.just(("all",)), after_ms=st.just(4 * HOUR_MS)),
    ),
    min_size=1,
    max_size=3,
).map(tuple)
ALERTS = "34"
NOTICES = st.builds(
    lambda group, episode, stage, rank, version, acknowledged: Notice(
        key=f"{group}:{episode}",
        group=group,
        kind=NoticeKind.ALERT if group in ALERTS else NoticeKind.FINDING,
        stage=stage,
        rank=rank,
        team=TEAMS[int(group) % 3],
        cluster="demo",
        since_ms=T0,
        version=str(version),
        message=NotificationMessage("t", f"for {TEAMS[int(group) % 3]}"),
        acknowledged=acknowledged,
    ),
    st.sampled_from("012" + ALERTS),
    st.integers(0, 2),
    st.sampled_from([NoticeStage.OPEN, NoticeStage.OPEN, NoticeStage.RESOLVED]),
    st.sampled_from(list(NoticeRank)),
    st.integers(0, 2),
    st.booleans(),
)
ROUNDS = st.lists(st.tuples(st.integers(0, 30 * 60), st.lists(NOTICES, max_size=4)), min_size=1, max_size=12)

Told = list[tuple[int, NoticeDelivery]]


def played(
    rules: RoutingRules, rounds: Sequence[tuple[int, Sequence[Notice]]], lost: Sequence[bool] = ()
) -> tuple[Told, dict[tuple[str, str], Conversation]]:
    """All posts. Where ``lost`` says so, the service stops before a round is stored, and does it again."""
    known: dict[tuple[str, str], Conversation] = {}
    told: Told = []
    now_ms = T0
    for n, (minutes, notices) in enumerate(rounds):
        now_ms += minutes * MINUTE_MS
        decision = decide(notices, [*known.values()], rules, now_ms)
        if n < len(lost) and lost[n]:
            decision = decide(notices, [*known.values()][::-1], rules, now_ms)
        known |= {(each.channel, each.key): each for each in decision.conversations}
        assert len({(each.channel, each.key) for each in decision.conversations}) == len(
            decision.conversations
        )
        told += [(now_ms, post) for post in decision.posts]
        assert not decide(notices, known.values(), rules, now_ms).posts
    return told, known


@given(ROUTES, ROUNDS, st.lists(st.booleans(), max_size=12))
def test_a_restart_anywhere_says_the_same(
    routes: tuple[NotificationRoute, ...], rounds: list[tuple[int, list[Notice]]], lost: list[bool]
) -> None:
    rules = RoutingRules(CHANNELS, routes)
    assert played(rules, rounds) == played(rules, rounds, lost)


@pytest.mark.fault(64)
@given(ROUTES, ROUNDS)
def test_no_channel_hears_twice_of_a_group_within_its_cool_down(
    routes: tuple[NotificationRoute, ...], rounds: list[tuple[int, list[Notice]]]
) -> None:
    told, _ = played(RoutingRules(CHANNELS, routes, alert_cool_down_ms=HOUR_MS), rounds)
    opened: dict[tuple[str, str], list[int]] = defaultdict(list)
    for now_ms, post in told:
        if post.act is DeliveryAct.OPEN:
            opened[post.channel, post.key.partition(":")[0]].append(now_ms)
    for (_, group), times in opened.items():
        cool_down_ms = HOUR_MS if group in ALERTS else DAY_MS
        assert all(later - earlier >= cool_down_ms for earlier, later in pairwise(times))


@pytest.mark.fault(61)
@given(ROUTES, ROUNDS)
def test_a_channel_is_told_the_end_once_of_what_it_was_told(
    routes: tuple[NotificationRoute, ...], rounds: list[tuple[int, list[Notice]]]
) -> None:
    told, known = played(RoutingRules(CHANNELS, routes), rounds)
    is_open: dict[tuple[str, str], bool] = defaultdict(bool)
    for _, post in told:
        place = post.channel, post.key
        if post.act in (DeliveryAct.OPEN, DeliveryAct.ESCALATE):
            assert not (post.act is DeliveryAct.OPEN and is_open[place])
            is_open[place] = True
        else:
            assert is_open[place], post
            is_open[place] = post.act is DeliveryAct.UPDATE
    assert {place for place, open_ in is_open.items() if open_} == {
        place for place, each in known.items() if each.resolved_ms is None
    }


@given(ROUTES, ROUNDS)
def test_nobody_reads_of_teams_that_are_not_theirs(
    routes: tuple[NotificationRoute, ...], rounds: list[tuple[int, list[Notice]]]
) -> None:
    named = {
        channel: {team for route in routes if channel in route.channels for team in route.teams}
        for channel in CHANNELS
    }
    for _, post in played(RoutingRules(CHANNELS, routes), rounds)[0]:
        team = TEAMS[int(post.key.partition(":")[0]) % 3]
        assert CHANNELS[post.channel].sees_all or team in named[post.channel]


@given(ROUTES, ROUNDS)
def test_only_what_is_critical_rings_in_quiet_hours(
    routes: tuple[NotificationRoute, ...], rounds: list[tuple[int, list[Notice]]]
) -> None:
    """With one route, whose quiet hours then count: at its own time and in each round."""
    route = replace(routes[0], quiet=(QuietHours(22 * 60, 7 * 60, BERLIN),))
    calm = [
        (minutes, [n for n in notices if n.rank is not NoticeRank.CRITICAL]) for minutes, notices in rounds
    ]
    for _, post in played(RoutingRules(CHANNELS, (route,)), calm)[0]:
        if post.act is not DeliveryAct.UPDATE and post.channel in route.channels:
            hour = datetime.fromtimestamp(post.due_ms / 1000, BERLIN).hour
            assert 7 <= hour < 22


@given(ROUTES, st.lists(NOTICES, max_size=4), st.integers(1, 60 * 24 * 60))
def test_a_clock_that_goes_back_says_nothing_twice(
    routes: tuple[NotificationRoute, ...], notices: list[Notice], minutes: int
) -> None:
    rules = RoutingRules(CHANNELS, routes)
    first = decide(notices, (), rules, T0 + 60 * DAY_MS)
    again = decide(notices, first.conversations, rules, T0 + 60 * DAY_MS - minutes * MINUTE_MS)
    told = {(each.channel, each.key) for each in first.posts}
    assert not [each for each in again.posts if (each.channel, each.key) in told]
