"""What a newcomer meets: how many modules, how long, how many in a folder, and whether names say enough.

``python tests/house.py`` prints a table: each figure now, before the change that re-housed the code, and its
limit. ``--tests`` adds ``make test``, which takes minutes. Counting is pure, so that tests/test_house.py can
hold the limits, and show that a bad tree is caught. CPU seconds are printed and never asserted.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("gpucost", "exporters", "dashboards", "alerts")
"""What is counted; tests and benchmarks are not."""
GENERATED = "_pb2.py"
FEW_LINES, MOST_LINES = 100, 600
ADVISE = ("advise", "-f", "docs/examples/waits.yaml", "--state", "docs/examples/cluster.yaml")
TIMES = 3

MOST_MODULES = 766
"""640 after the re-housing, 20 more rooms for pages, log-in and tools (docs/decisions/0016-pages.md), 6 for
samples (0017-samples.md), 4 for sums by day (0018-ledger-rollups.md), 7 for sealed months
(0019-sealed-months.md), 4 for the workers of back-fills (0020-back-fills.md), 29 for the replay
(0021-replay.md), 19 for the explanation of a change, savings,
budgets and incidents (0023-budgets.md), 14 for FOCUS
(0022-focus.md), 2 for what a closed month keeps of contracts."""
MOST_IN_A_FOLDER = 24
MOST_ONE_WORD = 0.25
MOST_NAMES_TWICE = 10
LEAST_DOCSTRING = 3
"""Lines of the docstring of a package."""

_ONE_WORD = re.compile(r"_?[A-Z][a-z0-9]*|_?[A-Z]+")


@dataclass(frozen=True, slots=True)
class SourceModule:
    """One file. ``classes`` are those at its top level, in order; ``docstring`` counts lines."""

    path: Path
    lines: int
    classes: tuple[str, ...]
    docstring: int

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def folder(self) -> str:
        return self.path.parent.as_posix()


@dataclass(frozen=True, slots=True)
class HouseCount:
    """Figures of a tree. ``folders`` are modules by folder, ``twice`` the modules by the name of a class that
    stands in two or more of them: public ones, and with ``twice_private`` private ones as well."""

    modules: int
    median: float
    short: int
    long: tuple[str, ...]
    folders: Mapping[str, int]
    one_word: tuple[str, ...]
    one_word_share: float
    twice: Mapping[str, tuple[str, ...]]
    twice_private: Mapping[str, tuple[str, ...]]

    @property
    def largest_folder(self) -> int:
        return max(self.folders.values(), default=0)


def source_module(path: Path, text: str) -> SourceModule:
    """What is counted of a file with this text."""
    tree = ast.parse(text)
    classes = tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    docstring = len((ast.get_docstring(tree) or "").splitlines())
    return SourceModule(path, text.count("\n"), classes, docstring)


def source_modules(root: Path, parts: Iterable[str] = PARTS) -> list[SourceModule]:
    """Every file below ``parts`` of ``root`` that a person wrote, by path; paths are relative to ``root``."""
    files = sorted(file for part in parts for file in (root / part).rglob("*.py"))
    return [
        source_module(file.relative_to(root), file.read_text(encoding="utf-8"))
        for file in files
        if not file.name.endswith(GENERATED)
    ]


def count(found: Sequence[SourceModule]) -> HouseCount:
    """The figures. Modules are files other than ``__init__``; classes count wherever they stand."""
    modules = [each for each in found if not each.is_package]
    public = [name for each in found for name in each.classes if not name.startswith("_")]
    one_word = [name for name in public if _ONE_WORD.fullmatch(name)]
    return HouseCount(
        modules=len(modules),
        median=statistics.median(each.lines for each in modules) if modules else 0,
        short=sum(each.lines < FEW_LINES for each in modules),
        long=tuple(str(each.path) for each in modules if each.lines > MOST_LINES),
        folders=Counter(each.folder for each in modules),
        one_word=tuple(sorted(set(one_word))),
        one_word_share=len(one_word) / len(public) if public else 0.0,
        twice=_twice(found, private=False),
        twice_private=_twice(found, private=True),
    )


def _twice(found: Iterable[SourceModule], *, private: bool) -> dict[str, tuple[str, ...]]:
    places: dict[str, list[str]] = defaultdict(list)
    for each in found:
        for name in dict.fromkeys(each.classes):
            if private or not name.startswith("_"):
                places[name].append(str(each.path))
    return {name: tuple(paths) for name, paths in sorted(places.items()) if len(paths) > 1}


def broken(found: Sequence[SourceModule]) -> list[str]:
    """What is over a limit, one sentence each; empty for a tree that is in order."""
    figures = count(found)
    wrong = [f"{path} has more than {MOST_LINES} lines" for path in figures.long]
    wrong += [
        f"{folder} has {n} modules, more than {MOST_IN_A_FOLDER}"
        for folder, n in sorted(figures.folders.items())
        if n > MOST_IN_A_FOLDER
    ]
    wrong += [
        f"{each.path} has a docstring of {each.docstring} lines, fewer than {LEAST_DOCSTRING}"
        for each in found
        if each.is_package and each.docstring < LEAST_DOCSTRING
    ]
    if figures.modules > MOST_MODULES:
        wrong.append(f"{figures.modules} modules, more than {MOST_MODULES}")
    if figures.one_word_share > MOST_ONE_WORD:
        share, names = figures.one_word_share, ", ".join(figures.one_word[:10])
        wrong.append(f"{share:.0%} of public classes are one word, more than {MOST_ONE_WORD:.0%}: {names}")
    if len(figures.twice) > MOST_NAMES_TWICE:
        names = ", ".join([*figures.twice][:20])
        wrong.append(f"{len(figures.twice)} names of classes stand in two modules or more: {names}")
    return wrong


def cpu_seconds(command: Sequence[str], times: int = TIMES) -> float:
    """User and system time of a command and its children, the least of ``times``. Raises CalledProcessError
    for a command that fails."""
    return min(_once(command)[0] for _ in range(times))


def _once(command: Sequence[str]) -> tuple[float, float]:
    """CPU and wall seconds of one run."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def rows(figures: HouseCount) -> Iterator[tuple[str, str, str, str]]:
    """Figure, now, before, limit."""
    twice, with_private = len(figures.twice), len(figures.twice_private)
    yield "modules (without __init__ and generated)", str(figures.modules), "868", f"<= {MOST_MODULES}"
    yield "median lines", f"{figures.median:g}", "134", ""
    yield f"modules under {FEW_LINES} lines", str(figures.short), "293", ""
    yield f"modules over {MOST_LINES} lines", str(len(figures.long)), "0", "0"
    yield "modules in the largest folder", str(figures.largest_folder), "45", f"<= {MOST_IN_A_FOLDER}"
    yield "public classes of one word", f"{figures.one_word_share:.0%}", "58%", f"<= {MOST_ONE_WORD:.0%}"
    yield "public class names in two or more modules", str(twice), "141", f"<= {MOST_NAMES_TWICE}"
    yield "the same with private classes", str(with_private), "159", ""


