"""What 16 real virtual clusters pay for a month: by use with idle time spread, and by quota.

The amounts are computed again here from the trace alone, minute by minute, in fractions.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import pytest

from benchmarks.support.helios_jobs import MINUTES
from gpucost.charges.capacity_cells import CapacityCell, CellRow, cut
from gpucost.charges.cell_charges import PLATFORM, ChargeKind
from gpucost.charges.charge_account import ChargeAccount, charges
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.buckets import Bucket
from gpucost.domain.money import NANO, split_by_weight
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Month, Window
from gpucost.reports.charges.charge_previews import build_preview
from tests.replay.helios import CLUSTER, Helios, at
from tests.support.shared import needs_shared

pytestmark = [needs_shared("traces/helios-earth-vc"), pytest.mark.slow]
MODEL, DOLLARS = "V100", 2
BY_USE = """
version: 1
name: by use, idle spread by use
policies:
  - {idle_of_nobody: by_use, spread_over: SPAN}
"""


@pytest.fixture(scope="module")
def helios() -> Helios:
    return Helios.load()


@pytest.fixture(scope="module")
def cells(helios: Helios) -> list[CapacityCell]:
    """One pool, hour by hour: what each virtual cluster ran, and what was idle, at two dollars a GPU-hour.

    A stretch in which a virtual cluster runs the same number of GPUs is one job; what no one runs is idle.
    The cost of an hour is dealt as the ledger's is: to the nano-unit.
    """
    rows: list[CellRow] = []
    running = helios.minutes("running_gpu_num")
    everything = int(helios.minutes("total_gpu_num").iloc[0].sum())
    of_nobody = everything - running.sum(axis=1)
    columns = {vc: running[vc] for vc in helios.vcs} | {"": of_nobody}
    for vc, gpus in columns.items():
        begins = [n for n in range(MINUTES) if n == 0 or gpus.iat[n] != gpus.iat[n - 1]]
        for n, end in zip(begins, [*begins[1:], MINUTES], strict=True):
            board_ms = int(gpus.iat[n]) * (end - n) * MINUTE_MS
            if board_ms:
                bucket = Bucket.HELD if vc else Bucket.UNALLOCATED
                job = f"{vc}-{n}" if vc else ""
                rows.append(CellRow(bucket, vc, vc, vc, job, job, "", at(n), at(end), board_ms, 0))
    month = CapacityCell.of(CLUSTER, MODEL, Window(at(0), at(MINUTES)), rows)
    return [_priced(hour) for hour in cut(month, [at(n) for n in range(0, MINUTES, 60)])]


def _priced(hour: CapacityCell) -> CapacityCell:
    cost = split_by_weight(
        hour.board_ms * DOLLARS * NANO // HOUR_MS, {n: row.board_ms for n, row in enumerate(hour.rows)}
    )
    rows = (row._replace(nano=cost[n]) for n, row in enumerate(hour.rows))
    return CapacityCell.of(hour.cluster, hour.model, hour.window, rows)


def quotas(helios: Helios) -> str:
    first = helios.minutes("total_gpu_num").iloc[0]
    rows = [f"  - {{team: {vc}, model: {MODEL}, gpus: {int(first[vc])}}}" for vc in helios.vcs]
    return "\n".join(("version: 1", "name: by quota", "policies:", "  - base: nominal", "quotas:", *rows))


def paid(found: ChargeAccount) -> dict[str, int]:
    return {team: sum(each.nano for each in kinds.values()) for team, kinds in found.by_team().items()}


def cents(nano: int) -> Fraction:
    return round(Fraction(nano, NANO), 2)


def by_hand(helios: Helios, span_minutes: int) -> tuple[dict[str, Fraction], Fraction]:
    """Dollars by virtual cluster, and what stays with nobody: in each span, use and the idle rest in
    proportion to use. From the minutes of the trace, without any of our code."""
    running, total = helios.minutes("running_gpu_num"), helios.minutes("total_gpu_num")
    dollars: dict[str, Fraction] = defaultdict(Fraction)
    kept = Fraction(0)
    for first in range(0, MINUTES, span_minutes):
        span = slice(first, first + span_minutes)
        use = {vc: int(running[vc].iloc[span].sum()) for vc in helios.vcs}
        there = int(total.iloc[span].to_numpy().sum())
        if not sum(use.values()):
            kept += Fraction(there * DOLLARS, 60)
            continue
        for vc, minutes in use.items():
            dollars[vc] += Fraction(there * DOLLARS * minutes, 60 * sum(use.values()))
    return dollars, kept


@pytest.mark.parametrize(("span", "minutes"), [("hour", 60), ("month", MINUTES)])
def test_by_use_with_idle_spread_by_use(
    helios: Helios, cells: list[CapacityCell], span: str, minutes: int
) -> None:
    found = charges(cells, PolicyBook.parse(BY_USE.replace("SPAN", span), "use.yaml"), "USD")
    expected, kept = by_hand(helios, minutes)
    amounts = paid(found)
    assert sorted(amounts.keys() - {PLATFORM}) == helios.vcs
    assert {vc: cents(amounts[vc]) for vc in helios.vcs} == {vc: round(expected[vc], 2) for vc in helios.vcs}
    assert cents(amounts.get(PLATFORM, 0)) == round(kept, 2) == {"hour": 42_800, "month": 0}[span]
    assert (found.difference.board_ms, found.difference.nano) == (0, 0)


def test_by_quota(helios: Helios, cells: list[CapacityCell]) -> None:
    """To the cent: quota x 744 hours x 2 dollars, whoever used what."""
    amounts = paid(charges(cells, PolicyBook.parse(quotas(helios), "quota.yaml"), "USD"))
    first = helios.minutes("total_gpu_num").iloc[0]
    assert {vc: cents(amounts[vc]) for vc in helios.vcs} == {
        vc: int(first[vc]) * 744 * DOLLARS for vc in helios.vcs
    }
    assert amounts.get(PLATFORM, 0) == 0


def test_what_moves_between_the_two(helios: Helios, cells: list[CapacityCell]) -> None:
    """The figures that were published before the code was there: 14.4 % of the bill moves, 11 of 16 virtual
    clusters by more than a quarter."""
    use = PolicyBook.parse(BY_USE.replace("SPAN", "month"), "use.yaml")
    quota = PolicyBook.parse(quotas(helios), "quota.yaml")
    accounts = [charges(cells, book, "USD") for book in (quota, use)]
    names = [(book.title, book.name) for book in (quota, use)]
    found = build_preview(Month(2020, 5), names, accounts, None, {})
    teams = {each.team: each for each in found.teams}
    assert [each.difference.nano for each in found.policies] == [0, 0]
    assert {each.capacity.nano for each in found.policies} == {1_273_728 * NANO}
    used = sum(
        line.amounts[1].nano for each in found.teams for line in each.lines if line.kind == ChargeKind.USED
    )
    assert round(used / NANO) == 849_545
    shown = {
        vc: (round(each.totals[0].nano / NANO), round(each.totals[1].nano / NANO))
        for vc, each in teams.items()
    }
    assert shown["vcJkd"] == (23_808, 303)
    assert shown["vcira"] == (35_712, 1_124)
    assert round(teams["vc6YE"].difference_nano / NANO) == 109_353
    assert round(found.moved_nano / 1_273_728 / NANO, 3) == 0.144
    much = [each for each in found.teams if abs(each.difference_nano) * 4 > each.totals[0].nano]
    assert len(much) == 11
