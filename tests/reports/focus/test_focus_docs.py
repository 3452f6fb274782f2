"""docs/focus.md and docs/methodology.md say what the columns and the methods are."""

from __future__ import annotations

import io
import re
from pathlib import Path

from gpucost.domain.scope import EVERYTHING
from gpucost.reports.focus.charge_rows import AllocationMethod
from gpucost.reports.focus.focus_columns import FocusDataset, FocusVersion, columns_of, datasets_of
from gpucost.service.reporting.focus_exports import FocusExports, FocusRequest
from tests.support.focus_rules import rows_of
from tests.support.focus_world import MONTH, focus_ledger

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "focus.md").read_text("utf-8")


def test_every_method_is_an_anchor() -> None:
    headings = re.findall(r"^### (\S+)$", (DOCS / "methodology.md").read_text("utf-8"), re.MULTILINE)
    assert {*AllocationMethod} <= {*headings}


def test_the_page_has_every_column_with_its_meaning() -> None:
    for dataset in FocusDataset:
        section = PAGE.split(f"\n### {dataset}\n", 1)[1].split("\n### ", 1)[0]
        shown = {
            name: (null == "yes", meaning)
            for name, null, meaning in re.findall(
                r"^\| `(\w+)` \| [^|]+ \| (yes|no) \| (.+) \|$", section, re.MULTILINE
            )
        }
        known = {
            column.name: (column.nullable, column.meaning)
            for version in FocusVersion
            if dataset in datasets_of(version)
            for column in columns_of(dataset, version)
        }
        assert shown == known


def test_the_job_of_the_page_is_followed_through(tmp_path: Path) -> None:
    target = io.BytesIO()
    with focus_ledger(tmp_path) as ledger:
        exports = FocusExports(ledger, EVERYTHING, "1")
        exports.write(FocusRequest(MONTH), FocusDataset.COST_AND_USAGE, "csv", target)
    start = "2026-10-01T00:00:00Z"
    rows = [row for row in rows_of(target.getvalue()) if row["ResourceId"] == "alpha/mig/H100"]
    rows = [row for row in rows if row["ChargePeriodStart"] == start]
    for row in rows:
        for name in ("AllocatedResourceId", "ConsumedQuantity", "EffectiveCost", "PricingQuantity"):
            assert row[name] in PAGE
        ratio = re.search(r'"AllocatedRatio":([\d.]+)', row["AllocatedMethodDetails"])
        assert ratio is not None
        assert ratio[1] in PAGE
        assert row["x_OriginId"] in PAGE
    whole = sum(round(float(row["EffectiveCost"]) * 10**9) for row in rows)
    assert f"{whole / 10**9:.9f}" in PAGE
