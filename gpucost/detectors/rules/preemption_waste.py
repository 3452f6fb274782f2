"""Work that was cut short and has to be done again, and the time that starting again takes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple, TypeAlias

import numpy as np

from gpucost.attribution.apportion import Flags, Ints
from gpucost.cluster.objects.kueue import EvictionReason
from gpucost.detectors.allocation_pieces import (
    LEAST_COVERAGE,
    AllocationPiece,
    PriorHolding,
    amount,
    board_ms,
    hours,
    lasting,
    pieces,
    since,
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
from gpucost.detectors.inputs.activity_table import Floats
from gpucost.detectors.inputs.detector_facts import DetectorFacts
from gpucost.detectors.inputs.vain_evictions import VainEviction, vain_evictions
from gpucost.detectors.rule_settings import PreemptionWasteSettings, ScopedSettings
from gpucost.domain.buckets import Waste
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.settings.types import milliseconds

NAME = WastePattern.PREEMPTION_WASTE
_BY_SCHEDULER = "PreemptionByScheduler"
_CHECKPOINT = "spec:\n  template:\n    spec:\n      terminationGracePeriodSeconds: 300"
_KEEP_RUNNING = "spec:\n  stopPolicy: Hold"
_ACTIONS = {
    EvictionReason.PODS_READY_TIMEOUT.value: FindingAction(
        "Kueue evicted them because their pods were not ready in time: give them longer in Kueue's "
        "configuration.",
        "waitForPodsReady:\n  timeout: 30m",
    ),
    _BY_SCHEDULER: FindingAction(
        "kube-scheduler preempted them for pods of higher priority: let the jobs write a checkpoint when "
        "they are told to stop (SIGTERM), and give them the time for it; or give them a PriorityClass.",
        _CHECKPOINT,
    ),
    EvictionReason.FLAVOR_MIGRATION.value: FindingAction(
        "Kueue moved them to a flavor that their ClusterQueue prefers, and they began again there: let a "
        "workload keep the flavor that it got first, or write checkpoints.",
        "spec:\n  concurrentAdmissionPolicy:\n    migration:\n      mode: RetainFirstAdmission",
    ),
    EvictionReason.CLUSTER_QUEUE_STOPPED.value: FindingAction(
        "Their ClusterQueue was stopped with what ran in it (HoldAndDrain): with Hold what runs ends by "
        "itself.",
        _KEEP_RUNNING,
    ),
    EvictionReason.LOCAL_QUEUE_STOPPED.value: FindingAction(
        "Their LocalQueue was stopped with what ran in it (HoldAndDrain): with Hold what runs ends by "
        "itself.",
        _KEEP_RUNNING,
    ),
    EvictionReason.NODE_FAILURES.value: FindingAction(
        "Nodes that they ran on failed: find out why, and let the jobs write checkpoints while they run, "
        "since a node that fails gives them no time.",
    ),
}
"""By the reason of most evictions; of every other one: checkpoints."""
_SAID = {_BY_SCHEDULER: "condition DisruptionTarget of the pods"}
_OVERHEADS = ((1, timedelta(seconds=7)), (8, timedelta(seconds=30)), (None, timedelta(seconds=60)))
"""Up to how many GPUs a job has, and how long it takes to start it again (HeliosArtifact, the policy of its
scheduler: 7, 30 and 60 seconds for 1, up to 8 and more GPUs)."""


@dataclass(frozen=True)
class _Lost:
    """One eviction of a pod that held GPUs, and what was lost: its tail, and its successor's start."""

    pod_uid: str
    job_uid: str
    start_ms: int
    end_ms: int
    reason: str
    by: str
    is_certain: bool
    is_spot: bool
    held: tuple[AllocationPiece, ...]
    episodes: tuple[WasteEpisode, ...]
    least_ms: int
    most_ms: int

    @property
    def first(self) -> AllocationPiece:
        return self.held[0]

    @property
    def board_ms(self) -> int:
        return board_ms(self.episodes)


_Group: TypeAlias = list[_Lost]
_Job: TypeAlias = tuple[str, str]
"""Namespace and uid: a uid alone is what an owner reference claims."""


