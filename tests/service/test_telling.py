"""News: how things stand in a real ledger, against what was sent to channels, over restarts and failures."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gpucost.detectors.engine.lifecycle import FindingLifeState
from gpucost.detectors.findings import FindingSeverity
from gpucost.domain.errors import InputError, LedgerUnavailable
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS
from gpucost.ledger.ledger import Ledger
from gpucost.notify.channels import ChannelService, NotificationChannel
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.message import NotificationMessage
from gpucost.notify.notices import DeliveryAct, Notice, NoticeKind, NoticeRank, NoticeStage
from gpucost.notify.routes import RoutingRules
from gpucost.notify.routes.rules import NotificationRoute
from gpucost.notify.sending.delivery import OutgoingDelivery
from gpucost.notify.sending.sender import NoticeSender
from gpucost.service.detection.finding_records import life_of, record_of
from gpucost.service.notifications.findings_and_alerts import AlertNotices, FindingNotices, keep
from gpucost.service.notifications.loop import NoticeSource, NotificationLoop, NotificationStatus
from tests.api.findings import CLUSTER, finding, life, save
from tests.service.worlds import NOW_MS, Clock, filled_ledger

PLATFORM = NotificationChannel(
    "platform", ChannelService.SLACK, token=SecretStr("x"), room="C1", sees_all=True
)
RESEARCH = NotificationChannel("research", ChannelService.MATTERMOST)
RULES = RoutingRules(
    {each.name: each for each in (PLATFORM, RESEARCH)},
    (NotificationRoute(("platform",)), NotificationRoute(("research",), teams=frozenset({"research"}))),
)
STARTED = "2026-10-01T20:00:00.123456789Z"


@dataclass
class Room:
    """What arrived: channel, act and message, in order."""

    posts: list[tuple[str, DeliveryAct, NotificationMessage]] = field(default_factory=list)

    def deliver(self, channel: NotificationChannel, outgoing: OutgoingDelivery) -> str:
        self.posts.append((channel.name, outgoing.post.act, outgoing.post.message))
        return outgoing.reference or f"ref-{outgoing.post.key}"

    def of(self, channel: str) -> list[tuple[DeliveryAct, str]]:
        return [(act, message.title) for name, act, message in self.posts if name == channel]


@dataclass
class World:
    """A service that may be restarted: the ledger, the clock and the rooms stay."""

    ledger: Ledger
    clock: Clock
    room: Room = field(default_factory=Room)
    sources: dict[str, NoticeSource] | None = None
    rules: RoutingRules = RULES

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        groups = AlertNotices(self.ledger, MessageLinks())
        news = FindingNotices(self.ledger, MessageLinks("https://gpucost.example"), groups, self.takes)
        self.sender = NoticeSender(
            self.ledger,
            tuple(RULES.channels.values()),
            now=self.clock,
            sleep=lambda _: None,
            deliver=self.room.deliver,
        )
        self.status = NotificationStatus(RULES.channels, self.sender.status)
        self.telling = NotificationLoop(
            self.ledger,
            self.rules,
            self.sources or {"findings": news.findings, "alerts": news.alerts},
            self.status,
            now=self.clock,
            sleep=lambda _: None,
            stopped=lambda: False,
        )

    def takes(self, notice: Notice) -> bool:
        return any(self.rules.routes_of(notice))

    def turn(self, minutes: int = 0) -> None:
        self.clock.now_ms += minutes * MINUTE_MS
        self.telling.turn()
        self.sender.turn(patience_s=30)
        self.clock.now_ms += 1

    def change(self, finding_id: int, **values: Any) -> None:
        """What the detectors, or a person, make of a finding."""
        record = self.ledger.finding(EVERYTHING, finding_id)
        assert record is not None
        after = replace(life_of(record), **values)
        self.ledger.save_findings(CLUSTER, [record_of(CLUSTER, after, record)], [])


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("telling")
    filled_ledger(folder, Clock()).close()
    return folder / "ledger.db"


@pytest.fixture
def world(filled: Path, tmp_path: Path) -> Iterator[World]:
    shutil.copy(filled, tmp_path)
    clock = Clock()
    with Ledger.open(f"sqlite:///{tmp_path / filled.name}", now=clock) as ledger:
        yield World(ledger, clock)


def group(*alerts: dict[str, Any], key: str = "{}:{alertname}", truncated: int = 0) -> bytes:
    status = "firing" if any(each["status"] == "firing" for each in alerts) else "resolved"
    payload = {"version": "4", "groupKey": key, "status": status, "truncatedAlerts": truncated}
    payload |= {"receiver": "gpucost", "externalURL": "http://alertmanager:9093", "groupLabels": {}}
    return json.dumps(payload | {"commonLabels": {}, "commonAnnotations": {}, "alerts": alerts}).encode()


def alert(status: str = "firing", **labels: str) -> dict[str, Any]:
    given = {"alertname": "GpuCostSourceDown", "severity": "warning", "team": "research"} | labels
    found = {"status": status, "labels": given, "annotations": {"summary": "It is down."}}
    fingerprint = "-".join(given.values())
    return found | {"startsAt": STARTED, "endsAt": "0001-01-01T00:00:00Z", "fingerprint": fingerprint}


def idle(finding_id: str, status: str = "firing", **labels: str) -> dict[str, Any]:
    """gpucost's own alert about a finding."""
    given = {"finding": finding_id, "pattern": "idle_allocation", "cluster": CLUSTER} | labels
    return alert(status, **({"alertname": "GpuCostIdleAllocation"} | given))


