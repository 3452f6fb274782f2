"""Receipts of jobs: a finished one, a failed one, a preempted one, an idle notebook; each told once."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import SecretStr

from gpucost.attribution.frames import ClusterFrames, conform
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.objects.jobs import JobObject
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.state import ClusterState
from gpucost.contract.frames import EVICTIONS
from gpucost.domain.errors import SourceUnreachable
from gpucost.domain.money import NANO
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window
from gpucost.ledger.db.records import WasteOfWindow
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.waste.waste_writer import WASTE_LINES
from gpucost.notify.channels import ChannelService, NotificationChannel
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.message import MessageTone, NotificationMessage
from gpucost.notify.notices import NoticeKind
from gpucost.notify.render import plain
from gpucost.notify.routes import HoldReason, RoutingRules
from gpucost.notify.routes.rules import NotificationRoute
from gpucost.notify.sending.sender import NoticeSender
from gpucost.reports.job.job_receipt import JobEnding
from gpucost.service.notifications.loop import NotificationLoop, NotificationStatus
from gpucost.service.notifications.receipts import EndedJob, JobEndings, ReceiptNotices
from gpucost.service.reporting.report_service import ReportService
from gpucost.service.settings.loader import checked
from gpucost.service.settings.model import Settings
from gpucost.service.wiring.notifications import build_news
from tests.cluster import builders
from tests.ledger.builders import CLUSTER, MONTH, PRICE, hour, ingest, line
from tests.service.test_telling import Room
from tests.service.worlds import Clock, MemorySource
from tests.support.ledgers import new_ledger

START_MS = MONTH.window.start_ms
LINKS = MessageLinks("https://gpucost.example")
HOURS = 12
# Of each job: kind, team, user, first and last hour, GPUs.
JOBS: dict[str, tuple[str, str, str, int, int, int]] = {
    "done": ("Job", "red", "ada", 1, 5, 8),
    "bad": ("Job", "red", "ben", 2, 6, 8),
    "taken": ("Job", "blue", "cat", 3, 7, 8),
    "lab": ("Notebook", "blue", "cat", 0, 9, 4),
    "small": ("Job", "red", "ada", 1, 2, 1),
    "runs": ("Job", "red", "ada", 0, 99, 1),
    "again": ("Job", "red", "ada", 0, 11, 8),
}


def rows(number: int) -> list[dict[str, Any]]:
    window = hour(number)
    found = []
    for name, (kind, team, user, first, end, gpus) in JOBS.items():
        if first <= number < end:
            own = {
                "job": name,
                "job_kind": kind,
                "job_uid": f"{name}-uid",
                "pod": name,
                "pod_uid": f"p-{name}",
            }
            held = {"board_ms": gpus * HOUR_MS, "nano": gpus * PRICE, "observed_ms": gpus * HOUR_MS}
            busy = 0 if name == "lab" else gpus * HOUR_MS // 2
            found.append(line(window, **own, **held, team=team, user=user, node=f"n-{name}", busy_ms=busy))
    return found


def fill(ledger: Ledger, first: int, end: int, *, settle: bool = True) -> None:
    """Hours, each looked at by the detectors: of the notebook's time all but the first hour was idle."""
    for number in range(first, end):
        window = hour(number)
        ingest(ledger, window, *rows(number), settle=settle)
        keys = [name for name in WASTE_LINES.column_names if name not in ("waste", "board_ms", "nano")]
        idle = [
            {
                **{name: row[name] for name in keys},
                "waste": "idle",
                "board_ms": row["board_ms"],
                "nano": row["nano"],
            }
            for row in rows(number)
            if row["job"] == "lab" and number
        ]
        parts = pd.DataFrame(idle, columns=list(WASTE_LINES.column_names)).astype(object)
        [info] = ledger.windows(window, CLUSTER)
        ledger.write_waste(CLUSTER, [WasteOfWindow(window, info.digest, parts, True)], code_version="1")


def state(*jobs: JobObject) -> ClusterState:
    return ClusterState(START_MS, jobs={each.meta.uid: each for each in jobs})


ENDED = state(
    replace(builders.job("done"), ended_ms=START_MS + 5 * HOUR_MS),
    replace(builders.job("bad"), ended_ms=START_MS + 6 * HOUR_MS, failure="BackoffLimitExceeded"),
    builders.job("lab", "Notebook", "kubeflow.org/v1", is_suspended=True),
)