class _EvictionRow(NamedTuple):
    """One row of the evictions frame."""

    pod_uid: str
    start_ms: int
    end_ms: int
    reason: str
    by: str
    checkpoint_ms: int


class _Tail(NamedTuple):
    """An evicted pod that held GPUs, and from when on its work is lost."""

    row: _EvictionRow
    held: list[AllocationPiece]
    from_ms: int


def run(facts: DetectorFacts, settings: ScopedSettings[PreemptionWasteSettings]) -> RuleDetection:
    """Jobs that are evicted again and again, queues that lose much, and the rest, for the waste ledger."""
    lost, unheld = _losses(facts, settings)
    blamed = [each for each in lost if not each.is_spot]
    drafts: list[FindingDraft] = []
    withheld: list[WithheldFinding] = []
    claimed: set[str] = set()
    jobs: dict[tuple[str, str], _Group] = {}
    queues: dict[str, _Group] = {}
    for each in blamed:
        jobs.setdefault((each.first.namespace, each.job_uid), []).append(each)
        queues.setdefault(each.first.cluster_queue or each.first.queue, []).append(each)
    found: list[tuple[FindingDraft, _Group]] = []
    vain = vain_evictions(facts.history)
    for key, group in jobs.items():
        of_job = settings.at(group[0].first.namespace, group[0].first.queue)
        rings = list(_rings(facts, of_job, group, vain.get(key, [])))
        in_ring = {each.pod_uid for _, own in rings for each in own}
        found += rings
        found += _cycling(facts, of_job, [each for each in group if each.pod_uid not in in_ring])
    cycling = {each.pod_uid for _, group in found for each in group}
    for queue, group in queues.items():
        if queue:
            found += _of_queue(facts, settings.at(queue=queue), queue, group, cycling)
    for draft, group in found:
        coverage = facts.history.coverage(*_span(facts, draft))
        if coverage < LEAST_COVERAGE:
            because = f"the cluster was observed for only {coverage:.0%} of the 24 hours looked at"
            withheld.append(WithheldFinding(NAME, draft.subject, because, lacks_data=True))
            continue
        drafts.append(draft)
        claimed |= {each.pod_uid for each in group}
    rest = [each for each in lost if each.pod_uid not in claimed]
    if rest:
        drafts.append(_below_threshold(facts, rest, unheld))
    return RuleDetection(tuple(drafts), tuple(withheld))


def _span(facts: DetectorFacts, draft: FindingDraft) -> tuple[int, int]:
    """The day of the finding, as far as the history reaches."""
    end_ms = facts.now_ms if draft.ended_ms is None else draft.ended_ms
    return max(facts.history.window.start_ms, min(draft.since_ms, end_ms - DAY_MS)), end_ms


def _losses(
    facts: DetectorFacts, settings: ScopedSettings[PreemptionWasteSettings]
) -> tuple[list[_Lost], int]:
    """Evictions of pods that held GPUs, ordered by time; and how many there were of pods that held none."""
    window, frame = facts.history.window, facts.history.frames.evictions
    frame = frame.sort_values(["end_ms", "pod_uid"], kind="stable").drop_duplicates("pod_uid")
    frame = frame[(frame["end_ms"] > window.start_ms) & (frame["end_ms"] <= window.end_ms)]
    of_evicted = pieces(facts.history.held, "pod_uid", set(frame["pod_uid"].tolist()))
    jobs = {rows[0].job_uid for rows in of_evicted.values()}
    of_pod: dict[_Job, dict[str, list[AllocationPiece]]] = {}
    for uid, rows in pieces(facts.history.held, "job_uid", jobs).items():
        for piece in rows:
            of_pod.setdefault((piece.namespace, uid), {}).setdefault(piece.pod_uid, []).append(piece)
    nodes = facts.history.frames.nodes
    spot = set(nodes.loc[nodes["capacity_type"] == "spot", "node"].tolist())
    tails: dict[str, _Tail] = {}
    columns = (frame[name].tolist() for name in _EvictionRow._fields)
    for row in (_EvictionRow(*values) for values in zip(*columns, strict=True)):
        held = of_evicted.get(row.pod_uid)
        if held:
            every = settings.at(held[0].namespace, held[0].queue).checkpoint_every
            tails[row.pod_uid] = _Tail(row, held, _tail_from(row, milliseconds(every)))
    restarts = _restarts(of_pod, tails)
    lost = [_lost(tail, restarts.get(uid, ()), spot) for uid, tail in tails.items()]
    return lost, len(frame) - len(lost)


