"""Utilisation, coverage, three views, spot with interruptions, late use, and whether a contract would pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from gpucost.charges.cell_charges import PLATFORM, ChargeKind
from gpucost.charges.charge_account import commitment_lines
from gpucost.charges.commitment_drawdown import UsageCell
from gpucost.charges.commitment_report import CommitmentReport, break_even, corrections, report_commitments
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.time import HOUR_MS, Month, Window
from tests.charges.contract_worlds import book_of, cell, drawn, hours, span, usd

OCTOBER = span("2026-10-01", "2026-11-01")
TERM = "start: 2026-10-01T00:00:00Z, end: 2026-11-01T00:00:00Z"
RESERVED = f"id: r, kind: reservation, gpus: 8, {TERM}, recurring: [{{amount: 11904, every: month}}]"


def month_of_use(pairs: Sequence[tuple[str, int]], price: str = "4", listed: str = "5") -> list[UsageCell]:
    return [cell(hour, team, gpus, price, listed) for hour in hours(OCTOBER) for team, gpus in pairs]


def test_three_views_of_a_month_by_hand() -> None:
    """8 GPUs for 11,904 are 2 an hour. Vision holds 5 of them owned, language 4, one is idle: of 10 GPUs at 4
    (list 5) 8 are covered. Vision 5, then language 3; language's fourth and the idle one are on demand."""
    book = book_of(f"{RESERVED}, owner: vision")
    found = report_commitments(book, month_of_use([("vision", 5), ("language", 4), ("", 1)]), OCTOBER)
    [summary] = found.contracts
    assert (summary.utilisation, summary.coverage) == (Fraction(1), Fraction(8, 9))
    assert summary.paid_nano == summary.used_nano == summary.due_nano == usd("11904")
    assert summary.nano_per_board_hour == usd("2")
    assert summary.saved_nano == usd(str(744 * 8 * 2))
    assert found.difference_nano == 0
    rows = {team.team: (team.list_nano, team.contracted_nano, team.effective_nano) for team in found.teams}
    assert rows == {
        "": tuple(usd(str(744 * n)) for n in (5, 4, 4)),
        "language": tuple(usd(str(744 * n)) for n in (20, 16, 3 * 2 + 4)),
        "vision": tuple(usd(str(744 * n)) for n in (25, 20, 10)),
    }
    assert found.total.effective_nano == usd(str(744 * (4 + 10 + 10)))
    assert found.total.board_ms == 744 * 10 * HOUR_MS


def test_half_used_is_half_unused_and_the_platform_pays_for_it() -> None:
    found = report_commitments(book_of(RESERVED), month_of_use([("vision", 3), ("", 1)]), OCTOBER)
    [summary] = found.contracts
    assert (summary.utilisation, summary.coverage) == (Fraction(3, 8), Fraction(1))
    assert (summary.used_nano, summary.idle_nano, summary.unused_nano) == tuple(
        usd(str(744 * n)) for n in (6, 2, 8)
    )
    platform, vision = found.teams
    assert (platform.unused_nano, vision.commitment_nano) == (usd(str(744 * 10)), usd(str(744 * 6)))
    assert summary.saved_nano == 0
    # What is not used makes the hours that were used dearer: 16 for 3.
    assert summary.nano_per_board_hour == usd("5.333333333")


def test_a_contract_outside_the_window_is_not_in_the_report() -> None:
    year = "start: 2025-01-01T00:00:00Z, end: 2026-01-01T00:00:00Z"
    early = f"id: e, kind: reservation, gpus: 1, upfront: 1, {year}"
    found = report_commitments(book_of(early, RESERVED), [], OCTOBER)
    assert [one.contract for one in found.contracts] == ["r"]
    assert found.contracts[0].coverage is None


def test_spot_costs_more_by_what_interruptions_destroyed() -> None:
    """100 GPU-hours at 1, of which 20 were to be done again: 1.25 for one that was of use."""
    book = book_of(f"id: s, kind: spot, {TERM}")
    hour = OCTOBER.start_ms
    use = replace(cell(hour, "vision", 100, "1", capacity_type="spot"), lost_board_ms=20 * HOUR_MS)
    [found] = report_commitments(book, [use, cell(hour, "vision", 5)], OCTOBER).spot
    assert (found.board_ms, found.lost_board_ms) == (100 * HOUR_MS, 20 * HOUR_MS)
    assert (found.nano_per_board_hour, found.nano_per_useful_board_hour) == (usd("1"), usd("1.25"))
    [empty] = report_commitments(book, [], OCTOBER).spot
    assert empty.nano_per_useful_board_hour is None


