"""Reports from a real ledger: how often it is read, and that every way of asking gives the same bill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

import pytest

from gpucost.domain.errors import InputError
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.ledger.ledger import Ledger
from gpucost.reports.base.values import NOTHING, CostAmount
from gpucost.reports.month.allocations import IdlePolicy
from gpucost.service.reporting.report_service import ReportService
from tests.service.worlds import DAY, Clock, MemorySource, filled_ledger, pipeline
from tests.support.frames import build, hours, node, pod, units
from tests.support.ledgers import new_ledger

QUOTAS = {"research": Fraction(5), "vision": Fraction(3), "absent": Fraction(1, 3)}
RESEARCH = Scope(frozenset({"research"}))
SHARED = (IdlePolicy.PROPORTIONAL, IdlePolicy.BY_QUOTA)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with filled_ledger(tmp_path_factory.mktemp("reporting"), Clock()) as found:
        yield found


@pytest.fixture(scope="module")
def reporting(ledger: Ledger) -> ReportService:
    return ReportService(ledger, "test", QUOTAS)


def bill(
    reporting: ReportService, window: Window, *group_by: str, **query: object
) -> Mapping[str, CostAmount]:
    """What each team pays."""
    found: dict[str, CostAmount] = {}
    answer = reporting.allocations(EVERYTHING, window, ("team", *group_by), **query)  # type: ignore[arg-type]
    for row in answer.report.rows:
        team = row.group["team"]
        found[team] = found.get(team, NOTHING) + row.total
    return found


@pytest.mark.fault(31)
@pytest.mark.parametrize("policy", SHARED)
def test_a_shared_bill_is_the_same_however_it_is_asked_for(
    policy: IdlePolicy, reporting: ReportService
) -> None:
    whole = bill(reporting, DAY, idle=policy)
    assert whole["research"].board_ms > bill(reporting, DAY)["research"].board_ms
    assert sum(whole.values(), NOTHING) == sum(bill(reporting, DAY).values(), NOTHING)
    for group_by in ((), ("job",), ("node", "user"), ("pod_uid", "bucket", "rate_id")):
        for step_ms in (None, DAY_MS, 7 * DAY_MS):
            assert bill(reporting, DAY, *group_by, idle=policy, step_ms=step_ms) == whole


TWO_DAYS = hours(0, 48)


@pytest.fixture(scope="module")
def two_days(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReportService]:
    """Eight GPUs: research holds three of them on the first day, vision one for a part of the second."""
    held = build(
        pods=[
            pod("train", (0, 24), count=3, namespace="research"),
            pod("detect", (25, 32), count=1, namespace="vision"),
        ],
        nodes=[node()],
        capacity=[units()],
    )
    clock = Clock(TWO_DAYS.end_ms + HOUR_MS)
    url = new_ledger(tmp_path_factory.mktemp("two") / "ledger.db")
    with Ledger.open(url, now=clock) as found:
        lines = pipeline(found, MemorySource(held, extent=TWO_DAYS), clock)
        assert lines.ingest("c", lines.pending("c", TWO_DAYS)).ingested == 48
        yield ReportService(found, "test", QUOTAS)


def test_each_day_is_shared_among_those_who_held_on_it(two_days: ReportService) -> None:
    day_ms = 8 * 24 * HOUR_MS
    expected = {"research": CostAmount(day_ms, 480 * 10**9), "vision": CostAmount(day_ms, 480 * 10**9)}
    for step_ms in (None, DAY_MS, 7 * DAY_MS):
        found = bill(two_days, TWO_DAYS, idle=IdlePolicy.PROPORTIONAL, step_ms=step_ms)
        assert found == expected
    days = [bill(two_days, day, idle=IdlePolicy.PROPORTIONAL) for day in TWO_DAYS.split(DAY_MS)]
    assert days == [{"research": expected["research"]}, {"vision": expected["vision"]}]


@pytest.mark.parametrize("policy", SHARED)
def test_a_step_that_would_share_anew_is_refused(policy: IdlePolicy, reporting: ReportService) -> None:
    with pytest.raises(InputError) as caught:
        reporting.allocations(EVERYTHING, DAY, ("team",), step_ms=HOUR_MS, idle=policy)
    assert (caught.value.field, caught.value.value) == ("step", "1 h")
    assert "1d" in caught.value.allowed
    assert bill(reporting, DAY, step_ms=HOUR_MS) == bill(reporting, DAY)


def test_sharing_reads_the_lines_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    reporting = ReportService(ledger, "test", QUOTAS)  # one that keeps no answers of other tests
    calls: list[object] = []
    real = Ledger.aggregate

    def counted(self: Ledger, *args: object, **more: object) -> object:
        calls.append(args)
        return real(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "aggregate", counted)
    reporting.allocations(EVERYTHING, DAY, ("team", "job"), step_ms=DAY_MS, idle=IdlePolicy.PROPORTIONAL)
    assert len(calls) == 1


@pytest.mark.fault(47)
@pytest.mark.parametrize("policy", SHARED)
def test_some_teams_do_not_learn_what_is_shared(
    policy: IdlePolicy, ledger: Ledger, reporting: ReportService
) -> None:
    with pytest.raises(InputError, match=r"idle: .*separate.*api\.team_idle_sharing"):
        reporting.allocations(RESEARCH, DAY, ("team",), idle=policy)
    allowing = ReportService(ledger, "test", QUOTAS, team_idle_sharing=True)
    (row,) = allowing.allocations(RESEARCH, DAY, ("team",), idle=policy).report.rows
    assert row.total == bill(reporting, DAY, idle=policy)["research"]


def test_a_ledger_of_one_day_is_a_month_in_progress_with_nothing_before(reporting: ReportService) -> None:
    answer = reporting.month(EVERYTHING, Month(2026, 10))
    assert answer is not None
    comparison = answer.report.comparison
    assert (comparison.covered, comparison.previous_covered) == (Fraction(1, 31), 0)
    assert (comparison.in_progress, answer.report.totals.change) == (True, None)
    assert comparison.note == "nothing of the previous month was read"


def test_the_trace_of_a_job_knows_its_units(reporting: ReportService) -> None:
    answer = reporting.job(EVERYTHING, "job-train")
    assert answer is not None
    assert [line.formula for line in answer.report.lines] == ["4 GPUs × 8 h × 2.50 USD/h = 80.00 USD"]
