"""Findings about idle GPUs: summary, evidence, and one action per kind of work, ready to be used as written.

``IdleSpan`` is what the rows of a few GPUs show for one stretch of time: where they idled, and how well that
was observed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpucost.attribution.apportion import Ints
from gpucost.cluster.views.commands import kubectl
from gpucost.detectors.allocation_pieces import (
    AllocationPiece,
    amount,
    board_ms,
    lasting,
    since,
    stop_action,
    with_names,
)
from gpucost.detectors.findings import (
    FindingAction,
    FindingDraft,
    FindingEvidence,
    WasteEpisode,
    WastePattern,
)
from gpucost.detectors.inputs.activity_table import CoverageSpan, Floats, covered_runs
from gpucost.detectors.inputs.job_tables import JobAttributes, JobTables, claims
from gpucost.detectors.inputs.quiet_runs import IdleRows
from gpucost.detectors.request_patches import RESTART, RequestingPod, request_action
from gpucost.detectors.rule_settings import IdleAllocationSettings
from gpucost.domain.buckets import Waste
from gpucost.domain.jobs import JobKind
from gpucost.domain.time import HOUR_MS
from gpucost.settings.types import milliseconds


@dataclass(frozen=True)
class GpuSlot:
    """One GPU in ``[start, end)``, after its pod's grace. ``series`` is -1 where it was not measured, else
    its rows are ``[first, last)``."""

    pod: int
    series: int
    start: int
    end: int
    first: int = 0
    last: int = 0


@dataclass(frozen=True)
class IdleSpan:
    """Rows of some slots that count as idle, cut to their slots: parallel arrays, by slot, then time."""

    slots: Sequence[GpuSlot]
    slot: Ints
    row: Ints
    start: Ints
    end: Ints
    held_ms: Floats
    contradicted: int
    """How many quiet rows the power contradicts; they are not among these."""

    @property
    def begin_ms(self) -> int:
        return int(self.start.min())

    @property
    def end_ms(self) -> int:
        return int(self.end.max())

    @property
    def gpus(self) -> int:
        return len(self.slots)

    def coverage(self) -> float:
        """The observed part of the stretch, of the GPU that was observed least: 0 to 1.

        A GPU that joined late is measured against the whole stretch, so that its first minutes weigh little.
        """
        begin, end = self.begin_ms, self.end_ms
        seen = np.bincount(self.slot, weights=self.end - self.start, minlength=len(self.slots))
        start = np.array([max(slot.start, begin) for slot in self.slots])
        close = np.array([min(slot.end, end) for slot in self.slots])
        unseen = np.maximum(close - start, 0) - seen
        return float(1 - unseen.max() / (end - begin))

    def covered_runs(self, needed_ms: int, latest_ms: int | None = None) -> list[tuple[int, int]]:
        """The union of all stretches of ``needed_ms`` (begun by ``latest_ms``) in which each GPU was observed
        for at least ``LEAST_COVERAGE`` of the time that it was held (``activity_table.covered_runs``)."""
        if not len(self.row):
            return []
        return covered_runs(
            [
                CoverageSpan(slot.start, slot.end, self.start[mine], self.end[mine])
                for n, slot in enumerate(self.slots)
                for mine in [self.slot == n]
            ],
            self.begin_ms,
            self.end_ms,
            needed_ms,
            latest_ms,
        )

    def without(self, spans: Sequence[tuple[int, int]]) -> IdleSpan:
        """The part of it outside ``spans``: rows are cut there."""
        found = self
        for start, end in spans:
            found = found._around(start, end)
        return found

    def _around(self, start_ms: int, end_ms: int) -> IdleSpan:
        before, after = np.minimum(self.end, start_ms), np.maximum(self.start, end_ms)
        start = np.concatenate([self.start, after])
        end = np.concatenate([before, self.end])
        row, slot = np.tile(self.row, 2), np.tile(self.slot, 2)
        held = np.tile(self.held_ms / (self.end - self.start), 2) * (end - start)
        keep = np.flatnonzero(start < end)
        keep = keep[np.lexsort([start[keep], slot[keep]])]
        return IdleSpan(
            self.slots, slot[keep], row[keep], start[keep], end[keep], held[keep], self.contradicted
        )

    def episodes(self, table: JobTables, cluster: str, waste: Waste) -> tuple[WasteEpisode, ...]:
        """Claims on the idle rows: one per pod and stretch that GPUs of it have in common."""
        pods = np.array([slot.pod for slot in self.slots], np.int64)[self.slot]
        series = np.array([slot.series for slot in self.slots], np.int64)[self.slot]
        return claims(table, cluster, waste, pods, series, self.start, self.end, self.held_ms)


def span(idle: IdleRows, slots: Sequence[GpuSlot]) -> IdleSpan:
    """The idle rows of ``slots``."""
    activity = idle.table.activity
    parts = [np.arange(slot.first, slot.last, dtype=np.int64) for slot in slots]
    number = np.repeat(np.arange(len(slots)), [len(part) for part in parts]).astype(np.int64)
    row = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    start = np.maximum(activity.start[row], np.array([slot.start for slot in slots], np.int64)[number])
    end = np.minimum(activity.end[row], np.array([slot.end for slot in slots], np.int64)[number])
    inside = (start < end) & idle.quiet(row)
    against = inside & idle.contradicted(row)
    keep = inside & ~against
    row, number, start, end = row[keep], number[keep], start[keep], end[keep]
    # The pod may have begun or ended within the row: its held time lies in the part that was its own.
    pod = np.array([slot.pod for slot in slots], np.int64)[number]
    own = np.minimum(activity.end[row], idle.table.end[pod])
    own = own - np.maximum(activity.start[row], idle.table.start[pod])
    held = activity.values["held_ms"][row] * (end - start) / own
    return IdleSpan(slots, number, row, start, end, held, int(against.sum()))


_SCALED = {
    JobKind.DEPLOYMENT: "deployments.apps",
    JobKind.STATEFUL_SET: "statefulsets.apps",
    JobKind.REPLICA_SET: "replicasets.apps",
    JobKind.LEADER_WORKER_SET: "leaderworkersets.leaderworkerset.x-k8s.io",
}
_NOTEBOOK_STOP = "kubeflow-resource-stopped"
"""Kubeflow's notebook controller scales a notebook with this annotation to nothing, whatever its value."""


