"""kube-scheduler's preemption in an answer: whether pods may preempt others, which ones, what is unknown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpucost.advisor.model.answers import AdviceSubject, PreemptionVictim, pods_named
from gpucost.advisor.placement.free_capacity import FreeCapacity
from gpucost.advisor.placement.gang_placement import GangPlacement
from gpucost.advisor.placement.pod_demand import PlacementDemand
from gpucost.advisor.placement.preemption import PodPreemption, evictable, preempt
from gpucost.advisor.request.context import LEAST_PRIORITY, AdvisorContext
from gpucost.advisor.request.scheduling_request import SchedulingRequest
from gpucost.cluster.objects.pods import PREEMPTED_BY_SCHEDULER, Pod, PodSet
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import DisruptionMode, GroupKind
from gpucost.cluster.views.group_trees import MOST_LEVELS
from gpucost.cluster.views.queue_order import (
    OF_PODS,
    class_named,
    default_class,
    pod_classes,
    pod_priority,
)
from gpucost.domain.jobs import JobKind

PREEMPTS_PODS = "PreemptsPods"
PREEMPTION_NOT_KNOWN = "PreemptionNotKnown"
_OF_KUBERNETES = ("", "default-scheduler")
_FOUND_NOBODY = "preemption: 0/"
"""In the message of PodScheduled, before the number of nodes that would do (kubernetes v1.36, preemption.go,
Preempt)."""
_HIGHEST = 2**31 - 1
"""Used where the priority is not known: to see whether it would matter at all."""
BY_DEFAULT = (
    "kube-scheduler preempts as it does by default (DefaultPreemption): its configuration is not read"
)
BUDGETS_UNREAD = "PodDisruptionBudgets could not be read: whom they would spare is not known"
BY_TOPOLOGY = (
    "Kueue's topology-aware scheduling gives its pods nodes that have room: they preempt nobody there"
)


def claimed(
    known: AdvisorContext, asking: SchedulingRequest, pod_set: PodSet, wanted: PlacementDemand
) -> PlacementDemand:
    """``wanted`` with the right of its pods to preempt others. That of pods that exist is what they were made
    with; of others what their PriorityClass gives them (kubernetes v1.36,
    plugin/pkg/admission/priority/admission.go). None preempts where Volcano or a topology of Kueue places
    them, and none that asks for devices through claims: these are not given back by preemption."""
    state, template = known.state, pod_set.template
    pods = asking.waiting.get(pod_set.name, ())
    in_group = _never_by_group(known, asking)
    name = template.priority_class
    if pods:
        priority, never = pods[0].priority, template.never_preempts
    else:
        found = class_named(pod_classes(state), name) if name else default_class(state)
        priority = _HIGHEST if _is_class_unknown(known, name) else pod_priority(state, name)
        never = template.never_preempts or (found is not None and found.never_preempts)
    is_placed = asking.gang is not None or bool(wanted.levels or wanted.topology)
    preempts = not (never or in_group or is_placed or template.claims or wanted.conflict)
    nominated = tuple(pod.nominated for pod in pods if pod.nominated)
    return replace(wanted, priority=priority, preempts=preempts, nominated=nominated)


def priority_of(wanted: Sequence[PlacementDemand]) -> int:
    """The least of what its pods have for certain."""
    known = [each.priority for each in wanted if each.priority != _HIGHEST]
    return min(known, default=0) if len(known) == len(wanted) else LEAST_PRIORITY


def preempted(
    known: AdvisorContext,
    rooms: FreeCapacity,
    wanted: Sequence[PlacementDemand],
    found: GangPlacement,
    gone: frozenset[str],
) -> PodPreemption | None:
    """What kube-scheduler would do for pods without a node; None where it would preempt no pod."""
    if found.fits or not found.is_exact or not any(each.preempts for each in wanted):
        return None
    budgets = known.state.disruption_budgets.values()
    done = preempt(rooms, wanted, found, budgets, known.state.at_ms, gone)
    if not done.victims:
        return None
    more = _stopped_with(known, done.victims)
    return replace(done, victims=(*done.victims, *more), together=len(more))


def _stopped_with(known: AdvisorContext, chosen: Sequence[Pod]) -> tuple[Pod, ...]:
    """The other pods of the gangs among the victims that are preempted as a whole (``disruptionMode: all``;
    kubernetes v1.37, scheduling/v1beta1 types.go), in the order of the state."""
    state = known.state
    units = {_unit(state, pod) for pod in chosen if pod.group} - {""}
    if not units:
        return ()
    uids = {pod.meta.uid for pod in chosen}
    others = (pod for pod in state.pods.values() if pod.group and pod.is_bound and pod.meta.uid not in uids)
    return tuple(pod for pod in others if _unit(state, pod) in units)


def _unit(state: ClusterState, pod: Pod) -> str:
    """The uid of the largest group around a pod of which all is preempted at once; empty for none."""
    group = state.pod_group_by_name.get((GroupKind.NATIVE.value, pod.meta.namespace, pod.group))
    if group is None or group.disruption is not DisruptionMode.ALL:
        return ""
    uid, parent = group.meta.uid, group.parent
    for _ in range(MOST_LEVELS):
        above = state.composite_group_by_name.get((pod.meta.namespace, parent))
        if above is None or above.disruption is not DisruptionMode.ALL:
            break
        uid, parent = above.meta.uid, above.parent
    return uid


def _never_by_group(known: AdvisorContext, asking: SchedulingRequest) -> bool:
    """Whether the PodGroup of its pods says that they preempt nobody: then it decides, not their own policy
    (``preemptionPolicy``, kubernetes v1.37). All groups of a tree must say the same."""
    key = (GroupKind.NATIVE.value, asking.subject.namespace, asking.pod_group)
    group = known.state.pod_group_by_name.get(key) if asking.pod_group else None
    return group is not None and group.never_preempts


def doubt(known: AdvisorContext, asking: SchedulingRequest, wanted: Sequence[PlacementDemand]) -> str:
    """Why it is not known whether its pods preempt others; empty where kube-scheduler's rules decide it."""
    other = next((each.template.scheduler for each in wanted if not _is_default(each)), "")
    if other:
        return f"scheduler {other} places its pods, and whom that preempts is not known"
    if asking.pod_group and not _never_by_group(known, asking):
        return "its pods are in a PodGroup, and how that preempts others is not known"
    named = {each.template.priority_class for each in wanted}
    unread = sorted(name for name in named if not asking.waiting and _is_class_unknown(known, name))
    if unread:
        return f"PriorityClass {unread[0]}, which it names, could not be read"
    if any(_FOUND_NOBODY in pod.waiting.message for pod in _waiting(asking) if pod.waiting is not None):
        return "kube-scheduler found nobody to preempt for it when it looked last"
    if any(each.template.has_pod_affinity for each in wanted):
        return "rules about other pods or spreading decide whom its pods preempt: they are not evaluated"
    return ""


