"""Adjustments of what nobody held, as an invoice books them for idle GPUs: no team pays them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from gpucost.attribution.teams import TeamRules
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.buckets import HOLDER_OF_BUCKET
from gpucost.domain.money import NANO
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS
from gpucost.ledger.ledger import Ledger
from gpucost.reports.focus.charge_corrections import CorrectionStyle
from gpucost.reports.focus.focus_columns import FocusDataset, FocusVersion
from gpucost.service.reporting.charge_reports import team_statements
from gpucost.service.reporting.focus_exports import FocusExports, FocusRequest
from gpucost.service.wiring.ledger import build_reporting
from tests.ledger.builders import MONTH, NOW_MS, hour, ingest, line
from tests.support.focus_rules import breaches, rows_of
from tests.support.ledgers import new_ledger

NEXT = MONTH.next()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Red held six of eight GPUs for an hour; the month is closed, and 30 more is booked for the eight."""
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=lambda: NOW_MS) as ledger:
        for month in (MONTH, NEXT):
            window = hour(0, month)
            held = line(window, board_ms=6 * HOUR_MS, nano=18 * NANO)
            ingest(
                ledger, window, held, line(window, bucket="unallocated", board_ms=2 * HOUR_MS, nano=6 * NANO)
            )
        ledger.close_month(MONTH, author="ada", min_coverage=Fraction(0), reason="a test")
        ledger.adjust(MONTH, "red", 22_500_000_000, 0, "price", "ada", "invoice alpha/node-1")
        for nobody in HOLDER_OF_BUCKET.values():
            ledger.adjust(MONTH, nobody, 2_500_000_000, 0, "price", "ada", "invoice alpha/node-1")
        yield ledger


@pytest.mark.parametrize("style", CorrectionStyle)
def test_a_correction_of_idle_gpus_is_on_no_invoice_and_of_no_team(
    ledger: Ledger, style: CorrectionStyle
) -> None:
    def written(dataset: FocusDataset) -> list[dict[str, str]]:
        target = io.BytesIO()
        request = FocusRequest(NEXT, FocusVersion.V1_4, corrections=style)
        FocusExports(ledger, EVERYTHING, "1").write(request, dataset, "csv", target)
        rows = rows_of(target.getvalue())
        assert breaches(FocusVersion.V1_4, dataset, rows) == {}
        return rows

    rows = [row for row in written(FocusDataset.COST_AND_USAGE) if row["ChargeClass"]]
    assert sum(Decimal(row["BilledCost"]) for row in rows) == 30
    red, *idle = sorted(rows, key=lambda row: row["x_InvoiceId"], reverse=True)
    assert (red["x_InvoiceId"], red["AllocatedResourceId"]) == ("INV-2026-11-red", "red")
    assert [row["BilledCost"] for row in idle] == ["2.500000000"] * 3
    named = {
        name for row in idle for name, cell in row.items() if cell and ("Alloc" in name or "Invoice" in name)
    }
    assert named == {"InvoiceIssuerName"}
    invoices = written(FocusDataset.INVOICE_DETAIL)
    assert {
        row["InvoiceId"]: row["BilledCost"] for row in invoices if "Correction" in row["InvoiceDetailId"]
    } == {"INV-2026-11-red": "22.500000000"}


def test_what_was_booked_for_idle_gpus_is_the_platforms(ledger: Ledger) -> None:
    reporting = build_reporting(ledger, TeamRules.default())
    book = PolicyBook.parse("version: 1\nname: by use\n", "policy.yaml")
    summary = team_statements(reporting, EVERYTHING, MONTH, book, {}, ["red"]).summary
    paid = [(each.team, each.charged_nano, each.adjusted_nano) for each in summary.teams]
    assert paid == [("red", 18 * NANO, 22_500_000_000)]
    assert summary.proof is not None
    assert (summary.proof.kept_nano, summary.proof.difference_nano) == (6 * NANO, 0)
