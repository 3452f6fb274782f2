"""One line at the end of a run: how many tests were skipped, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

_PREFIX = "Skipped: "


def skipped_line(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> str:
    """``skipped: 3 tests: 2 without ../shared/traces/philly-vc; 1 kubectl is not installed``."""
    reasons = Counter(_reason(report) for report in reports)
    if not reasons:
        return "skipped: no test"
    number = reasons.total()
    counted = "; ".join(f"{times} {reason}" for reason, times in reasons.most_common())
    return f"skipped: {number} test{'s' if number > 1 else ''}: {counted}"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix(_PREFIX)
    return "for a reason that pytest did not say"