def test_a_finding_is_told_once_and_over_once_whatever_restarts(world: World) -> None:
    (record,) = save(world.ledger, life(finding("train", "research", 40)))
    for _ in range(3):
        world.turn()
        world.restart()
    opened = [(DeliveryAct.OPEN, "Idle allocation: train (team research)")]
    assert world.room.of("platform") == opened
    assert world.room.of("research") == opened
    message = world.room.posts[0][2]
    facts = {each.name: each.value for each in message.facts}
    assert "USD 192" in facts["Costs"]  # 8 an hour, for 24 hours
    assert message.links[0].url == f"https://gpucost.example/finding/{record.id}"
    world.clock.now_ms += HOUR_MS
    world.change(1, state=FindingLifeState.RESOLVED, closed_at_ms=world.clock.now_ms)
    for _ in range(3):
        world.restart()
        world.turn()
    over = (DeliveryAct.RESOLVE, "Resolved: Idle allocation: train (team research)")
    assert world.room.of("platform")[1:] == [over]
    assert world.room.of("research")[1:] == [over]


def test_other_teams_hear_nothing_of_it(world: World) -> None:
    save(world.ledger, life(finding("detect", "vision", 40)), life(finding("free", "", 1)))
    world.turn()
    assert len(world.room.of("platform")) == 2
    assert world.room.of("research") == []


def test_what_is_silent_is_not_told_and_what_was_told_ends(world: World) -> None:
    day = NOW_MS + DAY_MS
    save(
        world.ledger,
        life(finding("muted", "vision", 1), state=FindingLifeState.MUTED, muted_until_ms=day),
        life(finding("exempt", "vision", 1), exempt_until_ms=day),
        life(finding("rehearsed", "vision", 1), rehearsal=True),
        life(finding("known", "vision", 1), state=FindingLifeState.ACKNOWLEDGED),
        life(finding("told", "vision", 1)),
    )
    world.turn()
    assert [title for _, title in world.room.of("platform")] == ["Idle allocation: told (team vision)"]
    world.change(5, state=FindingLifeState.MUTED, muted_until_ms=day)
    world.turn(30)
    world.change(5, state=FindingLifeState.RESOLVED, closed_at_ms=world.clock.now_ms)
    world.change(1, state=FindingLifeState.RESOLVED, closed_at_ms=world.clock.now_ms)
    world.turn(30)
    assert [act for act, _ in world.room.of("platform")] == [DeliveryAct.OPEN, DeliveryAct.RESOLVE]


def test_an_exemption_that_ends_is_told(world: World) -> None:
    save(world.ledger, life(finding("exempt", "vision", 1), exempt_until_ms=NOW_MS + HOUR_MS))
    world.turn(30)
    assert world.room.posts == []
    world.turn(31)
    assert len(world.room.of("platform")) == 1


@pytest.mark.fault(61)
def test_an_alert_about_a_finding_joins_its_message(world: World) -> None:
    save(world.ledger, life(finding("train", "research", 40)))
    world.turn()
    sent = group(idle("1"))
    for _ in range(3):  # Alertmanager says it again and again
        keep(world.ledger, sent)
        world.turn(10)
    keep(world.ledger, group(idle("1", "resolved")))
    world.change(1, state=FindingLifeState.RESOLVED, closed_at_ms=world.clock.now_ms)
    world.turn(10)
    world.turn(10)
    acts = [act for act, _ in world.room.of("platform")]
    assert acts == [DeliveryAct.OPEN, DeliveryAct.UPDATE, DeliveryAct.RESOLVE]
    updated = next(message for _, act, message in world.room.posts if act is DeliveryAct.UPDATE)
    facts = {each.name: each.value for each in updated.facts}
    assert facts["Alert"] == "GpuCostIdleAllocation"
    # A webhook's message cannot be changed: nothing is said twice there.
    assert [act for act, _ in world.room.of("research")] == [DeliveryAct.OPEN, DeliveryAct.RESOLVE]


