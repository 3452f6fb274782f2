"""Idle GPUs in words for people: summary, evidence and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpucost.detectors.activity import Floats
from gpucost.detectors.findings import Action, Draft, Episode, Evidence, Pattern
from gpucost.detectors.held import Piece, amount, board_ms, lasting, since
from gpucost.detectors.rule_settings import IdleAllocationSettings
from gpucost.detectors.rules import idle_actions
from gpucost.detectors.rules.idle_spans import Span
from gpucost.detectors.rules.idle_stretches import IdleRows
from gpucost.detectors.rules.workloads import JobRow, Workloads
from gpucost.domain.time import HOUR_MS
from gpucost.domain.waste import Waste
from gpucost.settings.types import milliseconds

WHOLE, PARTLY = "whole", "partly"
_NAMES_SHOWN = 8


@dataclass(frozen=True)
class Found:
    """A stretch that is idle. ``gang``: how many GPUs the job held then; ``from_start``: it never worked;
    ``calls``: of a server, what is known of its requests."""

    job: int
    variant: str
    span: Span
    settings: IdleAllocationSettings
    from_start: bool
    ended_ms: int | None
    gang: int
    calls: str = ""


@dataclass(frozen=True)
class Drafter:
    """``rows`` are what the job of ``found`` holds, or held, in order of time."""

    idle: IdleRows
    found: Found
    rows: Sequence[Piece]

    def draft(self) -> Draft:
        found, row = self.found, self._row
        grace = lasting(milliseconds(found.settings.start_grace))
        return Draft(
            Pattern.IDLE_ALLOCATION,
            found.variant,
            row.subject,
            found.span.begin_ms,
            self._summary(),
            self._evidence(),
            self._action(),
            "sum over idle GPUs of the board time held in steps that were observed and idle, later than "
            f"{grace} after the pod's start",
            team=row.team,
            queue=row.queue,
            user=row.user,
            ended_ms=found.ended_ms,
            episodes=self._episodes,
            checked=self._checked(),
        )

    @property
    def _table(self) -> Workloads:
        return self.idle.table

    @property
    def _row(self) -> JobRow:
        return self._table.row(self.found.job)

    @property
    def _length(self) -> int:
        return self.found.span.end_ms - self.found.span.begin_ms

    @cached_property
    def _episodes(self) -> tuple[Episode, ...]:
        return self.found.span.episodes(self._table, self._row.cluster, Waste.IDLE)

    @cached_property
    def _gpus(self) -> list[tuple[int, str]]:
        """The idle ones: pod and uuid."""
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
        """So many of what the job holds, where it is of one kind."""
        if len(self._resources) == 1 and not self._table.whole[self._gpus[0][0]]:
            return f"{number} {next(iter(self._resources))}"
        return amount(number, "GPU")

    @property
    def _held(self) -> str:
        """Whole GPUs, or slices and shares of them as what they are."""
        whole, parts = 0, list[str]()
        for resource, pods in self._resources.items():
            if self._table.whole[pods].all():
                whole += len(pods)
            else:
                parts.append(self._parts_in_words(resource, pods))
        return " and ".join([*([amount(whole, "GPU")] if whole else []), *parts])

    def _parts_in_words(self, resource: str, pods: Sequence[int]) -> str:
        """Where boards are shared by time, as many units as the pods asked for, whatever boards were seen."""
        table = self._table
        units = sum(int(table.units[pod]) for pod in set(pods) if table.is_shared[pod])
        units += len([pod for pod in pods if not table.is_shared[pod]])
        shares = {table.history.shares.get((self._row.cluster, table.nodes[pod], resource)) for pod in pods}
        share = next(iter(shares)) if len(shares) == 1 else None
        if share is None:
            return f"{units} {resource}"
        boards = units * share
        return f"{units} {resource}, {boards} {'of a board' if boards <= 1 else 'boards'}"

    def _evidence(self) -> tuple[Evidence, ...]:
        seen, row = self.found.span, self._row
        names = [name for _, name in self._gpus]
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        query = f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{namespace="{row.namespace}"}}'
        facts = [
            Evidence("idle GPUs", ", ".join(names[:_NAMES_SHOWN]) + more, shown_by=query),
            Evidence("idle", round(board_ms(self._episodes) / HOUR_MS, 3), "GPU-hours"),
            Evidence("idle since", since(seen.begin_ms)),
            Evidence("last activity", self._last_activity()),
            Evidence("observed", round(100 * seen.coverage(), 1), "%", "of the GPU that was seen least"),
        ]
        if not np.isnan(self._power).all():
            watts = round(float(np.nanmax(self._power)), 1)
            facts.append(Evidence("most power", watts, "W", "DCGM_FI_DEV_POWER_USAGE, mean of a step"))
        memory = self._table.activity.values["memory_used_bytes"][seen.row]
        if not np.isnan(memory).all():
            held = round(float(np.nanmax(memory)) / (1 << 30), 1)
            facts.append(Evidence("GPU memory held", held, "GiB", "DCGM_FI_DEV_FB_USED, most of one GPU"))
        facts.append(Evidence("owner", f"{row.job_kind} {row.subject}"))
        texts = (("team", row.team), ("queue", row.queue))
        return (*facts, *(Evidence(name, value) for name, value in texts if value))

    def _last_activity(self) -> str:
        """When one of these GPUs last worked for the job, before it went idle."""
        activity, before = self._table.activity, list[int]()
        for slot in self.found.span.slots:
            if slot.series >= 0 and slot.first > int(activity.begin[slot.series]):
                before.append(int(activity.end[slot.first - 1]))
        return since(max(before)) if before else "none seen"

    def _action(self) -> Action:
        found, row = self.found, self._row
        # A uid is what an owner reference claims: pieces of that uid may be those of another job.
        own = {self._table.uids[pod] for pod in self._table.pods_of_job[found.job].tolist()}
        rows = [each for each in self.rows if each.namespace == row.namespace and each.pod_uid in own]
        last = max(piece.end_ms for piece in rows)
        current = [piece for piece in rows if piece.end_ms >= last]
        boards = self._boards_now
        if found.variant == PARTLY:
            return idle_actions.shrink(current, self._idle_by_pod, self._gpus_by_pod, boards)
        if found.ended_ms is not None:
            return idle_actions.over()
        stop_ms = milliseconds(found.settings.stop_after(row.workload_class, found.from_start))
        if self._length < stop_ms:
            return idle_actions.look(current)
        return idle_actions.stop(current, boards)

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
