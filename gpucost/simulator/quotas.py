"""The queues of the simulated cluster: what each may use, and used over the month."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import pandas as pd

from gpucost.attribution.frames import conform
from gpucost.contract.frames import QUOTAS
from gpucost.domain.time import Window
from gpucost.simulator.history import Steps
from gpucost.simulator.inventory import POOLS
from gpucost.simulator.scheduler import Placement

COHORT = "company"
PLATFORM, RELEASE = "platform", "release"
RELEASE_UNITS = 16
"""What is kept for releases, which hardly use it."""
RELEASE_POOL = "h100"
# Of each pool product's queue owns this part, research the rest; together they may use all of it.
_PRODUCT_PART = {"h100": 1 / 12, "a100": 1 / 3, "a100-owned": 1.0, "l4-spot": 0.75}
_NO_BORROWING = ("product", "h100")


@dataclass(frozen=True, slots=True)
class QueueQuota:
    """Quota of a ClusterQueue; ``borrowing_limit`` None: unlimited."""

    queue: str
    cohort: str
    flavor: str
    resource: str
    nominal: int
    borrowing_limit: int | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.queue, self.flavor, self.resource


def queue_quotas(placements: Sequence[Placement], scale: int = 1) -> list[QueueQuota]:
    """All quotas. Research and product share the hardware between them; platform's own quota is promised
    beside it, and is the most it ever used."""
    found = []
    peaks = {key: int(steps.value.max()) for key, steps in _used(placements).items()}
    for pool in POOLS:
        for offer in pool.offers:
            total = offer.units * pool.nodes * scale
            product = round(total * _PRODUCT_PART.get(pool.name, 0.5))
            for queue, nominal in (("research", total - product), ("product", product)):
                limit = 0 if (queue, pool.name) == _NO_BORROWING else None
                found.append(QueueQuota(queue, COHORT, pool.name, offer.resource, nominal, limit))
            peak = peaks.get((PLATFORM, pool.name, offer.resource), 0)
            if peak:
                found.append(QueueQuota(PLATFORM, "", pool.name, offer.resource, 2 * ceil(peak / 2)))
            if pool.name == RELEASE_POOL:
                found.append(QueueQuota(RELEASE, "", pool.name, offer.resource, RELEASE_UNITS * scale))
    return found


def quotas(
    cluster: str, placements: Sequence[Placement], kinds: Sequence[QueueQuota], month: Window
) -> pd.DataFrame:
    """The quotas frame: a row whenever what a queue uses changes."""
    used = _used(placements)
    nothing = Steps.of(())
    rows = [
        {
            "cluster": cluster, "scheduler": "kueue", "queue": kind.queue, "cohort": kind.cohort,
            "flavor": kind.flavor, "resource": kind.resource, "start_ms": start_ms, "end_ms": end_ms,
            "nominal": float(kind.nominal), "lending_limit": float("nan"), "used": float(units),
            "borrowing_limit": float("nan") if kind.borrowing_limit is None else float(kind.borrowing_limit),
        }
        for kind in kinds
        for start_ms, end_ms, units in used.get(kind.key, nothing).within(month)
    ]  # fmt: skip
    return conform(pd.DataFrame(rows, columns=list(QUOTAS.column_names)), QUOTAS)


def _used(placements: Sequence[Placement]) -> Mapping[tuple[str, str, str], Steps]:
    changes: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for pod in placements:
        sub = pod.submission
        if sub.job.team.cluster_queue:
            key = (sub.job.team.cluster_queue, sub.pool, sub.resource)
            changes.setdefault(key, []).extend([(pod.start_ms, sub.units), (pod.end_ms, -sub.units)])
    return {key: Steps.of(found) for key, found in changes.items()}
