"""Rows of the fault matrix, each held against changes of what its tests run, until one of them is red."""

from __future__ import annotations

import ast
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.support.code_mutations import CodeMutation, code_mutations, template_mutations
from benchmarks.support.tree_copy import RunNotes, TreeCopy

# Minutes each: taken only for a row that has no other test.
_SLOW = (
    "tests/operations_kills",
    "tests/demo",
    "tests/cli/test_demo",
    "tests/replay",
    "tests/helm/test_first_report",
)
# Seconds each: taken after the others, while a row has time.
_LATER = (
    "tests/service",
    "tests/cli",
    "tests/api",
    "tests/operations",
    "tests/helm",
    "tests/exporters/queue/test_day",
)
_FUNCTIONS, _CASES = 5, 2
_LONGEST_ROW_S = 5.0
# Lines that no fast test runs are changed last, and by the fastest of them each change is judged.
_FAST_S, _LONG_S, _FEW = 2.0, 15.0, 8
_CHART_ROW = 70
_CHART = "helm/gpucost/templates"


class RowChoice:
    """A plugin of pytest: of each row a few functions, two cases of each, while the row has time."""

    def __init__(self, rows: Iterable[int]) -> None:
        self._rows = frozenset(rows)
        self._spent: Counter[int] = Counter()
        self._run: Counter[int] = Counter()
        self._chosen: dict[str, frozenset[int]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        found: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for item in items:
            for row in self._rows & {row for mark in item.iter_markers("fault") for row in mark.args}:
                found[row][item.nodeid.partition("[")[0]].append(item.nodeid)
        chosen = defaultdict(set)
        for row, functions in found.items():
            for name in sorted(functions, key=_slowness)[:_FUNCTIONS]:
                if not name.startswith(_SLOW) or all(each.startswith(_SLOW) for each in functions):
                    for nodeid in functions[name][:_CASES]:
                        chosen[nodeid].add(row)
        self._chosen = {nodeid: frozenset(rows) for nodeid, rows in chosen.items()}
        items[:] = sorted(
            (each for each in items if each.nodeid in chosen), key=lambda each: _slowness(each.nodeid)
        )

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        rows = self._chosen[item.nodeid]
        if all(self._spent[row] > _LONGEST_ROW_S and self._run[row] >= _FUNCTIONS for row in rows):
            pytest.skip("its rows have had their time")
        self._run.update(rows)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for row in self._chosen[report.nodeid]:
            self._spent[row] += report.duration


def _slowness(name: str) -> int:
    return 2 * name.startswith(_SLOW) + name.startswith(_LATER)


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """The change that turned a test of the row red, or that none of ``tried`` did."""

    row: int
    tried: int
    change: str | None = None
    test: str | None = None

    def __str__(self) -> str:
        if self.change is None:
            return f"row {self.row}: green under all of {self.tried}"
        return f"row {self.row}: {self.change} -> {self.test}"


@dataclass(slots=True)
class RowTrial:
    """Rows, their tests, and the lines that these ran, in a copy of the tree."""

    copy: TreeCopy
    rows: list[int]
    within: str = ""
    notes: RunNotes = field(default_factory=RunNotes)
    _lines: dict[int, dict[tuple[str, int], set[str]]] = field(default_factory=dict)
    _mutations: dict[str, list[CodeMutation]] = field(default_factory=dict)

    def measure(self) -> None:
        """Runs tests of the rows with coverage; those that are red without any change are of no use."""
        tests = (self.copy.root / "tests").rglob("test_*.py")
        files = sorted(
            str(path.relative_to(self.copy.root)) for path in tests if "mark.fault(" in path.read_text()
        )
        self.notes = self.copy.measured(["-m", "fault", *files], RowChoice(self.rows))
        for test in self.notes.red:
            print(f"red without any change: {test}", flush=True)
        useful = {test: rows for test, rows in self.notes.rows.items() if test not in self.notes.red}
        self._lines = {row: defaultdict(set) for row in self.rows}
        known = self.copy.tests_by_line()
        for file, lines in ((file, known[file]) for file in known if file.endswith(".py")):
            for line, ran in lines.items():
                for test in ran:
                    for row in useful.get(test, ()):
                        if row in self._lines:
                            self._lines[row][file, line].add(test)

    def verdict(self, row: int, most: int, seed: int) -> RowVerdict:
        """Tries changes one after another, first those of lines that few other rows run."""
        tried = 0
        for mutation in self._candidates(row, seed)[:most]:
            ran = self._lines[row].get((mutation.file, mutation.line)) or self._tests_of(row)
            fastest, *others = sorted(ran, key=lambda test: (self.notes.seconds[test], test))[:_FEW]
            tests = [fastest, *(test for test in others if self.notes.seconds[test] < _LONG_S)]
            text = (self.copy.root / mutation.file).read_text(encoding="utf-8")
            seconds = {test: self.notes.seconds[test] for test in tests}
            with self.copy.changed(mutation.file, mutation.applied(text)):
                ended = self.copy.run(tests, seconds, 20 + 3 * sum(seconds.values()))
            tried += 1
            # A module that cannot be imported, or a test that is found no more, proves nothing of a row.
            if ended.status is not None and (red := [test for test in ended.red if test in seconds]):
                return RowVerdict(row, tried, str(mutation), red[0])
        return RowVerdict(row, tried)

    def _tests_of(self, row: int) -> set[str]:
        useful = (
            test for test, rows in self.notes.rows.items() if row in rows and test not in self.notes.red
        )
        return {test for test in useful if self.notes.seconds.get(test)}

    def _candidates(self, row: int, seed: int) -> list[CodeMutation]:
        """At most two of a line, in an order by lot among lines that as many rows run."""
        if row == _CHART_ROW:
            templates = sorted((self.copy.root / _CHART).glob("*.[yt]*l"))
            names = [str(path.relative_to(self.copy.root)) for path in templates]
            found = [mutation for name in names for mutation in template_mutations(self.copy.root, name)]
            return random.Random(seed).sample(found, len(found))
        rows_of = Counter(place for places in self._lines.values() for place in places)
        lines = sorted(self._lines[row])
        places = [place for place in lines if place[0].startswith(self.within) and self._is_body(place)]
        random.Random(seed * 1000 + row).shuffle(places)
        seconds = {
            place: min(map(self.notes.seconds.__getitem__, ran)) for place, ran in self._lines[row].items()
        }
        places.sort(key=lambda place: (seconds[place] > _FAST_S, rows_of[place]))
        return [mutation for place in places for mutation in self._at(place)[:2]]

    def _at(self, place: tuple[str, int]) -> list[CodeMutation]:
        file, line = place
        if file not in self._mutations:
            self._mutations[file] = list(code_mutations(self.copy.root, file))
        return [mutation for mutation in self._mutations[file] if mutation.line == line]

    def _is_body(self, place: tuple[str, int]) -> bool:
        return place[1] in _bodies(self.copy.root / place[0])


_BODIES: dict[Path, frozenset[int]] = {}


def _bodies(file: Path) -> frozenset[int]:
    """Lines of functions, their heads left out."""
    if file not in _BODIES:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        functions = [
            each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        spans = [range(each.body[0].lineno, (each.end_lineno or 0) + 1) for each in functions]
        _BODIES[file] = frozenset(line for span in spans for line in span)
    return _BODIES[file]


def verdicts(trial: RowTrial, kept: Path, most: int, seed: int) -> Iterator[RowVerdict]:
    """Of each row; those in ``kept`` are taken from there, and each new one is written there at once."""
    known = json.loads(kept.read_text()) if kept.exists() else {}
    for row in trial.rows:
        if str(row) not in known:
            found = trial.verdict(row, most, seed)
            known[str(row)] = {"tried": found.tried, "change": found.change, "test": found.test}
            kept.write_text(json.dumps(known, indent=1))
        yield RowVerdict(row, **known[str(row)])
