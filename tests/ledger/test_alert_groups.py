"""Alert groups are kept as they came last, and forgotten when nothing comes of them any more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpucost.domain.errors import InputError
from gpucost.domain.time import DAY_MS
from gpucost.ledger import Ledger, alert_groups
from tests.ledger.builders import NOW_MS
from tests.ledger.test_foretold import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(ledger_url: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, now=clock) as opened:
        yield opened


def test_what_came_last_counts(ledger: Ledger, clock: Clock) -> None:
    ledger.keep_alert_group("a", '{"status": "firing"}')
    ledger.keep_alert_group("b", "{}")
    clock.now_ms += 1
    ledger.keep_alert_group("a", '{"status": "resolved"}')
    assert ledger.alert_groups(since_ms=0) == {
        "a": ('{"status": "resolved"}', NOW_MS + 1),
        "b": ("{}", NOW_MS),
    }
    assert list(ledger.alert_groups(since_ms=NOW_MS + 1)) == ["a"]


def test_what_is_not_sent_any_more_is_forgotten(ledger: Ledger, clock: Clock) -> None:
    ledger.keep_alert_group("old", "{}")
    clock.now_ms += 9 * DAY_MS
    ledger.keep_alert_group("edge", "{}")
    assert set(ledger.alert_groups(since_ms=0)) == {"old", "edge"}
    clock.now_ms += 1
    ledger.keep_alert_group("new", "{}")
    assert set(ledger.alert_groups(since_ms=0)) == {"edge", "new"}


def test_groups_are_limited(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_groups, "MOST_GROUPS", 2)
    for key in ("a", "b", "a"):
        ledger.keep_alert_group(key, "{}")
    with pytest.raises(InputError, match="groupKey"):
        ledger.keep_alert_group("c", "{}")
    with pytest.raises(InputError, match="key"):
        ledger.keep_alert_group("", "{}")