def _tail_from(row: _EvictionRow, every_ms: int) -> int:
    """From when on the work of an attempt is lost."""
    if row.checkpoint_ms >= 0:
        return min(max(row.start_ms, row.checkpoint_ms), row.end_ms)
    return row.end_ms - min(row.end_ms - row.start_ms, every_ms) // 2


def _restarts(
    of_pod: Mapping[_Job, Mapping[str, list[AllocationPiece]]], tails: Mapping[str, _Tail]
) -> dict[str, tuple[WasteEpisode, ...]]:
    """By evicted pod: the start-up time of the pod that replaced it, the next one of its job to start.

    It does not reach into the tail of that pod, should it be evicted as well.
    """
    waiting: dict[_Job, list[tuple[int, str]]] = {}
    for uid, tail in tails.items():
        job = tail.held[0].namespace, tail.held[0].job_uid
        waiting.setdefault(job, []).append((tail.row.end_ms, uid))
    found: dict[str, tuple[WasteEpisode, ...]] = {}
    for job, evicted in waiting.items():
        pods = of_pod[job]
        before = PriorHolding(each for held in pods.values() for each in held)
        left = deque(sorted(evicted))
        for start_ms, uid in sorted((held[0].start_ms, uid) for uid, held in pods.items()):
            if not left:
                break
            if start_ms < left[0][0]:
                continue
            evicted_ms, of = left.popleft()
            end_ms = start_ms + _overhead_ms(before.boards(evicted_ms))
            if uid in tails:
                end_ms = min(end_ms, tails[uid].from_ms)
            found[of] = tuple(_claims(pods[uid], start_ms, end_ms))
    return found


def _overhead_ms(boards: float) -> int:
    """The start-up time, by the number of GPUs that the job held."""
    length = next(length for most, length in _OVERHEADS if most is None or boards <= most)
    return milliseconds(length)


def _lost(evicted: _Tail, restart: tuple[WasteEpisode, ...], spot: set[str]) -> _Lost:
    row, held = evicted.row, evicted.held
    tail = tuple(_claims(held, evicted.from_ms, row.end_ms))
    certain = row.checkpoint_ms >= 0
    whole = board_ms(_claims(held, row.start_ms, row.end_ms))
    return _Lost(
        row.pod_uid,
        held[0].job_uid,
        row.start_ms,
        row.end_ms,
        row.reason,
        row.by,
        certain,
        any(each.node in spot for each in held),
        tuple(held),
        (*tail, *restart),
        (board_ms(tail) if certain else 0) + board_ms(restart),
        (board_ms(tail) if certain else whole) + board_ms(restart),
    )


def _claims(held: Iterable[AllocationPiece], start_ms: int, end_ms: int) -> Iterator[WasteEpisode]:
    for each in held:
        found = each.episode(Waste.PREEMPTED, start_ms, end_ms)
        if found is not None:
            yield found


def _rings(
    facts: DetectorFacts, settings: PreemptionWasteSettings, group: _Group, vain: Sequence[VainEviction]
) -> Iterator[tuple[FindingDraft, _Group]]:
    """Stretches in which a job was preempted in vain so often in 24 hours."""
    known = {each.pod_uid: each for each in vain}
    group = [each for each in group if each.pod_uid in known]
    times = _times(group)
    for run_ in _runs(_often(times, settings.cycles)):
        until = next((time for time in times if time > run_[-1]), None)
        own = [each for each in group if run_[0] <= each.end_ms and (until is None or each.end_ms < until)]
        recent = sum(facts.now_ms - time < DAY_MS for time in run_)
        told = [known[each.pod_uid] for each in own]
        yield _ring_draft(own, told, len(run_), recent >= settings.cycles), own


