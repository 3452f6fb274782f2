"""An invoice beside the ledger, in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from gpucost.reports.base import display
from gpucost.reports.focus.invoice_reconciliation import (
    CauseAmount,
    InvoiceCause,
    InvoiceReconciliation,
    OutsideCharge,
)
from gpucost.reports.render.terminal_parts import filled, name_text, print_parts

_MOST_OUTSIDE = 20
WORDS = {
    InvoiceCause.PRICE: "another price",
    InvoiceCause.NO_PRICE: "GPU time without a price",
    InvoiceCause.OVERLAP: "lines for the same time",
    InvoiceCause.MISSING_HOURS: "missing hours",
    InvoiceCause.COMMITMENT: "commitment",
    InvoiceCause.TAX: "tax",
    InvoiceCause.NOT_IN_CLUSTER: "not in the cluster",
    InvoiceCause.NOT_OBSERVED: "not observed",
    InvoiceCause.NOT_ON_INVOICE: "not on the invoice",
    InvoiceCause.CORRECTION: "correction of an earlier invoice",
}


def print_reconciliation(found: InvoiceReconciliation, console: Console) -> None:
    """Nodes, then what belongs to none, then why the whole differs; amounts rounded to cents."""
    title = f"{display.visible(found.file)} beside the ledger, {found.currency}"
    nodes = [
        [
            Text(str(each.month)),
            name_text(each.cluster),
            name_text(each.node),
            *(Text(display.money(nano)) for nano in (each.invoice_nano, each.ledger_nano)),
            Text(display.signed_money(each.difference_nano)),
            Text("; ".join(_causes(each.causes)) or "nothing"),
        ]
        for each in found.nodes
    ]
    heads = ("month", "cluster", "node", "invoice", "ledger", "difference", "why")
    parts: list[RenderableType] = [filled(title, heads, nodes, {0, 1, 2, 6}, console.width, 120)]
    outside = sorted(found.outside, key=lambda each: (-abs(each.invoice_nano), each.resource))
    if outside:
        rows = [_outside(each) for each in outside[:_MOST_OUTSIDE]]
        parts.append(
            filled(
                "Of no node", ("month", "why", "resource", "lines", "invoice"), rows, {0, 1, 2}, console.width
            )
        )
    if len(outside) > _MOST_OUTSIDE:
        parts.append(Text(f"{len(outside) - _MOST_OUTSIDE} more in the other format."))
    amounts = (display.money(nano) for nano in (found.invoice_nano, found.ledger_nano))
    parts.append(
        Text(
            f"invoice {next(amounts)}, ledger {next(amounts)}, "
            f"difference {display.signed_money(found.difference_nano)} {found.currency}: "
            f"{'; '.join(_causes(found.causes)) or 'nothing'}"
        )
    )
    print_parts(parts, console)


def _causes(causes: tuple[CauseAmount, ...]) -> Iterator[str]:
    for part in causes:
        hours = "" if part.hours_ms is None else f" ({part.hours_ms / 3_600_000:,.1f} h)"
        yield f"{WORDS[part.cause]} {display.signed_money(part.nano)}{hours}"


def _outside(each: OutsideCharge) -> list[Text]:
    name = each.resource or each.service
    cells = (str(each.month), WORDS[each.cause], display.visible(name) or display.MISSING)
    return [*(Text(cell) for cell in cells), Text(f"{each.lines:,}"), Text(display.money(each.invoice_nano))]
