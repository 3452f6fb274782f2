"""The report of one job: what a person can compute by hand from it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from gpucost.detectors.findings import FindingSeverity
from gpucost.domain.buckets import Bucket, Waste
from gpucost.domain.errors import InputError
from gpucost.domain.rates import Rate
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.reports.base.unit_costs import ProgressFacts, idle_share, unit_words
from gpucost.reports.base.values import NOTHING, CostAmount
from gpucost.reports.job.job_report import build_job, formula
from gpucost.reports.month.inputs import JobInputs
from gpucost.reports.waste.waste_report import WasteAssessment
from tests.reports.builders import H100, RATES, START_MS, frame, row
from tests.reports.test_waste import PRICE, known, line
from tests.reports.test_waste import frame as waste_frame

DIFFERS = "(time held differs from the span of"
LOW = Rate("v23@1", 2_000_000_000, "USD", 2_000_000_000, "model", "vector", "2026-10-01")
HIGH = Rate("v23@2", 3_000_000_000, "USD", 3_000_000_000, "model", "vector", "2026-10-01")


def job_inputs(*lines: dict[str, Any], **changes: Any) -> JobInputs:
    inputs = JobInputs(
        job_uid="uid-train",
        currency="USD",
        code_version="0.1.0",
        window=Month(2026, 10).window,
        lines=frame(lines),
        rates=RATES | {rate.rate_id: rate for rate in (LOW, HIGH)},
    )
    return replace(inputs, **changes)


def part(hours: float, start: float, end: float, rate: Rate | None = H100, **columns: Any) -> dict[str, Any]:
    """``hours`` of GPU time held from ``start`` to ``end`` hours after the start of the month."""
    instants = {"first_ms": START_MS + round(start * HOUR_MS), "last_ms": START_MS + round(end * HOUR_MS)}
    names = {"node": "n1", "pod": "train-0", "pod_uid": "p0", "job": "train", "team": "nlp", "user": "ada"}
    return row(hours, rate, **(names | instants | columns))


def test_memory_and_energy_of_a_job_have_coverage_and_the_peak_is_of_one_gpu() -> None:
    """Eight GPUs for an hour, two of which were seen at twice the memory; and half an hour unseen."""
    seen = part(6, 0, 1, seen=6, busy=1.0, memory_gib=20, watts=600)
    idle = part(2, 0, 1, seen=2, busy=0.5, memory_gib=40, watts=200, pod="train-1", busy_over_ms=HOUR_MS)
    found = build_job(job_inputs(seen, idle, part(4, 1, 1.5, pod="train-2"))).utilisation
    assert found.busy is not None
    assert found.memory is not None
    assert found.energy is not None
    assert (found.busy.mean, found.busy.coverage) == (Fraction(7, 8), Fraction(2, 3)), "every GPU counts"
    assert found.busy.over_board_ms == HOUR_MS, "beside it, in no mean"
    assert found.memory.mean == Fraction(6 * 20 + 2 * 40, 8 * 80)
    assert (found.memory.peak_mib, found.memory.coverage) == (40 * 1024, Fraction(2, 3))
    assert (found.energy.mj, found.energy.mean_w) == (4_000 * HOUR_MS, 500)
    assert found.energy.coverage == Fraction(2, 3)
    assert found.sm is found.tensor is None


def test_a_job_names_what_it_is_and_adds_up() -> None:
    report = build_job(
        job_inputs(
            part(28, 0, 3.5, seen=28, busy=0.75),
            part(2, 3.5, 4.5, node="n2", pod="train-1", queue="q", project="llm"),
        )
    )
    assert (report.job, report.job_kind, report.teams, report.users) == ("train", "Job", ("nlp",), ("ada",))
    assert (report.nodes, report.pods, report.queues) == (("n1", "n2"), ("train-0", "train-1"), ("q",))
    assert report.span == Window(START_MS, START_MS + round(4.5 * HOUR_MS))
    assert report.held == CostAmount(30 * HOUR_MS, 206_400_000_000)
    assert sum((line.amount for line in report.lines), NOTHING) == report.held
    assert [rate.rate_id for rate in report.rates] == ["aws-p5@1"]
    busy = report.utilisation.busy
    assert busy is not None
    assert (busy.mean, busy.coverage) == (Fraction(3, 4), Fraction(28, 30))


def test_the_trace_can_be_computed_by_hand() -> None:
    (line,) = build_job(job_inputs(part(28, 0, 3.5))).lines
    assert line.formula == "8 GPUs × 3.5 h × 6.88 USD/h = 192.64 USD"


@pytest.mark.vector("V23")
def test_a_price_change_is_two_lines() -> None:
    report = build_job(job_inputs(part(12, 0, 12, LOW), part(12, 12, 24, HIGH)))
    assert [line.formula for line in report.lines] == [
        "1 GPU × 12 h × 2.00 USD/h = 24.00 USD",
        "1 GPU × 12 h × 3.00 USD/h = 36.00 USD",
    ]
    assert report.held.nano == 60 * 10**9


def test_steps_are_lines_of_their_own() -> None:
    lines = [part(1, day * 24, day * 24 + 1, step_start_ms=START_MS + day * DAY_MS) for day in (1, 0)]
    report = build_job(job_inputs(*lines, step_ms=DAY_MS))
    assert [line.span.start_ms for line in report.lines] == [START_MS, START_MS + DAY_MS]


@pytest.mark.parametrize(
    ("board_ms", "span_ms", "share", "rate", "text"),
    [
        (514_286, HOUR_MS, "1/7", H100, "1 unit × 1/7 GPU × 1 h × 6.88 USD/h"),
        (5_416_287, 18_957_000, "2/7", H100, "1 unit × 2/7 GPU × 5 h 15 min 57 s × 6.88 USD/h"),
        (2_700_000, HOUR_MS, "1/4", H100, "3 units × 1/4 GPU × 1 h × 6.88 USD/h"),
        (1_200_000, 1_200_000, "1", H100, "1 GPU × 20 min × 6.88 USD/h"),
        (1, 1, "1", H100, "1 GPU × 0.001 s × 6.88 USD/h"),
        (HOUR_MS, HOUR_MS, "1", None, "1 GPU × 1 h"),
        # Not all of the span was held: never a GPU that was not shared, never units without a holder.
        (HOUR_MS, 2 * HOUR_MS, "1", H100, f"1 GPU-hours {DIFFERS} 2 h) × 6.88 USD/h"),
        (7_200_001, HOUR_MS, "1", H100, f"2 GPU-hours {DIFFERS} 1 h) × 6.88 USD/h"),
        (514_000, HOUR_MS, "1/7", H100, f"0.142778 GPU-hours {DIFFERS} 1 h) × 6.88 USD/h"),
        (1_000, HOUR_MS, "1/7", None, f"0.000278 GPU-hours {DIFFERS} 1 h)"),
    ],
)
def test_formula(board_ms: int, span_ms: int, share: str, rate: Rate | None, text: str) -> None:
    span = Window(START_MS, START_MS + span_ms)
    amount = CostAmount(board_ms, None if rate is None else 1_500_000_000)
    end = ", no price" if rate is None else " = 1.50 USD"
    assert formula(amount, span, Fraction(share), rate, "USD") == f"{text}{end}"


def test_the_trace_tells_units_of_two_shares_apart() -> None:
    slices = {"resource": "nvidia.com/gpu.shared", "share_num": 1}
    lines = [part(0.5, 0, 2, **slices, share_den=4), part(1, 0, 2, **slices, share_den=2)]
    assert [line.formula.split(" × 6.88")[0] for line in build_job(job_inputs(*lines)).lines] == [
        "1 unit × 1/2 GPU × 2 h",
        "1 unit × 1/4 GPU × 2 h",
    ]


def counted(name: str, amount: float, hours: float = 10, *, unpriced: float = 0) -> ProgressFacts:
    """Of a job that held ten GPU-hours, ``hours`` of them while it counted."""
    times = round(hours * HOUR_MS), round(unpriced * HOUR_MS)
    return ProgressFacts(name, amount, 1, *times, round(hours * 6_880_000_000), 10 * HOUR_MS)


def test_cost_per_progress() -> None:
    progress = counted("tokens", 3_000_000_000), counted("epochs", 2.5)
    epochs, tokens = build_job(job_inputs(part(10, 0, 10), progress=progress)).progress
    assert (epochs.name, epochs.per_unit_nano) == ("epochs", 27_520_000_000)  # 68.80 / 2.5
    assert (tokens.per_unit_nano, tokens.per_million_nano) == (23, 22_933_333)  # 68.80 / 3,000 per million


def test_time_in_which_nothing_was_counted_is_in_no_unit() -> None:
    """V29: 3.20 an hour, 15 million tokens an hour; counted in five of ten hours."""
    facts = ProgressFacts("tokens", 75_000_000, 1, 5 * HOUR_MS, 0, 16_000_000_000, 10 * HOUR_MS)
    [tokens] = build_job(job_inputs(part(10, 0, 10), progress=(facts,))).progress
    assert (tokens.per_million_nano, tokens.coverage, tokens.pods) == (213_333_333, Fraction(1, 2), 1)
    assert tokens.idle_share is None, "nobody looked"
    said = "0.000000213 USD each (0.21 per million): 75,000,000 counted by 1 pod in 50% of its GPU time"
    assert unit_words(tokens, "USD") == said


def test_the_idle_part_is_of_what_was_looked_at() -> None:
    held = [("idle", 2), ("productive", 6), ("unknown", 2)]
    assert idle_share(held) == Fraction(1, 4)
    assert idle_share([("unknown", 2)]) is None


@pytest.mark.parametrize(
    "facts",
    [counted("steps", 5, unpriced=1), counted("steps", 0)],
    ids=["no price", "no progress"],
)
def test_cost_per_progress_is_unknown_without_price_or_progress(facts: ProgressFacts) -> None:
    (steps,) = build_job(job_inputs(part(10, 0, 10), progress=(facts,))).progress
    assert (steps.per_unit_nano, steps.per_million_nano) == (None, None)


def test_a_job_without_usage_is_refused_by_its_uid() -> None:
    with pytest.raises(InputError, match="job_uid: 'uid-train'"):
        build_job(job_inputs())


def test_the_order_of_lines_does_not_matter() -> None:
    lines = [part(1, i % 3, 3, node=f"n{i % 2}", pod=f"p{i}") for i in range(6)]
    assert build_job(job_inputs(*lines)) == build_job(job_inputs(*lines[::-1]))


def test_the_buckets_of_a_job_add_up_to_what_it_held() -> None:
    """Of 30 GPU-hours 20 did work and 6 idled; 4 were broken. What was over-committed is in no bucket."""
    waste = waste_frame(line(Waste.PRODUCTIVE, 20), line(Waste.IDLE, 6), line(Waste.UNAVAILABLE, 4))
    found = build_job(job_inputs(part(30, 0, 30), waste=waste, assessment=WasteAssessment(30, 0, 0))).account
    assert found is not None
    shown = {row.waste: row.amount.board_ms // HOUR_MS for row in found.buckets if row.amount.board_ms}
    assert shown == {"unavailable": 4, "idle": 6, "productive": 20}
    assert (found.wasted, found.share) == (CostAmount(10 * HOUR_MS, 10 * PRICE), Fraction(1, 3))


def test_time_that_nobody_held_is_no_part_of_a_job() -> None:
    waste = waste_frame(line(Waste.IDLE, 1), line(Waste.NO_DEMAND, 5, bucket=Bucket.UNALLOCATED))
    found = build_job(job_inputs(part(1, 0, 1), waste=waste, assessment=WasteAssessment(1, 0, 0))).account
    assert found is not None
    assert sum(row.amount.board_ms for row in found.buckets) == HOUR_MS


def test_a_job_that_nobody_asked_the_waste_ledger_about_has_no_account() -> None:
    report = build_job(job_inputs(part(1, 0, 1)))
    assert (report.account, report.findings, report.seen) == (None, (), None)


def test_findings_stand_in_order_of_importance() -> None:
    """What goes on first, then the worst, then the dearest; what is over may be read last."""
    found = (
        known(1, PRICE, severity=FindingSeverity.LOW),
        replace(known(2, PRICE, severity=FindingSeverity.CRITICAL), state="resolved"),
        known(3, PRICE, severity=FindingSeverity.CRITICAL, ended_ms=START_MS + HOUR_MS),
        known(5, PRICE),
        known(4, PRICE),
    )
    notes = build_job(job_inputs(part(1, 0, 1), findings=found)).findings
    assert [note.finding for note in notes] == [4, 5, 1, 2, 3]
    assert [note.until for note in notes][2:] == [None, None, "2026-10-01T01:00:00Z"]
    assert (notes[0].action, notes[0].patch) == ("stop it", "kubectl delete pod p")
