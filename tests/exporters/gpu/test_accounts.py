"""The counters: whatever is added to a GPU is dealt to holders in the same step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.contract.gpu_metrics import AttributionMethod, GpuMeasure, HolderKind
from gpucost.domain.errors import InputError
from gpucost_gpu_exporter.metering.accounts import (
    UNALLOCATED,
    CounterRow,
    GpuAccounts,
    GpuUser,
)
from gpucost_gpu_exporter.model.holdings import (
    SECOND_NS,
    TICKS_PER_SECOND,
    DeviceKey,
    PodRef,
    dyadic,
    exported,
)
from tests.support.gpu_accounts import differences

GPU, OTHER = DeviceKey("GPU-1"), DeviceKey("GPU-2")
SLICE = DeviceKey("GPU-1", "3")
A, B = (PodRef("team", name, f"uid-{name}") for name in "ab")
KEEP_NS = 600 * SECOND_NS


def row(
    pod: PodRef, device: DeviceKey = GPU, method: AttributionMethod = AttributionMethod.EXACT
) -> CounterRow:
    return CounterRow(GpuUser(HolderKind.POD, pod), device, method)


FREE = CounterRow(UNALLOCATED, GPU, AttributionMethod.EXACT)
ROWS = (row(A), row(B), row(B, method=AttributionMethod.WEIGHTED), FREE)

# Thirty of them stay below 2^39 J, up to which floats carry the amounts without an error.
amounts = st.integers(min_value=0, max_value=10**13)
weights = st.dictionaries(
    st.sampled_from(ROWS), st.fractions(min_value=0, max_value=10**6), min_size=1
).filter(lambda found: any(found.values()))
additions = st.lists(st.tuples(st.sampled_from(GpuMeasure), amounts, weights), max_size=30)


def of_gpu(accounts: GpuAccounts, measure: GpuMeasure) -> int:
    return dyadic(measure, accounts.gpus[GPU][measure])


class TestAdd:
    def test_it_is_dealt_to_the_last_tick(self) -> None:
        accounts = GpuAccounts()
        for _ in range(1000):
            accounts.add(GPU, GpuMeasure.HELD, 333_333_333, {row(A): 1, row(B): 1, FREE: 1})
        parts = [accounts.rows[found][GpuMeasure.HELD] for found in (row(A), row(B), FREE)]
        assert (
            sum(parts) == of_gpu(accounts, GpuMeasure.HELD) == 333_333_333_000 * TICKS_PER_SECOND // SECOND_NS
        )
        assert max(parts) - min(parts) <= 1000
        assert not list(differences(accounts))

    def test_nothing_added_begins_at_0(self) -> None:
        accounts = GpuAccounts()
        accounts.add(GPU, GpuMeasure.HELD, 0, {row(A): 1})
        assert accounts.rows == {row(A): {GpuMeasure.HELD: 0}}
        assert accounts.gpus == {GPU: {GpuMeasure.HELD: 0}}

    def test_a_measure_that_was_never_observed_is_absent(self) -> None:
        accounts = GpuAccounts()
        accounts.add(GPU, GpuMeasure.HELD, SECOND_NS, {row(A): 1})
        assert GpuMeasure.BUSY not in accounts.gpus[GPU]
        assert GpuMeasure.BUSY not in accounts.rows[row(A)]

    @pytest.mark.parametrize("shares", [{row(A): 0, row(B): 0}, {row(A): 2, row(B): -1}, {}])
    def test_weights_that_deal_nothing_change_nothing(self, shares: Mapping[CounterRow, int]) -> None:
        accounts = GpuAccounts()
        accounts.add(GPU, GpuMeasure.HELD, 5, {row(A): 1})
        before = accounts.copy()
        with pytest.raises((InputError, ValueError)):
            accounts.add(GPU, GpuMeasure.HELD, SECOND_NS, shares)
        assert accounts == before

    def test_a_negative_amount_changes_nothing(self) -> None:
        accounts = GpuAccounts()
        with pytest.raises(ValueError, match="negative"):
            accounts.add(GPU, GpuMeasure.HELD, -1, {row(A): 1})
        assert accounts == GpuAccounts()

    @given(additions)
    def test_the_parts_are_the_whole_and_never_fall(
        self, added: list[tuple[GpuMeasure, int, dict[CounterRow, Fraction]]]
    ) -> None:
        accounts = GpuAccounts()
        for measure, base, shares in added:
            before = {found: dict(amounts) for found, amounts in accounts.rows.items()}
            accounts.add(GPU, measure, base, shares)
            assert not list(differences(accounts))
            for found, known in before.items():
                assert all(accounts.rows[found][measure] >= amount for measure, amount in known.items())

    @given(additions)
    def test_as_floats_they_add_up_too_in_any_order(
        self, added: list[tuple[GpuMeasure, int, dict[CounterRow, Fraction]]]
    ) -> None:
        accounts = GpuAccounts()
        for measure, base, shares in added:
            accounts.add(GPU, measure, base, shares)
        for measure, base in accounts.gpus.get(GPU, {}).items():
            parts = [exported(measure, found.get(measure, 0)) for found in accounts.rows.values()]
            whole = exported(measure, dyadic(measure, base))
            assert sum(parts) == sum(reversed(parts)) == whole

    @given(additions)
    def test_the_order_of_the_holders_is_of_no_matter(
        self, added: list[tuple[GpuMeasure, int, dict[CounterRow, Fraction]]]
    ) -> None:
        forward, backward = GpuAccounts(), GpuAccounts()
        for measure, base, shares in added:
            forward.add(GPU, measure, base, shares)
            backward.add(GPU, measure, base, dict(reversed(shares.items())))
        assert forward == backward


class TestRetire:
    @pytest.mark.trap(17)
    def test_a_pods_rows_stay_for_a_while_and_then_only_their_sum(self) -> None:
        accounts = GpuAccounts()
        accounts.saw(A, 0, 0)
        accounts.saw(B, 0, 0)
        accounts.add(GPU, GpuMeasure.HELD, SECOND_NS, {row(A): 1})
        accounts.add(
            GPU, GpuMeasure.HELD, SECOND_NS, {row(A, method=AttributionMethod.WEIGHTED): 1, row(B): 1}
        )
        accounts.add(SLICE, GpuMeasure.BUSY, SECOND_NS, {row(A, SLICE): 1})
        accounts.saw(B, 500_000, 500 * SECOND_NS)
        accounts.retire(KEEP_NS, KEEP_NS)
        assert A in accounts.pods
        accounts.retire(KEEP_NS + 1, KEEP_NS)
        assert set(accounts.pods) == {B}
        assert set(accounts.rows) == {row(B)}
        assert accounts.retired == {
            GPU: {GpuMeasure.HELD: TICKS_PER_SECOND * 3 // 2},
            SLICE: {GpuMeasure.BUSY: TICKS_PER_SECOND},
        }
        assert not list(differences(accounts))

    def test_what_is_retired_adds_up(self) -> None:
        accounts = GpuAccounts()
        for start, pod in enumerate((A, B)):
            accounts.saw(pod, 0, start)
            accounts.add(GPU, GpuMeasure.HELD, SECOND_NS, {row(pod): 1})
            accounts.retire(KEEP_NS + start + 1, KEEP_NS)
        assert accounts.retired == {GPU: {GpuMeasure.HELD: 2 * TICKS_PER_SECOND}}
        assert not list(differences(accounts))

    @pytest.mark.fault(9)
    def test_of_very_many_the_oldest_go_sooner(self) -> None:
        accounts = GpuAccounts()
        pods = [PodRef("team", f"short-{number}", f"uid-{number}") for number in range(30)]
        for number, pod in enumerate(pods):
            accounts.saw(pod, 0, number * 10 * SECOND_NS)
            accounts.add(GPU, GpuMeasure.HELD, SECOND_NS, {row(pod): 1})
        now_ns = 300 * SECOND_NS
        accounts.retire(now_ns, KEEP_NS, most=20)
        assert set(accounts.pods) == set(pods[10:])
        accounts.retire(now_ns, KEEP_NS, most=1)
        # A pod that had the GPU less than two minutes ago is still shown.
        assert set(accounts.pods) == set(pods[18:])
        assert not list(differences(accounts))

    def test_nobody_in_particular_is_never_retired(self) -> None:
        accounts = GpuAccounts()
        accounts.add(GPU, GpuMeasure.HELD, SECOND_NS, {FREE: 1})
        accounts.retire(10**18, KEEP_NS)
        assert set(accounts.rows) == {FREE}

    @pytest.mark.trap(15)
    def test_a_pod_of_the_same_name_has_rows_of_its_own(self) -> None:
        accounts, new = GpuAccounts(), A._replace(uid="uid-new")
        for pod, now_ns in ((A, 0), (new, KEEP_NS)):
            accounts.saw(pod, now_ns // 10**6, now_ns)
            accounts.add(GPU, GpuMeasure.HELD, SECOND_NS, {row(pod): 1})
        accounts.retire(KEEP_NS + 1, KEEP_NS)
        assert accounts.rows == {row(new): {GpuMeasure.HELD: TICKS_PER_SECOND}}
        assert accounts.pods[new].since_ms == KEEP_NS // 10**6


class TestDifferences:
    def test_a_difference_is_told(self) -> None:
        accounts = GpuAccounts()
        accounts.add(GPU, GpuMeasure.BUSY, SECOND_NS, {row(A): 1})
        accounts.add(OTHER, GpuMeasure.BUSY, SECOND_NS, {row(A, OTHER): 1})
        accounts.rows[row(A)][GpuMeasure.BUSY] -= 3
        assert list(differences(accounts)) == [("GPU-1", GpuMeasure.BUSY, 3)]

    def test_energy_is_of_the_board_whatever_instances_it_is_dealt_to(self) -> None:
        accounts = GpuAccounts()
        accounts.add(GPU, GpuMeasure.ENERGY, 1000, {row(A, SLICE): 1, FREE: 2})
        assert not list(differences(accounts))


def filled() -> GpuAccounts:
    accounts = GpuAccounts()
    accounts.saw(A, 1_793_491_200_123, 17)
    accounts.add(GPU, GpuMeasure.HELD, 10**18 + 1, {row(A): 1, FREE: 2})
    accounts.add(SLICE, GpuMeasure.ENERGY, 12_345, {row(B, SLICE, AttributionMethod.WEIGHTED): 1})
    accounts.saw(B, 5, 6)
    accounts.retire(KEEP_NS + 10, KEEP_NS)
    accounts.saw(A, 7, KEEP_NS)
    accounts.throttled_ns["GPU-1", "sw_power_cap"] = 12
    accounts.xids["GPU-1", 79] = 2
    return accounts


def test_through_json() -> None:
    accounts = filled()
    back = GpuAccounts.from_json(json.loads(json.dumps(accounts.to_json())))
    assert back == accounts
    assert {type(measure) for amounts in back.rows.values() for measure in amounts} == {GpuMeasure}


def test_a_copy_is_apart() -> None:
    accounts = filled()
    copy = accounts.copy()
    accounts.add(GPU, GpuMeasure.HELD, SECOND_NS, {FREE: 1})
    accounts.saw(A, 0, 2 * KEEP_NS)
    accounts.xids["GPU-1", 79] += 1
    accounts.throttled_ns.clear()
    accounts.retire(10 * KEEP_NS, KEEP_NS)
    assert copy == filled()