@dataclass
class History(MemorySource):
    """A source that knows evictions only; ``is_down`` for one that does not answer."""

    is_down: bool = False
    asked: int = 0

    def history(self, cluster: str, window: Window, only: Collection[str] | None = None) -> ClusterFrames:
        assert (cluster, set(only or ())) == (CLUSTER, {"evictions", "demand"})
        assert window.length_ms <= 3 * DAY_MS
        self.asked += 1
        if self.is_down:
            raise SourceUnreachable("gone")
        return self.held


def evicted() -> ClusterFrames:
    row = {"cluster": CLUSTER, "pod_uid": "p-taken", "job_uid": "taken-uid", "queue": "q", "by": ""}
    row |= {
        "start_ms": START_MS,
        "end_ms": START_MS + 7 * HOUR_MS,
        "reason": "Preempted",
        "checkpoint_ms": -1,
    }
    return ClusterFrames(evictions=conform(pd.DataFrame([row]), EVICTIONS))


PLATFORM = NotificationChannel(
    "platform", ChannelService.SLACK, token=SecretStr("x"), room="C1", sees_all=True
)
RED = NotificationChannel("red", ChannelService.MATTERMOST)
ADA = NotificationChannel("ada", ChannelService.EMAIL)
CHANNELS = {each.name: each for each in (PLATFORM, RED, ADA)}
ROUTES = (
    NotificationRoute(("platform",), floor_nano=50 * NANO),
    NotificationRoute(("red",), teams=frozenset({"red"}), floor_nano=50 * NANO),
    NotificationRoute(("ada",), teams=frozenset({"red"}), users=frozenset({"ada"}), floor_nano=50 * NANO),
)


@dataclass
class World:
    """A service that may be restarted: the ledger, the clock, the cluster and the rooms stay."""

    ledger: Ledger
    clock: Clock
    daily: bool = False
    rules: RoutingRules = field(default_factory=lambda: RoutingRules(CHANNELS, ROUTES))
    room: Room = field(default_factory=Room)
    seen: ClusterState | None = ENDED
    source: History = field(
        default_factory=lambda: History(evicted(), extent=Window(START_MS, START_MS + 40 * DAY_MS))
    )

    def __post_init__(self) -> None:
        self.restart()

    def replica(self) -> NotificationLoop:
        notices = ReceiptNotices(
            ReportService(self.ledger, "test", {}),
            LINKS,
            JobEndings(CLUSTER, lambda: self.seen, self.source),
            daily=self.daily,
            least_nano=min(route.floor_nano for route in self.rules.routes),
            users=frozenset({"ada"}),
        )
        return NotificationLoop(
            self.ledger,
            self.rules,
            {"receipts": notices},
            self.status,
            now=self.clock,
            sleep=lambda _: None,
            stopped=lambda: False,
        )

    def restart(self) -> None:
        self.sender = NoticeSender(
            self.ledger,
            tuple(CHANNELS.values()),
            now=self.clock,
            sleep=lambda _: None,
            deliver=self.room.deliver,
        )
        self.status = NotificationStatus(CHANNELS, self.sender.status)
        self.telling = self.replica()

    def turn(self, times: int = 3) -> None:
        for _ in range(times):
            self.clock.now_ms += MINUTE_MS
            self.telling.turn()
            self.sender.turn(patience_s=30)
        assert self.status.errors() == {}

    def titles(self, channel: str) -> list[str]:
        return sorted(title for _, title in self.room.of(channel))

    def message(self, title: str) -> NotificationMessage:
        return next(each for _, _, each in self.room.posts if each.title.startswith(title))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("receipts") / "ledger.db"
    with Ledger.open(new_ledger(path), now=Clock(START_MS + HOURS * HOUR_MS)) as ledger:
        fill(ledger, 0, HOURS)
    return path


@pytest.fixture
def ledger(filled: Path, tmp_path: Path) -> Iterator[Ledger]:
    shutil.copy(filled, tmp_path)
    clock = Clock(START_MS + HOURS * HOUR_MS)
    with Ledger.open(f"sqlite:///{tmp_path / filled.name}", now=clock) as found:
        yield found


def world(ledger: Ledger, **changes: Any) -> World:
    return World(ledger, Clock(START_MS + HOURS * HOUR_MS), **changes)


DONE = [
    "again ended: USD 220 (team red)",
    "bad failed: USD 80.00 (team red)",
    "done succeeded: USD 80.00 (team red)",
]


