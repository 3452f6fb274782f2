"""Who used a GPU: the rules, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest

from gpucost.contract.gpu_metrics import AttributionMethod, HolderKind
from gpucost_gpu_exporter.metering.accounts import (
    SHARED_OVERHEAD,
    UNALLOCATED,
    UNKNOWN,
    UNMANAGED,
    GpuProcess,
    GpuUser,
    GpuUserWeights,
    held_shares,
    process_weights,
    users,
)
from gpucost_gpu_exporter.metering.process_owners import (
    OUTSIDE,
    UNREADABLE,
    OwnerKind,
    ProcessOwner,
)
from gpucost_gpu_exporter.model.holdings import DeviceHolding, DeviceKey, PodRef

GPU = DeviceKey("GPU-1")
A, B, C = (PodRef("team", name, f"uid-{name}") for name in "abc")
MPS_SERVER = ProcessOwner(OwnerKind.MPS_SERVER, "uid-mps")


def who(pod: PodRef) -> GpuUser:
    return GpuUser(HolderKind.POD, pod)


def owner(pod: PodRef) -> ProcessOwner:
    return ProcessOwner(OwnerKind.POD, pod.uid)


def holds(pod: PodRef, share: Fraction | int = 1) -> DeviceHolding:
    return DeviceHolding(pod, GPU, Fraction(share), "nvidia.com/gpu", ("main",))


def split(
    holdings: Sequence[DeviceHolding] | None, *processes: tuple[ProcessOwner, int | None]
) -> GpuUserWeights:
    """The whole rule, as the meter applies it at one look."""
    return users(holdings, process_weights(holdings, [GpuProcess(*process) for process in processes]))


QUARTERS = (holds(A, Fraction(1, 4)), holds(B, Fraction(1, 4)), holds(C, Fraction(2, 4)))


class TestHeldShares:
    def test_what_nobody_holds_is_unallocated(self) -> None:
        assert held_shares(QUARTERS[:2]) == {
            who(A): Fraction(1, 4),
            who(B): Fraction(1, 4),
            UNALLOCATED: Fraction(1, 2),
        }
        assert held_shares(QUARTERS) == {
            who(A): Fraction(1, 4),
            who(B): Fraction(1, 4),
            who(C): Fraction(1, 2),
        }
        assert held_shares(()) == {UNALLOCATED: 1}

    def test_nobody_knows(self) -> None:
        assert held_shares(None) == {UNKNOWN: 1}

    def test_two_replicas_of_one_pod_are_one_share(self) -> None:
        assert held_shares([holds(A, Fraction(1, 4)), holds(A, Fraction(1, 4))])[who(A)] == Fraction(1, 2)

    def test_more_than_the_device_leaves_nothing_over(self) -> None:
        assert held_shares([holds(A), holds(B, Fraction(1, 2))]) == {who(A): 1, who(B): Fraction(1, 2)}


class TestAlone:
    def test_one_pod_has_all_of_it_exactly(self) -> None:
        assert split([holds(A)], (owner(A), 40)) == GpuUserWeights({who(A): 1}, AttributionMethod.EXACT)

    def test_without_a_process_too(self) -> None:
        assert split([holds(A)]) == GpuUserWeights({who(A): 1}, AttributionMethod.EXACT)
        assert users([holds(A)], None) == GpuUserWeights({who(A): 1}, AttributionMethod.EXACT)

    def test_the_only_holder_of_one_replica_of_four_has_all_the_use(self) -> None:
        assert split(QUARTERS[:1], (owner(A), 40)) == GpuUserWeights({who(A): 1}, AttributionMethod.EXACT)

    @pytest.mark.trap(29)
    def test_it_is_not_billed_for_processes_outside_kubernetes(self) -> None:
        assert split([holds(A)], (owner(A), 30), (OUTSIDE, 10)) == GpuUserWeights(
            {who(A): 30, UNMANAGED: 10}, AttributionMethod.WEIGHTED
        )

    @pytest.mark.trap(29)
    def test_nor_for_a_pod_that_did_not_ask_for_the_gpu(self) -> None:
        assert split([holds(A)], (owner(A), 30), (owner(B), 50)) == GpuUserWeights(
            {who(A): 30, UNMANAGED: 50}, AttributionMethod.WEIGHTED
        )

    @pytest.mark.trap(29)
    def test_nor_for_an_unmanaged_process_that_works_alone(self) -> None:
        assert split([holds(A)], (owner(A), 0), (OUTSIDE, 10)) == GpuUserWeights(
            {UNMANAGED: 10}, AttributionMethod.WEIGHTED
        )

    def test_an_outsider_that_does_nothing_takes_nothing_from_it(self) -> None:
        assert split([holds(A)], (owner(A), 0), (OUTSIDE, 0)) == GpuUserWeights(
            {who(A): 1}, AttributionMethod.EXACT
        )

    def test_a_process_that_cannot_be_read_is_its_own(self) -> None:
        assert split([holds(A)], (UNREADABLE, 10)) == GpuUserWeights({who(A): 1}, AttributionMethod.EXACT)


class TestWeighted:
    def test_in_proportion_to_the_samples(self) -> None:
        found = split(QUARTERS, (owner(A), 60), (owner(B), 15), (owner(A), 5))
        assert found == GpuUserWeights({who(A): 65, who(B): 15}, AttributionMethod.WEIGHTED)

    @pytest.mark.trap(23)
    def test_what_cannot_be_read_is_shared_overhead(self) -> None:
        found = split(QUARTERS, (owner(A), 60), (UNREADABLE, 20))
        assert found == GpuUserWeights({who(A): 60, SHARED_OVERHEAD: 20}, AttributionMethod.WEIGHTED)

    @pytest.mark.trap(29)
    def test_outsiders_are_unmanaged(self) -> None:
        found = split(QUARTERS, (owner(A), 60), (OUTSIDE, 20), (owner(PodRef("x", "y", "uid-y")), 5))
        assert found == GpuUserWeights({who(A): 60, UNMANAGED: 25}, AttributionMethod.WEIGHTED)

    def test_the_order_of_holders_and_processes_is_of_no_matter(self) -> None:
        processes = [(owner(A), 60), (owner(B), 15), (OUTSIDE, 3)]
        assert split(QUARTERS, *processes) == split(QUARTERS[::-1], *processes[::-1])

    @pytest.mark.trap(15)
    def test_a_pod_of_the_same_name_is_another_pod(self) -> None:
        new = A._replace(uid="uid-new")
        found = split(
            [holds(new, Fraction(1, 2)), holds(B, Fraction(1, 2))], (owner(A), 60), (owner(new), 20)
        )
        assert found == GpuUserWeights({who(new): 20, UNMANAGED: 60}, AttributionMethod.WEIGHTED)


class TestEqual:
    @pytest.mark.trap(23)
    def test_no_list_of_processes(self) -> None:
        found = users(QUARTERS, process_weights(QUARTERS, None))
        assert found == GpuUserWeights(
            {who(A): Fraction(1, 4), who(B): Fraction(1, 4), who(C): Fraction(1, 2)}, AttributionMethod.EQUAL
        )

    def test_processes_without_samples_share_among_those_that_have_one(self) -> None:
        found = split(QUARTERS, (owner(A), None), (owner(C), None))
        assert found == GpuUserWeights(
            {who(A): Fraction(1, 4), who(C): Fraction(1, 2)}, AttributionMethod.EQUAL
        )

    def test_no_process_at_all(self) -> None:
        assert split(QUARTERS).weights.keys() == {who(A), who(B), who(C)}
        assert split(QUARTERS).method is AttributionMethod.EQUAL

    @pytest.mark.trap(25)
    def test_an_mps_server_says_nothing_of_its_clients(self) -> None:
        found = split(QUARTERS, (MPS_SERVER, 90), (owner(A), 10))
        assert found == GpuUserWeights(
            {who(A): Fraction(1, 4), who(B): Fraction(1, 4), who(C): Fraction(1, 2)}, AttributionMethod.EQUAL
        )

    def test_pods_whose_uids_nobody_knows_cannot_be_told_apart(self) -> None:
        nameless = [holds(pod._replace(uid=""), Fraction(1, 2)) for pod in (A, B)]
        found = split(nameless, (owner(A), 60))
        assert found.method is AttributionMethod.EQUAL
        assert set(found.weights.values()) == {Fraction(1, 2)}


class TestNobody:
    def test_use_while_nobody_knows_who_holds_it(self) -> None:
        assert split(None, (owner(A), 60)) == GpuUserWeights({UNKNOWN: 1}, AttributionMethod.NONE)

    def test_use_of_a_free_gpu_by_an_outsider_is_unmanaged(self) -> None:
        assert split((), (OUTSIDE, 60)).weights == {UNMANAGED: 60}
        assert split((), (OUTSIDE, None)) == GpuUserWeights({UNMANAGED: 1}, AttributionMethod.EXACT)

    def test_a_free_gpu_with_no_process_is_unallocated(self) -> None:
        assert split(()) == GpuUserWeights({UNALLOCATED: 1}, AttributionMethod.EXACT)
