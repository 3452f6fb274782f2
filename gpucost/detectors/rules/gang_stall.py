"""Gangs that hold GPUs and make no progress: members are missing, or one is far behind the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpucost.cluster.objects.jobs import JobObject
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.volcano import DisruptionMode, GroupKind, PodGroup
from gpucost.cluster.views.commands import kubectl
from gpucost.cluster.views.gangs import PodGang
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.wait_causes import pod_reason
from gpucost.contract.queue_metrics import GangKind
from gpucost.detectors.allocation_pieces import (
    LEAST_COVERAGE,
    AllocationPiece,
    amount,
    boards_at,
    hours,
    lasting,
    pieces,
    since,
    stop_action,
    with_names,
    within,
)
from gpucost.detectors.findings import (
    FindingAction,
    FindingDraft,
    FindingEvidence,
    FindingSubject,
    RuleDetection,
    SubjectKind,
    TeamView,
    WasteEpisode,
    WastePattern,
    WithheldFinding,
)
from gpucost.detectors.inputs.detector_facts import DetectorFacts
from gpucost.detectors.inputs.job_tables import StragglerPod, stragglers
from gpucost.detectors.inputs.view_times import of_episodes
from gpucost.detectors.rule_settings import GangStallSettings, ScopedSettings
from gpucost.domain.buckets import Waste
from gpucost.domain.jobs import JobKind, WorkloadClass, workload_class
from gpucost.settings.types import milliseconds

NAME = WastePattern.GANG_STALL
_PULLING = frozenset({"ContainerCreating", "PodInitializing"})
_CONDITION = "condition PodScheduled of the pods"
_IN_THE_WAY, _SCHEDULER = "in each other's way with", "the scheduler says"
_OF_OTHERS = frozenset({_IN_THE_WAY, _SCHEDULER})
_AT_ONCE = {DisruptionMode.SINGLE: "one member, or one group", DisruptionMode.ALL: "the whole gang"}
_ONE_BY_ONE = (
    " kube-scheduler may preempt its members one by one, and the others keep their GPUs: with disruptionMode "
    "all it stops the whole gang or none of it."
)
_ELASTIC = (JobKind.RAY_JOB, JobKind.RAY_CLUSTER, JobKind.RAY_SERVICE)


class _StallRow(NamedTuple):
    """One row of the stalls frame."""

    start_ms: int
    end_ms: int
    min_members: int
    running: int
    pending: int


@dataclass(frozen=True)
class _Stall:
    """Rows of one gang that touch, and what its pods held, before and during them."""

    gang: str
    namespace: str
    job_kind: str
    job: str
    job_uid: str
    queue: str
    rows: tuple[_StallRow, ...]
    held: tuple[AllocationPiece, ...] = ()

    @property
    def start_ms(self) -> int:
        return self.rows[0].start_ms

    @property
    def end_ms(self) -> int:
        return self.rows[-1].end_ms

    @property
    def last(self) -> _StallRow:
        return self.rows[-1]

    @property
    def is_of_group(self) -> bool:
        """Whether it is one of many gangs of a LeaderWorkerSet, which has an index."""
        return self.job_kind == JobKind.LEADER_WORKER_SET and self.gang != self.job_uid

    def overlap_ms(self, other: _Stall) -> int:
        return min(self.end_ms, other.end_ms) - max(self.start_ms, other.start_ms)

    def episodes(self) -> Iterator[WasteEpisode]:
        """What its pods held during the stall: of no more pods than were running, the newest ones, since a
        job of several gangs has others that run well."""
        for row in self.rows:
            here = [each for each in self.held if each.start_ms < row.end_ms and each.end_ms > row.start_ms]
            first: dict[str, int] = {}
            for each in here:
                first.setdefault(each.pod_uid, each.start_ms)
            newest = sorted(first, key=lambda uid: (-first[uid], uid))[: row.running]
            for each in here:
                found = each.episode(Waste.GANG_STALL, row.start_ms, row.end_ms)
                if found is not None and each.pod_uid in newest:
                    yield found

    def boards_now(self) -> float:
        last_ms = self.end_ms - 1
        return sum(each.boards or 0.0 for each in self.episodes() if each.start_ms <= last_ms < each.end_ms)

    def was_whole(self) -> bool:
        """Whether as many of its pods as it needs held GPUs at once before it stalled."""
        before = [each for each in self.held if each.start_ms < self.start_ms]
        changes = [(each.start_ms, 1) for each in before]
        changes += [(each.end_ms, -1) for each in before if each.end_ms < self.start_ms]
        count = most = 0
        for _, change in sorted(changes):
            count += change
            most = max(most, count)
        return most >= self.rows[0].min_members


def run(facts: DetectorFacts, settings: ScopedSettings[GangStallSettings]) -> RuleDetection:
    """Stalled gangs, stragglers, and gangs that need fewer members than they have."""
    drafts: list[FindingDraft] = []
    withheld: list[WithheldFinding] = []
    stalls = _long_ones(facts, settings)
    partners = _deadlocks(facts, stalls, settings)
    why = _Why(_waiting_now(facts, stalls), _demand(facts, stalls), _gangs(facts, stalls))
    for stall in stalls:
        because = _guard(facts, stall, settings.at(stall.namespace, stall.queue))
        if because is not None:
            withheld.append(WithheldFinding(NAME, _subject(facts, stall), because[0], because[1]))
        else:
            drafts.append(_draft(facts, stall, partners.get(stall.gang), why))
    late, unsure = _late(facts, settings)
    drafts += [*late, *_below_replicas(facts)]
    return RuleDetection(tuple(drafts), (*withheld, *unsure))


def _long_ones(facts: DetectorFacts, settings: ScopedSettings[GangStallSettings]) -> list[_Stall]:
    """Stalls that lasted long enough, with what their pods held."""
    window, frame = facts.history.window, facts.history.frames.stalls
    frame = frame[(frame["running"] > 0) & (frame["running"] < frame["min_members"])]
    names = ("gang", "namespace", "job_kind", "job", "job_uid", "queue")
    found: list[_Stall] = []
    ordered = frame.sort_values(["gang", "start_ms"], kind="stable")
    columns = (*names, "start_ms", "end_ms", "min_members", "running", "pending")
    for row in zip(*(ordered[name].tolist() for name in columns), strict=True):
        counts = _StallRow(max(row[6], window.start_ms), min(row[7], window.end_ms), *row[8:])
        if counts.start_ms >= counts.end_ms:
            continue
        if found and found[-1].gang == row[0] and counts.start_ms <= found[-1].end_ms:
            found[-1] = replace(found[-1], rows=(*found[-1].rows, counts))
        else:
            gang, namespace, job_kind, job, job_uid, queue = row[:6]
            found.append(_Stall(gang, namespace, job_kind, job, job_uid, queue, (counts,)))
    found = [each for each in found if each.end_ms - each.start_ms >= _after(settings, each)]
    of_job = pieces(facts.history.held, "job_uid", {each.job_uid for each in found})
    return [replace(each, held=tuple(_members(each, of_job.get(each.job_uid, [])))) for each in found]


def _after(settings: ScopedSettings[GangStallSettings], stall: _Stall) -> int:
    return milliseconds(settings.at(stall.namespace, stall.queue).after)


def _members(stall: _Stall, rows: Sequence[AllocationPiece]) -> Iterator[AllocationPiece]:
    """Of a LeaderWorkerSet only the pods of this gang, which carry its index in their names."""
    name = f"{stall.job}-{stall.gang.rpartition('-')[2]}" if stall.is_of_group else ""
    # A uid is what an owner reference claims: pods of another namespace are not its members.
    own = (row for row in rows if row.namespace == stall.namespace)
    return (row for row in own if not name or row.pod == name or row.pod.startswith(f"{name}-"))


def _subject(facts: DetectorFacts, stall: _Stall) -> FindingSubject:
    name = f"{stall.job}-{stall.gang.rpartition('-')[2]}" if stall.is_of_group else stall.job
    uid = stall.gang if stall.is_of_group else stall.job_uid
    return FindingSubject(SubjectKind.JOB, facts.cluster, name, stall.namespace, uid)


def _guard(facts: DetectorFacts, stall: _Stall, settings: GangStallSettings) -> tuple[str, bool] | None:
    """Why it is not a finding, and whether that is a lack of data."""
    if not facts.history.observed_parts(stall.start_ms, stall.end_ms):
        coverage = facts.history.coverage(stall.start_ms, stall.end_ms)
        return f"the cluster was observed for only {coverage:.0%} of the time the gang seemed to stall", True
    if facts.overview is None or stall.last.pending or stall.end_ms < facts.now_ms:
        return None
    pods = facts.overview.state.pods
    for each in stall.held:
        pod = pods.get(each.pod_uid)
        if pod is None or pod.stuck not in _PULLING or pod.bound_ms is None:
            continue
        if facts.now_ms - pod.bound_ms < milliseconds(settings.image_pull):
            age = lasting(facts.now_ms - pod.bound_ms)
            return f"pod {pod.meta.name} is still pulling its image, for {age}", False
    return None


def _deadlocks(
    facts: DetectorFacts, stalls: Sequence[_Stall], settings: ScopedSettings[GangStallSettings]
) -> Mapping[str, tuple[_Stall, _Stall]]:
    """By gang: (the other one, the smaller of both), where two lack members at the same time and each could
    use what the other holds. Of several others, the one it stalled longest with. The finding of the smaller
    gang has the variant ``deadlock``: it is the one to stop."""
    wants, has = _kinds(facts, stalls)
    found: dict[str, tuple[int, str, _Stall, _Stall]] = {}
    ordered = sorted((n for n, each in enumerate(stalls) if has[n]), key=lambda n: stalls[n].start_ms)
    least = [_after(settings, each) for each in stalls]
    helps: dict[tuple[_Kinds, _Kinds, _Kinds, _Kinds], bool] = {}
    open_: list[int] = []
    for n in ordered:
        open_ = [m for m in open_ if stalls[m].end_ms > stalls[n].start_ms]
        for m in open_:
            a, b = stalls[m], stalls[n]
            overlap = a.overlap_ms(b)
            if overlap < max(least[m], least[n]) or a.gang == b.gang:
                continue
            key = (wants[m], has[n], wants[n], has[m])
            if key not in helps:
                helps[key] = _helps(*key)
            if not helps[key]:
                continue
            for one, other in ((a, b), (b, a)):
                known = found.get(one.gang)
                if known is None or (-overlap, other.gang) < (-known[0], known[1]):
                    found[one.gang] = (overlap, other.gang, one, other)
        open_.append(n)
    return {
        gang: (other, min((own, other), key=lambda each: (each.boards_now(), each.gang)))
        for gang, (_, _, own, other) in found.items()
    }


_Kinds = frozenset[tuple[str, str]]
"""(resource, product); an empty product: any."""


def _kinds(facts: DetectorFacts, stalls: Sequence[_Stall]) -> tuple[list[_Kinds], list[_Kinds]]:
    """What each of them wants, and what it holds."""
    demand, product = facts.history.frames.demand, facts.history.products
    asked: dict[str, set[tuple[str, str]]] = {}
    mine = demand[demand["job_uid"].isin([each.job_uid for each in stalls])]
    for uid, resource, products in zip(mine["job_uid"], mine["resource"], mine["products"], strict=True):
        asked.setdefault(uid, set()).update((resource, each) for each in products.split("|"))
    has = [
        frozenset(
            (each.resource, product.get(each.node, ""))
            for each in stall.held
            if each.start_ms < stall.end_ms and each.end_ms > stall.start_ms
        )
        for stall in stalls
    ]
    wants = [
        frozenset(asked.get(stall.job_uid) or {(resource, "") for resource, _ in has[n]})
        for n, stall in enumerate(stalls)
    ]
    return wants, has


def _helps(first_wants: _Kinds, second_has: _Kinds, second_wants: _Kinds, first_has: _Kinds) -> bool:
    def would(wants: _Kinds, has: _Kinds) -> bool:
        return any(kind in wants or (kind[0], "") in wants for kind in has)

    return would(first_wants, second_has) and would(second_wants, first_has)


def _gangs(facts: DetectorFacts, stalls: Sequence[_Stall]) -> Mapping[str, PodGang]:
    """Gangs of the present cluster state, by uid; not computed where no stall goes on."""
    if facts.overview is None or all(each.end_ms < facts.now_ms for each in stalls):
        return {}
    return {gang.uid: gang for gang in facts.overview.gangs}


def _draft(
    facts: DetectorFacts, stall: _Stall, deadlock: tuple[_Stall, _Stall] | None, why: _Why
) -> FindingDraft:
    gang = why.gangs.get(stall.gang)
    seen = facts.history.observed_parts(stall.start_ms, stall.end_ms)
    episodes = tuple(within(stall.episodes(), seen))
    boards, last = stall.boards_now(), stall.last
    was_whole = stall.was_whole() or (gang is not None and gang.is_partial and gang.was_whole)
    variant = "lost_rank" if was_whole else "partial"
    if deadlock and deadlock[1] is stall:
        variant = "deadlock"
    evidence = [
        FindingEvidence("members needed at once", last.min_members, "pods", "gpucost_gang_min_members"),
        FindingEvidence("members with a node", last.running, "pods", "gpucost_gang_running_members"),
        FindingEvidence("members without one", last.pending, "pods", "gpucost_gang_pending_members"),
        FindingEvidence("held meanwhile", round(boards, 3), "GPUs", "gpucost_pod_gpu_request"),
        *_reasons(facts, stall, why),
    ]
    if gang is not None and gang.disruption is not None:
        said = f"disruptionMode of {gang.namespace}/{gang.name}"
        evidence.append(FindingEvidence("preempted at once", _AT_ONCE[gang.disruption], "", said))
    if deadlock:
        evidence.append(FindingEvidence(_IN_THE_WAY, _name(deadlock[0]), "", "the stall of that gang"))
    goes_on = stall.end_ms >= facts.now_ms
    first = stall.held[0] if stall.held else None
    return FindingDraft(
        NAME,
        variant,
        _subject(facts, stall),
        stall.start_ms,
        _summary(stall, variant, boards, deadlock and _name(deadlock[0])),
        tuple(evidence),
        _action(stall, variant, boards, deadlock, gang),
        "GPUs held by the gang's running members × time in which it lacked members",
        team=first.team if first else "",
        queue=stall.queue,
        user=first.user if first else "",
        ended_ms=None if goes_on else stall.end_ms,
        episodes=episodes,
        checked=(
            "fewer members run than it needs, not merely fewer than it would like (elastic jobs)",
            "no member is merely pulling its image",
        ),
        team_view=_team_view(stall, variant, boards, deadlock, evidence, gang),
    )


def _team_view(
    stall: _Stall,
    variant: str,
    boards: float,
    deadlock: tuple[_Stall, _Stall] | None,
    evidence: Sequence[FindingEvidence],
    gang: PodGang | None,
) -> TeamView | None:
    """Without the other gang, and without the scheduler's message, which may name pods and nodes of
    others."""
    own = tuple(each for each in evidence if each.name not in _OF_OTHERS)
    if len(own) == len(evidence):
        return None
    if deadlock is None:
        action = _action(stall, variant, boards, None, gang)
    elif deadlock[1] is stall:
        text = (
            f"Stop {_name(stall)}, the smaller of the two, so that the other can start; start it again once "
            "the other has all of its members."
        )
        action = stop_action(text, stall.held, boards)
    else:
        action = FindingAction(
            "Ask the platform to stop the other gang, the smaller of the two, until this one is done."
        )
    return TeamView(_summary(stall, variant, boards, deadlock and "another gang"), own, action)


def _name(stall: _Stall) -> str:
    return f"{stall.namespace}/{stall.job}"


def _summary(stall: _Stall, variant: str, boards: float, other: str | None) -> str:
    """``other`` is the gang it is in a deadlock with."""
    last = stall.last
    what = f"{_name(stall)} has {last.running} of the {amount(last.min_members, 'member')} it needs"
    span = f"since {since(stall.start_ms)}, for {lasting(stall.end_ms - stall.start_ms)}"
    holds = f"and holds {amount(boards, 'GPU')} that cannot get on"
    if other:
        return f"{what} {span}, {holds}; {other} is stalled as well, and each needs what the other holds."
    before = "It had all of them before. " if variant == "lost_rank" else ""
    return f"{before}{what} {span}, {holds}."


def _action(
    stall: _Stall,
    variant: str,
    boards: float,
    deadlock: tuple[_Stall, _Stall] | None,
    gang: PodGang | None,
) -> FindingAction:
    if deadlock is not None:
        small = deadlock[1]
        boards = small.boards_now()
        text = (
            f"Stop {_name(small)}, the smaller of the two, so that the other can start; "
            "start it again once the other has all of its members."
        )
        return stop_action(text, small.held, boards)
    text = "Stop the job until all of its members can start at once."
    if variant == "lost_rank":
        text = (
            "Stop the job and start it again from its last checkpoint: without the lost member it only waits."
        )
        if gang is not None and gang.disruption is DisruptionMode.SINGLE:
            text += _ONE_BY_ONE
    return stop_action(text, stall.held, boards) if stall.held else FindingAction(text, "", boards)


def _demand(facts: DetectorFacts, stalls: Sequence[_Stall]) -> Mapping[str, list[tuple[int, int, str, str]]]:
    """By job: (start, end, reason, layer) of its demand, where a reason is known."""
    demand = facts.history.frames.demand
    mine = demand[demand["job_uid"].isin([each.job_uid for each in stalls]) & (demand["reason"] != "")]
    found: dict[str, list[tuple[int, int, str, str]]] = {}
    names = ("job_uid", "start_ms", "end_ms", "reason", "layer")
    for uid, *rest in zip(*(mine[name].tolist() for name in names), strict=True):
        found.setdefault(uid, []).append((rest[0], rest[1], rest[2], rest[3]))
    return found


def _waiting_now(facts: DetectorFacts, stalls: Sequence[_Stall]) -> Mapping[str, list[Pod]]:
    """By job: its pods that have no node now; not computed where no stall goes on."""
    jobs = {each.job_uid for each in stalls if each.end_ms >= facts.now_ms}
    spaces = {each.namespace for each in stalls}
    found: dict[str, list[Pod]] = {}
    if facts.overview is None or not jobs:
        return found
    for pod in facts.overview.state.pods.values():
        if pod.bound_ms is None and not pod.has_ended and pod.meta.namespace in spaces:
            uid = facts.overview.ownership.of(pod).job.uid
            if uid in jobs:
                found.setdefault(uid, []).append(pod)
    return found


@dataclass(frozen=True)
class _Why:
    """The sources of why members have no node: the present state, and the demand over time."""

    pods: Mapping[str, list[Pod]]
    demand: Mapping[str, list[tuple[int, int, str, str]]]
    gangs: Mapping[str, PodGang]


def _reasons(facts: DetectorFacts, stall: _Stall, why: _Why) -> Iterator[FindingEvidence]:
    """Why members have no node: from the present state, else from the demand during the stall."""
    pods = why.pods.get(stall.job_uid, []) if stall.end_ms >= facts.now_ms else []
    for reason, count in sorted(Counter(map(pod_reason, pods)).items()):
        yield FindingEvidence(f"pods that wait: {reason}", count, "pods", _CONDITION)
    said = (pod.waiting.message for pod in pods if pod.waiting is not None)
    message = next(filter(None, said), "")
    if message:
        yield FindingEvidence(_SCHEDULER, message, "", _CONDITION)
    if not pods:
        rows = why.demand.get(stall.job_uid, [])
        for reason, layer in sorted(
            {row[2:] for row in rows if row[0] < stall.end_ms and row[1] > stall.start_ms}
        ):
            yield FindingEvidence("members wait because of", reason, layer, "gpucost_job_waiting")


def _late(
    facts: DetectorFacts, settings: ScopedSettings[GangStallSettings]
) -> tuple[list[FindingDraft], list[WithheldFinding]]:
    """Stragglers of batch jobs: a view only, since the other pods look busy."""
    default = settings.default
    found = stragglers(facts.history, default.low, default.high, milliseconds(default.after))
    of_job = pieces(facts.history.held, "job_uid", {each.job_uid for each in found})
    drafts, withheld = [], []
    for each in found:
        rows = of_job[each.job_uid]
        first = next(row for row in rows if row.pod_uid == each.pod_uid)
        rows = [row for row in rows if row.namespace == first.namespace]
        own = settings.at(first.namespace, first.queue)
        is_batch = workload_class(JobKind(first.job_kind)) is WorkloadClass.BATCH
        if not is_batch or each.end_ms - each.start_ms < milliseconds(own.after):
            continue
        coverage = facts.history.coverage(each.start_ms, each.end_ms)
        if coverage < LEAST_COVERAGE:
            because = f"the cluster was observed for only {coverage:.0%} of the time a pod seemed to lag"
            withheld.append(WithheldFinding(NAME, first.subject, because, lacks_data=True))
            continue
        drafts.append(_straggling(facts, each, first, rows))
    return drafts, withheld


def _straggling(
    facts: DetectorFacts, late: StragglerPod, first: AllocationPiece, rows: Sequence[AllocationPiece]
) -> FindingDraft:
    others = [row for row in rows if row.pod_uid != late.pod_uid]
    waiting = (row.episode(Waste.GANG_STALL, late.start_ms, late.end_ms) for row in others)
    view = of_episodes(each for each in waiting if each is not None)
    # A step that ended within its own length of now goes on: the next one is not read yet.
    goes_on = facts.now_ms - late.end_ms < late.step_ms
    boards = boards_at(others, late.start_ms)
    pods = len({row.pod_uid for row in rows if row.start_ms <= late.start_ms < row.end_ms})
    return FindingDraft(
        NAME,
        "straggler",
        first.subject,
        late.start_ms,
        f"Pod {first.pod} of {first.namespace}/{first.job} does nothing since {since(late.start_ms)}, for "
        f"{lasting(late.end_ms - late.start_ms)}, while the others, with {amount(boards, 'GPU')}, look busy: "
        "most likely they wait for it in a collective.",
        (
            FindingEvidence("pod that lags", first.pod, "", "gpucost_gpu_busy_seconds_total"),
            FindingEvidence("on node", first.node, "", "spec.nodeName of the pod"),
            FindingEvidence("pods of the job", pods, "pods", "gpucost_pod_gpu_request"),
            FindingEvidence(
                "time of the others meanwhile",
                hours(sum(each.board_ms for each in view)),
                "",
                "gpucost_pod_gpu_request",
            ),
        ),
        with_names(
            FindingAction(
                f"Look at what {first.pod} waits for on {first.node} (data, network, a hung process).",
                kubectl("-n", first.namespace, "exec", first.pod, "--", "py-spy", "dump", "--pid", "1"),
            ),
            first.namespace,
            first.pod,
        ),
        "GPUs of the job's other pods × time in which one pod did nothing; shown, not counted",
        team=first.team,
        queue=first.queue,
        user=first.user,
        ended_ms=None if goes_on else late.end_ms,
        view=view,
        checked=("the pod kept up with the others before", "no other pod of the job lags"),
    )


def _below_replicas(facts: DetectorFacts) -> Iterator[FindingDraft]:
    """Gangs that start with fewer members than their job has: allowed, and often an oversight."""
    if facts.overview is None:
        return
    jobs = {each.meta.uid: each for each in facts.overview.state.jobs.values()}
    gangs = tuple(_pod_group_gangs(facts.overview))
    of_job = Counter(gang.job.uid for gang in gangs)
    for gang in gangs:
        job, group = jobs.get(gang.job.uid), facts.overview.state.pod_groups[gang.uid]
        if group.group_kind is GroupKind.NATIVE and of_job[gang.job.uid] > 1:
            continue  # each is a part of the job, and needs a part of its pods
        is_asked = gang.job.kind not in _ELASTIC and workload_class(gang.job.kind) is WorkloadClass.BATCH
        if job is None or not is_asked or not group.min_member < job.pods_wanted:
            continue
        yield FindingDraft(
            NAME,
            "below_replicas",
            FindingSubject(SubjectKind.JOB, facts.cluster, gang.job.name, gang.namespace, gang.job.uid),
            group.meta.created_ms,
            f"{gang.namespace}/{gang.job.name} starts when {group.min_member} of its {job.pods_wanted} "
            f"pods have "
            "a node: a program that needs all of them will wait with GPUs in hand.",
            (
                FindingEvidence(
                    "minMember", group.min_member, "pods", f"PodGroup {group.meta.name}: {_field(group)}"
                ),
                FindingEvidence(
                    "pods of the job", job.pods_wanted, "pods", f"{job.kind} {job.meta.name}: replicas"
                ),
            ),
            FindingAction(
                f"Unless the program is elastic, let the gang need all {job.pods_wanted} pods.",
                _min_available(group, job),
            ),
            "none: nothing is wasted yet",
            queue=gang.queue,
            labels=job.meta.labels,
            checked=("its kind is not one that grows and shrinks",),
        )


def _pod_group_gangs(overview: ClusterOverview) -> Iterator[PodGang]:
    if overview.state.pod_groups:
        known = overview.state.pod_groups
        yield from (each for each in overview.gangs if each.kind is GangKind.POD_GROUP and each.uid in known)


def _field(group: PodGroup) -> str:
    return "spec.schedulingPolicy.gang.minCount" if group.group_kind is GroupKind.NATIVE else "spec.minMember"


def _min_available(group: PodGroup, job: JobObject) -> str:
    """The change of the job, or of its PodGroup where kube-scheduler places it: there it may be changed."""
    pods = job.pods_wanted
    if group.group_kind is GroupKind.NATIVE:
        return f"spec:\n  schedulingPolicy:\n    gang:\n      minCount: {pods}"
    if job.job_kind is JobKind.VOLCANO_JOB:
        return f"spec:\n  minAvailable: {pods}"
    return f"spec:\n  runPolicy:\n    schedulingPolicy:\n      minAvailable: {pods}"
