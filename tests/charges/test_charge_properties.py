"""Whatever the policy, the quotas, the cells and their order: charges add up to the capacity."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gpucost.charges.capacity_cells import cut
from gpucost.charges.charge_account import ChargeAccount, charges
from gpucost.charges.quota_balance import balance
from gpucost.domain.buckets import Bucket
from tests.charges.worlds import book, random_book, random_cells

SEEDS = st.integers(0, 2**32 - 1)
HOURS = 3


def world(seed: int) -> tuple[list, ChargeAccount, str]:  # type: ignore[type-arg]
    rng = random.Random(seed)
    cells, text = random_cells(rng, HOURS), random_book(rng, HOURS)
    return cells, charges(cells, book(text), "USD"), text


@given(SEEDS)
def test_charges_and_what_is_kept_are_the_capacity(seed: int) -> None:
    cells, found, text = world(seed)
    assert (found.difference.board_ms, found.difference.nano) == (0, 0)
    assert found.capacity.board_ms == sum(each.board_ms for each in cells)
    if found.currency == "USD":
        assert found.capacity.nano == sum(each.nano for each in cells)
    assert all(line.nano >= 0 for line in found.lines if line.key.kind.value in ("used", "reserved_idle")), (
        text
    )


@given(SEEDS)
def test_no_order_and_no_division_of_the_asked_time_changes_a_byte(seed: int) -> None:
    cells, found, text = world(seed)
    shuffled = [
        type(each).of(
            each.cluster, each.model, each.window, random.Random(seed).sample(each.rows, len(each.rows))
        )
        for each in random.Random(seed).sample(cells, len(cells))
    ]
    again = charges(shuffled, book(text), "USD")
    assert (again.digest, again.lines) == (found.digest, found.lines)
    if "limits:" in text or "month" in text:
        return  # these are of whole months
    middle = cells[len(cells) // 2].window.start_ms
    halves = [
        charges([each for each in cells if (each.window.start_ms < middle) is early], book(text), "USD")
        for early in (True, False)
    ]
    added: dict[object, list[int]] = {}
    for half in halves:
        for line in half.lines:
            sums = added.setdefault((line.place, line.key), [0, 0])
            sums[0] += line.board_ms
            sums[1] += line.nano
    assert {key: tuple(sums) for key, sums in added.items() if any(sums)} == {
        (line.place, line.key): (line.board_ms, line.nano) for line in found.lines
    }


@given(SEEDS)
def test_kueues_identities_hold_in_every_pool_and_piece_of_time(seed: int) -> None:
    rng = random.Random(seed)
    cells, policies = random_cells(rng, HOURS), book(random_book(rng, HOURS))
    instants = [each.window.start_ms + n * 60_000 for each in cells for n in (1, 7, 30)]
    for whole in cells:
        pieces = list(cut(whole, sorted({*instants})))
        assert (sum(each.board_ms for each in pieces), sum(each.nano for each in pieces)) == (
            whole.board_ms,
            whole.nano,
        )
        for each in pieces:
            quotas = policies.quotas_of(each.cluster, each.model, each.window)
            found = balance(each, quotas, policies.cohorts)
            in_use = sum(row.board_ms for row in each.of_bucket(Bucket.HELD))
            idle = sum(row.board_ms for row in each.of_bucket(Bucket.UNALLOCATED))
            for account in found.accounts:
                assert account.reserved_used + account.reserved_idle + account.lent == account.nominal
                assert min(account.reserved_used, account.reserved_idle, account.lent - account.taken) >= 0
                assert 0 <= account.from_nobody <= account.borrowed
            for tree in ({"left", "right", "root"}, {"alone"}, {None}):
                members = [each for each in found.accounts if each.quota.cohort in tree]
                lent = sum(account.lent - account.taken for account in members)
                assert lent == sum(account.borrowed - account.from_nobody for account in members)
            assert sum(account.nominal for account in found.accounts) <= in_use + idle
            assert sum(account.reserved_idle for account in found.accounts) + found.nobody_idle == idle
            if found.accounts:
                use = sum(account.reserved_used + account.borrowed for account in found.accounts)
                assert use + found.outside == in_use
                own = sum(account.borrowed for account in found.accounts)
                assert sum(found.borrowed_of.values()) == own + found.outside
                taken = sum(account.taken for account in found.accounts)
                unowned = in_use + idle - sum(account.nominal for account in found.accounts)
                nobody = found.outside + sum(account.from_nobody for account in found.accounts)
                assert nobody == unowned - found.nobody_idle + taken
