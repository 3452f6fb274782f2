"""What holds of Kueue's rules in any cluster."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gpucost.advisor.kueue.admission import KueueView
from gpucost.advisor.kueue.answer import kueue_answer
from gpucost.advisor.kueue.cycle import NominatedHead, nominate
from gpucost.advisor.kueue.flavor_assigner import AssignmentMode
from gpucost.advisor.kueue.pending_queues import lines
from gpucost.advisor.kueue.preemption import (
    FAIR_SHARING,
    IN_QUEUE,
    RECLAMATION,
    WHILE_BORROWING,
    VictimSearch,
    is_within_nominal,
)
from gpucost.advisor.kueue.snapshot import KueueSnapshot, QuotaMember
from gpucost.advisor.model.answers import SchedulingDecision
from gpucost.advisor.model.cycle_results import CycleOutcome, PendingClass
from gpucost.cluster.objects.kueue import ClusterQueuePreemption, FlavorFungibility, WorkloadState
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.overview import ClusterOverview
from tests.advisor.cases_random import clusters, reordered
from tests.advisor.kueue_runs import (
    accounts,
    cycle_of,
    members,
    nominee,
    outlook_of,
    usages,
    with_quota,
)

some = settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def _heads(snapshot: KueueSnapshot) -> Iterator[NominatedHead]:
    for line in lines(snapshot).by_queue.values():
        yield nominate(snapshot, line[0])


def _snapshot(state: ClusterState) -> KueueSnapshot:
    return KueueSnapshot(state, state.schedulers.kueue)


@some
@given(clusters(most_pending=1, evicted=False))
def test_an_admission_alone_keeps_every_limit(state: ClusterState) -> None:
    result = cycle_of(state)
    for name, decision in result.decisions.items():
        if decision.outcome is not CycleOutcome.ADMITTED:
            continue
        found = nominee(state, name)
        assert decision.preempts == ()
        for key, amount in found.assignment.usage.items():
            queue = accounts(state, key)[found.queue.name]
            assert queue.is_kept_to, "the cluster is within its quota before"
            queue.used += amount
            assert queue.is_kept_to or not amount
            assert queue.total_used <= queue.most


@some
@given(clusters(most_pending=1, above_quota=True))
def test_quota_adds_up_as_it_does_the_plain_way(state: ClusterState) -> None:
    snapshot = _snapshot(state)
    for key in {key for queue in state.cluster_queues.values() for key in queue.quotas}:
        for name, account in accounts(state, key).items():
            node, of = snapshot.queues[name].node, account
            while True:
                assert node.subtree.get(key, 0) == of.subtree
                assert node.usage.get(key, 0) == of.total_used
                assert node.potential(key) == of.most
                if node.parent is None or of.above is None:
                    assert node.parent is None
                    assert of.above is None
                    break
                node, of = node.parent, of.above


@some
@given(clusters(most_pending=1, above_quota=True), st.integers(1, 12))
def test_available_is_the_most_that_breaks_no_limit(state: ClusterState, amount: int) -> None:
    """Unless something is above its limits already: then quota that no other queue may use is still there."""
    snapshot = _snapshot(state)
    for key in {key for queue in state.cluster_queues.values() for key in queue.quotas}:
        for name, account in accounts(state, key).items():
            if account.is_kept_to:
                account.used += amount
                assert (amount <= snapshot.queues[name].node.available(key)) is account.is_kept_to
                account.used -= amount


@some
@given(clusters(above_quota=True, preemption=True))
def test_victims_are_minimal(state: ClusterState) -> None:
    snapshot = _snapshot(state)
    for found in _heads(snapshot):
        if not found.targets:
            continue
        search = VictimSearch(
            snapshot, found.queue, found.ask, found.assignment.contested, found.assignment.usage
        )
        gone = [each.member for each in found.targets]
        assert len({each.uid for each in gone}) == len(gone)
        rules = [True] if state.schedulers.kueue.fair_sharing else [True, False]
        assert any(_is_minimal(search, gone, may_borrow) for may_borrow in rules)


def _is_minimal(search: VictimSearch, gone: list[QuotaMember], may_borrow: bool) -> bool:
    """Whether it fits without these, and with any one of them back does not."""
    with search.snapshot.without(gone):
        if not search.fits(may_borrow):
            return False
    for back in gone:
        with search.snapshot.without([each for each in gone if each is not back]):
            if search.fits(may_borrow):
                return False
    return True


@some
@given(clusters(above_quota=True, preemption=True))
def test_policies_allow_every_victim(state: ClusterState) -> None:
    snapshot = _snapshot(state)
    for found in _heads(snapshot):
        for target in found.targets:
            _is_allowed(snapshot, found, target.member, target.reason)


def _is_allowed(snapshot: KueueSnapshot, found: NominatedHead, member: QuotaMember, reason: str) -> None:
    policy, ask = found.queue.spec.preemption, found.ask
    holder = snapshot.queues[member.queue]
    contested = found.assignment.contested
    assert any(member.usage.get(key) for key in contested)
    is_lower = member.priority < ask.priority
    if holder is found.queue:
        assert reason == IN_QUEUE
        is_newer = member.priority == ask.priority and member.queued_ms > ask.queued_ms
        may = {"LowerPriority": is_lower, "LowerOrNewerEqualPriority": is_lower or is_newer}
        assert may.get(policy.within_cluster_queue, False)
        return
    assert {"LowerPriority": is_lower, "Any": True}.get(policy.reclaim_within_cohort, False)
    assert not is_within_nominal(holder.node, contested)
    if reason == WHILE_BORROWING:
        assert policy.borrow_within_cohort == "LowerPriority"
        threshold = policy.max_priority_threshold
        assert is_lower
        assert threshold is None or member.priority <= threshold
    else:
        fair = snapshot.config.fair_sharing
        assert reason in ((FAIR_SHARING, RECLAMATION) if fair else (RECLAMATION,))


@some
@given(clusters(above_quota=True))
def test_who_has_quota_preempts_nobody(state: ClusterState) -> None:
    result = cycle_of(state)
    takers = {each.preempted_by for each in result.decisions.values()} - {""}
    for name, decision in result.decisions.items():
        if decision.outcome is CycleOutcome.ADMITTED:
            assert decision.preempts == ()
            assert name not in takers
        elif decision.outcome is CycleOutcome.PREEMPTING:
            assert decision.preempts
            found = nominee(state, name)
            assert found.assignment.mode is AssignmentMode.PREEMPT
            assert not found.queue.fits(found.assignment.usage)
    for found in _heads(_snapshot(state)):
        if found.assignment.mode is AssignmentMode.FIT:
            assert found.targets == []


@some
@given(clusters(most_pending=1, preemption=True, partial=False))
def test_the_right_to_preempt_does_not_make_one_preempt(state: ClusterState) -> None:
    """With flavors after the one that needs preemption looked at, and the mode first."""

    def with_policy(policy: ClusterQueuePreemption | None) -> ClusterState:
        queues = {
            uid: replace(
                spec,
                preemption=policy or spec.preemption,
                fungibility=FlavorFungibility(spec.fungibility.when_can_borrow, "TryNextFlavor"),
            )
            for uid, spec in state.cluster_queues.items()
        }
        return replace(state, cluster_queues=queues)

    meek, bold = cycle_of(with_policy(ClusterQueuePreemption())), cycle_of(with_policy(None))
    for name, decision in meek.decisions.items():
        if decision.outcome is CycleOutcome.ADMITTED:
            assert bold.decisions[name].outcome is CycleOutcome.ADMITTED
            assert all(each.outcome is not CycleOutcome.PREEMPTED for each in bold.decisions.values())


@some
@given(clusters(), st.data())
def test_more_quota_never_turns_now_into_never(state: ClusterState, data: st.DataObject) -> None:
    pending = [each for each in state.workloads.values() if each.state is WorkloadState.PENDING]
    assume(pending)
    workload = data.draw(st.sampled_from(sorted(pending, key=lambda each: each.meta.uid)))
    before = outlook_of(state, workload.meta.uid)
    assume(before.fits_empty)
    queue = state.cluster_queue_by_name[workload.meta.namespace]
    key = data.draw(st.sampled_from(sorted(queue.quotas)))
    more, old = data.draw(st.sampled_from([1, 2, 4, 8])), queue.quotas[key]
    quota = replace(old, nominal=old.nominal + more)
    if old.borrowing_limit is not None and data.draw(st.booleans()):
        quota = replace(old, borrowing_limit=data.draw(st.sampled_from([None, old.borrowing_limit + more])))
    changed = with_quota(state, queue.name, key, quota)
    assert outlook_of(changed, workload.meta.uid).fits_empty
    view = KueueView(changed, changed.schedulers.kueue)
    assert kueue_answer(view, ClusterOverview(changed), [workload]).decision is not SchedulingDecision.NEVER


@some
@given(clusters(above_quota=True), st.integers(0, 2**16))
def test_the_order_of_input_does_not_matter(state: ClusterState, seed: int) -> None:
    first, second = cycle_of(state), cycle_of(reordered(state, seed))
    assert dict(first.decisions) == dict(second.decisions)
    assert first == second


@some
@given(clusters(above_quota=True))
def test_a_snapshot_is_as_it_was_before(state: ClusterState) -> None:
    before_state = deepcopy(state)
    view = KueueView(state, state.schedulers.kueue)
    usage, held = usages(view.snapshot), members(view.snapshot)
    for line in lines(view.snapshot).by_queue.values():
        for ask in line:
            first = view.outlook(ask)
            view.nominated_alone(ask)
            nominate(view.snapshot, ask)
            assert usages(view.snapshot) == usage
            assert members(view.snapshot) == held
            again = view.outlook(ask)
            assert (again.admitted, again.victims, again.message) == (
                first.admitted,
                first.victims,
                first.message,
            )
    assert state == before_state


@some
@given(clusters())
def test_the_outlook_agrees_with_one_cycle(state: ClusterState) -> None:
    result = cycle_of(state)
    for name, decision in result.decisions.items():
        if decision.outcome is not CycleOutcome.ADMITTED:
            continue
        found = outlook_of(state, name)
        assert found.admitted
        assert found.fits_empty
        assert found.victims == ()
        assert found.ahead == 0
        assert found.nominee is not None
        assert found.nominee.assignment.assigned == decision.pod_sets


@some
@given(clusters(above_quota=True))
def test_a_glance_never_says_no_to_who_fits(state: ClusterState) -> None:
    view = KueueView(state, state.schedulers.kueue)
    for line in lines(view.snapshot).by_queue.values():
        for ask in line:
            found = nominate(view.snapshot, ask)
            if found.assignment.mode is AssignmentMode.FIT and found.queue.fits(found.assignment.usage):
                assert view.glance.may_fit(ask)


@some
@given(clusters(evicted=False))
def test_who_fits_no_empty_cluster_is_never_said_to_fit(state: ClusterState) -> None:
    for name, workload in state.workloads.items():
        if workload.state is WorkloadState.PENDING:
            alone = replace(state, workloads={name: workload})
            decision = cycle_of(alone).decisions[name]
            fits = decision.outcome is CycleOutcome.ADMITTED
            assert fits or decision.pending is PendingClass.NO_FIT
            assert outlook_of(alone, name).admitted is fits
            crowded = outlook_of(state, name)
            assert crowded.fits_empty is (fits or crowded.admitted)
