"""What the variants of oversized requests share: jobs, their use, and when there is enough of it to report.

``GpuUsage`` is how much of its GPUs each job used while it worked at all: sums over millions of rows, per
series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gpucost.attribution.apportion import Flags, Ints
from gpucost.cluster.objects.metadata import CPU, base_units
from gpucost.cluster.objects.pods import Pod
from gpucost.detectors.allocation_pieces import hours
from gpucost.detectors.findings import (
    FindingDraft,
    FindingSubject,
    WasteEpisode,
    WastePattern,
    WithheldFinding,
)
from gpucost.detectors.inputs.activity_table import Floats
from gpucost.detectors.inputs.detector_facts import DetectorFacts
from gpucost.detectors.inputs.job_tables import JobAttributes, JobTables, claims
from gpucost.detectors.inputs.quiet_runs import LEAST_SEEN, all_quiet, quiet_runs
from gpucost.detectors.rule_settings import OversizedRequestSettings, ScopedSettings
from gpucost.domain.buckets import Waste
from gpucost.domain.gpu import parse_product
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.settings.types import milliseconds

_KEY = 1 << 42
"""Larger than the milliseconds of any history."""


@dataclass(frozen=True)
class GpuUsage:
    """Rows after each pod's warm-up, without stretches of at least ``idle_ms`` in which all of a job rested:
    those belong to idle_allocation. A row that straddles the end of the warm-up counts in proportion."""

    table: JobTables
    warm_up_ms: int
    idle_ms: int

    @cached_property
    def ready(self) -> Ints:
        """Per pod: when its warm-up is over. A pod that ran before the history has none."""
        start = self.table.start + np.where(self.table.is_cut, 0, self.warm_up_ms)
        found: Ints = np.minimum(start, self.table.end)
        return found

    @cached_property
    def start(self) -> Ints:
        """Per row: from when on it counts."""
        activity = self.table.activity
        ready = np.full(len(activity.series), np.iinfo(np.int64).max)
        known = self.table.pod >= 0
        ready[known] = self.ready[self.table.pod[known]]
        found: Ints = np.maximum(activity.start, ready[activity.code])
        return found

    @cached_property
    def part(self) -> Floats:
        """Per row: how much of it counts, 0 to 1."""
        activity = self.table.activity
        part: Floats = (activity.end - self.start).clip(min=0) / (activity.end - activity.start)
        first, last = self._at_rest[:2]
        if len(first):
            steps = np.zeros(len(part) + 1, np.int32)
            np.add.at(steps, first, 1)
            np.add.at(steps, last, -1)
            part[np.cumsum(steps[:-1]) > 0] = 0.0
        return part

    @cached_property
    def length(self) -> Floats:
        """Per row: the milliseconds of it that count."""
        activity = self.table.activity
        found: Floats = self.part * (activity.end - activity.start)
        return found

    @cached_property
    def _at_rest(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Rows (first, last) of series in the rests of their jobs, and the length of those: series and ms."""
        table, activity = self.table, self.table.activity
        spans = all_quiet(table, quiet_runs(table, self.idle_ms))
        long = spans.end - spans.start >= self.idle_ms
        spans_of = [table.series_of_job[job] for job in spans.job[long].tolist()]
        count = [len(each) for each in spans_of]
        series = np.concatenate(spans_of) if spans_of else np.zeros(0, np.int64)
        pod = table.pod[series]
        start = np.maximum(np.repeat(spans.start[long], count), self.ready[pod])
        end = np.minimum(np.repeat(spans.end[long], count), table.end[pod])
        keep = start < end
        series, start, end = series[keep], start[keep], end[keep]
        if not len(series):
            return series, series, series, series
        origin = min(int(activity.start.min()), int(table.start.min()))
        key = activity.code * _KEY - origin
        first = np.searchsorted(key + activity.end, series * _KEY + (start - origin), side="right")
        last = np.searchsorted(key + activity.start, series * _KEY + (end - origin))
        return first.astype(np.int64), last.astype(np.int64), series, end - start

    @cached_property
    def expected(self) -> Floats:
        """Per series: the milliseconds that should have been measured."""
        known = np.flatnonzero(self.table.pod >= 0)
        found = np.zeros(len(self.table.pod))
        pod = self.table.pod[known]
        found[known] = self.table.end[pod] - self.ready[pod]
        _, _, series, rest = self._at_rest
        np.subtract.at(found, series, rest)
        expected: Floats = found.clip(min=0)
        return expected

    @cached_property
    def sm_seen(self) -> Flags:
        values = self.table.activity.values
        held = values["held_ms"]
        found: Flags = (np.nan_to_num(values["sm_observed_ms"]) >= LEAST_SEEN * held) & (held > 0)
        return found

    @cached_property
    def memory_seen(self) -> Flags:
        values = self.table.activity.values
        found: Flags = ~np.isnan(values["memory_used_bytes"]) & (values["memory_total_bytes"] > 0)
        return found

    @cached_property
    def memory_part(self) -> Floats:
        """Per row: memory in use, 0 to 1; NaN where it was not measured."""
        values = self.table.activity.values
        found = np.full(len(self.table.activity), np.nan)
        np.divide(
            values["memory_used_bytes"], values["memory_total_bytes"], out=found, where=self.memory_seen
        )
        return found

    def share(self, amount: str, observed: str, which: Flags) -> Floats:
        """Per row: one value of the activity divided by another, NaN where ``which`` is False."""
        values = self.table.activity.values
        found = np.full(len(which), np.nan)
        np.divide(values[amount], values[observed], out=found, where=which & (values[observed] > 0))
        return found

    def by_series(self, values: Floats) -> Floats:
        """Sums of a value per row over each series."""
        activity = self.table.activity
        if not len(activity):
            return np.zeros(0)
        found: Floats = np.add.reduceat(values, activity.begin[:-1])
        return found

    def time(self, which: Flags) -> Floats:
        """Per series: the milliseconds of rows for which ``which`` holds."""
        return self.by_series(np.where(which, self.length, 0.0))

    def amount(self, name: str, which: Flags) -> Floats:
        """Per series: the sum of a value of the activity, over rows for which ``which`` holds."""
        values = self.table.activity.values[name]
        found = self.by_series(np.where(which, values, 0.0) * self.part)
        if np.isnan(found).any():  # rare, and slow for millions of rows
            found = self.by_series(np.where(which, np.nan_to_num(values), 0.0) * self.part)
        return found

    @cached_property
    def sm_ms(self) -> Floats:
        """Per job: GPU milliseconds for which its SMs were measured."""
        return self.of_job(self.amount("sm_observed_ms", self.sm_seen))

    @cached_property
    def sm_active_ms(self) -> Floats:
        """Per job: those weighted by the share of SMs active."""
        return self.of_job(self.amount("sm_active_ms", self.sm_seen))

    @cached_property
    def busy_by_series(self) -> Floats:
        return self.amount("busy_ms", self.table.activity.is_observed)

    @cached_property
    def busy_ms(self) -> Floats:
        """Per job: busy GPU milliseconds."""
        return self.of_job(self.busy_by_series)

    @cached_property
    def memory_ms(self) -> Floats:
        """Per job: GPU milliseconds for which memory was measured."""
        return self.of_job(self.time(self.memory_seen))

    def rows(self, series: Ints) -> Ints:
        """Rows of some series that count."""
        begin = self.table.activity.begin
        parts = [np.arange(begin[each], begin[each + 1], dtype=np.int64) for each in series.tolist()]
        found = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        counted: Ints = found[self.length[found] > 0]
        return counted

    def of_job(self, values: Floats) -> Floats:
        """Sums of a value per series over each job."""
        known = self.table.pod >= 0
        job = self.table.job[self.table.pod[known]]
        return np.bincount(job, values[known], len(self.table.jobs)).astype(np.float64)


