"""Claimants: who exports the series of one kind, and which of them are believed. Pure.

Anyone who can have a target scraped may write any series, also about other people's pods. The writer of a
target does not choose what the scrape adds: ``job``, ``instance`` and, on the target's ``up`` alone, the
target's labels. A claimant is the targets of one scrape job in one namespace.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

NAMESPACE_LABELS = ("namespace", "kubernetes_namespace")
"""The label of ``up`` with the namespace of a target: the Prometheus operator sets it, and so do common
scrape configurations by annotations (prometheus-community/helm-charts, charts/prometheus)."""

JobInstance = tuple[str, str]
"""Scrape job and instance."""
ClaimantKey = tuple[str, ...]
"""A GPU, or a pod: a subject that two claimants cannot both report."""


@dataclass(frozen=True, slots=True, order=True)
class ScrapeClaimant:
    """The targets of one job in one namespace; the namespace is empty where no ``up`` names one."""

    job: str
    namespace: str
    instances: frozenset[str] = field(compare=False)


@dataclass(frozen=True, slots=True)
class ClaimantStanding:
    """How long a claimant had series, in milliseconds, and how much it reports; ``keys`` are the subjects."""

    first_ms: int
    last_ms: int
    size: int
    keys: frozenset[ClaimantKey] = frozenset()

    def excludes(self, other: ClaimantStanding, *, is_whole: bool, gap_ms: int) -> bool:
        """Whether believing this claimant rules out the other. Claimants that each report a whole cluster may
        follow one another, as a job and its new name do; others may report different subjects."""
        if is_whole:
            return other.first_ms < self.last_ms - gap_ms and self.first_ms < other.last_ms
        return not self.keys.isdisjoint(other.keys)


@dataclass(frozen=True, slots=True)
class ClaimantChoice:
    """``jobs`` and ``instances`` are what a selection must exclude; ``refused`` are the claimants with series
    that are not believed."""

    believed: tuple[ScrapeClaimant, ...] = ()
    refused: tuple[ScrapeClaimant, ...] = ()

    @property
    def jobs(self) -> list[str]:
        """Jobs none of whose targets is believed."""
        return sorted({each.job for each in self.refused} - {each.job for each in self.believed})

    @property
    def instances(self) -> list[str]:
        """For jobs that are believed in part: the targets that are not."""
        jobs = {each.job for each in self.believed}
        kept = {instance for each in self.believed for instance in each.instances}
        found = {one for each in self.refused if each.job in jobs for one in each.instances}
        return sorted(found - kept)


def claimants(targets: Iterable[JobInstance], up: Iterable[Mapping[str, str]]) -> list[ScrapeClaimant]:
    """The targets grouped by job and namespace, in order; ``up`` are label sets of that series."""
    places: dict[JobInstance, set[str]] = {}
    for labels in up:
        place = next((labels[name] for name in NAMESPACE_LABELS if labels.get(name)), "")
        places.setdefault((labels.get("job", ""), labels.get("instance", "")), set()).add(place)
    found: dict[tuple[str, str], set[str]] = {}
    for job, instance in targets:
        # A pod's address may later be another pod's: of several namespaces one is taken, the same each time.
        place = min(places.get((job, instance), {""}))
        found.setdefault((job, place), set()).add(instance)
    return [ScrapeClaimant(job, place, frozenset(each)) for (job, place), each in sorted(found.items())]


def of_settings(
    found: Iterable[ScrapeClaimant], jobs: Collection[str], namespace: str
) -> list[ScrapeClaimant]:
    """The claimants of these jobs, if any are given, and in this namespace, if one is given. A job that is
    named counts also where no ``up`` gives its namespace."""
    places = ("", namespace) if jobs else (namespace,)
    return [
        each
        for each in found
        if (not jobs or each.job in jobs) and (not namespace or each.namespace in places)
    ]


def called_like(found: Sequence[ScrapeClaimant], names: re.Pattern[str]) -> list[ScrapeClaimant]:
    """The claimants whose job has one of the usual names, and others of the same party; all of them where no
    job has. With static scrape configurations no tenant chooses the name of a job."""
    named = [each for each in found if names.search(each.job)]
    return [each for each in found if not named or any(_is_same(each, one) for one in named)]


def together(found: Iterable[ScrapeClaimant]) -> list[tuple[ScrapeClaimant, ...]]:
    """Groups of claimants that are the same party: in one namespace, or with the same target under two
    jobs."""
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
    """Of several parties, the one that was there first, of equals the one that reports more; also every other
    party that these do not exclude. Where even that is equal, the first by name; with ``is_strict`` none of
    them, since nothing decides who is right."""
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
