"""Contracts in a terminal: what was used of them, what it cost whom, and what a planned one would save."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from gpucost.charges.commitment_break_even import BreakEven
from gpucost.charges.commitment_report import (
    CommitmentQuantity,
    CommitmentReport,
    CommitmentSummary,
    SpotSummary,
    TeamViews,
    UsageGaps,
)
from gpucost.domain.time import iso
from gpucost.reports.base import display
from gpucost.reports.render.terminal_parts import filled, print_parts

_PLATFORM = "platform"


def print_commitments(report: CommitmentReport, console: Console) -> None:
    """The contracts, the three views by team, and the proof that nothing is left over."""
    parts: list[RenderableType] = [Text(f"Commitments {report.window}, {report.currency}", "bold")]
    if report.contracts:
        parts.append(_contracts(report, console.width))
        parts += [Text(line) for line in _remarks(report)]
    else:
        parts.append(Text("No contract commits anything in this window."))
    parts.append(_teams(report, console.width))
    if report.contracts:
        parts.append(
            Text(
                f"Used, idle, unused and left against what the contracts cost: difference "
                f"{report.difference_nano} nano-{report.currency}."
            )
        )
    parts += [Text(_spot(one, report.currency)) for one in report.spot]
    parts += [Text(_planned(one, report.currency)) for one in report.planned]
    parts += [Text(line, "yellow") for line in _gaps(report.gaps)]
    print_parts(parts, console)


def _contracts(report: CommitmentReport, width: int) -> Table:
    heads = ("contract", "owner", "committed", "used", "utilisation", "coverage", "cost", "not used", "saved")
    rows = [[Text(cell) for cell in _contract_cells(one)] for one in report.contracts]
    return filled("Contracts", heads, rows, {0, 1}, width)


def _contract_cells(one: CommitmentSummary) -> tuple[str, ...]:
    return (
        display.visible(one.contract),
        display.visible(one.owner),
        _quantity(one.committed_quantity),
        _quantity(one.used_quantity),
        display.percent(one.utilisation, 1),
        display.percent(one.coverage, 1),
        display.money(one.charged_nano),
        display.money(one.idle_nano + one.unused_nano),
        display.MISSING if one.saved_nano is None else display.money(one.saved_nano),
    )


def _quantity(found: CommitmentQuantity) -> str:
    if found.board_ms is not None:
        return f"{display.hours(found.board_ms)} h"
    return display.money(found.spend_nano)


def _remarks(report: CommitmentReport) -> Iterator[str]:
    """What the columns do not say."""
    for one in report.contracts:
        name = display.visible(one.contract)
        if one.left_nano or one.before_nano:
            yield (
                f"{name}, a pool per {one.per}: {display.money(one.before_nano)} of "
                f"{display.money(one.paid_nano)} {report.currency} was drawn before, "
                f"{display.money(one.left_nano)} is left."
            )
        if one.beyond_board_ms:
            yield (
                f"{name}: {display.hours(one.beyond_board_ms)} GPU-hours beyond the commitment cost "
                f"{display.money(one.beyond_nano)} {report.currency}."
            )
        if not one.eligible_board_ms:
            yield f"{name}: no team used anything in its scope."
        if one.nano_per_board_hour is not None and (one.idle_nano or one.unused_nano):
            yield (
                f"{name}: with what was not used, a GPU-hour that was used cost "
                f"{display.money(one.nano_per_board_hour, 4)} {report.currency}."
            )


def _teams(report: CommitmentReport, width: int) -> Table:
    heads = ("team", "GPU-hours", "list", "contracted", "effective", "of it not used", "on demand")
    rows = [_team_cells(one, display.name(one.team) if one.team else _PLATFORM) for one in report.teams]
    table = filled("Three views of the same use", heads, rows, {0}, width)
    table.add_section()
    table.add_row(*_team_cells(report.total, "all"))
    if report.total.unpriced_board_ms:
        table.caption = (
            f"{display.hours(report.total.unpriced_board_ms)} GPU-hours have no price by their usage lines."
        )
    return table


def _team_cells(one: TeamViews, name: str) -> list[Text]:
    amounts = (
        one.list_nano,
        one.contracted_nano,
        one.effective_nano,
        one.unused_nano,
        one.on_demand_nano + one.beyond_nano,
    )
    return [Text(name), Text(display.hours(one.board_ms)), *(Text(display.money(n)) for n in amounts)]


def _spot(one: SpotSummary, currency: str) -> str:
    name = display.visible(one.contract)
    if one.nano_per_board_hour is None:
        return f"{name}: no spot use with a price."
    price, useful = display.money(one.nano_per_board_hour, 4), one.nano_per_useful_board_hour
    rest = (
        "nothing of it was of use"
        if useful is None
        else f"{display.money(useful, 4)} for one that was of use"
    )
    return (
        f"{name}: {display.hours(one.board_ms)} spot GPU-hours at {price} {currency}; interruptions "
        f"destroyed {display.hours(one.lost_board_ms)}: {rest}."
    )


def _planned(one: BreakEven, currency: str) -> str:
    word = "saved" if one.saved_nano >= 0 else "cost more by"
    days = "; ".join(
        f"{name} {display.money(nano)}"
        for name, nano in (("p10", one.p10_day_nano), ("p50", one.p50_day_nano), ("p90", one.p90_day_nano))
    )
    needed = (
        "it would have covered nothing"
        if one.needed is None
        else f"it pays from {display.percent(one.needed)} of its use on, and "
        f"{display.percent(one.utilisation)} would have been used"
    )
    return (
        f"{display.visible(one.contract)}, planned: on {one.window} it would have {word} "
        f"{display.money(abs(one.saved_nano))} {currency} (saved per day: {days}); {needed}."
    )


def _gaps(gaps: UsageGaps) -> Iterator[str]:
    if gaps.unknown_board_ms:
        yield f"{display.hours(gaps.unknown_board_ms)} GPU-hours were not observed: they count as idle."
    if gaps.missing_ms:
        missing = display.duration(gaps.missing_ms)
        yield f"{missing} of the window are not in the ledger: they count as not used."
    if gaps.unread is not None:
        yield (
            f"The ledger begins at {iso(gaps.unread.end_ms)}: what pools lost from "
            f"{iso(gaps.unread.start_ms)} on is not known, and more of them is left here than there is."
        )
