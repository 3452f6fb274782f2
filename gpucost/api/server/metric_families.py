"""Families of metrics for a scrape, from the declarations in gpucost.service.metrics.

Here too: which teams have series of their own on /metrics. A team may be what a pod's label says, which its
tenant chooses: so there is a limit, and the others are one team together.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpucost.domain.buckets import OTHER_TEAMS, RESERVED
from gpucost.service import metrics as m
from gpucost.service.metrics import ServiceMetric

FamilySample = tuple[Sequence[str], float]
"""The values of the labels, in their order, and the value."""


def family(metric: ServiceMetric, samples: Iterable[FamilySample]) -> Metric:
    if metric.type == m.COUNTER:
        found: CounterMetricFamily | GaugeMetricFamily = CounterMetricFamily(
            metric.name, metric.help, labels=metric.labels
        )
    else:
        found = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        found.add_metric(labels, value)
    return found


def money(metric: ServiceMetric, samples: Sequence[FamilySample], currency: str | None) -> Metric:
    """The unit is part of the name: ``_usd`` is for dollars only, another currency is a label."""
    if currency in (None, "USD"):
        return family(metric, samples)
    other = ServiceMetric(
        metric.name.removesuffix("_usd"), metric.type, (*metric.labels, "currency"), metric.help
    )
    return family(other, [((*labels, str(currency)), value) for labels, value in samples])


logger = logging.getLogger(__name__)

_TIMES_MORE = 2
"""How many times as much as the least of those shown a team must have held to take its place. Our own choice:
teams of nearly equal use must not come and go."""


class TeamRows:
    """``named`` teams, those of the settings and team rules, always have series of their own, and so has time
    without a holder; of all others at most ``most``: those that came first, of several that come at once
    those that held most. One of them only gives way to a team that held much more than it ever did in a
    month.
    """

    def __init__(self, named: Collection[str], most: int) -> None:
        self._named, self._most = frozenset(named), most
        self._lock = threading.Lock()
        self._shown: dict[str, int] = {}
        self._folded: set[str] = set()
        self._told = False

    def weigh(self, held_ms: Mapping[str, int]) -> None:
        """Take in what teams have held this month, in GPU-ms."""
        with self._lock:
            free = {team: held for team, held in held_ms.items() if not self._is_sure(team)}
            for team, held in sorted(free.items(), key=lambda each: (-each[1], each[0])):
                if team in self._shown:
                    self._shown[team] = max(self._shown[team], held)
                elif len(self._shown) < self._most:
                    self._shown[team] = held
                elif self._shown:
                    least = min(self._shown, key=lambda name: (self._shown[name], name))
                    if held <= _TIMES_MORE * self._shown[least]:
                        break
                    del self._shown[least]
                    self._shown[team] = held
            self._folded -= self._shown.keys()

    def fold(self, samples: Iterable[FamilySample], at: int) -> list[FamilySample]:
        """Samples with the name of a team in the label at position ``at``: teams that are not shown become
        OTHER_TEAMS. Sums are unchanged; samples with equal labels are added up."""
        with self._lock:
            found: dict[tuple[str, ...], list[float]] = defaultdict(list)
            for labels, value in samples:
                key = (*labels[:at], self._name(labels[at]), *labels[at + 1 :])
                found[key].append(value)
            self._tell()
        return [(labels, math.fsum(values)) for labels, values in found.items()]

    @property
    def folded(self) -> int:
        """How many teams have no series of their own."""
        with self._lock:
            return len(self._folded)

    def _is_sure(self, team: str) -> bool:
        return team in self._named or team.startswith(RESERVED)

    def _name(self, team: str) -> str:
        if self._is_sure(team) or team in self._shown:
            return team
        if len(self._shown) < self._most:
            self._shown[team] = 0
            return team
        self._folded.add(team)
        return OTHER_TEAMS

    def _tell(self) -> None:
        """Logged once: a tenant that floods the metrics must not flood the log as well."""
        if self._folded and not self._told:
            self._told = True
            logger.warning(
                "/metrics has %d teams beyond api.metrics_teams (%d): they are one, %s; teams that the team "
                "rules name have series of their own",
                *(len(self._folded), self._most, OTHER_TEAMS),
            )