def stop_idle_action(rows: Sequence[AllocationPiece], boards: float) -> FindingAction:
    """Stop a job that idles as a whole. ``rows`` are what the job holds, or held last."""
    kind, name, namespace = rows[0].job_kind, rows[0].job, rows[0].namespace
    where = ("-n", namespace)
    if kind in _SCALED:
        patch = kubectl(*where, "scale", f"{_SCALED[JobKind(kind)]}/{name}", "--replicas=0")
        return with_names(
            FindingAction("Scale it to zero until somebody needs it", patch, boards), namespace, name
        )
    if kind == JobKind.NOTEBOOK:
        resource = f"notebooks.kubeflow.org/{name}"
        patch = kubectl(*where, "annotate", resource, f"{_NOTEBOOK_STOP}=true", "--overwrite")
        text = "Stop the notebook; its disk stays, and its owner can start it again"
        return with_names(FindingAction(text, patch, boards), namespace, name)
    if kind in (JobKind.DAEMON_SET, JobKind.RAY_SERVICE, JobKind.RAY_CLUSTER, JobKind.OTHER):
        return FindingAction(f"Ask its owner to stop this {kind} until somebody needs it", "", boards)
    if kind == JobKind.POD:
        return stop_action("It holds GPUs and does nothing", rows, boards)
    return stop_action("Suspend it: it holds GPUs and does nothing", rows, boards)


def next_run_action() -> FindingAction:
    """It freed its GPUs, or works again: only the next run can be better."""
    return FindingAction("Have its next run end, or shrink, by itself when there is nothing to do")


def inspect_action(rows: Sequence[AllocationPiece]) -> FindingAction:
    """Its owner should look at it before it is stopped."""
    last = max(rows, key=lambda row: (row.start_ms, row.pod))
    patch = kubectl("-n", last.namespace, "logs", last.pod, "--all-containers", "--tail=50")
    action = FindingAction("Look at what it waits for, and stop it if it will not go on", patch)
    return with_names(action, last.namespace, last.pod)


def shrink_action(
    rows: Sequence[AllocationPiece],
    idle_by_pod: Mapping[str, int],
    gpus_by_pod: Mapping[str, int],
    boards: float,
) -> FindingAction:
    """Ask for fewer GPUs: fewer per pod, or, where whole pods idle, fewer pods."""
    last = max(rows, key=lambda row: (row.start_ms, row.pod))
    busiest = max(gpus_by_pod[uid] - idle_by_pod.get(uid, 0) for uid in gpus_by_pod)
    whole = sum(idle_by_pod.get(uid, 0) == count for uid, count in gpus_by_pod.items())
    most = max(gpus_by_pod.values())
    if busiest < most:
        who = RequestingPod(last.job_kind, last.namespace, last.job, last.pod)
        text = f"Ask for {busiest} {last.resource} per pod instead of {most}"
        return request_action(text, who, last.resource, busiest, boards)
    if whole and last.job_kind in _SCALED:
        resource = f"{_SCALED[JobKind(last.job_kind)]}/{last.job}"
        left = len(gpus_by_pod) - whole
        patch = kubectl("-n", last.namespace, "scale", resource, f"--replicas={left}")
        action = FindingAction(f"Run {amount(left, 'replica')} instead of {len(gpus_by_pod)}", patch, boards)
        return with_names(action, last.namespace, last.job)
    if whole:
        left = len(gpus_by_pod) - whole
        text = f"Run it with {amount(left, 'pod')} instead of {len(gpus_by_pod)}. {RESTART}"
        return FindingAction(text, "", boards)
    text = "Find out why these GPUs do nothing while the other pods of the job use all of theirs"
    return FindingAction(text, "", boards)


