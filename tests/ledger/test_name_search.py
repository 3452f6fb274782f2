"""Names by a part of them: of what the scope sees, and within limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucost.domain.errors import InputError
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.usage import name_search
from tests.service.worlds import Clock, filled_ledger

VISION = Scope(frozenset({"vision"}))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return filled_ledger(tmp_path_factory.mktemp("names"), Clock())


def test_names_of_every_kind(ledger: Ledger) -> None:
    assert [(each.namespace, each.job) for each in ledger.find_names(EVERYTHING, "tRain").jobs] == [
        ("research", "train")
    ]
    assert ledger.find_names(EVERYTHING, "research").teams == ("research",)
    assert ledger.find_names(EVERYTHING, "bo").users == ("bob",)
    assert ledger.find_names(EVERYTHING, "batch").queues == ("batch",)
    assert ledger.find_names(EVERYTHING, "N2").nodes == (("c", "n2"),)


def test_a_scope_finds_its_own(ledger: Ledger) -> None:
    foreign = ledger.find_names(VISION, "rain")
    assert (foreign.jobs, foreign.teams, foreign.users, foreign.queues) == ((), (), (), ())
    assert foreign.nodes is None
    assert [each.job for each in ledger.find_names(VISION, "detect").jobs] == ["detect"]
    elsewhere = Scope(None, frozenset({"other"}))
    assert ledger.find_names(elsewhere, "rain") == ledger.find_names(elsewhere, "nothing")
    assert ledger.find_names(Scope(None, frozenset({"c"})), "rain").jobs


def test_what_is_looked_at_is_bounded(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not ledger.find_names(EVERYTHING, "rain").cut
    monkeypatch.setattr(name_search, "MOST_HOLDERS", 1)
    found = [ledger.find_names(EVERYTHING, name) for name in ("train", "tune", "detect")]
    assert all(each.cut for each in found)
    assert sum(len(each.jobs) for each in found) <= 1


@pytest.mark.parametrize("text", ["", "a", " a ", "a" * 254, "a\0a", "\ud800\ud800"])
def test_text_that_is_no_name_is_refused(ledger: Ledger, text: str) -> None:
    with pytest.raises(InputError, match="q"):
        ledger.find_names(EVERYTHING, text)


def test_the_world_is_open(tmp_path: Path) -> None:
    with filled_ledger(tmp_path, Clock()) as found:
        assert found.find_names(EVERYTHING, "rch/tun").jobs