def times_of_commands(program: str) -> Iterator[tuple[str, str, str, str]]:
    """CPU seconds of two commands, which no test asserts."""
    for words, before in ((("--version",), "0.36"), (ADVISE, "3.9")):
        name = " ".join(("gpucost", *words))
        yield f"CPU s of {name}", f"{cpu_seconds((program, *words)):.2f}", before, ""


def times_of_tests() -> Iterator[tuple[str, str, str, str]]:
    cpu, wall = _once(("make", "test"))
    yield "wall s of make test", f"{wall:,.0f}", "1,590", ""
    yield "CPU s of make test", f"{cpu:,.0f}", "", ""


def table(found: Iterable[tuple[str, str, str, str]]) -> str:
    """Columns as wide as what is in them."""
    every = [("", "now", "before", "limit"), *found]
    width, *others = (max(len(row[n]) for row in every) for n in range(4))
    lines = []
    for name, *cells in every:
        numbers = "  ".join(cell.rjust(size) for cell, size in zip(cells, others, strict=True))
        lines.append(f"{name:<{width}}  {numbers}".rstrip())
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tests/house.py", description="Count the house.")
    parser.add_argument("--tests", action="store_true", help="run make test, and say how long it takes")
    parser.add_argument("--no-times", action="store_true", help="count only: no command is run")
    chosen = parser.parse_args(arguments)
    found = source_modules(ROOT)
    shown = [*rows(count(found))]
    if not chosen.no_times:
        program = os.fspath(Path(sys.executable).with_name("gpucost"))
        shown += times_of_commands(program)
    if chosen.tests:
        shown += times_of_tests()
    print(table(shown))
    wrong = broken(found)
    for sentence in wrong:
        print(sentence)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
