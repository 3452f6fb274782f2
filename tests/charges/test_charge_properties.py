"""Whatever the policy, the quotas, the cells and their order: charges add up to the capacity."""

from __future__ import annotations

import random
from fractions import Fraction

import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpucost.charges.capacity_cells import cut
from gpucost.charges.cell_charges import PLATFORM, ChargeKind
from gpucost.charges.charge_account import ChargeAccount, charges, commitment_lines
from gpucost.charges.commitment_drawdown import UsageCell
from gpucost.charges.commitment_report import report_commitments
from gpucost.charges.contract_terms import ContractBook
from gpucost.charges.policy_file import PolicyBook
from gpucost.charges.quota_balance import balance
from gpucost.charges.quota_history import PoolQueue, ReservedStretch, unheld
from gpucost.domain.buckets import Bucket
from gpucost.domain.money import NANO
from gpucost.domain.time import HOUR_MS, Month, Window, iso
from tests.charges.contract_worlds import contracts, drawn
from tests.charges.worlds import START_MS, book, random_book, random_cells, random_reservations

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


@given(SEEDS)
def test_what_the_file_lists_first_changes_no_byte(seed: int) -> None:
    """Policies, quotas, cohorts, reservations, limits, rates and names in any order."""
    cells, found, text = world(seed)
    rng, parts = random.Random(seed), yaml.safe_load(text)
    shuffled = {key: rng.sample(each, len(each)) for key, each in parts.items() if isinstance(each, list)}
    for policy in shuffled["policies"]:
        for key in {"access", "overhead_teams", "discounts"} & {*policy}:
            policy[key] = rng.sample(policy[key], len(policy[key]))
    again = charges(cells, book(yaml.safe_dump(parts | shuffled)), "USD")
    assert (again.digest, again.lines, again.quotas, again.spreads) == (
        found.digest,
        found.lines,
        found.quotas,
        found.spreads,
    )


@given(SEEDS)
def test_shares_of_nobodys_time_are_a_whole_times_a_weight(seed: int) -> None:
    """They add up to it, and to the charges of their kind; dealt out once they are the part of the weight, up
    to one millisecond and nano-unit."""
    _, found, _ = world(seed)
    dealt: dict[object, list[int]] = {}
    for key, use in found.spreads:
        assert sum(each.weight_ms for each in use.teams.values()) == use.weight_ms > 0
        assert sum(each.amount.board_ms for each in use.teams.values()) == use.amount.board_ms
        assert sum(each.amount.nano for each in use.teams.values()) == use.amount.nano
        for team, share in use.teams.items():
            own = dealt.setdefault((team, key.kind), [0, 0])
            own[0], own[1] = own[0] + share.amount.board_ms, own[1] + share.amount.nano
            if use.parts == 1:
                exact = Fraction(share.weight_ms) / use.weight_ms
                assert abs(share.amount.board_ms - use.amount.board_ms * exact) < 1
                assert abs(share.amount.nano - use.amount.nano * exact) < 1
    spread = {ChargeKind.NOBODYS_IDLE, ChargeKind.UNAVAILABLE, ChargeKind.UNKNOWN, ChargeKind.OVERHEAD}
    charged = {
        (team, kind): [each.board_ms, each.nano]
        for team, kinds in found.by_team().items()
        for kind, each in kinds.items()
        if kind in spread and team != PLATFORM and (each.board_ms or each.nano)
    }
    assert {key: sums for key, sums in dealt.items() if any(sums)} == charged


@given(SEEDS)
def test_lent_is_borrowed_in_every_tree_of_cohorts_by_what_statements_say(seed: int) -> None:
    """Where every quota has a team that pays for it."""
    _, found, text = world(seed)
    trees: dict[str, int] = {"": 0, "alone": 0, "root": 0}
    for key, use in found.quotas:
        assert use.used_board_ms + use.idle_board_ms + use.lent_board_ms == use.nominal_board_ms
        assert use.nominal_board_ms <= use.asked_board_ms
        tree = key.cohort if key.cohort in trees else "root"
        trees[tree] += use.lent_board_ms - use.taken_board_ms - use.borrowed_board_ms + use.unlent_board_ms
    if "{shared: true" not in text:
        assert trees == {"": 0, "alone": 0, "root": 0}


@given(SEEDS, contracts())
def test_random_contracts_inside_charges_conserve(seed: int, terms: ContractBook) -> None:
    """What contracts change of what teams pay, the platform keeps with the other sign, to the nano-unit; and
    no order of what was used changes a byte."""
    rng = random.Random(seed)
    cells, text = random_cells(rng, HOURS), random_book(rng, HOURS).replace("currency: EUR", "currency: USD")
    policies = book(text.replace("  - {from: USD", "  - {from: GBP"))
    span = Window(START_MS, START_MS + HOURS * HOUR_MS)
    used = [
        UsageCell(
            hour_ms=each.window.start_ms,
            cluster=each.cluster,
            pool="",
            model=each.model,
            capacity_type=row.capacity_type or "on-demand",
            team=row.team,
            rate_id=str(n),
            board_ms=row.board_ms,
            list_nano=None if row.unpriced_ms else row.nano,
            nano=None if row.unpriced_ms else row.nano,
        )
        for each in cells
        for n, row in enumerate(each.rows)
    ]
    found = []
    for usage in (used, rng.sample(used, len(used))):
        report = report_commitments(terms, usage, span)
        assert report.difference_nano == 0
        lines = commitment_lines(Month(2026, 10), drawn(terms, usage, span).entries, terms, policies)
        assert sum(line.nano for line in lines) == 0
        overhead = {team for policy in policies.file.policies for team in policy.overhead_teams}
        sums = {(line.key.team, str(line.key.kind)): line.nano for line in lines}
        for each in report.teams:
            if each.team and each.team not in overhead:
                changed = each.effective_nano - each.unused_nano - each.contracted_nano
                assert sums.get((each.team, "commitment"), 0) == changed
                assert sums.get((each.team, "unused_commitment"), 0) == each.unused_nano
        found.append(charges(cells, policies, "USD", lines))
        assert (found[-1].difference.board_ms, found[-1].difference.nano) == (0, 0)
        effective = sum(each.effective_nano for each in report.teams)
        assert report.total.effective_nano == effective
    assert found[0].digest == found[1].digest
