"""Answers that are kept: one query for many who ask, never across scopes or of another ledger."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import HOUR_MS, Month, Window
from gpucost.ledger.ledger import Ledger
from gpucost.service.reporting.report_cache import ReportCache
from gpucost.service.reporting.report_service import ReportService
from tests.api.findings import lives, save
from tests.service.worlds import DAY, Clock, MemorySource, filled_ledger, frames, pipeline

MONTH = Month(2026, 10)
CLOCK = Clock()


def always(_: object) -> bool:
    return True


def test_many_who_ask_at_once_cost_one() -> None:
    kept, made, begun = ReportCache(), list[int](), threading.Barrier(8)

    def make() -> str:
        made.append(1)
        return "answer"

    def ask(_: int) -> str:
        begun.wait()
        return kept.get("key", make, keeps=always)

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(ask, range(8))) == {"answer"}
    assert len(made) == 1


def test_who_waits_for_one_that_fails_makes_its_own() -> None:
    kept, first, go = ReportCache(), threading.Event(), threading.Event()

    def fails() -> str:
        first.set()
        go.wait(60)
        raise ZeroDivisionError

    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(kept.get, "key", fails, keeps=always)
        assert first.wait(60)
        other = threads.submit(kept.get, "key", lambda: "mine", keeps=always)
        go.set()
        assert other.result(10) == "mine"
        with pytest.raises(ZeroDivisionError):
            one.result(10)


def test_bytes_are_bounded_and_the_oldest_goes_first() -> None:
    kept = ReportCache(20_000)
    for number in range(50):
        kept.get(number, lambda: bytes(1_000), keeps=always)
        kept.get(0, lambda: bytes(1_000), keeps=always)
    assert kept.bytes <= 20_000
    assert 5 < len(kept) < 10
    again = list[int]()
    kept.get(0, lambda: again.append(1), keeps=always)
    kept.get(1, lambda: again.append(1), keeps=always)
    assert again == [1], "the one asked all the time is there, the oldest is not"
    kept.get("large", lambda: bytes(5_000), keeps=always)
    assert len(kept) > 5, "one that is too large is not kept, and displaces nothing"


def test_a_report_is_measured_no_further_than_it_may_be_kept() -> None:
    seen = list[int]()

    class Part:
        def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
            seen.append(1)
            return bytes, (bytes(1_000),)

    kept = ReportCache(400_000)
    kept.get("large", lambda: [Part() for _ in range(5_000)], keeps=always)
    assert len(kept) == 0
    assert 100 <= len(seen) < 1_000
    kept.get("small", lambda: [Part() for _ in range(10)], keeps=always)
    assert len(kept) == 1
    assert 10_000 <= kept.bytes < 20_000


def test_the_text_of_a_question_counts_too() -> None:
    """Whoever asks chooses it: answers of a few bytes, under long questions, would be any number."""
    kept = ReportCache(1_000_000)
    for number in range(100):
        kept.get(("findings", str(number).zfill(9_000)), lambda: b"none", keeps=always)
    assert 9_000 * len(kept) <= kept.bytes <= 1_000_000
    assert 20 < len(kept) < 100


def test_a_cache_of_nothing_keeps_and_measures_nothing() -> None:
    def unmeasured() -> object:
        return lambda: None  # has no pickle

    kept, made = ReportCache(0), list[int]()
    kept.get("key", unmeasured, keeps=always)
    for _ in range(2):
        kept.get("other", lambda: made.append(1), keeps=always)
    assert (len(kept), kept.bytes, len(made)) == (0, 0, 2)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ReportService, Ledger, list[str]]:
    """Reports over a ledger, and the names of the heavy reads that they made."""
    ledger, reads = filled_ledger(tmp_path, CLOCK), list[str]()

    def count(name: str) -> None:
        real: Callable[..., object] = getattr(Ledger, name)

        def read(self: Ledger, *args: object, **named: object) -> object:
            reads.append(name)
            return real(self, *args, **named)

        monkeypatch.setattr(Ledger, name, read)

    count("aggregate")
    count("waste")
    return ReportService(ledger, "test", {}), ledger, reads


def reports(reporting: ReportService, scope: Scope) -> list[object]:
    month, waste = reporting.month(scope, MONTH), reporting.waste(scope, DAY)
    assert month is not None
    assert waste is not None
    return [month, waste, reporting.allocations(scope, DAY, ("team",), step_ms=HOUR_MS)]


def test_what_is_asked_again_is_not_read_again(counted: tuple[ReportService, Ledger, list[str]]) -> None:
    reporting, _, reads = counted
    first = reports(reporting, EVERYTHING)
    assert reads
    reads.clear()
    assert reports(reporting, EVERYTHING) == first
    assert reads == []


def test_another_scope_or_question_is_another_answer(
    counted: tuple[ReportService, Ledger, list[str]],
) -> None:
    reporting, ledger, reads = counted
    reports(reporting, EVERYTHING)
    for scope in (
        Scope(frozenset({"research"})),
        Scope(frozenset({"vision"})),
        Scope(None, frozenset({"x"})),
    ):
        reads.clear()
        alone = ReportService(ledger, "test", {})
        month, expected = reporting.month(scope, MONTH), alone.month(scope, MONTH)
        assert month == expected
    reads.clear()
    by_hour = reporting.allocations(EVERYTHING, DAY, ("team",), step_ms=HOUR_MS)
    by_day = reporting.allocations(EVERYTHING, DAY, ("team",))
    assert by_hour != by_day
    part = Window(DAY.start_ms, DAY.start_ms + 6 * HOUR_MS)
    assert reporting.allocations(EVERYTHING, part, ("team",)) != by_day


def test_what_changes_the_ledger_changes_the_answer(counted: tuple[ReportService, Ledger, list[str]]) -> None:
    """A new version of a window, findings, the close of the month, an adjustment."""
    reporting, ledger, _ = counted
    fewer = frames()
    held = replace(fewer, allocations=fewer.allocations[fewer.allocations["pod"] != "tune"])

    def rewrite() -> None:
        lines = pipeline(ledger, MemorySource(held), Clock())
        assert lines.ingest("c", lines.every("c", DAY)).changed

    for change in (rewrite, lambda: save(ledger, *lives())):
        before = reports(reporting, EVERYTHING)
        change()
        after = reports(reporting, EVERYTHING)
        assert after != before
        assert after == reports(ReportService(ledger, "test", {}), EVERYTHING)


def test_a_closed_month_is_another_answer(
    counted: tuple[ReportService, Ledger, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reporting, ledger, _ = counted
    before = reporting.month(EVERYTHING, MONTH)
    monkeypatch.setattr(CLOCK, "now_ms", MONTH.window.end_ms)
    for info in ledger.windows(DAY):
        ledger.settle("c", info.window)
    ledger.close_month(MONTH, author="ann", reason="a day", min_coverage=Fraction(0))
    after = reporting.month(EVERYTHING, MONTH)
    assert after != before
    assert after == ReportService(ledger, "test", {}).month(EVERYTHING, MONTH)