def passed(
    known: AdvisorContext, asking: SchedulingRequest, rooms: FreeCapacity, wanted: Sequence[PlacementDemand]
) -> frozenset[str]:
    """Uids of pods that occupy nodes only until preempting them makes enough room."""
    return frozenset() if doubt(known, asking, wanted) else evictable(rooms, wanted)


def victims(known: AdvisorContext, done: PodPreemption) -> tuple[PreemptionVictim, ...]:
    """In the order in which they are preempted."""
    return tuple(_victim(known, pod) for pod in done.victims)


def stopped_ms(gone: Sequence[PreemptionVictim]) -> int | None:
    """How long they may take to stop, all together, in ms; None where that is not known of one of them."""
    times = [each.grace_ms for each in gone]
    return max((each for each in times if each is not None), default=0) if None not in times else None


def remarks(done: PodPreemption) -> Iterator[str]:
    """Remarks on the choice of the victims, for the answer."""
    if done.broken:
        one = "1 of them is" if done.broken == 1 else f"{done.broken:,} of them are"
        yield (
            f"placement: {one} under a PodDisruptionBudget that allows no more: where it finds nobody else, "
            "kube-scheduler keeps to none"
        )
    if done.is_sampled:
        yield (
            "placement: kube-scheduler looks at a part of the nodes that would do, from a random one on: "
            "others may be preempted in their place"
        )
    elif done.is_drawn:
        yield (
            "placement: another node would do as well, and kube-scheduler takes either: others may be "
            "preempted in their place"
        )
    if done.together:
        yield (
            f"placement: {done.together:,} of them only because their gang is preempted as a whole "
            "(disruptionMode all); kube-scheduler weighs such a gang as one: others may be preempted in its "
            "place"
        )


def assumed(known: AdvisorContext) -> tuple[str, ...]:
    unread = known.state.is_unread("disruption_budgets")
    return (BY_DEFAULT, BUDGETS_UNREAD) if unread else (BY_DEFAULT,)


def makes_room(gone: Sequence[PreemptionVictim]) -> str:
    """``by preempting 2 pods of lower priority (a/x, a/y)``."""
    return f"by preempting {pods_named(gone)}"


def _waiting(asking: SchedulingRequest) -> Iterator[Pod]:
    for pods in asking.waiting.values():
        yield from pods


def _is_default(each: PlacementDemand) -> bool:
    return each.template.scheduler in _OF_KUBERNETES


def _is_class_unknown(known: AdvisorContext, name: str) -> bool:
    return bool(name) and known.state.is_unread(OF_PODS)


def _victim(known: AdvisorContext, pod: Pod) -> PreemptionVictim:
    leaving_ms = pod.meta.deleted_ms
    grace_ms = pod.grace_ms if leaving_ms is None else max(0, leaving_ms - known.state.at_ms)
    return PreemptionVictim(
        AdviceSubject(JobKind.POD.value, pod.meta.namespace, pod.meta.name, pod.meta.uid),
        known.overview.ownership.of(pod).cluster_queue,
        pod.priority,
        PREEMPTED_BY_SCHEDULER,
        known.overview.units.of(pod),
        leaving_ms is not None,
        pod.node,
        grace_ms,
    )
