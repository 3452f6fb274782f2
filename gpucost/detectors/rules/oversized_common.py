"""What the variants of oversized requests share: jobs, their use, and when there is enough of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gpucost.attribution.deal import Ints
from gpucost.cluster.pods import Pod
from gpucost.cluster.quantities import CPU, base_units
from gpucost.detectors.activity import Floats
from gpucost.detectors.facts import Facts
from gpucost.detectors.findings import Draft, Episode, Pattern, Subject, Withheld
from gpucost.detectors.held import hours
from gpucost.detectors.rule_settings import OversizedRequestSettings
from gpucost.detectors.rules.claims import claims
from gpucost.detectors.rules.gpu_use import Use
from gpucost.detectors.rules.workloads import JobRow, Workloads
from gpucost.detectors.settings import Scoped
from gpucost.domain.gpu import parse_product
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.domain.waste import Waste
from gpucost.settings.types import milliseconds

NAME = Pattern.OVERSIZED_REQUEST
GIB = 1 << 30
_FLOOR_MS = 7 * DAY_MS


@dataclass(frozen=True)
class Candidate:
    """A finding, if its team's jobs held enough together. ``gpu_ms`` is what this job held of them."""

    draft: Draft
    settings: OversizedRequestSettings
    gpu_ms: float


@dataclass
class Search:
    """One run of the rule. ``withheld`` has one answer per subject: the first."""

    facts: Facts
    scoped: Scoped[OversizedRequestSettings]
    table: Workloads
    withheld: dict[tuple[Subject, str], Withheld] = field(default_factory=dict)

    @cached_property
    def use(self) -> Use:
        """By the default's warm-up and rest: they are the same for all, as sums over all rows are."""
        default = self.scoped.default
        return Use(self.table, milliseconds(default.warm_up), milliseconds(default.rest))

    def settings(self, row: JobRow) -> OversizedRequestSettings:
        return self.scoped.at(row.namespace, row.queue)

    def hold_back(
        self, subject: Subject, because: str, variant: str = "", *, lacks_data: bool = False
    ) -> None:
        held = Withheld(NAME, subject, because, lacks_data, variant)
        self.withheld.setdefault((subject, variant), held)

    @cached_property
    def held_ms(self) -> Floats:
        """Of each job: how long its pods held their GPUs, one after the other or side by side."""
        spans = self.table.end - self.table.start
        return np.bincount(self.table.job, spans, len(self.table.jobs)).astype(np.float64)

    @cached_property
    def expected(self) -> Floats:
        """Of each job: GPU milliseconds that should have been measured, of GPUs that nobody measures too."""
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
        """The most cores and GiB per GPU that a pod of the job asks for; None where nobody knows."""
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

    def episodes(self, cluster: str, rows: Ints, part: float) -> tuple[Episode, ...]:
        """Claims on ``part`` of what was held in ``rows``."""
        activity, use, table = self.table.activity, self.use, self.table
        series = activity.code[rows]
        pod = table.pod[series]
        end = np.minimum(activity.end[rows], table.end[pod])
        start = use.start[rows]
        own = end - np.maximum(activity.start[rows], table.start[pod])
        held = activity.values["held_ms"][rows] * (end - start) / own * part
        return claims(table, cluster, Waste.OVERSIZED, pod, series, start, end, held)

    def of_teams(self, found: Sequence[Candidate]) -> list[Draft]:
        """Those of teams whose jobs held enough together; the others are withheld."""
        length = self.facts.history.window.length_ms
        together: dict[str, float] = {}
        for each in found:
            together[each.draft.team] = together.get(each.draft.team, 0.0) + each.gpu_ms
        kept = list[Draft]()
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
