"""Who gives series of one kind, and which of them are believed. Pure.

Whoever can have a target scraped may write any series, about anybody's pods. What the writer of a target does
not choose is what the scrape writes: ``job``, ``instance`` and, of the target alone, the labels of ``up``. A
claimant is the targets of one scrape job in one namespace.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

NAMESPACE_LABELS = ("namespace", "kubernetes_namespace")
"""Where ``up`` says in which namespace a target is: what the Prometheus operator writes, and what scrape
configurations by annotations are wont to (prometheus-community/helm-charts, charts/prometheus)."""

JobInstance = tuple[str, str]
"""Scrape job and instance."""
ClaimantKey = tuple[str, ...]
"""A GPU, or a pod: what two claimants cannot both tell of."""


@dataclass(frozen=True, slots=True, order=True)
class ScrapeClaimant:
    """The targets of one job in one namespace; that is empty where no ``up`` names one."""

    job: str
    namespace: str
    instances: frozenset[str] = field(compare=False)


@dataclass(frozen=True, slots=True)
class ClaimantStanding:
    """How long a claimant is there, in milliseconds, and how much it tells of; ``keys`` is of what."""

    first_ms: int
    last_ms: int
    size: int
    keys: frozenset[ClaimantKey] = frozenset()

    def excludes(self, other: ClaimantStanding, *, is_whole: bool, gap_ms: int) -> bool:
        """Whether, this one believed, the other cannot be. Those that each tell all of a cluster may follow
        one another, as a job and its new name do; others may tell of different things."""
        if is_whole:
            return other.first_ms < self.last_ms - gap_ms and self.first_ms < other.last_ms
        return not self.keys.isdisjoint(other.keys)


@dataclass(frozen=True, slots=True)
class ClaimantChoice:
    """``jobs`` and ``instances`` are what a selection leaves out; ``refused`` are those by whom something was
    said that is not believed."""

    believed: tuple[ScrapeClaimant, ...] = ()
    refused: tuple[ScrapeClaimant, ...] = ()

    @property
    def jobs(self) -> list[str]:
        """Jobs of which nothing is believed."""
        return sorted({each.job for each in self.refused} - {each.job for each in self.believed})

    @property
    def instances(self) -> list[str]:
        """Targets of a job that is believed, and which are not."""
        jobs = {each.job for each in self.believed}
        kept = {instance for each in self.believed for instance in each.instances}
        found = {one for each in self.refused if each.job in jobs for one in each.instances}
        return sorted(found - kept)


def claimants(targets: Iterable[JobInstance], up: Iterable[Mapping[str, str]]) -> list[ScrapeClaimant]:
    """The targets by job and namespace, in order; ``up`` are label sets of that series."""
    places: dict[JobInstance, set[str]] = {}
    for labels in up:
        place = next((labels[name] for name in NAMESPACE_LABELS if labels.get(name)), "")
        places.setdefault((labels.get("job", ""), labels.get("instance", "")), set()).add(place)
    found: dict[tuple[str, str], set[str]] = {}
    for job, instance in targets:
        # A pod's address is another's later: of several namespaces one is taken, the same each time.
        place = min(places.get((job, instance), {""}))
        found.setdefault((job, place), set()).add(instance)
    return [ScrapeClaimant(job, place, frozenset(each)) for (job, place), each in sorted(found.items())]


def of_settings(
    found: Iterable[ScrapeClaimant], jobs: Collection[str], namespace: str
) -> list[ScrapeClaimant]:
    """Those of these jobs, where some are given, and in this namespace, where one is given: of a job that is
    named, also where no ``up`` says where it is."""
    places = ("", namespace) if jobs else (namespace,)
    return [
        each
        for each in found
        if (not jobs or each.job in jobs) and (not namespace or each.namespace in places)
    ]


def called_like(found: Sequence[ScrapeClaimant], names: re.Pattern[str]) -> list[ScrapeClaimant]:
    """Those whose job is called as such jobs are wont to be, and who is the same party as one; all where none
    is. By scrape configurations no tenant chooses the name of a job."""
    named = [each for each in found if names.search(each.job)]
    return [each for each in found if not named or any(_is_same(each, one) for one in named)]


def together(found: Iterable[ScrapeClaimant]) -> list[tuple[ScrapeClaimant, ...]]:
    """Those who are the same party: of one namespace, or of the same target under two jobs."""
    parties: list[tuple[ScrapeClaimant, ...]] = []
    for one in found:
        same = [party for party in parties if any(_is_same(one, each) for each in party)]
        parties = [party for party in parties if party not in same]
        parties.append((*(each for party in same for each in party), one))
    return [tuple(sorted(party)) for party in parties]


def _is_same(one: ScrapeClaimant, other: ScrapeClaimant) -> bool:
    if one == other or (one.namespace and other.namespace):
        return one.namespace == other.namespace
    return not (one.instances - {""}).isdisjoint(other.instances)


def first_come(
    parties: Sequence[tuple[ScrapeClaimant, ...]],
    standings: Sequence[ClaimantStanding],
    *,
    is_whole: bool,
    gap_ms: int,
    is_strict: bool,
) -> list[ScrapeClaimant]:
    """Of several parties: who was there first, of equals who tells of more, and others that these do not
    exclude. Where even that is equal, who comes first by name; with ``is_strict`` none of them, since nobody
    can tell who is right."""
    order = sorted(range(len(parties)), key=lambda at: (*_rank(standings[at]), parties[at]))
    believed: list[int] = []
    doubtful: list[int] = []
    for at in order:
        mine = standings[at]
        against = [
            each
            for each in (*believed, *doubtful)
            if standings[each].excludes(mine, is_whole=is_whole, gap_ms=gap_ms)
        ]
        equals = [each for each in against if _rank(standings[each]) == _rank(mine)] if is_strict else []
        if equals:
            doubtful += [at, *equals]
            believed = [each for each in believed if each not in equals]
        elif not against:
            believed.append(at)
    return [each for at in believed for each in parties[at]]


def _rank(standing: ClaimantStanding) -> tuple[int, int]:
    return standing.first_ms, -standing.size
