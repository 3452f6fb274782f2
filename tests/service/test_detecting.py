"""Findings and the waste ledger through a real source and ledger: looked at, stored, looked at again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpucost.attribution.teams import TeamRules
from gpucost.detectors.engine.lifecycle import FindingExemption, FindingLifeState
from gpucost.detectors.findings import WastePattern
from gpucost.detectors.rule_settings import RuleSettings
from gpucost.domain.buckets import Waste
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window
from gpucost.ledger.db.records import AssessmentCounts
from gpucost.ledger.ledger import Ledger
from gpucost.service.detection.backtest import DetectorBacktest
from gpucost.service.detection.loop import DetectorLoop, DetectorStatus
from gpucost.service.detection.runner import DetectorRunner
from gpucost.service.detection.waste_accounting import PastServers, WasteAccounting
from gpucost.service.ingest.batch_reader import AttributionRules
from gpucost.service.ingest.pipeline import Pipeline
from gpucost.service.settings.detectors import DetectorsSettings
from gpucost.settings.types import milliseconds
from gpucost.telemetry.inner.inner_source import InnerSource, RecordedScheduler, ray_parser
from gpucost.telemetry.inner.pod_division import InnerScheduler
from gpucost.telemetry.inner.ray_jobs import MetadataKeys
from gpucost.telemetry.inner.record_folder import RecordFolder
from gpucost.telemetry.recorded_source import RecordedSource, record
from tests.detectors.worlds import CLUSTER, GIB, World, at, four_dollars
from tests.support.ledgers import new_ledger

HOURS = 30
IDLE = WastePattern.IDLE_ALLOCATION
RULES = AttributionRules(four_dollars, TeamRules.default(), ResourceCatalog(), ShareBasis.COMPUTE)


def _world() -> World:
    """A job that works for two hours and idles for ten; another that is at work all day; free GPUs."""
    world = World(HOURS * 60).node("n1", 4)
    world.pod("dead", "n1", 60, 780, units=2, job="train", team="language")
    for gpu in ("g0", "g1"):
        world.work("dead", "n1", gpu, [0.9] * 24 + [0.0] * 120, start=60)
    world.pod("busy", "n1", 0, units=1, job="serve", team="vision")
    world.work("busy", "n1", "g2", [0.8] * (HOURS * 12))
    for uid, start, end, gpus in (("dead", 60, 780, 2), ("busy", 0, HOURS * 60, 1)):
        for begin in range(start, end, 60):
            _signals(world, uid, begin, 0.0, gpus)
    return world


def _signals(world: World, uid: str, begin: int, busy: float, gpus: int = 1) -> None:
    ms, nan = float(60 * MINUTE_MS * gpus), float("nan")
    world.add(
        "signals", node="n1", pod_uid=uid, start_ms=at(begin), end_ms=at(begin + 60),
        observed_ms=ms, busy_ms=busy * ms, sm_observed_ms=ms, sm_active_ms=0.0, tensor_active_ms=nan,
        tensor_observed_ms=nan, memory_observed_ms=nan, memory_used_mib_s=nan, memory_total_mib_s=nan,
        memory_peak_mib=nan, energy_observed_ms=nan, energy_mj=nan,
    )  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RecordedSource:
    folder: Path = tmp_path_factory.mktemp("recording")
    record(folder, _world().frames())
    return RecordedSource(folder)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(new_ledger(tmp_path / "ledger.db"), now=lambda: at(HOURS * 60)) as found:
        yield found


def _pipeline(source: RecordedSource, ledger: Ledger) -> Pipeline:
    return Pipeline(source, ledger, RULES, HOUR_MS, DAY_MS, 0, lambda: at(HOURS * 60), "test")


def _detecting(source: RecordedSource, ledger: Ledger, *exemptions: FindingExemption) -> DetectorRunner:
    lengths = DAY_MS + 6 * HOUR_MS, 28 * DAY_MS, 15 * MINUTE_MS
    return DetectorRunner(source, ledger, RULES, RuleSettings(), exemptions, *lengths, _past(ledger))


def _assessing(source: RecordedSource, ledger: Ledger) -> WasteAccounting:
    return WasteAccounting(source, ledger, RULES, RuleSettings(), DAY_MS, 5 * HOUR_MS, "test", _past(ledger))


def _past(ledger: Ledger) -> PastServers:
    return PastServers(ledger, 14 * DAY_MS, HOUR_MS)


def _idle(ledger: Ledger) -> dict[str, tuple[str, int]]:
    """States and beginnings (in minutes) of findings of idleness, by job."""
    records = ledger.findings(EVERYTHING, patterns=[WastePattern.IDLE_ALLOCATION.value])
    return {each.subject_name: (each.state.value, (each.since_ms - at(0)) // MINUTE_MS) for each in records}


def test_a_finding_opens_stays_through_a_restart_and_resolves(source: RecordedSource, ledger: Ledger) -> None:
    detecting = _detecting(source, ledger)
    assert detecting.once(CLUSTER, at(400)) is not None
    assert _idle(ledger) == {}
    detecting.once(CLUSTER, at(600))
    assert _idle(ledger) == {"train": ("open", 180)}
    (before,) = ledger.findings(EVERYTHING, patterns=["idle_allocation"])
    _detecting(source, ledger).once(CLUSTER, at(605))
    (after,) = ledger.findings(EVERYTHING, patterns=["idle_allocation"])
    assert (after.id, after.opened_at_ms, after.since_ms) == (before.id, at(600), before.since_ms)
    assert after.last_seen_ms == at(605)
    fresh = _detecting(source, ledger)
    fresh.once(CLUSTER, at(790))
    assert _idle(ledger) == {"train": ("open", 180)}
    fresh.once(CLUSTER, at(795))
    assert _idle(ledger) == {"train": ("resolved", 180)}
    actions = [event.action for event in ledger.finding_events(EVERYTHING, before.id or 0)]
    assert actions[0] == "opened"
    assert actions[-1] == "resolved"


def test_what_people_say_survives_the_next_look(source: RecordedSource, ledger: Ledger) -> None:
    detecting = _detecting(source, ledger)
    detecting.once(CLUSTER, at(600))
    (found,) = ledger.findings(EVERYTHING, patterns=["idle_allocation"])
    assert found.id is not None
    ledger.acknowledge(EVERYTHING, found.id, "ada", "on it")
    detecting.once(CLUSTER, at(605))
    (after,) = ledger.findings(EVERYTHING, patterns=["idle_allocation"])
    assert (after.state, after.acknowledged_by, after.acknowledged_note) == (
        FindingLifeState.ACKNOWLEDGED,
        "ada",
        "on it",
    )


def test_what_one_variant_lacks_keeps_no_other_open(source: RecordedSource, ledger: Ledger) -> None:
    """The cluster's state is not watched, so one variant of oversized requests always lacks data."""
    looked = _detecting(source, ledger).once(CLUSTER, at(600))
    assert looked is not None
    blind = [
        each for each in looked.withheld if each.lacks_data and each.pattern is WastePattern.OVERSIZED_REQUEST
    ]
    assert {each.variant for each in blind} >= {"host_share"}
    assert all(each.variant for each in blind)


