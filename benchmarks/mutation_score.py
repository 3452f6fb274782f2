"""Mutation score: of small changes to the code of a package, drawn by lot, how many turn a test red.

The changes are Cosmic Ray's (pip install cosmic-ray coverage: no part of the development packages), made in
a copy of the tree. Each is judged by those tests of the package that run its line, as coverage saw; where
none does, it survives. Annotations, docstrings and log calls are left alone. Survivors are printed.

    python -m benchmarks.mutation_score attribution pricing --sample 60 --seed 1
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[1]
# What is changed, and the tests that are to see it.
PACKAGES = {
    "access": (("gpucost/access",), ("tests/access",)),
    "attribution": (("gpucost/attribution",), ("tests/attribution",)),
    "evidence": (("gpucost/telemetry/evidence.py",), ("tests/telemetry/test_evidence.py",)),
    "kueue": (("gpucost/advisor/kueue",), ("tests/advisor/test_kueue*.py",)),
    "ledger": (("gpucost/ledger",), ("tests/ledger",)),
    "pricing": (("gpucost/pricing",), ("tests/pricing",)),
}
LEAST = 0.9
_QUIET = ("-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-p", "brief_properties", "-W", "ignore")
_PYTEST = (sys.executable, "-m", "pytest", *_QUIET)
# One change of each kind: others of it say the same, or are no change (`==` and `is` of None).
_SWAPS = {
    "Binary": "Add_Sub Sub_Add Mul_FloorDiv Div_Mul FloorDiv_Mul Mod_Mul BitOr_BitAnd BitAnd_BitOr",
    "Comparison": "Eq_NotEq NotEq_Eq Lt_LtE LtE_Lt Gt_GtE GtE_Gt Is_IsNot IsNot_Is",
    "Unary": "Delete_USub Delete_Not",
}
_KINDS = frozenset(kind for kinds in _SWAPS.values() for kind in kinds.split())
_LONGEST_S = 240.0
# A red property is red: how small an example can be made of it is nobody's matter here.
_PLUGIN = """
import coverage
import hypothesis
import pytest

@pytest.hookimpl(trylast=True)
def pytest_configure():
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("brief", hypothesis.settings(), phases=phases)
    hypothesis.settings.load_profile("brief")

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    if measured := coverage.Coverage.current():
        measured.switch_context(item.nodeid)
    return (yield)
"""


@dataclass(frozen=True, slots=True, order=True)
class CodeMutation:
    """The ``occurrence``-th change of an operator of Cosmic Ray in a file, and the line that it is in."""

    file: str
    line: int
    operator: str
    occurrence: int


def is_meant(operator: str) -> bool:
    """Whether this kind of change is one of ours."""
    name = operator.rpartition("/")[2]
    if name.startswith("Replace") and "Operator_" in name:
        return name.partition("Operator_")[2] in _KINDS
    return name not in {"ExceptionReplacer", "RemoveDecorator"}


def code_mutations(file: Path) -> Iterator[CodeMutation]:
    """Every change of our kinds that changes what the file does."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    tree = get_ast_from_path(file)
    dull = dull_lines(file.read_text(encoding="utf-8"))
    for name in filter(is_meant, operator_names()):
        if get_operator(name).arguments():
            continue
        operator = get_operator(name)()
        positions = (start for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node))
        for occurrence, (line, column) in enumerate(positions):
            if not any(begin <= (line, column) < end for begin, end in dull):
                yield CodeMutation(str(file), line, name, occurrence)


