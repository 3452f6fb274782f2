"""The line at the end of a run that counts what was skipped."""

from __future__ import annotations

import pytest

from tests.support.shared import missing
from tests.support.skipped import skipped_line


def report(reason: str) -> pytest.CollectReport:
    return pytest.CollectReport("test_x.py", "skipped", ("test_x.py", 7, f"Skipped: {reason}"), None)


def test_skipped_tests_are_counted_by_reason() -> None:
    traces, kubectl = missing("traces/philly-vc"), "kubectl is not installed"
    said = skipped_line([report(kubectl), report(traces), report(traces)])
    assert said == "skipped: 3 tests: 2 without ../shared/traces/philly-vc; 1 kubectl is not installed"
    assert skipped_line([report(kubectl)]) == "skipped: 1 test: 1 kubectl is not installed"
    assert skipped_line([]) == "skipped: no test"