def test_an_exempt_finding_is_kept_and_says_until_when(source: RecordedSource, ledger: Ledger) -> None:
    until_ms = at(0) + 2 * DAY_MS
    _detecting(source, ledger, FindingExemption(until_ms, "agreed", teams=("language",))).once(
        CLUSTER, at(600)
    )
    (found,) = ledger.findings(EVERYTHING, patterns=["idle_allocation"])
    assert found.exempt_until_ms == until_ms


def test_content_of_another_version_is_closed_and_found_again(source: RecordedSource, ledger: Ledger) -> None:
    from dataclasses import replace

    detecting = _detecting(source, ledger)
    detecting.once(CLUSTER, at(600))
    (found,) = ledger.findings(EVERYTHING, patterns=["idle_allocation"])
    ledger.save_findings(CLUSTER, [replace(found, content='{"finding": "of the future"}')])
    detecting.once(CLUSTER, at(605))
    states = sorted(
        (each.episode, each.state.value) for each in ledger.findings(EVERYTHING, patterns=["idle_allocation"])
    )
    assert states == [(1, "resolved"), (2, "open")]


def test_the_waste_ledger_adds_up_and_is_final_when_enough_is_known(
    source: RecordedSource, ledger: Ledger
) -> None:
    pipeline, day = _pipeline(source, ledger), Window(at(0), at(HOURS * 60))
    pipeline.ingest(CLUSTER, pipeline.pending(CLUSTER, day))
    assessing = _assessing(source, ledger)
    outcome = assessing.assess(CLUSTER, assessing.pending(CLUSTER, day))
    assert (outcome.final, outcome.provisional, outcome.failures) == (24, 6, ())
    frame = ledger.waste(EVERYTHING, day, ("team",))
    hours = {
        (team, waste): board_ms / HOUR_MS
        for team, waste, board_ms in zip(frame["team"], frame["waste"], frame["board_ms"], strict=True)
    }
    assert hours["language", "idle"] == pytest.approx(20.0)
    assert hours["language", "productive"] == pytest.approx(4.0)
    assert hours["vision", "productive"] == pytest.approx(30.0)
    assert sum(hours.values()) == pytest.approx(4 * HOURS)
    lines = ledger.aggregate(EVERYTHING, day, ())
    assert int(frame["board_ms"].sum()) == int(lines["board_ms"].sum())
    assert int(frame["nano"].sum()) == int(lines["nano"].sum())
    assert {Waste(waste) for waste in frame["waste"]} == {Waste.IDLE, Waste.PRODUCTIVE, Waste.NO_DEMAND}