def dull_lines(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations, docstrings, log calls and what only type checkers read begin and end."""
    found: list[ast.expr | ast.stmt | None] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.AnnAssign | ast.arg):
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node.returns)
        elif is_dull(node):
            found.append(node)
    return [
        ((each.lineno, each.col_offset), (each.end_lineno or 0, each.end_col_offset or 0))
        for each in found
        if each is not None
    ]


def is_dull(node: ast.AST) -> TypeGuard[ast.expr | ast.stmt]:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).lower().startswith(("logger.", "_log."))
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class TreeCopy:
    """A copy of the files of the tree, in which things are broken one after another."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        listing = ("git", "ls-files", "-z")
        listed = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name, follow_symlinks=False)
        if (ROOT.parent / "shared").exists():
            (folder / "shared").symlink_to(ROOT.parent / "shared")
        (self.root / "brief_properties.py").write_text(_PLUGIN)
        path = os.pathsep.join((str(self.root), str(self.root / "exporters")))
        self._environment = {**os.environ, "PYTHONPATH": path, "CI": "true", "PYTHONDONTWRITEBYTECODE": "1"}
        self._data = folder / "coverage"

    def run(self, command: tuple[str, ...], longest_s: float | None = None) -> int | None:
        """Its exit status, or None where it takes too long."""
        try:
            done = subprocess.run(
                command, cwd=self.root, env=self._environment, timeout=longest_s, capture_output=True
            )
        except subprocess.TimeoutExpired:
            return None
        return done.returncode

    def tests_by_line(self, folders: tuple[str, ...]) -> dict[tuple[str, int], list[str]]:
        """Which tests ran a line, as pytest names them; what runs on import is of none."""
        settings = self.root / "coverage.ini"
        settings.write_text(f"[run]\nsource = gpucost\ndata_file = {self._data}\n")
        tests = [str(path) for name in folders for path in sorted(self.root.glob(name))]
        measured = ("-m", "coverage", "run", f"--rcfile={settings}", *_PYTEST[1:])
        if self.run((sys.executable, *measured, *tests)) != 0:
            raise SystemExit(f"the tests of {', '.join(folders)} are red without any change")
        with sqlite3.connect(self._data) as database:
            rows = database.execute(
                "select file.path, line_bits.numbits, context.context from line_bits"
                " join file on file.id = line_bits.file_id join context on context.id = line_bits.context_id"
            ).fetchall()
        found = defaultdict(list)
        for file, bits, context in rows:
            for line in (8 * at + bit for at, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1):
                found[file, line].append(context)
        return found

    def is_killed(self, mutation: CodeMutation, tests: list[str]) -> bool:
        """Whether a test turns red, or never ends. The file is as before afterwards."""
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator

        file = Path(mutation.file)
        before = file.read_text(encoding="utf-8")
        changed = mutate_code(before, get_operator(mutation.operator)(), mutation.occurrence)
        try:
            file.write_text(changed, encoding="utf-8")
            return self.run((*_PYTEST, *tests), _LONGEST_S) != 0
        finally:
            file.write_text(before, encoding="utf-8")


def scored(copy: TreeCopy, name: str, sample: int, seed: int) -> tuple[int, int]:
    """How many changes of the package there were, and how many of them a test saw."""
    sources, tests = PACKAGES[name]
    ran_by = copy.tests_by_line(tests)
    files = [file for each in sources for file in files_of(copy.root / each)]
    everything = sorted(mutation for file in files for mutation in code_mutations(file))
    drawn = random.Random(seed).sample(everything, min(sample, len(everything)))
    killed = 0
    for mutation in drawn:
        node_ids = sorted(filter(None, ran_by.get((mutation.file, mutation.line), ())))
        is_red = bool(node_ids) and copy.is_killed(mutation, node_ids)
        killed += is_red
        if not is_red:
            place = Path(mutation.file).relative_to(copy.root)
            change = f"{mutation.operator} #{mutation.occurrence}"
            print(f"survived {place}:{mutation.line} {change} ({len(node_ids)} tests)", flush=True)
    print(f"{name}: {killed} of {len(drawn)} seen, of {len(everything)} there are", flush=True)
    return len(drawn), killed


def files_of(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", nargs="*", choices=[[], *PACKAGES], help="all of them without any")
    parser.add_argument("--sample", type=int, default=3, help="changes of each package")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    figures: Counter[str] = Counter()
    for name in args.package or PACKAGES:
        with tempfile.TemporaryDirectory() as folder:
            drawn, killed = scored(TreeCopy(Path(folder)), name, args.sample, args.seed)
        figures |= {f"{name}_drawn": drawn, f"{name}_seen": killed}
    names = [name for name in PACKAGES if f"{name}_drawn" in figures]
    ratios = {name: round(figures[f"{name}_seen"] / figures[f"{name}_drawn"], 3) for name in names}
    print(
        json.dumps(
            {
                "name": "mutation_score",
                "figures": dict(figures),
                "ratios": ratios,
                "limits": dict.fromkeys(ratios, LEAST),
                "holds": all(ratio >= LEAST for ratio in ratios.values()),
            }
        )
    )


if __name__ == "__main__":
    main()
