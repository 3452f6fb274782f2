"""Idle GPUs in words for people: summary, evidence and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpucost.detectors.activity import Floats
from gpucost.detectors.findings import Action, Draft, Episode, Evidence, Pattern
from gpucost.detectors.held import Piece, amount, board_ms, lasting, since
from gpucost.detectors.rules import idle_actions
from gpucost.detectors.rules.idle_settings import Settings
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
    """A stretch that is idle. ``gang``: how many GPUs the job held then; ``from_start``: it never worked."""

    job: int
    variant: str
    span: Span
    settings: Settings
    from_start: bool
    ended_ms: int | None
    gang: int


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
            what = f"{len(self._gpus)} of the {amount(found.gang, 'GPU')} of {row.job_kind} {row.subject}"
            return f"{what} {verb} nothing, {when}"
        holds = "holds" if found.ended_ms is None else "held"
        did = "does" if found.ended_ms is None else "did"
        never = "; it never used them" if found.from_start else ""
        gpus = amount(len(self._gpus), "GPU")
        return f"{row.job_kind} {row.subject} {holds} {gpus} and {did} nothing, {when}{never}"

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
        last = max(piece.end_ms for piece in self.rows)
        current = [piece for piece in self.rows if piece.end_ms >= last]
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
        if self._row.workload_class == "serving":
            after = lasting(milliseconds(self.found.settings.serving))
            told.append(f"nothing says how many requests it served: {after} without a kernel stand for none")
        return tuple(told)
