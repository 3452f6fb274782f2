"""Corrections of closed months: the specification's scenarios 1 to 3, to the cent."""

from __future__ import annotations

from decimal import Decimal

import pytest

from gpucost.domain.money import parse_nano
from gpucost.domain.time import HOUR_MS, Month, Window, parse_instant
from gpucost.reports.focus.charge_corrections import (
    ChargeAmounts,
    ChargeCorrection,
    CorrectionOrigin,
    CorrectionStyle,
    correction_rows,
)
from gpucost.reports.focus.focus_columns import FocusBatch, FocusDataset, FocusVersion, columns_of
from gpucost.reports.focus.focus_files import to_csv
from tests.support.focus_rules import breaches, rows_of

CHARGED = Window(parse_instant("2025-05-01T00:00:00Z"), parse_instant("2025-05-01T01:00:00Z"))
JUNE = Month(2025, 6).window
ALL = ("EffectiveCost", "BilledCost", "ContractedCost", "ListCost")


def amounts(cost: str, listed: str, hours: int = 0) -> ChargeAmounts:
    return ChargeAmounts(parse_nano(cost), parse_nano(listed), hours * HOUR_MS)


def origin(resource: str, sku: str = "USG-123", price: str = "1.5", listed: str = "2") -> CorrectionOrigin:
    prices = parse_nano(price), parse_nano(listed)
    return CorrectionOrigin(CHARGED, resource or None, "job", "job", None, sku, f"{sku}-01", *prices)


def rows(style: str, *corrections: ChargeCorrection) -> list[dict[str, str]]:
    version = FocusVersion.V1_4
    batch = FocusBatch.of(correction_rows(corrections, CorrectionStyle(style), JUNE, "USD"))
    found = rows_of(to_csv(columns_of(FocusDataset.COST_AND_USAGE, version), [batch]))
    assert not breaches(version, FocusDataset.COST_AND_USAGE, found)
    for row in found:
        assert row["ChargeClass"] == "Correction"
        assert (row["BillingPeriodStart"], row["BillingPeriodEnd"]) == (
            "2025-06-01T00:00:00Z",
            "2025-07-01T00:00:00Z",
        )
        assert (row["ChargePeriodStart"], row["ChargePeriodEnd"]) == (
            "2025-05-01T00:00:00Z",
            "2025-05-01T01:00:00Z",
        )
    return found


def correction(
    resource: str, change: ChargeAmounts, original: ChargeAmounts | None, sku: str = "USG-123"
) -> ChargeCorrection:
    of = origin(resource, sku, "0.233", "0.333") if change.board_ms == 0 else origin(resource, sku)
    return ChargeCorrection(of, change, original, "FIN-1", "a reason", "red")


def figures(found: list[dict[str, str]]) -> list[tuple[object, ...]]:
    names = ("ResourceId", *ALL, "PricingQuantity", "ContractedUnitPrice", "ListUnitPrice")
    return [
        tuple(row[name] if name == "ResourceId" else Decimal(row[name] or 0) for name in names)
        for row in found
    ]


def line(resource: str, cost: str, listed: str, hours: int) -> tuple[object, ...]:
    prices = (Decimal("1.5"), Decimal(2)) if hours else (Decimal("0.233"), Decimal("0.333"))
    return (resource, *(Decimal(text) for text in (cost, cost, cost, listed)), Decimal(hours), *prices)


FIRST = (
    correction("R-111", amounts("-300", "-400", -200), amounts("1500", "2000", 1000)),
    correction("R-222", amounts("300", "400", 200), None),
)
LATE = correction("", amounts("1500", "2000", 1000), None)
DRIFT = tuple(correction("", amounts("0.001", "0.001"), None, sku) for sku in ("USG-123", "USG-456"))


@pytest.mark.parametrize(
    ("corrections", "style", "expected"),
    [
        (FIRST, "delta", [line("R-111", "-300", "-400", -200), line("R-222", "300", "400", 200)]),
        (
            FIRST,
            "ledger",
            [
                line("R-111", "-1500", "-2000", -1000),
                line("R-111", "1200", "1600", 800),
                line("R-222", "300", "400", 200),
            ],
        ),
        ((LATE,), "delta", [line("", "1500", "2000", 1000)]),
        ((LATE,), "ledger", [line("", "1500", "2000", 1000)]),
        (DRIFT, "delta", [line("", "0.001", "0.001", 0)] * 2),
        (DRIFT, "ledger", [line("", "0.001", "0.001", 0)] * 2),
    ],
    ids=["1 delta", "1 ledger", "2 delta", "2 ledger", "3 delta", "3 ledger"],
)
def test_a_scenario_of_the_specification(
    corrections: tuple[ChargeCorrection, ...], style: str, expected: list[tuple[object, ...]]
) -> None:
    assert figures(rows(style, *corrections)) == expected


def test_rounding_is_an_adjustment_of_its_sku_price() -> None:
    found = rows("ledger", *DRIFT)
    assert [(row["ChargeCategory"], row["SkuPriceId"]) for row in found] == [
        ("Adjustment", "USG-123-01"),
        ("Adjustment", "USG-456-01"),
    ]
    assert {row["ChargeCategory"] for row in rows("delta", *FIRST)} == {"Usage"}


def test_what_is_taken_back_whole_is_not_charged_anew() -> None:
    whole = correction("R-111", amounts("-1500", "-2000", -1000), amounts("1500", "2000", 1000))
    assert figures(rows("ledger", whole)) == [line("R-111", "-1500", "-2000", -1000)]