def quantile(values: Floats, weights: Floats, part: float) -> float:
    """The least value that at least ``part`` of the weight does not exceed; NaN without weight."""
    known = ~np.isnan(values) & (weights > 0)
    values, weights = values[known], weights[known]
    if not len(values):
        return float("nan")
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    at = int(np.searchsorted(reached, part * reached[-1] * (1 - 1e-12)))
    return float(values[order[min(at, len(order) - 1)]])


NAME = WastePattern.OVERSIZED_REQUEST
GIB = 1 << 30
_FLOOR_MS = 7 * DAY_MS


@dataclass(frozen=True)
class OversizedCandidate:
    """A finding, if the jobs of its team held enough together. ``gpu_ms`` is this job's part of that."""

    draft: FindingDraft
    settings: OversizedRequestSettings
    gpu_ms: float


@dataclass
class OversizedSearch:
    """One run of the rule. ``withheld`` has one entry per subject: the first."""

    facts: DetectorFacts
    scoped: ScopedSettings[OversizedRequestSettings]
    table: JobTables
    withheld: dict[tuple[FindingSubject, str], WithheldFinding] = field(default_factory=dict)

    @cached_property
    def use(self) -> GpuUsage:
        """By the default's warm-up and rest: they are equal for all jobs, since these are sums over all
        rows."""
        default = self.scoped.default
        return GpuUsage(self.table, milliseconds(default.warm_up), milliseconds(default.rest))

    def settings(self, row: JobAttributes) -> OversizedRequestSettings:
        return self.scoped.at(row.namespace, row.queue)

    def hold_back(
        self, subject: FindingSubject, because: str, variant: str = "", *, lacks_data: bool = False
    ) -> None:
        held = WithheldFinding(NAME, subject, because, lacks_data, variant)
        self.withheld.setdefault((subject, variant), held)

    @cached_property
    def held_ms(self) -> Floats:
        """Per job: how long its pods held their GPUs, one after the other or side by side."""
        spans = self.table.end - self.table.start
        return np.bincount(self.table.job, spans, len(self.table.jobs)).astype(np.float64)

    @cached_property
    def expected(self) -> Floats:
        """Per job: GPU milliseconds that should have been measured, of unmeasured GPUs too."""
        use, table = self.use, self.table
        missing = (table.gpus - table.series_count) * (table.end - use.ready)
        return use.of_job(use.expected) + np.bincount(table.job, weights=missing, minlength=len(table.jobs))

    @cached_property
    def models(self) -> Mapping[str, str]:
        """GPU model by node, as it is now."""
        products = self.facts.history.products.items()
        return {node: parse_product(product).model for node, product in products}

    @cached_property
    def nodes_offering(self) -> Mapping[str, int]:
        """How many nodes have each resource."""
        found = self.facts.history.frames.capacity.groupby("resource", observed=True)["node"].nunique()
        return {str(name): int(count) for name, count in found.items()}

    @cached_property
    def pods_now(self) -> Mapping[str, Pod]:
        overview = self.facts.overview
        return {} if overview is None else overview.state.pods

    def host_share(self, job: int) -> tuple[float, float] | None:
        """The most cores and GiB per GPU that a pod of the job requests; None where that is unknown."""
        found = list[tuple[float, float]]()
        for at in self.table.pods_of_job[job].tolist():
            pod = self.pods_now.get(self.table.uids[at])
            if pod is not None:
                gpus = max(1, int(self.table.gpus[at]))
                cores = base_units(CPU, pod.requests.get(CPU, 0))
                found.append((cores / gpus, pod.requests.get("memory", 0) / GIB / gpus))
        return (max(each[0] for each in found), max(each[1] for each in found)) if found else None

    def last_end(self, job: int) -> int:
        return int(self.table.end[self.table.pods_of_job[job]].max())

    def ended(self, job: int) -> int | None:
        end = self.last_end(job)
        return None if end >= self.facts.now_ms else end

    def episodes(self, cluster: str, rows: Ints, part: float) -> tuple[WasteEpisode, ...]:
        """Claims on ``part`` of what was held in ``rows``."""
        activity, use, table = self.table.activity, self.use, self.table
        series = activity.code[rows]
        pod = table.pod[series]
        end = np.minimum(activity.end[rows], table.end[pod])
        start = use.start[rows]
        own = end - np.maximum(activity.start[rows], table.start[pod])
        held = activity.values["held_ms"][rows] * (end - start) / own * part
        return claims(table, cluster, Waste.OVERSIZED, pod, series, start, end, held)

    def of_teams(self, found: Sequence[OversizedCandidate]) -> list[FindingDraft]:
        """The findings of teams whose jobs held enough together; the others are withheld."""
        length = self.facts.history.window.length_ms
        together: dict[str, float] = {}
        for each in found:
            together[each.draft.team] = together.get(each.draft.team, 0.0) + each.gpu_ms
        kept = list[FindingDraft]()
        for each in found:
            floor = each.settings.team_gpu_hours * HOUR_MS * min(1.0, length / _FLOOR_MS)
            held = together[each.draft.team]
            if held >= floor:
                kept.append(each.draft)
                continue
            because = (
                f"its team's jobs of this kind held {hours(held)}, and less than {hours(floor)} is no news"
            )
            self.hold_back(each.draft.subject, because, each.draft.variant)
        return kept

    def floor_in_words(self, settings: OversizedRequestSettings) -> str:
        length = self.facts.history.window.length_ms
        floor = settings.team_gpu_hours * min(1.0, length / _FLOOR_MS)
        days = f"{length / DAY_MS:.3g} days of history there are"
        return f"its team's jobs of this kind held at least {floor:.3g} GPU-hours in the {days}"


OOM_UNKNOWN = "nothing here says whether it ever ran out of GPU memory"