def _ring_draft(group: _Group, vain: Sequence[VainEviction], times: int, goes_on: bool) -> FindingDraft:
    first = group[0].first
    start_ms = min(each.start_ms for each in group)
    by, _ = Counter(each.by for each in vain).most_common(1)[0]
    told = (
        f"{first.namespace}/{first.job} was preempted {amount(times, 'time')} in "
        f"{lasting(group[-1].end_ms - start_ms)} since {since(start_ms)} for nothing: each time it was the "
        f"next to get its room again. About {hours(_sum(group))} of work are lost."
    )
    draft = _draft(
        "ring",
        first.subject,
        group,
        f"{told} {by.namespace}/{by.job} of ClusterQueue {by.cluster_queue}, for which it had to go, still "
        "waits.",
        goes_on,
        (FindingEvidence("times preempted in vain", times, "", "evictions of its pods, and who waited"),),
        first.queue,
        first.team,
        first.user,
        told,
    )
    waited = tuple(
        FindingEvidence(
            f"{who.namespace}/{who.job} waited on", count, "evictions", "gpucost_workload_waiting"
        )
        for who, count in Counter(each.by for each in vain).most_common(3)
    )
    return replace(
        draft,
        evidence=(*draft.evidence, *waited),
        action=_no_preemption(by.cluster_queue, vain[0].cluster_queue),
    )


def _no_preemption(of: str, victim: str) -> FindingAction:
    """The policy by which a queue preempts, without the right that leads nowhere."""
    if of == victim:
        return FindingAction(
            f"ClusterQueue {of} preempts its own workloads, which take their room again before the preemptor "
            "is looked at. Without that right both come to their end, one after the other.",
            "spec:\n  preemption:\n    withinClusterQueue: Never",
        )
    return FindingAction(
        f"ClusterQueue {of} preempts in {victim}, whose workloads take their room again before the preemptor "
        f"is looked at. Without that right what runs comes to its end; or let {victim} borrow less "
        "(borrowingLimit), so that it cannot take the room again.",
        "spec:\n  preemption:\n    reclaimWithinCohort: Never\n    borrowWithinCohort:\n      policy: Never",
    )


def _times(group: _Group) -> list[int]:
    """When a job was evicted. Pods evicted together count once: only a pod that started after the last
    eviction can be evicted anew."""
    times: list[int] = []
    for each in group:
        if not times or each.start_ms >= times[-1]:
            times.append(each.end_ms)
    return times


def _often(times: Sequence[int], cycles: int) -> list[int]:
    """Those that are one of so many in 24 hours."""
    marked: set[int] = set()
    for n in range(cycles - 1, len(times)):
        if times[n] - times[n - cycles + 1] < DAY_MS:
            marked.update(times[n - cycles + 1 : n + 1])
    return [time for time in times if time in marked]


def _cycling(
    facts: DetectorFacts, settings: PreemptionWasteSettings, group: _Group
) -> Iterator[tuple[FindingDraft, _Group]]:
    """Stretches in which a job was evicted so often in 24 hours."""
    times = _times(group)
    for run_ in _runs(_often(times, settings.cycles)):
        until = next((time for time in times if time > run_[-1]), None)
        own = [each for each in group if run_[0] <= each.end_ms and (until is None or each.end_ms < until)]
        recent = sum(facts.now_ms - time < DAY_MS for time in run_)
        yield _cycle_draft(facts, own, len(run_), recent >= settings.cycles), own


def _runs(times: Sequence[int]) -> list[list[int]]:
    """Split where a day or more lies between two."""
    found: list[list[int]] = []
    for time in times:
        if found and time - found[-1][-1] < DAY_MS:
            found[-1].append(time)
        else:
            found.append([time])
    return found


def _cycle_draft(facts: DetectorFacts, group: _Group, times: int, goes_on: bool) -> FindingDraft:
    first = group[0].first
    start_ms = min(each.start_ms for each in group)
    span = lasting(group[-1].end_ms - start_ms)
    return _draft(
        "cycling",
        FindingSubject(SubjectKind.JOB, facts.cluster, first.job, first.namespace, first.job_uid),
        group,
        f"{first.namespace}/{first.job} was evicted {amount(times, 'time')} in {span} since "
        f"{since(start_ms)} "
        f"and lost about {hours(_sum(group))} of work.",
        goes_on,
        (FindingEvidence("times evicted", times, "", "evictions of its pods"),),
        first.queue,
        first.team,
        first.user,
        "",
    )


