"""Adjustments of closed months as corrections in the open month, and what commitments cost beside use.

A correction belongs to the first month after the corrected one that was still open when it was made, has the
old month for its charge period, and the class ``Correction``. In *delta* style it is the difference; in
*ledger* style what was charged is taken back and charged anew, as it should have been. One that changes cost
but no GPU time, such as a rounding difference, is an ``Adjustment``: nothing is taken back, since no single
charge was wrong, and both styles are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpucost.charges.contract_schedule import ContractSchedule
from gpucost.domain.time import HOUR_MS, Month, Window
from gpucost.reports.focus.charge_rows import (
    GPU_HOURS,
    GPU_SECONDS,
    METHOD_VERSION,
    AllocationMethod,
    CommitmentTerms,
    commitment_cells,
    commitment_quantity,
    constant_cells,
    contract_applied,
    detail_id,
    invoice_id,
)
from gpucost.reports.focus.exact_products import json_text
from gpucost.reports.focus.focus_columns import FocusCell

FocusRow = dict[str, FocusCell]


class CorrectionStyle(StrEnum):
    """How a correction is written."""

    DELTA = "delta"
    LEDGER = "ledger"


@dataclass(frozen=True, slots=True)
class ChargeAmounts:
    """What a charge comes to: nano-units and GPU milliseconds. The cost is contracted, effective and billed
    cost alike."""

    nano: int
    list_nano: int
    board_ms: int

    def __add__(self, other: ChargeAmounts) -> ChargeAmounts:
        return ChargeAmounts(
            self.nano + other.nano, self.list_nano + other.list_nano, self.board_ms + other.board_ms
        )

    def __neg__(self) -> ChargeAmounts:
        return ChargeAmounts(-self.nano, -self.list_nano, -self.board_ms)

    @property
    def is_nothing(self) -> bool:
        return not (self.nano or self.list_nano or self.board_ms)


@dataclass(frozen=True, slots=True)
class CorrectionOrigin:
    """What is corrected, and where it stood: the names that the rows have. ``price_nano`` and
    ``list_price_nano`` are of one GPU-hour, None where several prices applied; ``sku`` and ``sku_price`` are
    empty then."""

    charged: Window
    resource: str | None
    allocated: str | None
    allocated_name: str | None
    tags: str | None
    sku: str = ""
    sku_price: str = ""
    price_nano: int | None = None
    list_price_nano: int | None = None


@dataclass(frozen=True, slots=True)
class ChargeCorrection:
    """A change of what was charged. ``original`` is what was charged before, all earlier corrections of the
    same included; None where nothing was (late usage). ``team`` is empty for what nobody held: it is on no
    invoice."""

    origin: CorrectionOrigin
    change: ChargeAmounts
    original: ChargeAmounts | None
    reference: str
    reason: str
    team: str

    @property
    def is_of_cost_only(self) -> bool:
        return self.change.board_ms == 0


def correction_amounts(
    correction: ChargeCorrection, style: CorrectionStyle
) -> Iterator[tuple[str, ChargeAmounts]]:
    """The rows of a correction: a word for what each is, and its amounts; they add up to the change."""
    original = correction.original
    if correction.is_of_cost_only or style is CorrectionStyle.DELTA or original is None:
        down = correction.change.nano < 0
        word = "cost only" if correction.is_of_cost_only else "decrement" if down else "increment"
        if not correction.change.is_nothing:
            yield word, correction.change
        return
    if not original.is_nothing:
        yield "negation", -original
    restated = original + correction.change
    if not restated.is_nothing:
        yield "restatement", restated


def correction_rows(
    corrections: Sequence[ChargeCorrection],
    style: CorrectionStyle,
    month: Window,
    currency: str,
    *,
    invoices: bool = False,
) -> list[FocusRow]:
    """Rows of ``month``, the open one."""
    found = []
    for correction in corrections:
        for word, amounts in correction_amounts(correction, style):
            found.append(_correction(correction, word, amounts, month, currency, invoices=invoices))
    return found


def _correction(
    correction: ChargeCorrection,
    word: str,
    amounts: ChargeAmounts,
    month: Window,
    currency: str,
    *,
    invoices: bool,
) -> FocusRow:
    origin, of_cost = correction.origin, correction.is_of_cost_only
    category = "Adjustment" if of_cost else "Usage"
    row = constant_cells(month, currency)
    row |= _allocated(origin.allocated, origin.allocated_name, origin.tags, amounts.board_ms)
    row |= {
        "BilledCost": amounts.nano,
        "ChargeCategory": category,
        "ChargeClass": "Correction",
        "ChargeDescription": f"Correction of a closed month, {word}",
        "ChargeFrequency": "Usage-Based" if not of_cost else "One-Time",
        "ChargePeriodStart": origin.charged.start_ms,
        "ChargePeriodEnd": origin.charged.end_ms,
        "ContractedCost": amounts.nano,
        "EffectiveCost": amounts.nano,
        "ListCost": amounts.list_nano,
        "PricingCurrencyEffectiveCost": amounts.nano,
        "ContractedUnitPrice": origin.price_nano,
        "ListUnitPrice": origin.list_price_nano,
        "PricingCurrencyContractedUnitPrice": origin.price_nano,
        "PricingCurrencyListUnitPrice": origin.list_price_nano,
        "ResourceId": origin.resource,
        "ResourceName": origin.resource,
        "ResourceType": "GPU node" if origin.resource else None,
        "ServiceName": "GPU nodes",
        "SkuId": origin.sku or None,
        "SkuMeter": "GPU time" if origin.sku else None,
        "SkuPriceId": origin.sku_price or None,
        "x_AdjustmentReference": correction.reference,
    }
    if correction.team:
        corrected = f"Correction/{Month.of(origin.charged.start_ms)}/{correction.reference}"
        row |= _invoiced(month, correction.team, category, corrected, invoices=invoices)
    if not of_cost:
        row |= {
            "ConsumedQuantity": amounts.board_ms,
            "ConsumedUnit": GPU_SECONDS,
            "PricingCategory": "Standard",
            "PricingQuantity": amounts.board_ms / HOUR_MS,
            "PricingUnit": GPU_HOURS,
        }
    return row


def _allocated(resource: str | None, name: str | None, tags: str | None, board_ms: int) -> FocusRow:
    if resource is None:
        return {}
    element = f'{{"AllocatedRatio":1,"UsageUnit":"{GPU_SECONDS}","UsageQuantity":{board_ms / 1000}}}'
    return {
        "AllocatedMethodId": AllocationMethod.DIRECT.value,
        "AllocatedMethodDetails": f'{{"Elements":[{element}],"x_MethodVersion":"{METHOD_VERSION}"}}',
        "AllocatedResourceId": resource,
        "AllocatedResourceName": name or resource,
        "AllocatedTags": tags,
    }


def purchase_rows(
    schedules: Sequence[ContractSchedule],
    month: Window,
    currency: str,
    passed: Window,
    *,
    invoices: bool = False,
) -> list[FocusRow]:
    """What commitments are billed in ``month``, of which ``passed`` is over: none of it is the cost of
    anything yet. It is on the invoice of the team that owns the contract; of a shared one on no team's."""
    found = []
    for schedule in schedules:
        terms = schedule.terms
        due = schedule.due(passed)
        if not due:
            continue
        cut = schedule.term.intersect(month) or month
        once = not terms.recurring and terms.has_payments
        of = CommitmentTerms(terms.id, terms.kind, terms.is_spend)
        quantity = sum(schedule.promised(period) for period in schedule.periods(cut))
        row = constant_cells(month, currency) | commitment_cells(of, currency, None)
        row |= {
            "BilledCost": due,
            "ChargeCategory": "Purchase",
            "ChargeDescription": f"Commitment {terms.id}, as it is due in the month",
            "ChargeFrequency": "One-Time" if once else "Recurring",
            "ChargePeriodStart": cut.start_ms,
            "ChargePeriodEnd": schedule.term.end_ms if once else cut.end_ms,
            "CommitmentDiscountQuantity": commitment_quantity(of, quantity),
            "ContractApplied": contract_applied(of, due, quantity),
            "PricingCategory": "Standard",
            "PricingQuantity": 1.0,
            "PricingUnit": "Units",
            "ResourceId": terms.id,
            "ResourceName": terms.id,
            "ResourceType": "Commitment",
            "SkuMeter": "Commitment",
            "SkuId": terms.id,
            "SkuPriceId": f"{terms.id}/purchase",
            "ServiceName": "GPU commitments",
            "EffectiveCost": 0,
            "PricingCurrencyEffectiveCost": 0,
            **dict.fromkeys(("ListCost", "ContractedCost", "ListUnitPrice", "ContractedUnitPrice"), due),
            **dict.fromkeys(("PricingCurrencyContractedUnitPrice", "PricingCurrencyListUnitPrice"), due),
        }
        if terms.team:
            row |= _invoiced(month, terms.team, "Purchase", f"{terms.id}/purchase", invoices=invoices)
        found.append(row)
    return found