def test_each_ending_has_its_receipt_in_the_room_of_its_team(ledger: Ledger) -> None:
    found = world(ledger)
    found.turn()
    assert found.titles("red") == DONE
    assert found.titles("ada") == [DONE[0], DONE[2]], "of her jobs only"
    assert found.titles("platform") == sorted(
        [*DONE, "lab was stopped: USD 90.00 (team blue)", "taken was preempted: USD 80.00 (team blue)"]
    )
    done = found.message("done")
    assert done.tone is MessageTone.GOOD
    assert done.summary == "8 GPUs of H100, 32.0 GPU-hours, busy 50%."
    assert [each.url for each in done.links] == ["https://gpucost.example/job?job=done-uid&cluster=alpha"]
    assert done.footer == "gpucost job ml/done --receipt"
    assert found.message("bad").summary.endswith("; BackoffLimitExceeded.")
    taken = found.message("taken")
    assert (taken.tone, taken.summary[-27:]) == (MessageTone.WARNING, "%; others needed its quota.")
    lab = found.message("lab")
    assert [each.value for each in lab.facts] == ["USD 80.00 (89%): idle"]
    assert lab.sections[0].text == "Next run: Let it end when its work is done"
    assert found.message("again").summary.endswith("; how it ended is not known.")


def test_what_costs_less_than_the_floor_and_what_goes_on_have_none(ledger: Ledger) -> None:
    found = world(ledger)
    found.turn()
    assert not any("small" in title or "runs" in title for _, title in found.room.of("platform"))
    every = world(ledger, rules=RoutingRules(CHANNELS, (NotificationRoute(("platform",)),)))
    every.turn(5)
    assert "small ended: USD 2.50 (team red)" in every.titles("platform")


def test_told_once_by_replicas_over_restarts_and_kills(ledger: Ledger) -> None:
    """A kill may fall between the deciding and the sending, and before anything was stored."""
    found = world(ledger)
    found.telling.turn()  # killed before anything was sent: the outbox has it
    found.restart()
    others = [found.replica(), found.replica()]
    for _ in range(4):
        found.turn(1)
        for other in others:
            other.turn()
        found.sender.turn(patience_s=30)
        found.restart()
    assert found.titles("red") == DONE
    assert len(found.titles("platform")) == 5
    assert ledger.waiting_posts() == {}


def test_without_cluster_and_source_nobody_guesses_how_it_ended(ledger: Ledger) -> None:
    found = world(ledger, seen=None)
    found.source.is_down = True
    found.turn()
    assert found.titles("red")[1:] == ["bad ended: USD 80.00 (team red)", "done ended: USD 80.00 (team red)"]
    for name in ("bad", "done", "taken"):
        assert found.message(name).summary.endswith("; how it ended is not known.")


def test_an_end_that_was_seen_is_known_when_the_job_is_deleted(ledger: Ledger) -> None:
    seen = ENDED
    endings = JobEndings(CLUSTER, lambda: seen)
    endings.watch(START_MS)
    seen = state()
    endings.watch(START_MS + MINUTE_MS)
    jobs = [EndedJob(each, START_MS) for each in ledger.jobs_of(EVERYTHING, CLUSTER, {"done-uid", "lab-uid"})]
    known = {each.found.job: endings.of(jobs)[each.key].ending for each in jobs}
    assert known == {"done": JobEnding.SUCCEEDED, "lab": JobEnding.UNKNOWN}
    elsewhere = JobEndings("beta", lambda: ENDED)
    elsewhere.watch(START_MS)
    assert {each.ending for each in elsewhere.of(jobs).values()} == {JobEnding.UNKNOWN}


class _Counted(dict[str, Workload]):
    """Workloads by uid, and how often all of them were gone through."""

    times = 0

    def values(self) -> Any:
        self.times += 1
        return super().values()


def test_however_many_jobs_end_workloads_are_gone_through_once(ledger: Ledger) -> None:
    owner = next(iter(ENDED.jobs.values())).as_owner
    waited = _Counted({"wl": builders.workload("wl", owner=owner)})
    seen = replace(ENDED, workloads=waited)
    endings = JobEndings(CLUSTER, lambda: seen)
    endings.watch(START_MS)
    assert sum(each.ended_ms is not None for each in seen.jobs.values()) > 1
    jobs = [EndedJob(each, START_MS) for each in ledger.jobs_of(EVERYTHING, CLUSTER, {"done-uid", "lab-uid"})]
    endings.of(jobs)
    assert waited.times == 1
    # Another state has other workloads.
    later = _Counted(waited)
    seen = replace(ENDED, at_ms=ENDED.at_ms + MINUTE_MS, workloads=later)
    endings.watch(START_MS + MINUTE_MS)
    endings.of(jobs)
    assert (waited.times, later.times) == (1, 1)