WHOLE, PARTLY = "whole", "partly"
_NAMES_SHOWN = 8


@dataclass(frozen=True)
class IdleCandidate:
    """A stretch that is idle. ``gang``: how many GPUs the job held then; ``from_start``: it never worked;
    ``calls``: the requests of a server."""

    job: int
    variant: str
    span: IdleSpan
    settings: IdleAllocationSettings
    from_start: bool
    ended_ms: int | None
    gang: int
    calls: str = ""


@dataclass(frozen=True)
class IdleDrafter:
    """``rows`` are what the job of ``found`` holds, or held, ordered by time."""

    idle: IdleRows
    found: IdleCandidate
    rows: Sequence[AllocationPiece]

    def draft(self) -> FindingDraft:
        found, row = self.found, self._row
        grace = lasting(milliseconds(found.settings.start_grace))
        return FindingDraft(
            WastePattern.IDLE_ALLOCATION,
            found.variant,
            row.subject,
            found.span.begin_ms,
            self._summary(),
            self._evidence(),
            self._action(),
            "sum over idle GPUs of the GPU time held in steps that were observed and idle, later than "
            f"{grace} after the pod's start",
            team=row.team,
            queue=row.queue,
            user=row.user,
            ended_ms=found.ended_ms,
            episodes=self._episodes,
            checked=self._checked(),
        )

    @property
    def _table(self) -> JobTables:
        return self.idle.table

    @property
    def _row(self) -> JobAttributes:
        return self._table.row(self.found.job)

    @property
    def _length(self) -> int:
        return self.found.span.end_ms - self.found.span.begin_ms

    @cached_property
    def _episodes(self) -> tuple[WasteEpisode, ...]:
        return self.found.span.episodes(self._table, self._row.cluster, Waste.IDLE)

    @cached_property
    def _gpus(self) -> list[tuple[int, str]]:
        """The idle GPUs: pod and uuid."""
        slots = self.found.span.slots
        found = {(slot.pod, self._table.gpu_names[slot.series]) for slot in slots if slot.series >= 0}
        return sorted(found, key=lambda each: (each[1], self._table.uids[each[0]]))

    @cached_property
    def _power(self) -> Floats:
        return self.idle.power(self.found.span.row)

    def _summary(self) -> str:
        found, row = self.found, self._row
        when = f"for {lasting(self._length)} since {since(found.span.begin_ms)}"
        verb = "do" if found.ended_ms is None else "did"
        if found.variant == PARTLY:
            what = f"{len(self._gpus)} of the {self._units(found.gang)} of {row.job_kind} {row.subject}"
            verb = verb if len(self._gpus) != 1 or found.ended_ms is not None else "does"
            return f"{what} {verb} nothing, {when}"
        holds = "holds" if found.ended_ms is None else "held"
        did = "does" if found.ended_ms is None else "did"
        never = "; it never used them" if found.from_start else ""
        return f"{row.job_kind} {row.subject} {holds} {self._held} and {did} nothing, {when}{never}"

    @cached_property
    def _resources(self) -> Mapping[str, list[int]]:
        """Pods of the idle GPUs by what they hold: a pod once for each of its GPUs."""
        found: dict[str, list[int]] = {}
        for pod, _ in self._gpus:
            found.setdefault(self._table.resources[pod], []).append(pod)
        return dict(sorted(found.items()))

    def _units(self, number: int) -> str:
        """``number`` of what the job holds, as text, where it is of one kind."""
        if len(self._resources) == 1 and not self._table.whole[self._gpus[0][0]]:
            return f"{number} {next(iter(self._resources))}"
        return amount(number, "GPU")

    @property
    def _held(self) -> str:
        """Whole GPUs; slices and shares of them under their own names."""
        whole, parts = 0, list[str]()
        for resource, pods in self._resources.items():
            if self._table.whole[pods].all():
                whole += len(pods)
            else:
                parts.append(self._parts_in_words(resource, pods))
        return " and ".join([*([amount(whole, "GPU")] if whole else []), *parts])

    def _parts_in_words(self, resource: str, pods: Sequence[int]) -> str:
        """Where GPUs are shared in time, the units that the pods requested, whatever GPUs were seen."""
        table = self._table
        units = sum(int(table.units[pod]) for pod in set(pods) if table.is_shared[pod])
        units += len([pod for pod in pods if not table.is_shared[pod]])
        shares = {table.history.shares.get((self._row.cluster, table.nodes[pod], resource)) for pod in pods}
        share = next(iter(shares)) if len(shares) == 1 else None
        if share is None:
            return f"{units} {resource}"
        boards = units * share
        return f"{units} {resource}, {boards} {'of a GPU' if boards <= 1 else 'GPUs'}"

    def _evidence(self) -> tuple[FindingEvidence, ...]:
        seen, row = self.found.span, self._row
        names = [name for _, name in self._gpus]
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        query = f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{namespace="{row.namespace}"}}'
        facts = [
            FindingEvidence("idle GPUs", ", ".join(names[:_NAMES_SHOWN]) + more, shown_by=query),
            FindingEvidence("idle", round(board_ms(self._episodes) / HOUR_MS, 3), "GPU-hours"),
            FindingEvidence("idle since", since(seen.begin_ms)),
            FindingEvidence("last activity", self._last_activity()),
            FindingEvidence(
                "observed", round(100 * seen.coverage(), 1), "%", "of the GPU that was seen least"
            ),
        ]
        if not np.isnan(self._power).all():
            watts = round(float(np.nanmax(self._power)), 1)
            facts.append(FindingEvidence("most power", watts, "W", "DCGM_FI_DEV_POWER_USAGE, mean of a step"))
        memory = self._table.activity.values["memory_used_bytes"][seen.row]
        if not np.isnan(memory).all():
            held = round(float(np.nanmax(memory)) / (1 << 30), 1)
            facts.append(
                FindingEvidence("GPU memory held", held, "GiB", "DCGM_FI_DEV_FB_USED, most of one GPU")
            )
        facts.append(FindingEvidence("owner", f"{row.job_kind} {row.subject}"))
        texts = (("team", row.team), ("queue", row.queue))
        return (*facts, *(FindingEvidence(name, value) for name, value in texts if value))

    def _last_activity(self) -> str:
        """When one of these GPUs last worked for the job, before it went idle."""
        activity, before = self._table.activity, list[int]()
        for slot in self.found.span.slots:
            if slot.series >= 0 and slot.first > int(activity.begin[slot.series]):
                before.append(int(activity.end[slot.first - 1]))
        return since(max(before)) if before else "none seen"

    def _action(self) -> FindingAction:
        found, row = self.found, self._row
        # A uid is what an owner reference claims: pieces of that uid may be those of another job.
        own = {self._table.uids[pod] for pod in self._table.pods_of_job[found.job].tolist()}
        rows = [each for each in self.rows if each.namespace == row.namespace and each.pod_uid in own]
        last = max(piece.end_ms for piece in rows)
        current = [piece for piece in rows if piece.end_ms >= last]
        boards = self._boards_now
        if found.variant == PARTLY:
            return shrink_action(current, self._idle_by_pod, self._gpus_by_pod, boards)
        if found.ended_ms is not None:
            return next_run_action()
        stop_ms = milliseconds(found.settings.stop_after(row.workload_class, found.from_start))
        if self._length < stop_ms:
            return inspect_action(current)
        return stop_idle_action(current, boards)

    @property
    def _boards_now(self) -> float:
        if self.found.ended_ms is not None:
            return 0.0
        reached = self.found.span.end_ms
        return sum(each.boards or 0.0 for each in self._episodes if each.end_ms == reached)

    @property
    def _idle_by_pod(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for pod, _ in self._gpus:
            uid = self._table.uids[pod]
            found[uid] = found.get(uid, 0) + 1
        return found

    @property
    def _gpus_by_pod(self) -> Mapping[str, int]:
        """Of the pods that held GPUs at the end of the stretch."""
        table, instant = self._table, self.found.span.end_ms - 1
        return {
            table.uids[pod]: int(table.gpus[pod])
            for pod in table.pods_of_job[self.found.job].tolist()
            if table.start[pod] <= instant < table.end[pod]
        }

    def _checked(self) -> tuple[str, ...]:
        told = ["each of these GPUs was observed for at least 90 % of the time"]
        if self.found.variant == PARTLY:
            told.append("other GPUs of the job worked meanwhile")
        if np.isnan(self._power).all():
            told.append("no power was measured that could contradict it")
        else:
            told.append("power stayed below what only work draws")
        if self.found.calls:
            told.append(self.found.calls)
        return tuple(told)