def test_idle_time_of_a_pod_is_shared_by_the_jobs_that_an_inner_scheduler_ran_in_it(
    source: RecordedSource, ledger: Ledger, tmp_path: Path
) -> None:
    """Of the two GPUs of the pod that idles from minute 180 to 780, ada's job has one from 100 to 500."""
    job = {"submission_id": "j", "status": "SUCCEEDED", "start_time": at(100), "end_time": at(500)}
    metadata = {"user": "ada", "team": "speech", "num_gpus": "1"}
    (tmp_path / "jobs.json").write_text(json.dumps([{**job, "metadata": metadata}]))
    os.utime(tmp_path / "jobs.json", (at(2000) / 1000, at(2000) / 1000))
    rule = InnerScheduler("lab", "ray", CLUSTER, "ns", re.compile("dead"))
    parse = ray_parser(MetadataKeys("user", "team", "num_gpus"))
    divided = InnerSource(source, [RecordedScheduler(rule, RecordFolder(tmp_path / "jobs.json", parse))])
    span = Window(at(0), at(HOURS * 60))
    pipeline = Pipeline(divided, ledger, RULES, HOUR_MS, DAY_MS, 0, lambda: at(HOURS * 60), "test")
    pipeline.ingest(CLUSTER, pipeline.pending(CLUSTER, span))
    assessing = WasteAccounting(
        divided, ledger, RULES, RuleSettings(), DAY_MS, 5 * HOUR_MS, "test", _past(ledger)
    )
    assert assessing.assess(CLUSTER, assessing.pending(CLUSTER, span)).failures == ()
    frame = ledger.waste(EVERYTHING, span, ("team", "user"), filters={"team": ["language", "speech"]})
    minutes = {
        (team, user, waste): board_ms / MINUTE_MS
        for team, user, waste, board_ms in zip(
            *(frame[name] for name in ("team", "user", "waste", "board_ms")), strict=True
        )
    }
    assert minutes == {
        ("speech", "ada", "productive"): 80.0,
        ("speech", "ada", "idle"): 320.0,
        ("language", "", "productive"): 160.0,
        ("language", "", "idle"): 880.0,
    }
    assert ledger.problems(EVERYTHING, span) == ()
    detecting = DetectorRunner(
        *(divided, ledger, RULES, RuleSettings(), ()),
        *(DAY_MS + 6 * HOUR_MS, 28 * DAY_MS, 15 * MINUTE_MS, _past(ledger)),
    )
    detecting.once(CLUSTER, at(600))
    assert _idle(ledger) == {"train": ("open", 180)}


class _Growing(RecordedSource):
    """A source that learns of the day as it goes."""

    end_ms = at(0)

    def covered(self, cluster: str) -> Window | None:
        whole = super().covered(cluster)
        return None if whole is None else whole.intersect(Window(whole.start_ms, self.end_ms))


