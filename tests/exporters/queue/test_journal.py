"""The journal: an outage is one summary and one failure for each reason; mistakes are never hidden."""

from __future__ import annotations

import logging

from gpucost.cluster.objects.state import CollectionStatus
from gpucost_queue_collector.assemble import NAMED, ONE_OUTAGE_S, FirstFailureFilter, summary

READ = CollectionStatus("v1", True)
ABSENT = CollectionStatus("", True, absent=True)


def failed(reason: str) -> CollectionStatus:
    return CollectionStatus("v1", True, problem=reason)


def record(level: int, reason: str = "") -> logging.LogRecord:
    made = logging.LogRecord("reflector", level, "", 0, "%s", ("said",), None)
    if reason:
        made.reason = reason
    return made


def test_a_summary_counts_what_is_read_and_names_what_is_not() -> None:
    assert summary({"pods": READ, "cohorts": ABSENT}) == "1 collections are read, 1 are not installed"
    assert summary({"pods": failed("http_403"), "nodes": failed("http_403"), "jobs": failed("cut")}) == (
        "0 collections are read, 0 are not installed; 2 cannot be read: http_403 (pods, nodes); "
        "1 cannot be read: cut (jobs)"
    )
    assert "1 have not been read yet" in summary({"pods": CollectionStatus("v1", False)})


def test_a_summary_is_short_however_many_fail() -> None:
    text = summary({f"kind-{number}": failed("unreachable") for number in range(40)})
    assert "40 cannot be read: unreachable (kind-0, " in text
    assert text.endswith(f"and {40 - NAMED} more)")


def test_of_one_outage_one_failure_is_told_for_each_reason() -> None:
    now_s = [0.0]
    said = FirstFailureFilter(lambda: now_s[0])
    told = [said.filter(record(logging.WARNING, reason)) for reason in ("cut", "cut", "http_403", "cut")]
    assert told == [True, False, True, False]
    now_s[0] = ONE_OUTAGE_S
    assert said.filter(record(logging.WARNING, "cut"))
    assert not said.filter(record(logging.INFO))
    assert said.filter(record(logging.ERROR))