def test_a_job_is_over_after_an_hour_of_settled_windows(sqlite_url: str) -> None:
    """``again`` held GPUs until an hour before the end of the ledger, of which that hour may still change."""
    clock = Clock(START_MS + HOURS * HOUR_MS)
    with Ledger.open(sqlite_url, now=clock) as ledger:
        fill(ledger, 0, HOURS - 1)
        fill(ledger, HOURS - 1, HOURS, settle=False)
        found = World(ledger, clock)
        found.turn()
        assert found.titles("red") == DONE[1:]
        ledger.settle(CLUSTER, hour(HOURS - 1))
        found.turn()
        assert found.titles("red") == DONE


def test_a_job_that_holds_gpus_again_has_no_receipt(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(JOBS, "done", ("Job", "red", "ada", 12, 99, 8))
    fill(ledger, HOURS, HOURS + 1, settle=False)
    found = world(ledger)
    found.turn()
    assert found.titles("red") == DONE[:2]


def test_old_ends_are_no_news(ledger: Ledger) -> None:
    found = world(ledger)
    found.clock.now_ms += 8 * DAY_MS
    found.turn()
    assert found.room.posts == []


def test_a_room_gets_no_flood(ledger: Ledger) -> None:
    rules = RoutingRules(CHANNELS, (NotificationRoute(("platform",)),), most_per_hour=2)
    found = world(ledger, rules=rules)
    found.turn(5)
    assert len(found.titles("platform")) == 2
    assert found.status.suppressed()[NoticeKind.RECEIPT, HoldReason.BURST] > 0
    found.clock.now_ms += HOUR_MS
    found.turn(1)
    assert len(found.titles("platform")) == 4, "the others follow"


def test_the_source_is_asked_once_about_jobs_that_ended_together(ledger: Ledger) -> None:
    found = world(ledger)
    found.turn(5)
    assert found.source.asked == 1


def test_one_message_for_the_jobs_of_a_day_once_it_is_settled(ledger: Ledger) -> None:
    found = world(ledger, daily=True)
    fill(ledger, HOURS, 24)
    found.clock.now_ms = START_MS + DAY_MS
    found.turn()
    assert found.room.posts == [], "a job may have ended in the last hour"
    fill(ledger, 24, 26)
    found.clock.now_ms = START_MS + DAY_MS + 2 * HOUR_MS
    found.turn()
    found.restart()
    found.turn()
    assert found.titles("red") == ["red: 4 jobs ended on 2026-10-01"]
    assert found.titles("platform") == ["blue: 2 jobs ended on 2026-10-01", "red: 4 jobs ended on 2026-10-01"]
    assert found.titles("ada") == ["ada: 3 jobs ended on 2026-10-01"]
    red = found.message("red")
    assert red.summary == "They cost USD 382, 153.0 GPU-hours."
    assert red.sections[0].items == (
        "USD 220: again ended",
        "USD 80.00: bad failed",
        "USD 80.00: done succeeded",
        "and 1 more",
    )
    blue = found.message("blue")
    assert blue.sections[1].text == "Next run of lab: Let it end when its work is done"
    assert [each.url for each in blue.links] == ["https://gpucost.example/month/2026-10/team?team=blue"]
    assert "cat" not in plain.render(red)


_ENDED = ["again ended: USD 220", "bad ended: USD 80.00", "done ended: USD 80.00"]


@pytest.mark.parametrize(
    ("receipts", "expected"),
    [
        ("off", []),
        ("job", [f"{each} (team red)" for each in _ENDED]),
        ("daily", ["red: 4 jobs ended on 2026-10-01"]),
    ],
)
def test_the_settings_say_whether_and_how(receipts: str, expected: list[str], ledger: Ledger) -> None:
    """What the service is made of, without a cluster: the source says who was preempted."""
    given = {
        "channels": [{"name": "red", "service": "mattermost", "url": "https://chat.example"}],
        "routes": [{"channels": ["red"], "teams": ["red"], "kinds": ["receipt"]}],
        "receipts": receipts,
    }
    settings = checked(Settings, {"notify": given}, "")
    clock = Clock(START_MS + HOURS * HOUR_MS)
    source = History(evicted(), extent=Window(START_MS, START_MS + DAY_MS))
    stop = threading.Event()
    service = build_news(settings, ledger, TeamRules.default(), None, None, source, clock, stop)
    assert service is not None
    if receipts == "daily":
        fill(ledger, HOURS, 26)
        clock.now_ms = START_MS + 26 * HOUR_MS
    for _ in range(3):
        service.telling.turn()
        clock.now_ms += MINUTE_MS
    waiting = ledger.due_posts(clock.now_ms, ["red"], 100)
    titles = [each.post.message.title for each in waiting]
    assert sorted(titles) == expected
