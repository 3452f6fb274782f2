"""Alert groups are kept as they came last, and forgotten when nothing comes of them any more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpucost.domain.errors import InputError, LedgerUnavailable
from gpucost.domain.time import DAY_MS
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores import notifications
from tests.ledger.builders import NOW_MS
from tests.ledger.test_foretold import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(ledger_url: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, now=clock) as opened:
        yield opened


def groups(ledger: Ledger) -> dict[str, tuple[str, int]]:
    return ledger.alert_groups(ledger.alert_group_times(since_ms=0).keys())


def test_what_came_last_counts(ledger: Ledger, clock: Clock) -> None:
    ledger.keep_alert_group("a", '{"status": "firing"}', firing=True)
    ledger.keep_alert_group("b", "{}", firing=True)
    clock.now_ms += 1
    ledger.keep_alert_group("a", '{"status": "resolved"}', firing=False)
    assert groups(ledger) == {"a": ('{"status": "resolved"}', NOW_MS + 1), "b": ("{}", NOW_MS)}
    assert ledger.alert_group_times(since_ms=NOW_MS + 1) == {"a": NOW_MS + 1}


def test_what_is_not_sent_any_more_is_forgotten(ledger: Ledger, clock: Clock) -> None:
    ledger.keep_alert_group("old", "{}", firing=True)
    clock.now_ms += 8 * DAY_MS
    ledger.keep_alert_group("over", "{}", firing=False)
    clock.now_ms += DAY_MS
    ledger.keep_alert_group("edge", "{}", firing=True)
    assert set(groups(ledger)) == {"old", "over", "edge"}
    clock.now_ms += 1
    ledger.keep_alert_group("new", "{}", firing=True)
    assert set(groups(ledger)) == {"edge", "new"}


def test_what_is_over_makes_room_and_what_fires_never_does(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "MOST_GROUPS", 3)
    for key, firing in (("a", True), ("over", False), ("over later", False), ("b", True)):
        clock.now_ms += 1
        ledger.keep_alert_group(key, "{}", firing=firing)
    assert set(groups(ledger)) == {"a", "over later", "b"}
    ledger.keep_alert_group("c", "{}", firing=True)
    assert set(groups(ledger)) == {"a", "b", "c"}
    ledger.keep_alert_group("a", "{}", firing=True)  # one that is there already
    with pytest.raises(LedgerUnavailable, match="group by fewer labels"):
        ledger.keep_alert_group("d", "{}", firing=True)
    monkeypatch.setattr(notifications, "MOST_GROUPS", 10)
    monkeypatch.setattr(notifications, "MOST_BYTES", 7)
    with pytest.raises(LedgerUnavailable, match="7 bytes"):
        ledger.keep_alert_group("d", "{}", firing=True)
    assert set(groups(ledger)) == {"a", "b", "c"}
    with pytest.raises(InputError, match="key"):
        ledger.keep_alert_group("", "{}", firing=True)
