"""docs/reports.md lists exactly the fields that the reports have."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from gpucost.reports.base.document import companion
from gpucost.reports.job.job_receipt import JobReceipt
from gpucost.reports.job.job_report import JobMatches, JobReport
from gpucost.reports.month.allocations import Allocations
from gpucost.reports.month.model import MonthReport
from gpucost.reports.month.month_end import MonthForecast

PAGE = Path(__file__).parents[2] / "docs" / "reports.md"


def parts(*roots: Any) -> dict[str, list[str]]:
    """Name -> fields of every dataclass of this package that the roots consist of, companions included."""
    found: dict[str, list[str]] = {}
    waiting = list(roots)
    while waiting:
        kind = waiting.pop()
        waiting += get_args(kind)
        if not (
            isinstance(kind, type) and is_dataclass(kind) and kind.__module__.startswith("gpucost.reports")
        ):
            continue
        if kind.__name__ not in found:
            found[kind.__name__] = []
            for field in fields(kind):
                partner = companion(field.name)
                found[kind.__name__] += [field.name, *([partner.name] if partner else [])]
            waiting += get_type_hints(kind).values()
    return found


def test_the_page_lists_the_fields_in_their_order() -> None:
    documented = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        rows = re.findall(r"^\| (`.*?`) \| (.+) \|$", section, re.MULTILINE)
        documented[section.split("\n", 1)[0]] = [
            name for row, _ in rows for name in re.findall(r"`(\w+)`", row)
        ]
    assert documented == parts(MonthReport, Allocations, JobReport, JobMatches, JobReceipt, MonthForecast)
