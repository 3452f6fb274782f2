"""How long jobs ran, from usage lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from gpucost.advisor.wait.run_times import NO_HISTORY, PastUse
from gpucost.domain.errors import InputError
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.usage.run_history import MOST_RUNS, JobRun, JobUse
from gpucost.service.advisor.run_history import RunHistory, past_uses_of, run_times_of
from tests.ledger.builders import CLUSTER, MONTH, NOW_MS, PRICE, hour, ingest, line, random_rows

DAY = Window(hour(0).start_ms, hour(23).end_ms)


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, now=lambda: NOW_MS) as opened:
        yield opened


def held(
    number: int, job: str, start: int = 0, end: int = 60, *, boards: int = 1, **values: Any
) -> dict[str, Any]:
    """A line of hour ``number``: one pod of a job holds GPUs from minute ``start`` to ``end`` of it."""
    window = hour(number)
    pod = values.pop("pod", f"{job}-0")
    return line(
        window,
        **{
            "job": job,
            "job_uid": f"{job}-uid",
            "team_label": "red-label",
            "pod": pod,
            "pod_uid": f"{pod}-uid",
            "node": f"node-of-{pod}",
            "board_ms": boards * (end - start) * MINUTE_MS,
            "first_ms": window.start_ms + start * MINUTE_MS,
            "last_ms": window.start_ms + end * MINUTE_MS,
            **values,
        },
    )


def fill(ledger: Ledger, *rows: dict[str, Any], hours: int = 24) -> None:
    """The first and the last hour of a day, with a line without a holder, and those of ``rows``."""
    by_start: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_start[row["window_start_ms"]].append(row)
    for number in range(hours):
        window = hour(number)
        if number not in (0, hours - 1) and window.start_ms not in by_start:
            continue
        ingest(ledger, window, line(window, bucket="unallocated", node="free"), *by_start[window.start_ms])


def runs(ledger: Ledger, window: Window = DAY, **options: Any) -> dict[str, JobRun]:
    return {run.job: run for run in ledger.runs(EVERYTHING, CLUSTER, window, **options)}


def test_a_run_is_what_was_held_between_its_first_and_last_instant(ledger: Ledger) -> None:
    fill(
        ledger, held(3, "train", 40, boards=8), held(4, "train", boards=8), held(5, "train", 0, 10, boards=8)
    )
    assert ledger.runs(EVERYTHING, CLUSTER, DAY) == (
        JobRun(
            "train-uid",
            "red",
            "red-label",
            "train",
            8,
            90 * MINUTE_MS,
            hour(3).start_ms + 40 * MINUTE_MS,
            hour(5).start_ms + 10 * MINUTE_MS,
            began_before=False,
            goes_on=False,
        ),
    )


def test_pods_of_a_job_are_one_run(ledger: Ledger) -> None:
    rows = [held(at, "train", pod=f"train-{pod}", boards=4) for at in (2, 3) for pod in range(3)]
    fill(ledger, *rows, held(3, "train", pod="train-1", rate_id="h100@2"))
    found = runs(ledger)["train"]
    assert (found.gpus, found.held_ms) == (12, 2 * HOUR_MS), "13 boards in one of two hours"


def test_time_between_two_attempts_is_not_run_time(ledger: Ledger) -> None:
    fill(ledger, held(2, "train", 30, boards=2), held(9, "train", 0, 15, boards=2, pod="train-again"))
    found = runs(ledger)["train"]
    assert (found.gpus, found.held_ms) == (2, 45 * MINUTE_MS)
    assert found.last_ms - found.first_ms > 6 * HOUR_MS


def test_slices_count_as_they_are_asked_for(ledger: Ledger) -> None:
    slices: dict[str, Any] = {
        "resource": "nvidia.com/mig-1g.10gb",
        "profile": "1g.10gb",
        "share_num": 1,
        "share_den": 7,
    }
    fill(ledger, held(2, "train", **slices, board_ms=2 * HOUR_MS // 7))
    assert runs(ledger)["train"].gpus == 2


def test_a_part_of_a_gpu_is_one(ledger: Ledger) -> None:
    fill(ledger, held(2, "train", board_ms=HOUR_MS // 10))
    assert runs(ledger)["train"].gpus == 1


def test_runs_at_the_edges_are_not_whole(ledger: Ledger) -> None:
    rows = [held(0, "before"), held(1, "before"), held(22, "on"), held(23, "on"), held(5, "whole")]
    fill(ledger, *rows, held(0, "late", 1), held(23, "early", 0, 59))
    found = runs(ledger)
    edges = {job: (run.began_before, run.goes_on) for job, run in found.items()}
    assert edges["before"] == (True, False)
    assert edges["on"] == (False, True)
    assert edges["whole"] == edges["late"] == edges["early"] == (False, False)
    assert [job for job, run in found.items() if run.is_whole] == ["late", "whole", "early"]
    inside = runs(ledger, Window(hour(5).start_ms - 1, hour(6).end_ms - 1))
    assert (inside["whole"].began_before, inside["whole"].goes_on) == (True, True), (
        "windows that are cut are out"
    )


def test_the_newest_are_kept_in_the_order_of_their_end(ledger: Ledger) -> None:
    fill(ledger, *(held(at, f"job-{at}", 5, 50 - at) for at in range(20, 1, -1)))
    assert [*runs(ledger)] == [f"job-{at}" for at in range(2, 21)]
    assert [*runs(ledger, most=3)] == ["job-18", "job-19", "job-20"]
    for most in (0, MOST_RUNS + 1):
        with pytest.raises(InputError, match=r"most.*1 to 50000"):
            runs(ledger, most=most)


def test_only_what_is_held_by_jobs_of_the_cluster(ledger: Ledger) -> None:
    fill(
        ledger,
        held(2, "train"),
        held(2, "crowded", bucket="overcommitted"),
        held(2, "loose", job_uid=""),
        held(2, "instant", 7, 7),
    )
    ingest(ledger, hour(2), held(2, "elsewhere", cluster="beta"), cluster="beta")
    assert [*runs(ledger)] == ["train"]
    assert ledger.runs(EVERYTHING, "gamma", DAY) == ()
    assert ledger.runs(Scope(frozenset({"blue"})), CLUSTER, DAY) == ()
    assert len(ledger.runs(Scope(frozenset({"red"})), CLUSTER, DAY)) == 1


def test_they_agree_with_a_sum_over_the_lines(ledger: Ledger) -> None:
    spans: dict[tuple[str, str], list[int]] = defaultdict(list)
    boards: dict[tuple[str, str], int] = defaultdict(int)
    for number in range(6):
        rows = random_rows(5, hour(number))
        ingest(ledger, hour(number), *rows)
        of_job: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            if row["bucket"] == "held":
                of_job[row["job_uid"], row["team"]].append(row)
        for job, own in of_job.items():
            spans[job].append(max(row["last_ms"] for row in own) - min(row["first_ms"] for row in own))
            boards[job] += sum(row["board_ms"] for row in own)
    found = ledger.runs(EVERYTHING, CLUSTER, Window(hour(0).start_ms, hour(5).end_ms))
    assert {(run.job_uid, run.team): (run.held_ms, run.gpus) for run in found} == {
        job: (sum(each), max(1, round(boards[job] / sum(each)))) for job, each in spans.items()
    }


def test_run_times_are_of_whole_runs(ledger: Ledger) -> None:
    rows = [held(at, f"train-{at}", 5, 35, boards=8) for at in range(2, 12)]
    fill(ledger, *rows, *(held(at, "endless", boards=8) for at in range(24)))
    found = run_times_of(ledger, CLUSTER).like("red-label", "train-99", 8)
    assert found.runs == 10
    assert "of team red-label named train-*" in found.basis
    assert found.median_ms() == 30 * MINUTE_MS
    assert run_times_of(ledger, "gamma") is NO_HISTORY
    teams = {run.team for run in runs(ledger).values()}
    by_rules, by_label = (run_times_of(ledger, CLUSTER).seen_by(each) for each in (teams, {"red-label"}))
    assert by_rules.like("red-label", "train-99", 8) == found, "the team rules say who may read"
    assert "red-label" not in by_label.like("red-label", "train-99", 8).basis


def test_history_is_read_again_when_there_is_more_of_it(ledger: Ledger) -> None:
    history = RunHistory(ledger, CLUSTER)
    assert history() is NO_HISTORY
    fill(ledger, *(held(at, f"train-{at}", 5, 35) for at in range(4)), hours=5)
    found = history()
    assert found.like("red-label", "train-99", 1).runs == 4
    assert history() is found
    ingest(ledger, hour(5), held(5, "train-5", 5, 35))
    assert history().like("red-label", "train-99", 1).runs == 5


def used(number: int, job: str, **values: Any) -> dict[str, Any]:
    """An hour in which one GPU was busy half of the time, at a fifth of its SMs on average."""
    signals = {
        "observed_ms": HOUR_MS,
        "busy_ms": HOUR_MS // 2,
        "sm_observed_ms": HOUR_MS,
        "sm_active_ms": HOUR_MS // 5,
        "memory_observed_ms": HOUR_MS,
        "memory_total_mib_s": 81_920 * 3600,
        "memory_peak_mib": 7_000,
    }
    return held(number, job, **(signals | values))


def test_what_a_job_used(ledger: Ledger) -> None:
    more = {"memory_peak_mib": 9_000, "sm_active_ms": HOUR_MS // 4}
    fill(ledger, used(2, "train"), used(3, "train", **more), used(4, "train", sm_active_ms=0, busy_ms=0))
    (found,) = ledger.uses(EVERYTHING, CLUSTER, DAY)
    assert found.sm_busy == pytest.approx(0.5)
    edges = (hour(2).start_ms, hour(4).end_ms)
    assert replace(found, sm_busy=0.0) == JobUse(
        *("red", "ml", "train", "train-uid"), "H100", 9_000, 81_920.0, 0.0, 1.0, 1.0, *edges
    )


def test_use_that_was_observed_in_part(ledger: Ledger) -> None:
    half = {"sm_observed_ms": HOUR_MS // 2, "sm_active_ms": HOUR_MS // 4}
    fill(ledger, used(2, "train", **half), used(3, "dark", memory_peak_mib=None), used(4, "idle", busy_ms=0))
    (found,) = ledger.uses(EVERYTHING, CLUSTER, DAY)
    assert (found.job, found.sm_seen, found.memory_seen) == ("train", 0.5, 1.0)
    assert found.sm_busy == 1.0, "active for all of the time in which anything ran"


def test_use_of_whole_boards_by_model_of_the_newest(ledger: Ledger) -> None:
    of_slice = used(2, "slice", resource="nvidia.com/mig-1g.10gb", profile="1g.10gb", share_den=7)
    models = (used(3, "moved"), used(4, "moved", model="A100-80GB", node="other"))
    fill(ledger, of_slice, *models, used(5, "last"), used(5, "loose", job_uid=""))
    found = ledger.uses(EVERYTHING, CLUSTER, DAY)
    assert [(use.job, use.model) for use in found] == [
        ("moved", "H100"),
        ("moved", "A100-80GB"),
        ("last", "H100"),
    ]
    assert ledger.uses(EVERYTHING, CLUSTER, DAY, most=1) == found[2:]
    assert ledger.uses(Scope(frozenset({"blue"})), CLUSTER, DAY) == ()
    with pytest.raises(InputError, match=r"most.*1 to 20000"):
        ledger.uses(EVERYTHING, CLUSTER, DAY, most=0)


def test_past_use_of_like_jobs(ledger: Ledger) -> None:
    rows = [used(at, f"train-{at}", memory_peak_mib=1_000 * at) for at in range(2, 6)]
    others = [used(6, "once-1"), used(0, "edge-1"), used(7, "edge-2"), used(8, "edge-3")]
    seen_half = {"memory_observed_ms": HOUR_MS // 2, "memory_peak_mib": 80_000}
    old = used(1, "train-1", model="A100-80GB", memory_peak_mib=70_000)
    fill(ledger, old, *rows, *others, used(9, "train-9", **seen_half))
    found = past_uses_of(ledger, CLUSTER, DAY)
    assert found.like("cv", "train-7") is found.like("ml", "once-7") is found.like("ml", "edge-7") is None
    use = found.like("ml", "train-7")
    assert use is not None
    assert use.sm_activity == pytest.approx(0.4)
    assert replace(use, sm_activity=0.0) == PastUse("H100", 81_920 * 2**20, 5_000 * 2**20, 0.0, runs=4)


def test_past_use_is_of_the_teams_that_are_asked_for(ledger: Ledger) -> None:
    """Two teams in one namespace, whose jobs have like names; one of them is too few."""
    own = [used(at, f"train-{at}", team="blue", memory_peak_mib=1_000 * at) for at in (2, 4, 6)]
    theirs = [used(at, f"train-{at}", memory_peak_mib=9_000) for at in (3, 5)]
    fill(ledger, *own, *theirs)
    found = past_uses_of(ledger, CLUSTER, DAY)
    asked = (None, {"blue", "red"}, {"blue"}, {"red"}, {"nobody"}, ())
    uses = [found.like("ml", "train-9", teams) for teams in asked]
    assert [use and (use.runs, use.memory_bytes / 2**20) for use in uses] == [
        *((5, 9_000), (5, 9_000), (3, 6_000)),
        *(None, None, None),
    ]


def like_next(ledger: Ledger, span: Window) -> int:
    found = past_uses_of(ledger, CLUSTER, span).like("ml", "next-7")
    return 0 if found is None else found.runs


def test_a_folded_day_tells_no_runs_and_no_uses(ledger: Ledger) -> None:
    """Its job held an hour in the morning and one at night: that it did not run in between is not known."""
    first = (MONTH.window.end_ms - MONTH.window.start_ms) // HOUR_MS
    rows = [used(at, job) for at, job in ((first - 23, "twice"), (first - 2, "twice"), (first - 1, "over"))]
    rows += [used(first, job, pod=job) for job in ("over", "next-1")]
    rows += [used(first + at, f"next-{at}") for at in (2, 3, 4)]
    fill(ledger, *rows, hours=first + 6)
    span = Window(hour(0).start_ms, hour(first + 5).end_ms)
    assert runs(ledger, span)["twice"].held_ms == 2 * HOUR_MS
    assert like_next(ledger, span) == 4
    ledger.close_month(MONTH, author="ann", min_coverage=Fraction(0), reason="two days are enough")
    assert ledger.fold(MONTH, author="ann").lines < len(rows)
    found = runs(ledger, span)
    assert [*found] == ["next-1", "over", "next-2", "next-3", "next-4"]
    assert [run.job for run in found.values() if not run.is_whole] == ["next-1", "over"]
    assert {use.job for use in ledger.uses(EVERYTHING, CLUSTER, span)} == {*found}
    assert like_next(ledger, span) == 3, "one may have begun before"
    assert runs(ledger, Window(hour(0).start_ms, hour(first - 1).end_ms)) == {}


def test_jobs_are_found_by_name_and_namespace(ledger: Ledger) -> None:
    """Two runs of red's ``train`` in two hours, a third in another namespace, and a pod without a job."""
    ingest(ledger, hour(0), line(hour(0)), line(hour(0), namespace="lab", job_uid="job-2", team="blue"))
    ingest(ledger, hour(1), line(hour(1), job_uid="job-3", nano=None, rate_id=""), line(hour(1), job_uid=""))
    names = [(each.job_uid, each.namespace, each.team) for each in ledger.jobs_named(EVERYTHING, "train")]
    assert names == [("job-3", "ml", "red"), ("job-1", "ml", "red"), ("job-2", "lab", "blue")]
    [only] = ledger.jobs_named(EVERYTHING, "lab/train")
    assert (only.held, only.board_ms, only.nano, only.unpriced_ms) == (hour(0), HOUR_MS, PRICE, 0)
    last, *_ = ledger.jobs_named(EVERYTHING, "ml/train")
    assert (last.nano, last.unpriced_ms) == (None, HOUR_MS)
    assert last in ledger.jobs_of(EVERYTHING, last.cluster, {last.job_uid, "nobody"})
    assert ledger.jobs_of(EVERYTHING, "elsewhere", {last.job_uid}) == ()
    assert ledger.jobs_of(Scope(frozenset({"nobody"})), last.cluster, {last.job_uid}) == ()
    assert ledger.jobs_of(EVERYTHING, last.cluster, ()) == ()
    assert [each.job_uid for each in ledger.jobs_named(Scope(frozenset({"blue"})), "train")] == ["job-2"]
    for nobody in ("trai", "TRAIN", "train/", "x/train", "%", ""):
        assert ledger.jobs_named(EVERYTHING, nobody) == (), nobody
    with pytest.raises(InputError, match="name"):
        ledger.jobs_named(EVERYTHING, "a\0")