@pytest.mark.fault(61)
def test_a_group_is_one_message_that_is_updated_and_ends_once(world: World) -> None:
    first, second = alert(instance="a"), alert(instance="b")
    for content in (group(first), group(first), group(first, second), group(first, second, truncated=7)):
        keep(world.ledger, content)
        world.turn(10)
        world.restart()
    gone = group({**first, "status": "resolved"}, {**second, "status": "resolved"})
    for _ in range(2):
        keep(world.ledger, gone)
        world.turn(10)
        world.restart()
    assert [act for act, _ in world.room.of("platform")] == [
        DeliveryAct.OPEN,
        DeliveryAct.UPDATE,
        DeliveryAct.UPDATE,
        DeliveryAct.RESOLVE,
    ]
    assert [act for act, _ in world.room.of("research")] == [DeliveryAct.OPEN, DeliveryAct.RESOLVE]
    truncated = [message for name, _, message in world.room.posts if name == "platform"][2]
    assert "7 more cut off" in truncated.footer


def test_an_alert_about_a_finding_that_is_not_known_is_told_by_itself(world: World) -> None:
    save(world.ledger, life(finding("train", "research", 40)))
    known = idle("1")
    keep(world.ledger, group(known, idle("999")))
    world.turn()
    titles = sorted(title for _, title in world.room.of("platform"))
    assert titles == [
        "GpuCostIdleAllocation (team research)",
        "Idle allocation: train (team research)",
    ]


def test_what_cannot_be_read_is_refused_and_changes_nothing(world: World) -> None:
    keep(world.ledger, group(alert()))
    before = world.ledger.alert_group_times(since_ms=0)
    for content in (b"", b"\xff", b"[" * 100_000, b"[]", b'{"version": "3"}', group(alert())[:-2]):
        with pytest.raises(InputError):
            keep(world.ledger, content)
    assert world.ledger.alert_group_times(since_ms=0) == before


def test_a_source_that_fails_is_neither_over_nor_new_and_holds_up_no_other(world: World) -> None:
    asked = threading.Event()

    def failing(now_ms: int, told: Sequence[object]) -> Iterator[Notice]:
        del told
        yield notice("half", now_ms)
        asked.set()
        raise LedgerUnavailable("gone")

    def good(now_ms: int, told: Sequence[object]) -> Iterator[Notice]:
        del told
        yield notice("whole", now_ms)

    world.sources = {"failing": failing, "good": good}  # type: ignore[dict-item]
    world.restart()
    world.turn()
    assert asked.is_set()
    assert world.room.of("platform") == [(DeliveryAct.OPEN, "whole")]
    assert world.status.errors() == {"LedgerUnavailable": 1}


def test_what_is_held_back_counts_once(world: World) -> None:
    world.sources = {"one": lambda now_ms, _: [replace(notice("x", now_ms), team="nobody")]}
    rules = RoutingRules({}, ())
    world.restart()
    status = NotificationStatus((), world.sender.status)
    telling = NotificationLoop(
        world.ledger,
        rules,
        world.sources,
        status,
        now=world.clock,
        sleep=lambda _: None,
        stopped=lambda: False,
    )
    for _ in range(3):
        telling.turn()
    assert {(kind.value, why.value): n for (kind, why), n in status.suppressed().items()} == {
        ("finding", "no_channel"): 1
    }


def notice(key: str, since_ms: int) -> Notice:
    message = NotificationMessage(key, f"{key} is so")
    return Notice(
        key, key, NoticeKind.FINDING, NoticeStage.OPEN, NoticeRank.HIGH, "", CLUSTER, since_ms, "1", message
    )


@pytest.mark.fault(64)
def test_an_alert_that_comes_back_within_the_hour_is_not_told_anew(world: World) -> None:
    for minutes in (0, 20, 70):
        keep(world.ledger, group(alert()))
        world.turn(minutes)
        keep(world.ledger, group(alert("resolved")))
        world.turn(1)
    assert [act for act, _ in world.room.of("research")] == [
        DeliveryAct.OPEN,
        DeliveryAct.RESOLVE,
        DeliveryAct.OPEN,
        DeliveryAct.RESOLVE,
    ]


