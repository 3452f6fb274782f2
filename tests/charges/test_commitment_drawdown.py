"""Who draws on which contract, in which order, and that used and unused are what was paid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.charges.commitment_drawdown import (
    OF_COMMITMENT,
    ContractDrawdown,
    DrawEntry,
    DrawKind,
    UsageCell,
    draw_down,
    reads_from,
    schedules_of,
)
from gpucost.charges.contract_terms import ContractBook
from gpucost.domain.errors import InputError
from gpucost.domain.time import HOUR_MS, Window
from tests.charges.contract_worlds import (
    CLUSTERS,
    HOURS,
    MODELS,
    START,
    WINDOW,
    book_of,
    cell,
    contracts,
    drawn,
    hours,
    span,
    usd,
)

DAY = span("2026-10-06", "2026-10-07")
NOON = DAY.start_ms + 12 * HOUR_MS
HOUR = Window(NOON, NOON + HOUR_MS)
OCTOBER = "start: 2026-10-01T00:00:00Z, end: 2026-11-01T00:00:00Z"
Facts = dict[tuple[str, str, str], tuple[int, int | None]]


def facts(entries: Iterable[DrawEntry]) -> Facts:
    """Kind, contract and payer -> GPU-ms and nano."""
    found: dict[tuple[str, str, str], tuple[int, int | None]] = {}
    for entry in entries:
        key = (entry.kind.value, entry.contract, entry.payer)
        board_ms, nano = found.get(key, (0, 0))
        both = None if nano is None or entry.nano is None else nano + entry.nano
        found[key] = (board_ms + entry.board_ms, both)
    return found


def gpu_hours(count: float) -> int:
    return round(count * HOUR_MS)


def test_the_owner_first_then_the_others_in_proportion_then_on_demand() -> None:
    """10 GPUs of vision's contract: vision uses 6, language 6 and speech 2 want the other 4."""
    book = book_of(f"id: r, kind: reservation, gpus: 10, {OCTOBER}, price: 2, owner: vision")
    use = [cell(NOON, "language", 6), cell(NOON, "speech", 2), cell(NOON, "vision", 6)]
    assert facts(drawn(book, use, HOUR).entries) == {
        ("used", "r", "vision"): (gpu_hours(6), usd("12")),
        ("used", "r", "language"): (gpu_hours(3), usd("6")),
        ("used", "r", "speech"): (gpu_hours(1), usd("2")),
        ("on_demand", "", "language"): (gpu_hours(3), usd("12")),
        ("on_demand", "", "speech"): (gpu_hours(1), usd("4")),
    }


def test_owners_draw_on_their_own_before_anybody_draws_on_another_s() -> None:
    """Vision's contract is drawn first, yet language does not take it while its own is free."""
    book = book_of(
        f"id: a, kind: reservation, gpus: 4, {OCTOBER}, price: 2, owner: vision, order: 1",
        f"id: b, kind: reservation, gpus: 4, {OCTOBER}, price: 3, owner: language, order: 2",
    )
    use = [cell(NOON, "language", 5), cell(NOON, "vision", 2)]
    assert facts(drawn(book, use, HOUR).entries) == {
        ("used", "a", "vision"): (gpu_hours(2), usd("4")),
        ("used", "b", "language"): (gpu_hours(4), usd("12")),
        ("used", "a", "language"): (gpu_hours(1), usd("2")),
        ("unused", "a", "vision"): (gpu_hours(1), usd("2")),
    }


@pytest.mark.parametrize(
    ("owner", "unused", "payers"),
    [
        ("owner: vision", "", {"vision": "12"}),
        ("owner: shared", "", {"": "12"}),
        ("owner: vision", ", unused: platform", {"": "12"}),
        ("owner: vision", ", unused: by_use", {"vision": "9", "speech": "3"}),
    ],
)
def test_what_is_not_used_is_paid_by_policy(owner: str, unused: str, payers: dict[str, str]) -> None:
    """Of 10 GPUs 3 and 1 are used, 2 stand idle and 4 were never there: 6 at 2 are 12."""
    book = book_of(f"id: r, kind: reservation, gpus: 10, {OCTOBER}, price: 2, {owner}{unused}")
    use = [cell(NOON, "vision", 3), cell(NOON, "speech", 1), cell(NOON, "", 2)]
    found = drawn(book, use, HOUR)
    paid = Counter[str]()
    for entry in found.entries:
        if entry.kind in (DrawKind.IDLE, DrawKind.UNUSED):
            paid[entry.payer] += entry.nano or 0
    assert paid == {team: usd(amount) for team, amount in payers.items()}
    [total] = found.totals
    assert (total.idle, total.unused) == (gpu_hours(2), gpu_hours(4))
    assert total.used_nano + total.idle_nano + total.unused_nano == total.paid_nano == usd("20")
    idle = [entry for entry in found.entries if entry.kind is DrawKind.IDLE]
    assert sum(entry.price_nano or 0 for entry in idle) == usd("8")
    assert {entry.holder for entry in idle} == {""}


