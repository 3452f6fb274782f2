"""Since which releases of Kueue the rules hold that are followed here, and which of them another one lacks.

A fix is made on several branches, so a rule has a first release on each; on later branches it holds from the
start. Gates: pkg/features/kube_features.go of each release from v0.9.0 to
v0.19.2. All else: CHANGELOG/CHANGELOG-0.12.md to CHANGELOG-0.19.md of kueue, by the pull request that stands
beside it. What a changelog does not say is not here, so that no difference known is not yet the same.
"""

from __future__ import annotations

import re
from typing import NamedTuple

KueueRelease = tuple[int, int, int]
"""Major, minor, patch."""
Since = tuple[KueueRelease, ...]
"""The first release on each branch, ascending, no branch between them left out; empty: always there."""

OLDEST = (0, 12)
"""The oldest minor version whose differences were looked up."""
CHECKED = "2026-08-22"
"""When changelogs and gates were last read."""

_VERSION = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?(.*)", re.DOTALL)


class NamedRelease(NamedTuple):
    """``build`` is what follows the numbers (``-rc.1``), empty for a release itself."""

    release: KueueRelease
    build: str


def release_of(version: str) -> NamedRelease | None:
    """Of ``v0.19.2``, ``0.19.2`` or ``v0.19.2-rc.1``; None for what names no release, such as ``main``."""
    found = _VERSION.fullmatch(version)
    if found is None or found[3] is None:
        return None
    return NamedRelease((int(found[1]), int(found[2]), int(found[3])), found[4])


def holds(since: Since, release: KueueRelease) -> bool:
    """Whether a rule is in a release, at most that of the rules that are followed."""
    if not since:
        return True
    on_branch = [each for each in since if each[:2] == release[:2]]
    return release >= (on_branch or since[-1:])[0]


class RuleChange(NamedTuple):
    """A rule without a feature gate. ``decides`` says what is otherwise without it; ``source`` are upstream's
    pull requests. With ``fair_sharing`` it counts only there."""

    decides: str
    since: Since
    source: str
    fair_sharing: bool = False


CHANGES = (
    RuleChange(
        "whether a flavor without candidates for preemption goes before one that fits, with the preference "
        "PreemptionOverBorrowing",
        ((0, 18, 5), (0, 19, 1)),
        "#13896, #13903",
    ),
    RuleChange(
        "the usage by which admission fair sharing orders: penalties at admission, weights of 0",
        ((0, 18, 5), (0, 19, 1)),
        "#13481, #13559, #13851",
    ),
    RuleChange(
        "whether a node selector by a label of another flavor of its group keeps a workload waiting",
        ((0, 17, 6), (0, 18, 2), (0, 19, 0)),
        "#12449",
    ),
    RuleChange(
        "what cohorts lend after one below them was deleted",
        ((0, 16, 7), (0, 17, 2), (0, 18, 0)),
        "#10840, #10842",
    ),
    RuleChange(
        "who counts as borrowing in trees of cohorts",
        ((0, 15, 8), (0, 16, 5), (0, 17, 0)),
        "#10149, #10201, #10203",
        fair_sharing=True,
    ),
    RuleChange(
        "what flavorFungibility.preference prefers, whose two values were swapped or not there",
        ((0, 16, 2), (0, 17, 0)),
        "#9464, #9486, #7316",
    ),
    RuleChange(
        "whether a workload that waits for its victims stays at the head of a BestEffortFIFO queue",
        ((0, 13, 6), (0, 14, 1), (0, 15, 0)),
        "#7197, #7202",
    ),
    RuleChange(
        "which of several flavors that borrow is taken",
        ((0, 13, 5), (0, 14, 1)),
        "CHANGELOG-0.14.md under v0.14.1",
    ),
    RuleChange(
        "how shares are rounded, and what a weight of 0 means",
        ((0, 13, 5), (0, 14, 1)),
        "#6925, #6994",
        fair_sharing=True,
    ),
    RuleChange(
        "who is preempted where shares are equal, or where a queue takes its nominal quota back",
        ((0, 12, 9), (0, 13, 4), (0, 14, 1)),
        "#6784, #6800, #6617",
        fair_sharing=True,
    ),
    RuleChange(
        "whether a flavor counts as one that can be had by preemption",
        ((0, 12, 3), (0, 13, 0)),
        "#5700",
    ),
)
"""Newest first. Only what decides about quota, flavors, order and victims."""