def test_spot_has_its_part_of_hours_in_which_its_contract_begins_or_ends() -> None:
    """From half past 0 to a quarter past 2, 4 GPUs at 1, of which 2 were lost: 2 + 4 + 1 GPU-hours."""
    term = 'start: "2026-10-01T00:30:00Z", end: "2026-10-01T02:15:00Z"'
    book, start = book_of(f"id: s, kind: spot, {term}"), OCTOBER.start_ms
    cells = [
        replace(cell(start + n * HOUR_MS, "vision", 4, "1", capacity_type="spot"), lost_board_ms=2 * HOUR_MS)
        for n in range(4)
    ]
    [found] = report_commitments(book, cells, OCTOBER).spot
    assert (found.board_ms, found.nano, found.lost_board_ms) == (7 * HOUR_MS, usd("7"), 7 * HOUR_MS // 2)
    unpriced = [replace(each, nano=None) for each in cells]
    assert report_commitments(book, unpriced, OCTOBER).spot[0].unpriced_board_ms == 7 * HOUR_MS


def test_late_use_before_the_close_is_drawn_and_after_it_is_a_correction() -> None:
    """A day later comes to light that language used 2 GPUs for ten hours: it draws what was unused, which
    vision paid for as its owner. The closed day stays, and the corrections move 40 from one to the other."""
    book = book_of(f"{RESERVED}, owner: vision")
    day = Window(OCTOBER.start_ms, OCTOBER.start_ms + 24 * HOUR_MS)
    known = [cell(hour, "vision", 6) for hour in hours(day)]
    late = [cell(hour, "language", 2) for hour in list(hours(day))[:10]]
    closed, anew = drawn(book, known, day), drawn(book, [*known, *late], day)
    found = [(c.payer, c.kind, c.board_ms // HOUR_MS, c.nano) for c in corrections(closed, anew)]
    assert found == [("language", "used", 20, usd("40")), ("vision", "unused", -20, -usd("40"))]
    assert corrections(closed, closed) == ()
    # Before the close it is simply drawn: the same bytes as if it had been known at once.
    assert drawn(book, [*late, *known], day) == anew


def test_late_use_of_a_pool_changes_what_is_left_for_open_months() -> None:
    """October is closed, November open: the closed entries, the corrections and November drawn anew are the
    whole, drawn anew."""
    two = "start: 2026-10-01T00:00:00Z, end: 2026-12-01T00:00:00Z"
    book = book_of(f"id: p, kind: neocloud, gpu_hours: 1000, per: term, upfront: 2000, {two}")
    november = span("2026-11-01", "2026-12-01")
    known = [cell(hour, "vision", 1) for hour in (*hours(OCTOBER), *hours(november))]
    late = [cell(hour, "speech", 1) for hour in list(hours(OCTOBER))[:100]]
    closed = drawn(book, known, OCTOBER)
    diffs = corrections(closed, drawn(book, [*known, *late], OCTOBER))
    whole = drawn(book, [*known, *late], Window(OCTOBER.start_ms, november.end_ms))
    rest = drawn(book, [*known, *late], november)
    sums = sum(e.nano or 0 for e in (*closed.entries, *rest.entries)) + sum(c.nano for c in diffs)
    assert sums == sum(e.nano or 0 for e in whole.entries)
    assert [(c.payer, c.kind, c.nano) for c in diffs] == [("speech", "used", usd("200"))]
    assert rest.totals[0].used == (1000 - 744 - 100) * HOUR_MS


def test_64_gpus_for_twelve_months_on_the_use_of_six() -> None:
    """1,121,280 a year are 3,072 on each of 184 days. In use are 60 GPUs at 4 on working days and 20 at
    weekends."""
    planned = (
        "id: try, kind: reservation, planned: true, gpus: 64, upfront: 1121280, scope: {models: [H100]}, "
        "start: 2027-01-01T00:00:00Z, end: 2028-01-01T00:00:00Z"
    )
    book = book_of(planned)
    half = span("2026-05-01", "2026-11-01")
    use, working = [], 0
    for hour in hours(half):
        weekday = (hour // (24 * HOUR_MS) + 3) % 7
        working += weekday < 5
        use.append(cell(hour, "vision", 60 if weekday < 5 else 20))
    [terms] = book.planned
    found = break_even(book, terms, use, half)
    days = 184
    working //= 24
    assert found.paid_nano == usd(str(3072 * days))
    assert found.saved_nano == usd(str(24 * 4 * (60 * working + 20 * (days - working)) - 3072 * days))
    assert found.p10_day_nano == usd(str(24 * 80 - 3072))
    assert found.p50_day_nano == found.p90_day_nano == usd(str(24 * 240 - 3072))
    assert [month.month for month in found.months] == [Month(2026, n) for n in range(5, 11)]
    assert sum(month.saved_nano for month in found.months) == found.saved_nano
    # It costs 2 an hour where 4 would be paid: from half of it on it pays.
    assert found.needed == Fraction(1, 2)
    assert found.drawn == found.utilisation == Fraction(60 * working + 20 * (days - working), 64 * days)


def test_a_planned_contract_draws_nothing_and_is_tried_beside_the_others() -> None:
    """8 of vision's 10 GPUs are covered: a second contract of 4 would save on 2 of them only."""
    planned = f"id: try, kind: reservation, planned: true, gpus: 4, price: 1, {TERM}"
    found: CommitmentReport = report_commitments(
        book_of(RESERVED, planned), month_of_use([("vision", 10)]), OCTOBER
    )
    assert [one.contract for one in found.contracts] == ["r"]
    [tried] = found.planned
    assert tried.saved_nano == usd(str(744 * (2 * 4 - 4)))
    assert (tried.utilisation, tried.needed) == (Fraction(1, 2), Fraction(1, 4))


def test_use_without_a_price_is_no_saving_and_says_so() -> None:
    planned = f"id: try, kind: reservation, planned: true, gpus: 4, price: 1, {TERM}"
    hour = OCTOBER.start_ms
    unpriced = UsageCell(hour, "prod", "p5", "H100", "", "vision", "", 3 * HOUR_MS, None, None)
    found = report_commitments(book_of(planned), [unpriced], OCTOBER)
    [tried] = found.planned
    assert (tried.unpriced_board_ms, tried.covered_board_ms, tried.needed) == (3 * HOUR_MS, 0, None)
    assert tried.saved_nano == -usd(str(744 * 4))
    assert found.total.unpriced_board_ms == 3 * HOUR_MS


HOURLY = "recurring: [{amount: 8, every: hour}]"


@pytest.mark.parametrize(
    ("policies", "where", "vision"),
    [
        ("", "", (-2, 2)),
        ("{overhead_teams: [vision]}", "", (0, 0)),
        ("{overhead_teams: [language]}", "", (-2, 2)),
        ("{valid_from: 2026-11-01, overhead_teams: [vision]}", "", (-2, 2)),
        ("{valid_to: 2026-10-01, overhead_teams: [vision]}, {valid_from: 2026-10-01}", "", (-2, 2)),
        ('{valid_from: "2026-10-01T00:15:00Z", overhead_teams: [vision]}', "", (-0.5, 0.5)),
        ("{clusters: [prod], overhead_teams: [vision]}", "", (0, 0)),
        ("{clusters: [test], overhead_teams: [vision]}", "", (-2, 2)),
        ("{clusters: [prod]}, {overhead_teams: [vision]}", "", (-2, 2)),
        # What nobody used is of every cluster that the contract covers.
        ("{clusters: [prod], overhead_teams: [vision]}", "scope: {clusters: [prod, test]}, ", (0, 2)),
        ("{clusters: [prod, test], overhead_teams: [vision]}", "scope: {clusters: [prod, test]}, ", (0, 0)),
    ],
)
def test_an_overhead_team_pays_nothing_by_contracts_where_and_while_it_is_one(
    policies: str, where: str, vision: tuple[float, float]
) -> None:
    """4 GPUs cost 8 an hour, that is 2 for each; at 3 by the lines vision's 2 cost 2 less, language's 1 costs
    1 less, and vision, which owns them, pays 2 for the fourth. The platform has the same with the other
    sign."""
    contracts = book_of(f"id: r, kind: reservation, {TERM}, gpus: 4, {where}{HOURLY}, owner: vision")
    hour = Window(OCTOBER.start_ms, OCTOBER.start_ms + HOUR_MS)
    cells = [cell(hour.start_ms, "vision", 2, "3"), cell(hour.start_ms, "language", 1, "3")]
    policy = PolicyBook.parse(f"version: 1\nname: test\npolicies: [{policies}]\n", "policy.yaml")
    lines = commitment_lines(Month(2026, 10), drawn(contracts, cells, hour).entries, contracts, policy)
    found = {(each.key.team, each.key.kind): each.nano for each in lines if each.key.team != PLATFORM}
    nano = (found.pop(("vision", kind), 0) for kind in (ChargeKind.COMMITMENT, ChargeKind.UNUSED_COMMITMENT))
    assert tuple(nano) == tuple(each * 10**9 for each in vision)
    paid = 0 if "[language]" in policies else -(10**9)
    assert sum(found.values()) == paid
    assert sum(each.nano for each in lines) == 0
