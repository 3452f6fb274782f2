"""Whether a month can be held against the one before: only where the ledger covers both alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from gpucost.domain.time import Month, Window
from gpucost.reports.display import percent, visible
from gpucost.reports.inputs import WindowFacts

# A month that lacks more than seven hours of windows is not compared; the default of ledger.close_coverage.
ENOUGH = Fraction(99, 100)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How much of both months the ledger's windows cover, in the cluster that is covered least.

    ``reason`` says why there is no change, and is empty where there is one. ``in_progress``: this month is
    whole up to where the ledger ends, so its change is that of a part against a whole.
    """

    covered: Fraction
    previous_covered: Fraction
    in_progress: bool
    reason: str

    @property
    def note(self) -> str:
        """What has to stand beside a change, or in its place; empty for two whole months."""
        if self.in_progress and not self.reason:
            before = _percent(self.previous_covered)
            return f"so far: this month covered {_percent(self.covered)}, previous {before}"
        return self.reason


def compare(
    month: Month, windows: Sequence[WindowFacts], previous_windows: Sequence[WindowFacts]
) -> Comparison:
    """A cluster counts in both months when it has a window in either of them."""
    clusters = sorted({item.cluster for item in (*windows, *previous_windows)})
    covered, least = covered_least(month.window, windows, clusters)
    before, least_before = covered_least(month.previous().window, previous_windows, clusters)
    until = max((min(item.end_ms, month.window.end_ms) for item in windows), default=0)
    whole_so_far = bool(windows) and (
        covered_least(Window(month.window.start_ms, until), windows, clusters)[0] >= ENOUGH
    )
    reason = ""
    if not previous_windows:
        reason = "nothing of the previous month in the ledger"
    elif before < ENOUGH:
        reason = f"previous month covered {_percent(before)}{least_before}"
    elif covered < ENOUGH and not whole_so_far:
        reason = f"this month covered {_percent(covered)}{least}"
    return Comparison(covered, before, covered < ENOUGH and whole_so_far, reason)


def covered_least(
    time: Window, windows: Sequence[WindowFacts], clusters: Sequence[str]
) -> tuple[Fraction, str]:
    """The smallest covered part of ``time``, and whose it is where there are several clusters."""
    covered = dict.fromkeys(clusters, 0)
    for item in windows:
        covered[item.cluster] += time.overlap_ms(item.start_ms, item.end_ms)
    if not covered:
        return Fraction(0), ""
    least = min(clusters, key=lambda cluster: (covered[cluster], cluster))
    of_which = f" of cluster {visible(least)}" if len(clusters) > 1 else ""
    return Fraction(covered[least], time.length_ms), of_which


def _percent(part: Fraction) -> str:
    return percent(part, 1)
