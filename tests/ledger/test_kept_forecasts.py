"""Forecasts in the ledger, of SQLite and PostgreSQL: written once, seen by their team, forgotten later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpucost.domain.errors import InputError
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, Month
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.kept_forecasts import KEPT_MS, KeptForecast
from tests.ledger.builders import NOW_MS

SAID = KeptForecast("2026-10", "red", NOW_MS, 5, 10**18, 9 * 10**17, 2 * 10**18)


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, now=lambda: NOW_MS) as opened:
        yield opened


def test_what_was_said_first_stays_and_is_seen_by_its_team(ledger: Ledger) -> None:
    others = replace(SAID, team="blue"), replace(SAID, month="2026-11", as_of_ms=NOW_MS + DAY_MS)
    assert ledger.keep_forecasts([SAID, *others]) == 3
    assert ledger.keep_forecasts([replace(SAID, expected_nano=10**18 + 1)]) == 0
    assert ledger.keep_forecasts([]) == 0
    assert ledger.kept_forecasts() == (others[0], SAID, others[1])
    assert ledger.kept_forecasts(month=Month(2026, 10)) == (others[0], SAID)
    assert ledger.kept_forecasts(scope=Scope(frozenset({"red"}))) == (SAID, others[1])
    assert ledger.kept_forecasts(scope=Scope(None, frozenset({"c"}))) == ()


def test_old_ones_are_forgotten_and_wrong_ones_refused(ledger: Ledger) -> None:
    ledger.keep_forecasts([SAID])
    later = replace(SAID, month="2027-12", as_of_ms=NOW_MS + KEPT_MS + 1)
    assert ledger.keep_forecasts([later]) == 1
    assert ledger.kept_forecasts() == (later,)
    with pytest.raises(InputError, match="days_left"):
        ledger.keep_forecasts([replace(SAID, days_left=-1)])