def _of_queue(
    facts: DetectorFacts, settings: PreemptionWasteSettings, queue: str, group: _Group, cycling: set[str]
) -> Iterator[tuple[FindingDraft, _Group]]:
    """Stretches of evictions within 24 hours in which the queue lost too much. The loss of a cycling job
    counts for the thresholds, and is claimed by its own finding."""
    ends = np.array([each.end_ms for each in group], dtype=np.int64)
    losses = np.array([each.board_ms for each in group], dtype=np.float64)
    total = np.concatenate([[0.0], np.cumsum(losses)])
    at = np.append(ends, facts.now_ms)
    first = np.searchsorted(ends, at - DAY_MS, "right")
    upto = np.searchsorted(ends, at, "right")
    lost = total[upto] - total[first]
    if not np.any(lost >= settings.least_gpu_hours * HOUR_MS):
        return
    held = _held_between(facts, queue, at - DAY_MS, at)
    passes = (lost >= settings.least_gpu_hours * HOUR_MS) & (lost >= settings.share * held)
    marked = np.flatnonzero(_covered(first[passes], upto[passes], len(group)))
    for run_ in _runs(np.unique(ends[marked]).tolist()):
        inside = marked[(ends[marked] >= run_[0]) & (ends[marked] <= run_[-1])]
        of_run = [group[n] for n in inside.tolist()]
        own = [each for each in of_run if each.pod_uid not in cycling]
        if own:
            goes_on = bool(passes[-1]) and facts.now_ms - run_[-1] < DAY_MS
            worst = int(np.argmax(np.where(passes, lost / np.maximum(held, 1.0), 0.0)))
            yield _queue_draft(facts, queue, own, (float(lost[worst]), float(held[worst])), goes_on), own


def _covered(first: Ints, upto: Ints, size: int) -> Flags:
    """Which positions lie in any ``[first, upto)``."""
    steps = np.zeros(size + 1, np.int64)
    np.add.at(steps, first, 1)
    np.add.at(steps, upto, -1)
    found: Flags = np.cumsum(steps[:-1]) > 0
    return found


def _held_between(facts: DetectorFacts, queue: str, start: Ints, end: Ints) -> Floats:
    """GPU time that a queue held in each ``[start, end)``: the integral over all of its rows, looked up."""
    held = facts.history.held
    named = held["cluster_queue"].where(held["cluster_queue"] != "", held["queue"])
    rows = held[(named == queue) & held["boards"].notna()]
    times = np.concatenate([rows["start_ms"].to_numpy(np.int64), rows["end_ms"].to_numpy(np.int64)])
    boards = rows["boards"].to_numpy(np.float64)
    if not len(times):
        return np.zeros(len(start))
    order = np.argsort(times, kind="stable")
    times, rate = times[order], np.cumsum(np.concatenate([boards, -boards])[order])
    integral = np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(times))])
    found: Floats = np.interp(end, times, integral) - np.interp(start, times, integral)
    return found


def _queue_draft(
    facts: DetectorFacts, queue: str, group: _Group, worst: tuple[float, float], goes_on: bool
) -> FindingDraft:
    lost, held = worst
    start_ms = min(each.start_ms for each in group)
    teams = {each.first.team for each in group}
    return _draft(
        "queue",
        FindingSubject(SubjectKind.QUEUE, facts.cluster, queue),
        group,
        f"Queue {queue} lost about {hours(lost)} of the {hours(held)} it held in a day to "
        f"{amount(len(group), 'eviction')} of pods, the first of which began at {since(start_ms)}.",
        goes_on,
        (
            FindingEvidence(
                "lost in 24 hours", round(lost / HOUR_MS, 3), "GPU-hours", "evictions of its pods"
            ),
            FindingEvidence(
                "held in 24 hours", round(held / HOUR_MS, 3), "GPU-hours", "gpucost_pod_gpu_request"
            ),
            FindingEvidence("lost of what it held", round(100 * lost / held, 2) if held else 100.0, "%", ""),
        ),
        queue,
        teams.pop() if len(teams) == 1 else "",
        "",
        # The totals of the queue may include other teams.
        f"{amount(len(group), 'eviction')} of pods in queue {queue} cost about {hours(_sum(group))}, the "
        f"first of which began at {since(start_ms)}.",
    )


