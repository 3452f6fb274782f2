"""Whatever the policy, the quotas, the cells and their order: charges add up to the capacity."""

from __future__ import annotations

import random
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from gpucost.charges.capacity_cells import cut
from gpucost.charges.charge_account import ChargeAccount, charges
from gpucost.charges.policy_file import PolicyBook
from gpucost.charges.quota_balance import balance
from gpucost.charges.quota_history import PoolQueue, ReservedStretch, unheld
from gpucost.domain.buckets import Bucket
from gpucost.domain.money import NANO
from gpucost.domain.time import iso
from tests.charges.worlds import book, random_book, random_cells, random_reservations

SEEDS = st.integers(0, 2**32 - 1)
HOURS = 3


def world(seed: int) -> tuple[list, ChargeAccount, str]:  # type: ignore[type-arg]
    rng = random.Random(seed)
    cells, text = random_cells(rng, HOURS), random_book(rng, HOURS)
    if rng.random() < 0.7:
        text += f"\n{random_reservations(rng, HOURS)}"
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
    cells, text = random_cells(rng, HOURS), random_book(rng, HOURS)
    policies = book(f"{text}\n{random_reservations(rng, HOURS)}")
    instants = [each.window.start_ms + n * 60_000 for each in cells for n in (1, 7, 30)]
    for whole in cells:
        pieces = list(cut(whole, sorted({*instants})))
        assert (sum(each.board_ms for each in pieces), sum(each.nano for each in pieces)) == (
            whole.board_ms,
            whole.nano,
        )
        for each in pieces:
            quotas = policies.quotas_of(each.cluster, each.model, each.window)
            reservations = policies.reservations_of(each.cluster, each.model, each.window)
            found = balance(each, quotas, policies.cohorts, reservations)
            in_use = sum(row.board_ms for row in each.of_bucket(Bucket.HELD))
            idle = sum(row.board_ms for row in each.of_bucket(Bucket.UNALLOCATED))
            for account in found.accounts:
                assert account.reserved_used + account.reserved_idle + account.lent == account.nominal
                assert min(account.reserved_used, account.reserved_idle, account.lent - account.taken) >= 0
                assert 0 <= account.from_nobody <= account.borrowed
                assert 0 <= account.admitted <= account.reserved_idle
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


@given(SEEDS)
def test_reservations_divide_idle_quota_and_change_nothing_else(seed: int) -> None:
    """Each team, and the platform, pays for idle quota what it would without them, to the nano-unit."""
    rng = random.Random(seed)
    cells, text = random_cells(rng, HOURS), random_book(rng, HOURS)
    more = f"{text}\n{random_reservations(rng, HOURS)}"
    sums = []
    for each in (text, more):
        found: dict[object, list[int]] = {}
        for line in charges(cells, book(each), "USD").lines:
            kind = line.key.kind.value.replace("admitted_not_running", "reserved_idle")
            own = found.setdefault((line.place, *line.key._replace(kind=kind)), [0, 0])  # type: ignore[arg-type]
            own[0], own[1] = own[0] + line.board_ms, own[1] + line.nano
        sums.append(found)
    assert sums[0] == sums[1]


@given(SEEDS)
def test_a_file_of_what_was_not_held_charges_as_one_of_all(seed: int) -> None:
    """Reservations are written only where pods held less. Held time is in whole milliseconds: between two
    instants of a cell that may be off by one."""
    rng = random.Random(seed)
    cells, text = random_cells(rng, HOURS), random_book(rng, HOURS)
    file = book(f"{text}\n{random_reservations(rng, HOURS)}").file
    reserved: dict[PoolQueue, list[ReservedStretch]] = {}
    for each in sorted(file.reservations, key=lambda one: one.start_ms):
        stretch = ReservedStretch(each.start_ms, each.end_ms, Fraction(each.gpus, NANO))
        reserved.setdefault((each.cluster, each.model, each.queue), []).append(stretch)
    written = [
        f"  - {{cluster: {key[0]}, model: {key[1]}, queue: {key[2]}, gpus: {float(each.gpus)}, "
        f'valid_from: "{iso(each.start_ms)}", valid_to: "{iso(each.end_ms)}"}}'
        for key, own in unheld(reserved, cells).items()
        for each in own
    ]
    part = "\n".join((text, "reservations:", *written)) if written else text
    times = []
    for each in (file, book(part).file):
        policies, found = PolicyBook(each), []
        for cell in cells:
            here = cell.cluster, cell.model, cell.window
            balanced = balance(
                cell, policies.quotas_of(*here), policies.cohorts, policies.reservations_of(*here)
            )
            found += [account.admitted for account in balanced.accounts]
        times.append(found)
    assert len(times[0]) == len(times[1])
    assert all(abs(one - other) <= 60 for one, other in zip(*times, strict=True))
