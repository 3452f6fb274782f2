"""A sample of the made-up fleet of benchmarks/idle_servers.py: who is found, and who is called again."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.support.servers import STEPS_A_DAY, ServedFleet, fleet
from gpucost.detectors.rule_settings import IdleAllocationSettings, ScopedSettings
from gpucost.detectors.rules.idle_allocation import idle_allocation_rule

NOW = 4 * STEPS_A_DAY


@pytest.fixture(scope="module")
def given() -> ServedFleet:
    return fleet(24, 20, 4)


def found(given: ServedFleet, signal: str, **settings: float) -> set[int]:
    facts = given.facts(0, NOW, signal)
    drafts = idle_allocation_rule.run(facts, ScopedSettings(IdleAllocationSettings(**settings))).drafts  # type: ignore[arg-type]
    return {int(draft.subject.name[1:]) for draft in drafts if draft.ended_ms is None}


def test_requests_tell_the_dead_from_the_quiet(given: ServedFleet) -> None:
    """Dead: it was not called for a day, and will not be."""
    after = {n for n, row in enumerate(given.calls) if row[NOW:].any()}
    dead = {n for n, row in enumerate(given.calls) if not row[NOW - STEPS_A_DAY :].any()} - after
    by_gpu = found(given, "silent", serving_risk=0.999)
    assert by_gpu >= dead
    assert by_gpu & after
    by_requests = found(given, "requests")
    assert by_requests >= dead
    assert len(by_requests & after) < len(by_gpu & after)
    assert np.isfinite(given.received).all()


def test_few_peers_and_no_signal_is_no_finding(given: ServedFleet) -> None:
    assert found(given, "none") == set()