def test_an_alert_that_outlives_its_finding_is_not_told_anew(world: World) -> None:
    save(world.ledger, life(finding("train", "research", 40)))
    keep(world.ledger, group(idle("1")))
    world.turn()
    world.change(1, state=FindingLifeState.RESOLVED, closed_at_ms=world.clock.now_ms)
    for _ in range(4):
        world.turn(1)
        world.restart()
    keep(world.ledger, group(idle("1", "resolved")))
    world.turn(5)
    assert [act for act, _ in world.room.of("research")] == [DeliveryAct.OPEN, DeliveryAct.RESOLVE]


def test_a_finding_closed_as_of_before_it_was_told_is_over(world: World) -> None:
    """An evaluation is of the time at which it began, and written when it ends."""
    save(world.ledger, life(finding("train", "research", 40)))
    began_ms = world.clock.now_ms
    world.turn(5)
    world.change(1, state=FindingLifeState.RESOLVED, closed_at_ms=began_ms)
    world.turn(5)
    assert [act for act, _ in world.room.of("research")] == [DeliveryAct.OPEN, DeliveryAct.RESOLVE]


@pytest.mark.parametrize(
    "labels",
    [
        {"pattern": "", "alertname": "FalcoRootShell"},
        {"pattern": "monopoly"},
        {"cluster": "another"},
    ],
)
def test_a_foreign_alert_with_such_a_label_is_told_by_itself(world: World, labels: dict[str, str]) -> None:
    save(world.ledger, life(finding("train", "research", 40)))
    keep(world.ledger, group(idle("1", team="vision", **labels)))
    world.turn()
    assert len(world.room.of("platform")) == 2
    (told,) = [message for name, _, message in world.room.posts if name == "research"]
    assert not [each for each in told.facts if each.name == "Alert"]


def test_an_alert_about_a_finding_that_no_route_takes_is_told(world: World) -> None:
    world.rules = RoutingRules(
        RULES.channels, (NotificationRoute(("platform",), kinds=frozenset({NoticeKind.ALERT})),)
    )
    world.restart()
    save(world.ledger, life(finding("train", "research", 40)))
    keep(world.ledger, group(idle("1")))
    world.turn()
    assert [title for _, title in world.room.of("platform")] == ["GpuCostIdleAllocation (team research)"]


def test_a_group_that_nobody_can_read_silences_no_other(world: World) -> None:
    world.ledger.keep_alert_group("bad", '{"version": "9"}', firing=True)
    keep(world.ledger, group(alert(team="\ud800", cluster="\udfff"), key="odd"))
    keep(world.ledger, group(alert()))
    save(world.ledger, life(finding("train", "research", 40)))
    world.turn()
    assert len(world.room.of("platform")) == 3
    assert world.status.errors() == {}


def test_a_group_of_two_teams_ends_for_the_first_too(world: World) -> None:
    keep(world.ledger, group(alert()))
    world.turn()
    both = alert(), alert(team="vision", instance="v")
    keep(world.ledger, group(*both))
    world.turn(10)
    keep(world.ledger, group(*({**each, "status": "resolved"} for each in both)))
    world.turn(10)
    told = [(act, message) for name, act, message in world.room.posts if name == "research"]
    assert [act for act, _ in told] == [DeliveryAct.OPEN, DeliveryAct.RESOLVE]
    assert "vision" not in str(told[1][1])


def test_a_group_that_nothing_is_heard_of_is_not_open_for_ever(world: World) -> None:
    keep(world.ledger, group(alert()))
    world.turn()
    for _ in range(20):
        world.turn(24 * 60)
    (_, (act, title)) = world.room.of("research")
    assert (act, title) == (DeliveryAct.RESOLVE, "Alerts: no longer heard of")


def test_a_flood_of_findings_is_told_over_hours_and_what_is_critical_at_once(world: World) -> None:
    world.rules = replace(RULES, most_per_hour=3)
    world.restart()
    save(world.ledger, *(life(finding(f"job-{n}", "vision", 1)) for n in range(8)))
    worst = finding("worst", "vision", 1)
    save(world.ledger, life(replace(worst, severity=FindingSeverity.CRITICAL)))
    for _ in range(3):
        world.turn()
        world.restart()
    assert len(world.room.of("platform")) == 3
    assert any("worst" in title for _, title in world.room.of("platform"))
    for expected in (6, 9, 9):
        world.turn(61)
        assert len(world.room.of("platform")) == expected
