"""Which tests `make test` leaves to `make test-slow` for their length: ``slow_tests.txt``, beside the tests
that are marked by hand, so that who changes code has an answer within minutes.

    make test TEST_ARGS="--durations=0 -m 'slow or not slow'" > LOG
    python -m tests.support.slow_tests LOG

writes the list anew out of what tests took there. A test of the fault matrix, of a vector or of a trap is
never left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

LIST = Path(__file__).parents[1] / "slow_tests.txt"
LONG_S = 1.5
"""Seconds that a test takes in ``make test`` beside ``make test-slow`` on two cores: one or less alone."""
ALWAYS = ("fault", "vector", "trap")
_TOOK = re.compile(r"([\d.]+)s call +(tests/\S+?\.py::[^\s\[]+)")
_HEAD = "# Tests that take long, as tests/support/slow_tests.py found them: it writes this list.\n"


@cache
def listed() -> frozenset[str]:
    """By file and name, without parameters: ``tests/cli/test_x.py::test_y``."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def mark_slow(items: Iterable[pytest.Item]) -> None:
    """As ``@pytest.mark.slow`` would."""
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name in listed() and not any(item.get_closest_marker(each) for each in ALWAYS):
            item.add_marker(pytest.mark.slow)


def long_tests(log: str) -> list[str]:
    """Of the durations at the end of a log of pytest."""
    return sorted({name for seconds, name in _TOOK.findall(log) if float(seconds) >= LONG_S})


if __name__ == "__main__":
    LIST.write_text(_HEAD + "\n".join(long_tests(Path(sys.argv[1]).read_text("utf-8"))) + "\n", "utf-8")