def _draft(
    variant: str,
    subject: FindingSubject,
    group: _Group,
    summary: str,
    goes_on: bool,
    evidence: tuple[FindingEvidence, ...],
    queue: str,
    team: str,
    user: str,
    own_summary: str,
) -> FindingDraft:
    """``own_summary``: the text for its team, together with the evidence of these evictions alone."""
    own = (*(evidence if not own_summary else ()), *_amounts(group), *_reasons(group))
    others = tuple(_in_favour(group))
    hides = bool(team) and bool(own_summary or others)
    episodes = tuple(each for lost in group for each in lost.episodes)
    return FindingDraft(
        NAME,
        variant,
        subject,
        min(each.start_ms for each in group),
        summary,
        (*evidence, *_amounts(group), *_reasons(group), *others),
        _action(group),
        "GPUs × (end of the attempt − its last checkpoint), where that is not known half of the attempt or "
        "of "
        "the time between checkpoints; and the restart of the pod that came in its place",
        team=team,
        queue=queue,
        user=user,
        ended_ms=None if goes_on else max(each.end_ms for each in group),
        episodes=episodes,
        checked=(
            "failures are no evictions",
            "evictions of pods that never held a GPU cost nothing",
            "spot capacity is not blamed",
        ),
        team_view=TeamView(own_summary or summary, own, _action(group)) if hides else None,
    )


def _amounts(group: _Group) -> Iterator[FindingEvidence]:
    query = "evictions of its pods"
    yield FindingEvidence("pods evicted", len(group), "pods", query)
    yield FindingEvidence("lost, estimated", round(_sum(group) / HOUR_MS, 3), "GPU-hours", query)
    yield FindingEvidence(
        "lost at least", round(sum(each.least_ms for each in group) / HOUR_MS, 3), "GPU-hours", query
    )
    yield FindingEvidence(
        "lost at most", round(sum(each.most_ms for each in group) / HOUR_MS, 3), "GPU-hours", query
    )
    known = sum(each.is_certain for each in group)
    yield FindingEvidence("with a known checkpoint", known, "pods", "progress of the job")


def _reasons(group: _Group) -> Iterator[FindingEvidence]:
    for reason, count in Counter(each.reason or "unknown" for each in group).most_common(3):
        yield FindingEvidence(
            f"reason {reason}", count, "pods", _SAID.get(reason, "condition Evicted of the workload")
        )


def _in_favour(group: _Group) -> Iterator[FindingEvidence]:
    for by, count in Counter(each.by for each in group if each.by).most_common(3):
        yield FindingEvidence(f"in favour of {by}", count, "pods", "condition Preempted of the workload")


def _action(group: _Group) -> FindingAction:
    reason = Counter(each.reason for each in group).most_common(1)[0][0]
    return _ACTIONS.get(reason) or FindingAction(
        "Let the jobs write a checkpoint when they are told to stop (SIGTERM), and give them the time for "
        "it.",
        _CHECKPOINT,
    )


def _sum(group: _Group) -> int:
    return sum(each.board_ms for each in group)


def _below_threshold(facts: DetectorFacts, rest: _Group, unheld: int) -> FindingDraft:
    """All other preempted work: not a finding to act on, but lost all the same, and counted by the ledger."""
    spot = [each for each in rest if each.is_spot]
    last_ms = max(each.end_ms for each in rest)
    return FindingDraft(
        NAME,
        "below_threshold",
        FindingSubject(SubjectKind.CLUSTER, facts.cluster, facts.cluster),
        min(each.start_ms for each in rest),
        f"{amount(len(rest), 'eviction')} of pods cost about {hours(_sum(rest))}, spread so that no queue "
        f"and no "
        "job lost much.",
        (
            *_amounts(rest),
            FindingEvidence("of these on spot capacity", round(_sum(spot) / HOUR_MS, 3), "GPU-hours", ""),
            FindingEvidence("evicted before they held a GPU", unheld, "pods", ""),
        ),
        FindingAction("Nothing needs to be done; it is listed so that the waste ledger has it."),
        "as for queues",
        ended_ms=last_ms,
        episodes=tuple(each for lost in rest for each in lost.episodes),
    )
