"""Which topology domains Kueue gave a pod set, from either form to the same list.

v1beta1 lists the domains. v1beta2 lists slices of domains that have something in common: per level one value
for all, or one each with a common prefix and suffix (kueue v0.19.2, apis/kueue/v1beta2, TopologyAssignment).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import TypeVar

from gpucost.cluster.kueue import DomainCount
from gpucost.kube.parse.reading import MOST_FLAWS, Part

T = TypeVar("T", str, int)
MOST_LEVELS = 16
_LONGEST_AFFIX = 63
_LONGEST = f"at most {_LONGEST_AFFIX} characters"


def domain_counts(found: Part) -> tuple[DomainCount, ...]:
    """Pods by domain, sorted. Empty, with a flaw, where any of it makes no sense: a part would mislead.

    The CRD's limits on levels and lengths keep the result in proportion to what was read; values that are
    given one by one limit how many domains a slice can have.
    """
    flaws_before = len(found.flaws)
    levels = len(found.texts("levels"))
    if not 1 <= levels <= MOST_LEVELS:
        found.flaw("levels", levels, f"1 to {MOST_LEVELS} levels")
        return ()
    read = [domain for each in found.parts("slices") for domain in _slice(each, levels)]
    read += [_domain(each, levels) for each in found.parts("domains")]
    return tuple(sorted(read)) if len(found.flaws) == flaws_before < MOST_FLAWS else ()


def _domain(part: Part, levels: int) -> DomainCount:
    values = part.texts("values")
    if len(values) != levels:
        part.flaw("values", len(values), f"{levels} values, one per level")
    return DomainCount(values, _pods(part, "count"))


def _slice(part: Part, levels: int) -> list[DomainCount]:
    domains = part.count("domainCount")
    by_level = [_values(each) for each in part.parts("valuesPerLevel")]
    pods = _pod_counts(part.part("podCounts"))
    listed = {len(each) for each in (*by_level, pods) if isinstance(each, tuple)}
    if len(by_level) != levels:
        part.flaw("valuesPerLevel", len(by_level), f"{levels} entries, one per level")
    elif not domains or (listed or {1}) != {domains}:
        # Domains without a value of their own would all be the same one.
        part.flaw("domainCount", domains, "as many as there are individual values")
    else:
        values = zip(*(_listed(each, domains) for each in by_level), strict=True)
        return list(map(DomainCount, values, _listed(pods, domains)))
    return []


def _listed(found: T | tuple[T, ...], domains: int) -> Iterable[T]:
    return found if isinstance(found, tuple) else repeat(found, domains)


def _values(part: Part) -> str | tuple[str, ...]:
    """One value for all domains, or one each."""
    if "individual" not in part:
        if not part.text("universal"):
            part.flaw("universal", part.raw("universal"), "universal or individual values")
        return part.text("universal")
    individual = part.part("individual")
    prefix, suffix = individual.text("prefix"), individual.text("suffix")
    for key, affix in (("prefix", prefix), ("suffix", suffix)):
        if len(affix) > _LONGEST_AFFIX:
            individual.flaw(key, affix, _LONGEST)
            return ()
    return tuple(f"{prefix}{root}{suffix}" for root in individual.texts("roots"))


def _pod_counts(part: Part) -> int | tuple[int, ...]:
    """One count for all domains, or one each."""
    if "individual" not in part:
        return _pods(part, "universal")
    counts = part.raw("individual")
    if not isinstance(counts, list) or not all(type(each) is int and each > 0 for each in counts):
        part.flaw("individual", counts, "a list of positive whole numbers")
        return ()
    return tuple(counts)


def _pods(part: Part, key: str) -> int:
    count = part.count(key)
    if not count:
        part.flaw(key, part.raw(key), "a positive whole number")
    return count