@dataclass(frozen=True, slots=True)
class UnusedCommitment:
    """What of a commitment was lost in ``span``, and the team that pays for it (empty: the platform)."""

    span: Window
    terms: CommitmentTerms
    payer: str
    quantity: int
    nano: int


def unused_rows(
    unused: Sequence[UnusedCommitment], month: Window, currency: str, *, invoices: bool = False
) -> list[FocusRow]:
    """What was committed and never drawn: a cost of no resource."""
    found = []
    for each in unused:
        quantity = commitment_quantity(each.terms, each.quantity)
        row = constant_cells(month, currency) | commitment_cells(each.terms, currency, "Unused")
        row |= {
            "BilledCost": 0,
            "ChargeCategory": "Usage",
            "ChargeDescription": f"Commitment {each.terms.contract}, not used",
            "ChargeFrequency": "Usage-Based",
            "ChargePeriodStart": each.span.start_ms,
            "ChargePeriodEnd": each.span.end_ms,
            "CommitmentDiscountQuantity": quantity,
            "ContractApplied": contract_applied(each.terms, each.nano, each.quantity),
            "EffectiveCost": each.nano,
            "PricingCurrencyEffectiveCost": each.nano,
            "PricingCategory": "Committed",
            "PricingQuantity": quantity,
            "PricingUnit": currency if each.terms.is_spend else GPU_HOURS,
            "ServiceName": "GPU commitments",
            "SkuId": each.terms.contract,
            "SkuMeter": "Commitment",
            "SkuPriceId": f"{each.terms.contract}/unused",
            "x_CommitmentDraw": "unused",
            **dict.fromkeys(("ListCost", "ContractedCost", "ListUnitPrice", "ContractedUnitPrice"), 0),
            **dict.fromkeys(("PricingCurrencyContractedUnitPrice", "PricingCurrencyListUnitPrice"), 0),
        }
        if each.payer:
            row |= _allocated(each.payer, each.payer, json_text({"gpucost/team": each.payer}), 0)
            what = f"{each.terms.contract}/unused"
            row |= _invoiced(month, each.payer, "Usage", what, invoices=invoices)
        found.append(row)
    return found


def _invoiced(month: Window, team: str, category: str, what: str, *, invoices: bool) -> FocusRow:
    """The invoice of a team that a row is on, and its line there."""
    invoice = invoice_id(month, team)
    detail = detail_id(invoice, category, what)
    found: FocusRow = {"x_InvoiceId": invoice, "x_InvoiceDetailId": detail}
    return found | ({"InvoiceId": invoice, "InvoiceDetailId": detail} if invoices else {})
