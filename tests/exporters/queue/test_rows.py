"""Rows: written when their facts are new or changed, and only then; a writer that fails changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.contract.queue_metrics import STATE_PROBLEMS
from gpucost_exporter_base.endpoint import EndpointRequest
from gpucost_queue_collector.page import MetricsPage, SeriesRows, line


class Written:
    """Counts what is written; raises for a negative number."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.rows = SeriesRows((STATE_PROBLEMS,), self.write)
        self.page = MetricsPage([self.rows.table])

    def write(self, found: tuple[str, int]) -> Sequence[bytes]:
        code, number = found
        if number < 0:
            raise ArithmeticError(code)
        self.numbers.append(number)
        return (line(STATE_PROBLEMS, (code,), number),)

    def update(self, facts: Mapping[str, int]) -> None:
        with self.page.update():
            self.rows.update({key: (key, number) for key, number in facts.items()})

    def shown(self) -> dict[str, int]:
        text = self.page.answer(EndpointRequest("GET", "/metrics", "", {}, True)).body.decode()
        found = [each.split('"') for each in text.splitlines() if not each.startswith("#")]
        return {code: int(float(rest.split()[1])) for _, code, rest in found}


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 2)), max_size=8))
def test_the_table_says_what_the_facts_say_and_nothing_is_written_twice(steps: list[dict[str, int]]) -> None:
    written, before = Written(), dict[str, int]()
    for facts in steps:
        written.numbers.clear()
        written.update(facts)
        assert written.shown() == facts
        changed = [number for key, number in facts.items() if before.get(key) != number]
        assert sorted(written.numbers) == sorted(changed)
        before = facts


def test_a_writer_that_fails_changes_nothing() -> None:
    written = Written()
    written.update({"a": 1, "b": 1})
    with pytest.raises(ArithmeticError, match="c"):
        written.update({"a": 2, "c": -1})
    with written.page.update():
        pass
    assert written.shown() == {"a": 1, "b": 1}
    written.update({"a": 2, "c": 3})
    assert written.shown() == {"a": 2, "c": 3}
