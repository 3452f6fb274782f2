"""Predicted waits in the ledger: written once, scored once, forgotten after 90 days."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gpucost.domain.errors import InputError
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.predictions import KEPT_MS, MOST_FORETOLD, WaitPrediction
from tests.ledger.builders import CLUSTER, NOW_MS


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(ledger_url: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, now=clock) as opened:
        yield opened


def foretold(uid: str = "w1", **values: Any) -> WaitPrediction:
    given: dict[str, Any] = {
        "workload_uid": uid,
        "namespace": "ml",
        "name": f"job-{uid}",
        "queue": "research",
        "team": "red",
        "asked_ms": NOW_MS,
        "p50_ms": HOUR_MS,
        "p90_ms": 3 * HOUR_MS,
        "horizon_ms": 7 * DAY_MS,
    }
    return WaitPrediction(**(given | values))


def test_a_wait_comes_back_as_it_was_written(ledger: Ledger) -> None:
    simulated = {"simulated_p10_ms": 1, "simulated_p50_ms": HOUR_MS, "simulated_p90_ms": None}
    assert ledger.foretell("ranges", [foretold(gpus=8, p10_ms=0, **simulated)]) == 1
    assert ledger.foretold("ranges") == (foretold(gpus=8, p10_ms=0, **simulated),)
    given = (foretold(), foretold("w2", p90_ms=None, asked_ms=NOW_MS + 1), foretold("w3", team="", queue=""))
    assert ledger.foretell(CLUSTER, given) == 3
    assert ledger.foretold(CLUSTER) == (given[0], given[2], given[1])
    assert ledger.foretold("beta") == ()


def test_the_first_word_stands(ledger: Ledger) -> None:
    ledger.foretell(CLUSTER, [foretold()])
    assert ledger.foretell(CLUSTER, [foretold(p50_ms=1), foretold("w2")]) == 1
    assert ledger.foretold(CLUSTER)[0] == foretold()
    assert ledger.foretell("beta", [foretold(p50_ms=1)]) == 1, "another cluster is another matter"


def test_it_is_scored_once(ledger: Ledger) -> None:
    ledger.foretell(CLUSTER, [foretold(), foretold("w2"), foretold("w3")])
    then_ms = NOW_MS + HOUR_MS
    assert ledger.score_foretold(CLUSTER, started_ms={"w1": then_ms}, gone_ms={"w2": then_ms}) == 2
    assert ledger.score_foretold(CLUSTER, started_ms={"w2": 1, "nobody": 1}, gone_ms={"w1": 1}) == 0
    started, gone, waits = ledger.foretold(CLUSTER)
    assert (started.started_ms, started.gone_ms, started.is_decided) == (then_ms, None, True)
    assert (gone.started_ms, gone.gone_ms, gone.is_decided) == (None, then_ms, True)
    assert waits == foretold("w3")
    assert not waits.is_decided
    assert ledger.score_foretold("beta", started_ms={"w3": 1}, gone_ms={}) == 0


def test_all_that_wait_and_the_newest_of_the_others(ledger: Ledger) -> None:
    given = [foretold(f"w{number}", asked_ms=NOW_MS + number) for number in range(6)]
    ledger.foretell(CLUSTER, given)
    ledger.score_foretold(CLUSTER, started_ms={f"w{at}": NOW_MS + 9 for at in range(1, 6)}, gone_ms={})
    assert [each.workload_uid for each in ledger.foretold(CLUSTER, most=2)] == ["w0", "w4", "w5"]
    for most in (0, MOST_FORETOLD + 1):
        with pytest.raises(InputError, match=r"most.*1 to 5000"):
            ledger.foretold(CLUSTER, most=most)


def test_a_reader_gets_the_waits_of_its_teams_and_clusters(ledger: Ledger) -> None:
    """However many others there are, and however late they asked."""
    others = [foretold(f"o{number}", team="blue", asked_ms=NOW_MS + 9 + number) for number in range(3)]
    ledger.foretell(CLUSTER, [foretold(), foretold("w2", asked_ms=NOW_MS + 1), *others])
    decided = dict.fromkeys(("w1", "o0", "o1", "o2"), NOW_MS + 99)
    ledger.score_foretold(CLUSTER, started_ms=decided, gone_ms={})
    red = Scope(frozenset({"red"}))
    found = ledger.foretold(CLUSTER, most=1, scope=red)
    assert [each.workload_uid for each in found] == ["w1", "w2"]
    assert ledger.foretold(CLUSTER, scope=Scope(frozenset())) == ()
    assert ledger.foretold(CLUSTER, scope=red.within(["beta"])) == ()


def test_what_is_older_than_90_days_is_deleted_by_the_next_write(ledger: Ledger, clock: Clock) -> None:
    ledger.foretell(CLUSTER, [foretold(), foretold("w2", asked_ms=NOW_MS + 1)])
    ledger.foretell("beta", [foretold()])
    clock.now_ms = NOW_MS + KEPT_MS
    ledger.foretell(CLUSTER, [])
    assert len(ledger.foretold(CLUSTER)) == 2
    clock.now_ms += 1
    ledger.foretell(CLUSTER, [foretold("w3", asked_ms=clock.now_ms)])
    assert [each.workload_uid for each in ledger.foretold(CLUSTER)] == ["w2", "w3"]
    assert len(ledger.foretold("beta")) == 1, "its own writer deletes it"


def test_many_at_once(ledger: Ledger) -> None:
    given = [foretold(f"w{number:05}", asked_ms=NOW_MS + number) for number in range(2_500)]
    assert ledger.foretell(CLUSTER, given) == 2_500
    assert ledger.foretell(CLUSTER, given) == 0
    assert ledger.foretold(CLUSTER) == tuple(given)


def test_hostile_names_are_cut_to_what_can_be_stored(ledger: Ledger) -> None:
    ledger.foretell(CLUSTER, [foretold(name="a\0b'; DROP TABLE holder; --", team="\ud800x")])
    (found,) = ledger.foretold(CLUSTER)
    assert (found.name, found.team) == ("ab'; DROP TABLE holder; --", "x")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workload_uid", ""),
        ("workload_uid", "a\0"),
        ("asked_ms", -1),
        ("p50_ms", -1),
        ("p90_ms", 2**63),
        ("horizon_ms", -1),
        ("started_ms", -1),
    ],
)
def test_nonsense_is_refused_and_nothing_written(ledger: Ledger, field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field):
        ledger.foretell(CLUSTER, [foretold("w2"), replace(foretold(), **{field: value})])
    assert ledger.foretold(CLUSTER) == ()