@pytest.mark.slow
def test_hour_by_hour_it_comes_to_the_same_as_all_at_once(source: RecordedSource, tmp_path: Path) -> None:
    found = []
    day = Window(at(0), at(24 * 60))
    for name, ends in (("often", range(2, HOURS + 1, 4)), ("some", (7, 26, 30)), ("once", (HOURS,))):
        growing = _Growing(source._folder)  # the same recording, seen in part
        now = [at(0)]
        with Ledger.open(new_ledger(tmp_path / f"{name}.db"), now=lambda: at(HOURS * 60)) as ledger:
            for end in ends:
                growing.end_ms = now[0] = at(end * 60)
                span = Window(at(0), growing.end_ms)
                pipeline = Pipeline(growing, ledger, RULES, HOUR_MS, DAY_MS, 0, lambda: now[0], "test")  # noqa: B023
                pipeline.ingest(CLUSTER, pipeline.pending(CLUSTER, span))
                assessing = _assessing(growing, ledger)
                assessing.assess(CLUSTER, assessing.pending(CLUSTER, span))
            assert ledger.assessed(day).final == 24
            found.append(ledger.waste(EVERYTHING, day, ("team", "node"), step_ms=HOUR_MS))
    assert found[0].equals(found[2])
    assert found[1].equals(found[2])


def test_a_day_that_lacks_a_window_is_assessed_but_for_it(source: RecordedSource, ledger: Ledger) -> None:
    pipeline, day = _pipeline(source, ledger), Window(at(0), at(24 * 60))
    windows = [each for each in pipeline.pending(CLUSTER, day) if each.start_ms != at(5 * 60)]
    for part in (windows[:5], windows[5:]):
        pipeline.ingest(CLUSTER, part)
    assessing = _assessing(source, ledger)
    outcome = assessing.assess(CLUSTER, assessing.pending(CLUSTER, day))
    assert (outcome.final, outcome.failures) == (23, ())
    pipeline.ingest(CLUSTER, pipeline.pending(CLUSTER, day))
    outcome = assessing.assess(CLUSTER, assessing.pending(CLUSTER, day))
    assert (outcome.final, outcome.failures) == (1, ())


def test_windows_whose_lines_came_late_stop_no_other_of_their_day(ledger: Ledger, tmp_path: Path) -> None:
    """The ledger was filled before it was known that a second job idled for three hours."""
    before, after = World(HOURS * 60).node("n1", 4), World(HOURS * 60).node("n1", 4)
    after.pod("late", "n1", 300, 480, job="late", team="language").work(
        "late", "n1", "g0", [0.0] * 36, start=300
    )
    day, sources = Window(at(0), at(24 * 60)), []
    for name, world in (("before", before), ("after", after)):
        record(tmp_path / name, world.frames())
        sources.append(RecordedSource(tmp_path / name))
    early = _pipeline(sources[0], ledger)
    early.ingest(CLUSTER, early.pending(CLUSTER, day))
    assessing = _assessing(sources[1], ledger)
    outcome = assessing.assess(CLUSTER, assessing.pending(CLUSTER, day))
    assert outcome.final == 21
    late = [Window(at(60 * hour), at(60 * hour + 60)) for hour in (5, 6, 7)]
    assert (outcome.failures, [each.window for each in outcome.outdated]) == ((), late)
    assert "ns/late" in outcome.outdated[0].reason
    assert "as it was ingested" in outcome.outdated[0].reason


