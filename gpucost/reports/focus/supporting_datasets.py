"""The datasets beside the costs: commitments, months as billing periods, teams' invoices; and the metadata.

An invoice is what a team is billed for a month: the sum of the rows of CostAndUsage that name it, line by
line by category and SKU price, a line for each correction.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpucost.charges.contract_schedule import ContractSchedule
from gpucost.domain.time import HOUR_MS, Month
from gpucost.reports.focus.charge_corrections import FocusRow
from gpucost.reports.focus.charge_rows import GPU_HOURS, PROVIDER, invoice_id
from gpucost.reports.focus.exact_products import json_text, number_text, plain_number, time_text
from gpucost.reports.focus.focus_columns import (
    FocusBatch,
    FocusDataset,
    FocusType,
    FocusVersion,
    columns_of,
)

_INTERVALS = {"hour": "Hour", "day": "Day", "month": "Month", "term": "Term"}


@dataclass(frozen=True, slots=True)
class BillingMonth:
    """A month as a billing period: when it was closed, None while it is open, and when it was last written
    to."""

    month: Month
    closed_ms: int | None
    written_ms: int

    @property
    def updated_ms(self) -> int:
        return self.written_ms if self.closed_ms is None else self.closed_ms


def commitment_dataset(schedules: Sequence[ContractSchedule], currency: str, at_ms: int) -> list[FocusRow]:
    """A row for each contract, as it stands at ``at_ms``."""
    found: list[FocusRow] = []
    for schedule in schedules:
        terms, term = schedule.terms, schedule.term
        cost = sum(schedule.cost(period) for period in schedule.periods(term))
        promised = sum(schedule.promised(period) for period in schedule.periods(term))
        percent = 0.0 if not cost else round(100 * terms.upfront / cost, 6)
        model = "No Upfront" if not terms.upfront else "Partial Upfront" if percent < 100 else "All Upfront"
        begun = "Pending" if at_ms <= term.start_ms else "Active"
        amount = plain_number(promised, 9) if terms.is_spend else number_text(promised / HOUR_MS)
        unit = currency if terms.is_spend else GPU_HOURS
        scope = {
            f"x_{name.title().replace('_', '')}": ",".join(values)
            for name in ("clusters", "pools", "models", "capacity_types", "accounts")
            if (values := getattr(terms.scope, name))
        }
        found.append(
            {
                "BillingCurrency": currency,
                "ContractCommitmentApplicability": json_text(scope) if scope else None,
                "ContractCommitmentBenefitCategory": "Discount",
                "ContractCommitmentCategory": "Spend" if terms.is_spend else "Usage",
                "ContractCommitmentCost": cost,
                "ContractCommitmentDescription": f"{terms.kind}: {amount} {unit}, drawn by the {terms.per}",
                "ContractCommitmentFulfillmentInterval": _INTERVALS[terms.per],
                "ContractCommitmentId": terms.id,
                "ContractCommitmentLifecycleStatus": "Expired" if at_ms >= term.end_ms else begun,
                "ContractCommitmentModel": (
                    "Continuous" if terms.per in ("hour", "day") else "Discontinuous"
                ),
                "ContractCommitmentPaymentModel": model,
                "ContractCommitmentPaymentUpfrontPercentage": min(percent, 100.0),
                "ContractCommitmentPeriodEnd": term.end_ms,
                "ContractCommitmentPeriodStart": term.start_ms,
                "ContractCommitmentQuantity": None if terms.is_spend else promised / HOUR_MS,
                "ContractCommitmentType": terms.kind,
                "ContractCommitmentUnit": None if terms.is_spend else GPU_HOURS,
                "ContractId": terms.id,
                "ContractPeriodEnd": term.end_ms,
                "ContractPeriodStart": term.start_ms,
            }
        )
    return found


def period_dataset(months: Iterable[BillingMonth]) -> list[FocusRow]:
    return [
        {
            "BillingPeriodCreated": each.month.window.start_ms,
            "BillingPeriodEnd": each.month.window.end_ms,
            "BillingPeriodLastUpdated": each.updated_ms,
            "BillingPeriodStart": each.month.window.start_ms,
            "BillingPeriodStatus": "Open" if each.closed_ms is None else "Closed",
            "InvoiceIssuerName": PROVIDER,
        }
        for each in months
    ]


@dataclass(slots=True)
class InvoiceLine:
    """A line of an invoice while rows are added to it: nano-units, None where a row has no cost, and GPU
    milliseconds. ``corrects`` is the invoice that it corrects, else its own; ``correction`` the month and the
    reference of one."""

    invoice: str
    team: str
    category: str
    sku_price: str
    words: str
    corrects: str
    correction: str = ""
    nano: int | None = 0
    board_ms: int = 0


@dataclass
class InvoiceTotals:
    """Adds up rows of CostAndUsage by line of invoice. Memory is by line, not by row."""

    lines: dict[str, InvoiceLine] = field(default_factory=dict)

    def add(self, batch: FocusBatch) -> None:
        names = (
            *("x_InvoiceDetailId", "x_InvoiceId", "ChargeCategory", "SkuPriceId", "BilledCost"),
            *("ConsumedQuantity", "x_AdjustmentReference", "ChargePeriodStart", "SkuMeter"),
        )
        for detail, invoice, category, sku, billed, board_ms, adjustment, start_ms, meter in zip(
            *(batch.cells(name) for name in names), strict=True
        ):
            if not isinstance(detail, str):
                continue
            line = self.lines.get(detail)
            if line is None:
                team = str(invoice).split("-", 3)[3]
                words = f"{meter or 'GPU time'}, {sku or 'without a price'}"
                line = InvoiceLine(str(invoice), team, str(category), str(sku or ""), words, str(invoice))
                if adjustment is not None:
                    # Of the month that is corrected, which is the charge period.
                    corrected = Month.of(int(start_ms or 0))
                    line.words = f"Correction {adjustment} of {corrected}"
                    line.corrects = invoice_id(corrected.window, team)
                    line.correction = f"{corrected} {adjustment}"
                self.lines[detail] = line
            elif line.sku_price != (sku or ""):
                line.sku_price = ""  # jobs of several prices, corrected by one ticket
            line.nano = None if billed is None or line.nano is None else line.nano + int(billed)
            line.board_ms += int(board_ms or 0)

    def dataset(self, period: BillingMonth, currency: str) -> list[FocusRow]:
        """Rows of InvoiceDetail, by invoice and line."""
        issued = period.closed_ms is not None
        window = period.month.window
        return [
            {
                "BilledCost": line.nano,
                "BillingAccountId": PROVIDER,
                "BillingCurrency": currency,
                "BillingPeriodEnd": window.end_ms,
                "BillingPeriodStart": window.start_ms,
                "ChargeCategory": line.category,
                "InvoiceDetailCreated": period.updated_ms,
                "InvoiceDetailDescription": line.words,
                "InvoiceDetailGrain": json_text(
                    {
                        **({"SkuPriceId": line.sku_price} if line.sku_price else {}),
                        **({"x_Correction": line.correction} if line.correction else {}),
                        "x_Team": line.team,
                    }
                ),
                "InvoiceDetailId": detail,
                "InvoiceDetailLastUpdated": period.updated_ms,
                "InvoiceId": line.invoice,
                "InvoiceIssueDate": period.closed_ms,
                "InvoiceIssueStatus": "Issued" if issued else "Open",
                "InvoiceIssuerName": PROVIDER,
                "PaymentCurrency": currency,
                "PaymentCurrencyBilledCost": line.nano,
                "PaymentDueDate": None,
                "PaymentTerms": "Internal",
                "PurchaseOrderNumber": None,
                "ReferenceInvoiceId": line.corrects,
                "x_GpuSeconds": line.board_ms,
            }
            for detail, line in sorted(self.lines.items(), key=lambda item: (item[1].invoice, item[0]))
        ]


_TYPES = {
    FocusType.TEXT: "STRING",
    FocusType.JSON: "JSON",
    FocusType.TIME: "DATETIME",
    FocusType.MONEY: "DECIMAL",
    FocusType.PRODUCT: "DECIMAL",
    FocusType.NUMBER: "DECIMAL",
    FocusType.SECONDS: "DECIMAL",
}
_SCALES = {FocusType.MONEY: 9, FocusType.SECONDS: 3}


def metadata_document(
    version: FocusVersion, period: BillingMonth, code_version: str, facts: Mapping[str, object]
) -> dict[str, object]:
    """What goes beside the files: who made them, of which schema, and whether they are final. Of a closed
    month the same each time. ``facts`` say what was asked for."""
    created = time_text(period.updated_ms)
    schemas: list[dict[str, object]] = []
    for dataset in FocusDataset:
        if dataset.since > version:
            continue
        definitions: list[dict[str, object]] = []
        for column in columns_of(dataset, version):
            entry: dict[str, object] = {"ColumnName": column.name, "DataType": _TYPES[column.type]}
            if column.type in _SCALES:
                entry |= {"NumericPrecision": 38, "NumberScale": _SCALES[column.type]}
            if column.name.endswith("Tags"):
                entry["ProviderTagPrefixes"] = ["gpucost/"]
            definitions.append(entry)
        name = f"gpucost focus {version} {dataset} {definitions}"
        schemas.append(
            {
                "SchemaId": str(uuid.uuid5(uuid.NAMESPACE_URL, name)),
                "DatasetId": dataset.value,
                "FocusVersion": version.value,
                "DataGeneratorVersion": code_version,
                "CreationDate": created,
                "ColumnDefinition": definitions,
            }
        )
    return {
        "DataGenerator": {"DataGenerator": PROVIDER},
        "Schema": schemas,
        "DatasetInstance": {
            "DatasetInstanceComplete": period.closed_ms is not None,
            "DatasetInstanceLastUpdated": created,
            "TimeSectorStart": time_text(period.month.window.start_ms),
            "TimeSectorEnd": time_text(period.month.window.end_ms),
            "TimeSectorComplete": period.closed_ms is not None,
        },
        "x_Request": dict(facts),
    }
