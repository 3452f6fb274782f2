"""Mutation score: of small changes to the code of a package, drawn by lot, how many turn a test red.

The changes are Cosmic Ray's (pip install cosmic-ray coverage: no part of the development packages; without
them nothing is measured, and that is said), made in a copy of the tree. Each is judged by those tests of the
package that run its line, as coverage saw; where none does, it survives. What is run on import is judged by
all tests of the module, or the fastest of the package where there are none. Annotations, docstrings and log
calls are left alone. Survivors are printed.

    python -m benchmarks.mutation_score attribution pricing --sample 60 --seed 1

With --fault-rows, rows of the fault matrix are judged instead: each must have a test that is red under a
change of what it runs. Lines that few rows run are changed first; of each row a few fast tests are taken.

    python -m benchmarks.mutation_score --fault-rows 12 13 --folder /tmp/rows

A folder keeps the copy, what coverage saw, and the verdicts: the next run goes on from there.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import random
import tempfile
from pathlib import Path

from benchmarks.support.code_mutations import CodeMutation, code_mutations
from benchmarks.support.fault_rows import RowTrial, verdicts
from benchmarks.support.tree_copy import RunNotes, TreeCopy

_KUEUE = ("tests/advisor/test_kueue*.py", "tests/advisor/test_rule_set.py", "tests/advisor/test_submitted.py")
# Those that break it off at every statement, or start servers, take minutes.
_LEDGER = tuple(f"tests/ledger/test_{name}.py" for name in ("[!bfl]*", "ledger_[!f]*", "ledger_findings"))
# What is changed, and the tests that are to see it.
PACKAGES = {
    "access": (("gpucost/access",), ("tests/access",)),
    "attribution": (("gpucost/attribution",), ("tests/attribution",)),
    "evidence": (("gpucost/telemetry/evidence/evidence_rule.py",), ("tests/telemetry/test_evidence.py",)),
    "kueue": (("gpucost/advisor/kueue",), _KUEUE),
    "ledger": (("gpucost/ledger",), _LEDGER),
    "pricing": (("gpucost/pricing",), ("tests/pricing",)),
}
_NEEDED = ("cosmic-ray", "coverage")
LEAST = 0.9
ROWS = range(1, 74)
_LONGEST_S = 240.0
# Most changes die by the fastest of many tests: the others are not even imported.
_FEW = 12
# A test that takes longer, with coverage, is left out: they are random searches through all of a package.
_SLOWEST_S = 6.0


class PackageTrial:
    """Changes of a package, and which of its tests ran their lines."""

    def __init__(self, copy: TreeCopy, name: str) -> None:
        self._copy = copy
        sources, tests = PACKAGES[name]
        paths = sorted(path for each in tests for path in copy.root.glob(each))
        names = [str(path.relative_to(copy.root)) for path in paths]
        self._notes = copy.measured(["-m", "not postgres", *names])
        for test in self._notes.red:
            print(f"red without any change: {test}", flush=True)
        self._ran_by = copy.tests_by_line()
        files = [file for each in sources for file in _files_of(copy.root, each)]
        self.mutations = sorted(each for file in files for each in code_mutations(copy.root, file))

    def tests_of(self, mutation: CodeMutation) -> list[str]:
        """The fastest first."""
        lines = self._ran_by.get(mutation.file, {})
        found = lines.get(mutation.line, set())
        is_run_on_import = "" in found
        if is_run_on_import:
            found = {test for tests in lines.values() for test in tests}
        useful = self._fastest(found)
        return useful or (self._fastest({*self._notes.seconds})[:_FEW] if is_run_on_import else [])

    def _fastest(self, tests: set[str]) -> list[str]:
        """Those that are green and do not take too long."""
        seconds = self._notes.seconds
        useful = [test for test in tests - {*self._notes.red} if seconds.get(test, _LONGEST_S) <= _SLOWEST_S]
        return sorted(useful, key=lambda test: (seconds[test], test))

    def killer(self, mutation: CodeMutation) -> str | None:
        """The test that turns red, or what else happens where none ends green."""
        tests = self.tests_of(mutation)
        text = (self._copy.root / mutation.file).read_text(encoding="utf-8")
        with self._copy.changed(mutation.file, mutation.applied(text)):
            for part in (tests[:_FEW], tests[_FEW:]):
                ended = self._run(part) if part else RunNotes(status=0)
                if ended.status != 0:
                    return next(iter(ended.red), "never ends" if ended.status is None else "cannot begin")
        return None

    def _run(self, tests: list[str]) -> RunNotes:
        seconds = {test: self._notes.seconds[test] for test in tests}
        return self._copy.run(tests, seconds, min(_LONGEST_S, 20 + 5 * sum(seconds.values())))


def _files_of(root: Path, name: str) -> list[str]:
    place = root / name
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    return [str(file.relative_to(root)) for file in files]


def scored(copy: TreeCopy, name: str, sample: int, seed: int) -> tuple[int, int]:
    """How many changes of the package were drawn, and how many of them a test saw."""
    trial = PackageTrial(copy, name)
    drawn = random.Random(seed).sample(trial.mutations, min(sample, len(trial.mutations)))
    kept = copy.folder / "seen.json"
    known: dict[str, str] = json.loads(kept.read_text()) if kept.exists() else {}
    killed = 0
    for mutation in drawn:
        killer = known.get(str(mutation)) or trial.killer(mutation)
        killed += killer is not None
        if killer is not None:
            known[str(mutation)] = killer
            kept.write_text(json.dumps(known, indent=1))
        if killer is None:
            print(f"survived {mutation} ({len(trial.tests_of(mutation))} tests)", flush=True)
    print(f"{name}: {killed} of {len(drawn)} seen, of {len(trial.mutations)} there are", flush=True)
    return len(drawn), killed


def packages_scored(folder: Path, names: list[str], sample: int, seed: int) -> dict[str, dict[str, float]]:
    figures: dict[str, float] = {}
    for name in names:
        (folder / name).mkdir(exist_ok=True)
        drawn, killed = scored(TreeCopy(folder / name), name, sample, seed)
        figures |= {f"{name}_drawn": drawn, f"{name}_seen": killed}
    ratios = {name: round(figures[f"{name}_seen"] / figures[f"{name}_drawn"], 3) for name in names}
    return {"figures": figures, "ratios": ratios, "limits": dict.fromkeys(ratios, LEAST)}


def rows_judged(
    folder: Path, rows: list[int], most: int, seed: int, within: str
) -> dict[str, dict[str, float]]:
    (folder / "rows").mkdir(exist_ok=True)
    trial = RowTrial(TreeCopy(folder / "rows"), rows, within)
    trial.measure()
    red = 0
    for verdict in verdicts(trial, folder / "rows.json", most, seed):
        print(verdict, flush=True)
        red += verdict.change is not None
    figures: dict[str, float] = {"rows": len(rows), "rows_red_once": red}
    return {"figures": figures, "ratios": {"rows": round(red / len(rows), 3)}, "limits": {"rows": 1.0}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", nargs="*", choices=[[], *PACKAGES], help="all of them without any")
    parser.add_argument("--sample", type=int, default=3, help="changes of each package, or most of a row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to go on next time")
    parser.add_argument(
        "--fault-rows", nargs="*", type=int, choices=ROWS, metavar="ROW", help="all without any"
    )
    parser.add_argument("--within", default="", metavar="PATH", help="of a row only files that begin so")
    args = parser.parse_args()
    missing = [name for name in _NEEDED if importlib.util.find_spec(name.replace("-", "_")) is None]
    if missing:
        print(f"nothing is measured without {' and '.join(missing)}: pip install {' '.join(missing)}")
        print(json.dumps({"name": "mutation_score", "figures": {}, "ratios": {}, "holds": None}))
        return
    with contextlib.ExitStack() as stack:
        folder = args.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        if args.fault_rows is None:
            said = packages_scored(folder.resolve(), args.package or [*PACKAGES], args.sample, args.seed)
        else:
            said = rows_judged(
                folder.resolve(), args.fault_rows or [*ROWS], args.sample, args.seed, args.within
            )
    holds = all(ratio >= said["limits"][name] for name, ratio in said["ratios"].items())
    print(json.dumps({"name": "mutation_score", **said, "holds": holds}))


if __name__ == "__main__":
    main()