def test_the_loop_tells_once_of_lines_that_came_late_and_waits_until_they_are_read(
    ledger: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not each round, and as no failure of a detector: only ingest can mend it."""
    before, after = World(HOURS * 60).node("n1", 4), World(HOURS * 60).node("n1", 4)
    for hour in (5, 26):  # of a day that is over, and of one that is not
        after.pod(f"late{hour}", "n1", 60 * hour, 60 * hour + 30, job="late", team="language")
    sources = []
    for name, world in (("before", before), ("after", after)):
        record(tmp_path / name, world.frames())
        sources.append(_Growing(tmp_path / name))
        sources[-1].end_ms = at(29 * 60)
    early, late = (_pipeline(source, ledger) for source in sources)
    span = Window(at(0), at(HOURS * 60))
    early.ingest(CLUSTER, early.pending(CLUSTER, Window(at(0), at(29 * 60))))
    status, source = DetectorStatus(), sources[1]
    assessing = _Counted(source, ledger, RULES, RuleSettings(), DAY_MS, 5 * HOUR_MS, "test", _past(ledger))
    assessing.looks.clear()
    loop = DetectorLoop(
        _detecting(source, ledger), assessing, status, interval_s=300, state=lambda _: None,
        now=lambda: at(HOURS * 60), seconds=lambda: 0.0, sleep=lambda _: None, stopped=lambda: False,
    )  # fmt: skip
    for _ in range(3):
        loop.turn()
    source.end_ms = at(HOURS * 60)
    late.ingest(CLUSTER, late.pending(CLUSTER, span))
    loop.turn()
    assert (assessing.looks, status.errors()) == ([29, 6], {})
    assert caplog.text.count("is assessed once it was read again") == 2
    windows = Window(at(5 * 60), at(6 * 60)), Window(at(26 * 60), at(27 * 60))
    assert [ledger.assessed(each).missing for each in windows] == [1, 1]
    late.ingest(CLUSTER, windows)
    loop.turn()
    assert assessing.looks == [29, 6, 7]
    assert ledger.assessed(span) == AssessmentCounts(24, 6, 0)
    assert (status.errors(), caplog.text.count("is assessed once it was read again")) == ({}, 2)


class _Shortened(RecordedSource):
    """A source that holds no more than so many days before the eighth."""

    days = 7

    def covered(self, cluster: str) -> Window | None:
        whole = super().covered(cluster)
        return None if whole is None else whole.intersect(Window(at((7 - self.days) * 24 * 60), whole.end_ms))


def test_a_final_day_is_the_same_whatever_the_source_holds_before_it(tmp_path: Path) -> None:
    """What rules learn from more than a stretch (how busy a job is, after how long servers work again) they
    learn from one fixed span. Until five days ago the job was busy and the servers came back."""
    day, end, busy = 7 * 24 * 60, 8 * 24 * 60 + 300, 5 * 24 * 60
    world = World(end).node("n1", 4).pod("small", "n1", 0, job="small", team="language")
    steps = range(0, end, 15)
    levels = [0.9 if minute < busy else 0.1 for minute in steps]
    world.work("small", "n1", "g0", levels, step=15, sm=0.9, memory=5 * GIB)
    for n in range(3):
        world.pod(f"s{n}", "n1", 0, job=f"s{n}", kind="Deployment", team="vision")
        rests = [float(minute < busy and minute % 600 < 60) for minute in steps]
        world.work(f"s{n}", "n1", f"g{n + 1}", rests, step=15)
    record(tmp_path / "recording", world.frames())
    found, learnt = [], milliseconds(DetectorsSettings().looks_before)
    for days in (1, 2, 7):
        source = _Shortened(tmp_path / "recording")
        source.days = days
        with Ledger.open(new_ledger(tmp_path / f"{days}.db"), now=lambda: at(end)) as ledger:
            span = Window(at(day), at(day) + DAY_MS)
            pipeline = Pipeline(source, ledger, RULES, HOUR_MS, DAY_MS, 0, lambda: at(end), "test")
            pipeline.ingest(CLUSTER, pipeline.pending(CLUSTER, span))
            assessing = WasteAccounting(
                source, ledger, RULES, RuleSettings(), learnt, 5 * HOUR_MS, "test", _past(ledger)
            )
            assert assessing.assess(CLUSTER, assessing.pending(CLUSTER, span)).final == 24
            found.append(ledger.waste(EVERYTHING, span, ("team", "node"), step_ms=HOUR_MS))
    assert "oversized" in found[0]["waste"].tolist()
    assert found[1].equals(found[0])
    assert found[2].equals(found[0])


class _Counted(WasteAccounting):
    looks: ClassVar[list[int]] = []

    def assess(self, cluster: str, windows: Any, **options: Any) -> Any:
        self.looks.append(len(windows))
        return super().assess(cluster, windows, **options)


def test_the_loop_assesses_again_only_when_something_came(source: RecordedSource, ledger: Ledger) -> None:
    growing = _Growing(source._folder)
    pipeline = _pipeline(growing, ledger)
    assessing = _Counted(growing, ledger, RULES, RuleSettings(), DAY_MS, 5 * HOUR_MS, "test", _past(ledger))
    assessing.looks.clear()
    loop = DetectorLoop(
        _detecting(growing, ledger), assessing, DetectorStatus(), interval_s=300, state=lambda _: None,
        now=lambda: growing.end_ms, seconds=lambda: 0.0, sleep=lambda _: None, stopped=lambda: False,
    )  # fmt: skip
    seen = []
    for end in (26, 26, 27, 30, 30):
        growing.end_ms = at(end * 60)
        pipeline.ingest(CLUSTER, pipeline.pending(CLUSTER, Window(at(0), at(end * 60))))
        loop.turn()
        seen.append(list(assessing.looks))
    assert seen == [[26], [26], [26, 27], [26, 27, 30], [26, 27, 30]]
    assert ledger.assessed(Window(at(0), at(30 * 60))).final == 24


def test_a_window_nobody_looked_at_is_unknown(source: RecordedSource, ledger: Ledger) -> None:
    pipeline, day = _pipeline(source, ledger), Window(at(0), at(HOURS * 60))
    pipeline.ingest(CLUSTER, pipeline.pending(CLUSTER, day))
    frame = ledger.waste(EVERYTHING, day, ())
    assert frame["waste"].tolist() == ["unknown"]


def test_rehearsal_says_what_would_have_been_found(source: RecordedSource) -> None:
    rehearsing = DetectorBacktest(source, RULES, RuleSettings(), DAY_MS, 28 * DAY_MS)
    told = rehearsing.rehearse(CLUSTER, 3, at(HOURS * 60))
    assert told.failures == ()
    (idle,) = [each for each in told.findings if each.finding.draft.pattern is WastePattern.IDLE_ALLOCATION]
    assert (idle.days, idle.of) == (1, 1)
    assert idle.board_ms == 20 * HOUR_MS
    assert idle.nano == 80_000_000_000


def _servers() -> World:
    """Twenty-six servers that stop on the first of six days, and one ten hours before the end."""
    minutes = 6 * 24 * 60
    world = World(minutes).node("n1", 27)
    for n in range(27):
        name, last = (f"dead-{n}", 300) if n < 26 else ("web", minutes - 600)
        world.pod(name, "n1", 0, job=name, kind="Deployment")
        for hour in range(minutes // 60):
            _signals(world, name, hour * 60, 1.0 if hour * 60 < last else 0.0)
        first = minutes - 48 * 60
        levels = [1.0 if first + 5 * step < last else 0.0 for step in range(48 * 12)]
        world.work(name, "n1", f"g{n}", levels, start=first)
    return world


def test_a_day_of_history_and_the_ledgers_past_find_a_server_that_nobody_counts(tmp_path: Path) -> None:
    record(tmp_path / "recording", _servers().frames())
    source, end_ms = RecordedSource(tmp_path / "recording"), at(6 * 24 * 60)
    with Ledger.open(new_ledger(tmp_path / "ledger.db"), now=lambda: end_ms) as ledger:
        before = _detecting(source, ledger).once(CLUSTER, end_ms)
        assert before is not None
        assert {each.subject.name for each in before.withheld if each.pattern is IDLE} >= {"web", "dead-0"}
        pipeline = Pipeline(source, ledger, RULES, HOUR_MS, DAY_MS, 0, lambda: end_ms, "test")
        pipeline.ingest(CLUSTER, pipeline.pending(CLUSTER, Window(at(0), end_ms)))
        found = _detecting(source, ledger).once(CLUSTER, end_ms)
        assert found is not None
        idle = {
            each.draft.subject.name: each.draft
            for each in found.evaluation.findings
            if each.draft.pattern is IDLE
        }
        assert "web" in idle
        assert any("by what servers here did before" in each for each in idle["web"].checked)
        assert idle["web"].since_ms == end_ms - 10 * HOUR_MS
        assessing = _assessing(source, ledger)
        day = Window(end_ms - DAY_MS, end_ms)
        assessing.assess(CLUSTER, assessing.pending(CLUSTER, day))
        waste = ledger.waste(EVERYTHING, day, ("job",)).set_index(["job", "waste"])["board_ms"]
        assert waste["dead-0", Waste.IDLE.value] == DAY_MS
