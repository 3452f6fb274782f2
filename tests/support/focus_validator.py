"""focus-validator over our exports: what fails must stand on the reviewed list.

The validator lives in an environment of its own (``make focus-check`` makes it, with Python 3.12): it pins
packages that we do not, and is no dependency. It reads files beside its package, and writes a log where it
runs: that is a temporary folder, with links to what is beside its package. Its exit code is 0 whatever fails;
a run without its summary, or whose failures are not as many as the summary says, counts as failed.

    python -m tests.support.focus_validator FOLDER_OF_ENVIRONMENT
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.reports.focus.charge_corrections import CorrectionStyle
from gpucost.reports.focus.focus_columns import FocusDataset, FocusVersion
from gpucost.service.reporting.focus_exports import FocusExports, FocusRequest
from tests.support.focus_world import FEBRUARY, MONTH, contracts, february_ledger, focus_ledger

REVIEWED = Path(__file__).parents[1] / "data" / "focus" / "reviewed-1.2.json"
ALL = ("--applicability-criteria", "ALL")
_SUMMARY = re.compile(r"^Total: (\d+) \| Pass: (\d+) \| Fail: (\d+) \| Skipped: (\d+)$", re.MULTILINE)
_FAILED = re.compile(r"^❌ (\S+): FAIL  \(violations=(\d+),", re.MULTILINE)


class UnreadableRun(ValueError):
    """The validator did not say what it found."""


@dataclass(frozen=True, slots=True)
class ValidatorRun:
    """Rule -> rows that fail it; and how many rules passed."""

    failed: Mapping[str, int]
    passed: int


def parse_run(output: str) -> ValidatorRun:
    """What the validator printed. Raises UnreadableRun where it has no summary, or another number of
    failures than that says, or nothing passed."""
    summary = _SUMMARY.search(output)
    if summary is None:
        raise UnreadableRun(f"no summary: {output[-500:]}")
    total, passed, failures, skipped = map(int, summary.groups())
    failed = {rule: int(rows) for rule, rows in _FAILED.findall(output)}
    if len(failed) != failures or total != passed + failures + skipped or not passed:
        raise UnreadableRun(f"{len(failed)} failures are named: {summary[0]}")
    return ValidatorRun(failed, passed)


def validate(environment: Path, file: Path) -> ValidatorRun:
    """Raises UnreadableRun."""
    [home] = environment.glob("lib/python3.*/site-packages")
    program = (environment / "bin" / "focus-validator").absolute()
    options = ("--data-file", str(file), "--validate-version", "1.2", "--block-download", *ALL)
    with tempfile.TemporaryDirectory() as folder:
        for each in home.iterdir():
            if each.suffix != ".log":
                (Path(folder) / each.name).symlink_to(each.absolute())
        found = subprocess.run(
            [str(program), *options],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            env={},
        )
    if found.returncode:
        raise UnreadableRun(f"exit code {found.returncode}: {found.stderr[-500:]}")
    return parse_run(found.stdout)


def reviewed(name: str) -> dict[str, int]:
    """Rule -> rows that may fail it in an export, each with a reason in the file."""
    entries = json.loads(REVIEWED.read_text("utf-8"))
    return {entry["rule"]: entry["rows"][name] for entry in entries if name in entry["rows"]}


def exports(folder: Path) -> dict[str, Path]:
    """The files that are validated: all rows by job with contracts and corrections; by team; one team's; of a
    leap year's February."""
    team_style = FocusRequest(MONTH, FocusVersion.V1_2, "team", "hour", CorrectionStyle.LEDGER)
    with focus_ledger(folder) as ledger, february_ledger(folder) as february:
        everything = FocusRequest(MONTH, FocusVersion.V1_2)
        asked = {
            "jobs": (FocusExports(ledger, EVERYTHING, "1", contracts()), everything),
            "teams-ledger-style": (FocusExports(ledger, EVERYTHING, "1"), team_style),
            "one-team": (
                FocusExports(ledger, Scope(frozenset({"red"})), "1", contracts()),
                everything,
            ),
            "february": (
                FocusExports(february, EVERYTHING, "1"),
                FocusRequest(FEBRUARY, FocusVersion.V1_2),
            ),
        }
        for name, (made, request) in asked.items():
            with (folder / f"{name}.csv").open("w+b") as target:
                made.write(request, FocusDataset.COST_AND_USAGE, "csv", target)
    return {name: folder / f"{name}.csv" for name in asked}


def main(environment: Path) -> int:
    """Prints what fails beside what was reviewed; 1 where they differ."""
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        for export, file in exports(Path(name)).items():
            run = validate(environment, file)
            allowed = reviewed(export)
            differs = {
                rule: (run.failed.get(rule, 0), allowed.get(rule, 0))
                for rule in sorted(run.failed.keys() | allowed)
                if run.failed.get(rule, 0) != allowed.get(rule, 0)
            }
            print(f"{export}: {run.passed} rules pass, {len(run.failed)} fail, {len(allowed)} reviewed")
            for rule, (found, expected) in differs.items():
                print(f"  {rule}: {found} rows fail, {expected} were reviewed")
            wrong += len(differs)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