def test_idle_capacity_draws_last_and_is_paid_once() -> None:
    book = book_of(f"id: r, kind: reservation, gpus: 4, {OCTOBER}, price: 2")
    use = [cell(NOON, "", 8), cell(NOON, "vision", 3)]
    assert facts(drawn(book, use, HOUR).entries) == {
        ("used", "r", "vision"): (gpu_hours(3), usd("6")),
        ("idle", "r", ""): (gpu_hours(1), usd("2")),
        ("on_demand", "", ""): (gpu_hours(7), usd("28")),
    }


def test_a_savings_plan_is_drawn_in_money() -> None:
    """10 an hour at 2.5 covers 4 GPU-hours of 6; half of the list price covers 10 / 3 of them."""
    by_price = book_of(f"id: s, kind: savings_plan, spend: 10, price: 2.5, {OCTOBER}")
    use = [cell(NOON, "vision", 6, listed="6")]
    assert facts(drawn(by_price, use, HOUR).entries) == {
        ("used", "s", "vision"): (gpu_hours(4), usd("10")),
        ("on_demand", "", "vision"): (gpu_hours(2), usd("8")),
    }
    by_percent = book_of(f"id: s, kind: savings_plan, spend: 10, percent_off: 50, {OCTOBER}")
    [used, rest] = drawn(by_percent, use, HOUR).entries
    assert (used.board_ms, used.nano, rest.board_ms) == (HOUR_MS * 10 // 3, usd("10"), HOUR_MS * 8 // 3)


def test_use_without_a_price_is_covered_and_its_rest_stays_unknown() -> None:
    book = book_of(f"id: r, kind: reservation, gpus: 1, {OCTOBER}, price: 2")
    unpriced = UsageCell(NOON, "prod", "p5", "H100", "reserved", "vision", "", 3 * HOUR_MS, None, None)
    used, rest = drawn(book, [unpriced], HOUR).entries
    assert (used.nano, used.price_nano, used.list_nano) == (usd("2"), None, None)
    assert (rest.kind, rest.board_ms, rest.nano) == (DrawKind.ON_DEMAND, 2 * HOUR_MS, None)


def test_take_or_pay_beyond_its_floor_and_overage_beyond_its_quantity() -> None:
    """10 GPUs, 8 of them paid used or not at 2: 13 used are 16 + 4 at the price + 3 at 3."""
    book = book_of(f"id: t, kind: neocloud, gpus: 10, price: 2, take_or_pay: 80, overage_price: 3, {OCTOBER}")
    assert facts(drawn(book, [cell(NOON, "vision", 13)], HOUR).entries) == {
        ("used", "t", "vision"): (gpu_hours(8), usd("16")),
        ("at_price", "t", "vision"): (gpu_hours(2), usd("4")),
        ("overage", "t", "vision"): (gpu_hours(3), usd("9")),
    }
    assert facts(drawn(book, [cell(NOON, "vision", 5)], HOUR).entries) == {
        ("used", "t", "vision"): (gpu_hours(5), usd("10")),
        ("unused", "t", ""): (gpu_hours(3), usd("6")),
    }


def test_a_contract_covers_its_scope_only() -> None:
    """Spot and bought hardware only where it says so; accounts by the clusters that they pay for."""
    head = "version: 1\ncurrency: USD\naccounts: [{name: a1, clusters: [prod]}]\n"
    book = book_of(
        f"id: r, kind: reservation, gpus: 99, price: 2, scope: {{accounts: [a1], models: [H100]}}, {OCTOBER}",
        head=head,
    )
    covered = cell(NOON, "vision", 1)
    others = [
        cell(NOON, "vision", 1, model="A100-80GB"),
        cell(NOON, "vision", 1, cluster="test"),
        cell(NOON, "vision", 1, capacity_type="spot"),
        cell(NOON, "vision", 1, capacity_type="owned"),
    ]
    found = facts(drawn(book, [covered, *others], HOUR).entries)
    assert found[("used", "r", "vision")] == (gpu_hours(1), usd("2"))
    assert found[("on_demand", "", "vision")] == (gpu_hours(4), usd("16"))


def test_a_contract_that_begins_in_an_hour_covers_its_part_of_the_use() -> None:
    book = book_of(
        "id: r, kind: reservation, gpus: 8, price: 2, start: 2026-10-06T12:45:00Z, end: 2026-11-01T00:00:00Z"
    )
    assert facts(drawn(book, [cell(NOON, "vision", 4)], HOUR).entries) == {
        ("used", "r", "vision"): (gpu_hours(1), usd("2")),
        ("unused", "r", ""): (gpu_hours(1), usd("2")),
        ("on_demand", "", "vision"): (gpu_hours(3), usd("12")),
    }


def test_one_contract_takes_over_from_another_within_an_hour() -> None:
    book = book_of(
        "id: a, kind: reservation, gpus: 8, price: 2, start: 2026-10-01T00:00:00Z, end: 2026-10-06T12:20:00Z",
        "id: b, kind: reservation, gpus: 8, price: 3, start: 2026-10-06T12:20:00Z, end: 2026-11-01T00:00:00Z",
    )
    found = facts(drawn(book, [cell(NOON, "vision", 6)], HOUR).entries)
    assert {key[:2]: board_ms for key, (board_ms, _) in found.items() if key[0] == "used"} == {
        ("used", "a"): gpu_hours(2),
        ("used", "b"): gpu_hours(4),
    }
    assert not any(kind == "on_demand" for kind, _, _ in found)


YEAR = span("2026-01-01", "2027-01-01")
POOL = (
    "id: pool, kind: neocloud, gpu_hours: 50000, per: term, upfront: 100000.000000007, overage_price: 3, "
    "unused: by_use, start: 2026-01-01T00:00:00Z, end: 2027-01-01T00:00:00Z"
)


def a_year_of_three_teams() -> list[UsageCell]:
    """2, 1 and up to 3 GPUs; vision's by the hour of the day, speech only in the second half."""
    half = YEAR.start_ms + YEAR.length_ms // 2
    found = []
    for hour_ms in hours(YEAR):
        found += [cell(hour_ms, "language", 2), cell(hour_ms, "vision", hour_ms // HOUR_MS % 4)]
        if hour_ms >= half:
            found.append(cell(hour_ms, "speech", "1.7"))
    return found


def test_a_year_of_a_pool_drawn_by_three_teams_is_what_was_paid_at_every_hour() -> None:
    """17,520 + 13,140 + 7,446 of 50,000 GPU-hours: what is left is charged in the last hour."""
    book, use = book_of(POOL), a_year_of_three_teams()
    found = drawn(book, use, YEAR)
    paid, quantity = usd("100000.000000007"), 50_000 * HOUR_MS
    used_nano = used_ms = 0
    by_hour: dict[int, list[DrawEntry]] = {}
    for entry in found.entries:
        by_hour.setdefault(entry.hour_ms, []).append(entry)
    for hour_ms, entries in sorted(by_hour.items()):
        used_ms += sum(e.board_ms for e in entries if e.kind is DrawKind.USED)
        used_nano += sum(e.nano or 0 for e in entries if e.kind is DrawKind.USED)
        unused = [e for e in entries if e.kind is DrawKind.UNUSED]
        # What is left of the money is what is left of the hours, rounded once.
        assert used_nano == paid * used_ms // quantity
        assert bool(unused) == (hour_ms == YEAR.end_ms - HOUR_MS)
        if unused:
            assert used_nano + sum(e.nano or 0 for e in unused) == paid
            assert used_ms + sum(e.board_ms for e in unused) == quantity
            assert {e.payer for e in unused} == {"language", "speech", "vision"}
    [total] = found.totals
    assert (total.used_nano + total.unused_nano, total.left) == (paid, 0)
    assert total.used == gpu_hours(17_520 + 13_140 + 7_446)
    # A month of it: what was drawn before, in it, and what is left are what was paid.
    july = span("2026-07-01", "2026-08-01")
    [part] = drawn(book, use, july).totals
    assert part.before_nano + part.used_nano + part.unused_nano + part.left_nano == part.paid_nano == paid
    assert part.before + part.used + part.unused + part.left == part.committed == quantity
    assert part.before > 0 < part.left


def test_a_pool_that_is_used_up_goes_over_to_its_overage_price() -> None:
    book = book_of(POOL.replace("50000", "10000"))
    found = drawn(book, a_year_of_three_teams(), YEAR)
    [total] = found.totals
    assert (total.used, total.unused, total.used_nano) == (gpu_hours(10_000), 0, usd("100000.000000007"))
    over = [entry for entry in found.entries if entry.kind is DrawKind.OVERAGE]
    assert sum(entry.board_ms for entry in over) == gpu_hours(17_520 + 13_140 + 7_446 - 10_000)
    assert sum(entry.nano or 0 for entry in over) == usd("3") * (17_520 + 13_140 + 7_446 - 10_000)


def test_a_window_that_cuts_an_hour_is_refused() -> None:
    book = book_of(f"id: r, kind: reservation, gpus: 1, {OCTOBER}, price: 2")
    with pytest.raises(InputError, match="whole hours in UTC"):
        drawn(book, [], Window(NOON, NOON + 1))
    with pytest.raises(InputError, match="whole hours in UTC"):
        drawn(book, [cell(NOON + 1)], HOUR)


# --- properties ----------------------------------------------------------------------------------------

CELLS = st.lists(
    st.builds(
        lambda hour, team, board_ms, nano, cluster, model: UsageCell(
            START + hour * HOUR_MS, cluster, "p5", model, "", team, "r", board_ms, nano, nano
        ),
        st.integers(-3, HOURS - 1),
        st.sampled_from(("", "language", "speech", "vision")),
        st.integers(0, 12 * HOUR_MS),
        st.integers(0, 10**11),
        st.sampled_from(CLUSTERS),
        st.sampled_from(MODELS),
    ),
    max_size=40,
)


@given(contracts(), CELLS)
def test_every_gpu_millisecond_and_every_nano_unit_is_dealt_once(
    book: ContractBook, cells: Sequence[UsageCell]
) -> None:
    found = drawn(book, cells, WINDOW)
    counted = [c for c in cells if c.hour_ms >= WINDOW.start_ms]
    lines = [entry for entry in found.entries if entry.kind is not DrawKind.UNUSED]
    assert sum(entry.board_ms for entry in lines) == sum(c.board_ms for c in counted)
    priced = [c for c in counted if c.board_ms]
    for name in ("price_nano", "list_nano"):
        assert sum(getattr(entry, name) for entry in lines) == sum(c.nano or 0 for c in priced)
    for total in found.totals:
        of = [entry for entry in found.entries if entry.contract == total.contract]
        assert total.committed == total.before + total.used + total.idle + total.unused + total.left
        parts = (total.before_nano, total.used_nano, total.idle_nano, total.unused_nano, total.left_nano)
        assert total.paid_nano == sum(parts)
        assert min(parts) >= 0 <= min(total.used, total.idle, total.unused, total.left)
        recognised = sum(entry.nano or 0 for entry in of if entry.kind in OF_COMMITMENT)
        assert recognised == total.used_nano + total.idle_nano + total.unused_nano
        assert total.covered_board_ms <= total.eligible_board_ms


@given(contracts(), CELLS, st.randoms(use_true_random=False))
def test_the_order_of_use_and_of_contracts_changes_no_byte(
    book: ContractBook, cells: list[UsageCell], random: object
) -> None:
    shuffled = list(cells)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    rows = list(book.file.contracts)
    random.shuffle(rows)  # type: ignore[attr-defined]
    other = ContractBook(book.file.model_copy(update={"contracts": tuple(rows)}))
    assert repr(drawn(other, shuffled, WINDOW)) == repr(drawn(book, cells, WINDOW))


@given(contracts(), CELLS, st.sets(st.integers(1, HOURS - 1), max_size=4))
def test_splitting_the_window_changes_no_byte(
    book: ContractBook, cells: Sequence[UsageCell], cuts: set[int]
) -> None:
    edges = [WINDOW.start_ms, *(START + cut * HOUR_MS for cut in sorted(cuts)), WINDOW.end_ms]
    parts: list[ContractDrawdown] = [drawn(book, cells, Window(a, b)) for a, b in pairwise(edges)]
    whole = drawn(book, cells, WINDOW)
    assert repr([entry for part in parts for entry in part.entries]) == repr(list(whole.entries))
    for name in ("used", "idle", "unused", "used_nano", "unused_nano", "eligible_board_ms"):
        for n, total in enumerate(whole.totals):
            assert sum(getattr(part.totals[n], name) for part in parts) == getattr(total, name), name
    for part in parts:
        inside = [c for c in cells if c.hour_ms >= part.window.start_ms]
        assert draw_down(book.file, schedules_of(book.in_force), inside, part.window, part.before) == part


@given(contracts(), CELLS)
def test_use_before_the_oldest_period_makes_no_difference(
    book: ContractBook, cells: Sequence[UsageCell]
) -> None:
    first = reads_from(schedules_of(book.in_force), WINDOW)
    known = [c for c in cells if c.hour_ms >= first]
    assert drawn(book, known, WINDOW) == drawn(book, cells, WINDOW)
