"""Charges and contracts in a terminal.

A preview has a line for each team, then what makes the difference, then the proof; a statement has a line for
each kind of charge of one team, its dearest jobs, and how each figure is worked out again. Contracts: what
was used of them, what it cost whom, and what a planned one would save.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from gpucost.charges.cell_charges import PLATFORM, ChargeKind
from gpucost.charges.commitment_report import (
    BreakEven,
    CommitmentQuantity,
    CommitmentReport,
    CommitmentSummary,
    SpotSummary,
    TeamViews,
    UsageGaps,
)
from gpucost.domain.time import HOUR_MS, iso
from gpucost.reports.base import display
from gpucost.reports.base.unit_costs import JobUnitCost, count_words
from gpucost.reports.charges.charge_previews import (
    ChargebackPreview,
    PreviewAmount,
    PreviewGrouping,
    PreviewQuota,
    PreviewTeam,
)
from gpucost.reports.charges.charge_statements import (
    CHARGE_WORDS,
    StatementPrice,
    StatementQuota,
    StatementRule,
    StatementShare,
    TeamStatement,
)
from gpucost.reports.month.model import StatementSummary, SummarySpread
from gpucost.reports.render.terminal_month import summary_parts
from gpucost.reports.render.terminal_parts import filled, print_parts, shown_name

_KEPT = "kept by the platform"


def print_preview(found: ChargebackPreview, console: Console) -> None:
    """``found`` in tables; amounts in its currency, rounded to cents. The proof is in nano-units."""
    several = len(found.policies) > 1
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    heads = list(letters[: len(found.policies)])
    legend = "\n".join(
        f"{letter}  {display.visible(each.name)} ({display.visible(each.file)})"
        for letter, each in zip(heads, found.policies, strict=True)
    )
    title = f"What teams would pay, {display.month_name(found.month)}, {found.currency}"
    change = [f"{heads[-1]} − {heads[0]}", "change"] if several else []
    teams = [
        [*_head(each, found.by), *_money(each.totals), *_change(each, several)]
        for each in (*found.teams, found.kept)
    ]
    total = [Text("capacity"), *(Text(display.money(each.capacity.nano)) for each in found.policies)]
    if found.by is PreviewGrouping.TEAM:
        total.insert(1, Text())
    teams.append([*total, *(Text() for _ in change)])
    texts = ["team", "cost centre"] if found.by is PreviewGrouping.TEAM else ["cost centre"]
    table = filled(title, [*texts, *heads, *change], teams, range(len(texts)), console.width)
    why = filled(
        "Why",
        [texts[0], "line", *(f"{letter} GPU-h" for letter in heads), *heads, *change[:1]],
        list(_lines(found, several)),
        {0, 1},
        console.width,
    )
    parts: list[RenderableType] = [Text(legend), table, why]
    if several:
        moved = f"{display.money(found.moved_nano)} {found.currency}"
        parts.append(Text(f"{moved} change hands between {heads[0]} and {heads[-1]}."))
    parts += [Text(_quota(each, heads if several else [""], found.currency)) for each in found.quotas]
    unknown = (f"Not known, who waited: {display.visible(why)}." for why in found.waiting_missing)
    parts += [Text(line, "yellow") for line in unknown]
    if found.unpriced_board_ms:
        hours = display.hours_or_less(found.unpriced_board_ms)
        parts.append(Text(f"{hours} GPU-hours have no price, and are in no amount.", "yellow"))
    parts.append(Text("\n".join(_proof(found, heads))))
    print_parts(parts, console)


def _quota(found: PreviewQuota, heads: list[str], currency: str) -> str:
    """Idle quota in money a day, what of it was lent, and who waited beside it."""
    gpus, lent = (
        display.hours_or_less(part * HOUR_MS // found.observed_ms)
        for part in (found.idle_board_ms, found.lent_board_ms)
    )
    letter = f"{heads[found.policy]}: " if heads[found.policy] else ""
    said = (
        f"{letter}{display.name(found.team)}, {display.visible(found.model)}: {gpus} GPUs of its quota stood "
        f"idle: {display.money(found.a_day_nano)} {currency} a day"
    )
    if found.lent_board_ms:
        said += f"; {lent} of them were lent and earned {display.money(found.earned_a_day_nano)} back"
    waits = [f"{display.name(each.team)} {display.hours(each.board_ms)}" for each in found.beside or ()]
    if waits:
        said += f"; beside them waited, in GPU-hours: {', '.join(waits)}"
    if found.waited_board_ms:
        said += f"; it waited for {display.hours(found.waited_board_ms)} itself"
    return f"{said}."


def _head(found: PreviewTeam, by: PreviewGrouping) -> list[Text]:
    if by is PreviewGrouping.COST_CENTRE:
        return [_name(found)]
    if found.team == PLATFORM:
        return [_name(found), Text()]
    centre = found.cost_centre
    return [_name(found), Text(display.MISSING) if centre is None else shown_name(centre)]


def _name(found: PreviewTeam) -> Text:
    if found.team == PLATFORM:
        return Text(_KEPT)
    return shown_name(found.team) if found.team else Text("no cost centre")


def _money(amounts: tuple[PreviewAmount, ...]) -> list[Text]:
    return [Text(display.money(each.nano).replace("-", "−")) for each in amounts]


def _change(found: PreviewTeam, several: bool) -> list[Text]:
    if not several:
        return []
    first = found.totals[0].nano
    relative = (
        display.signed_percent(Fraction(found.difference_nano, first)) if first > 0 else display.MISSING
    )
    return [Text(display.signed_money(found.difference_nano)), Text(relative)]


def _lines(found: ChargebackPreview, several: bool) -> Iterator[list[Text]]:
    for team in (*found.teams, found.kept):
        for n, line in enumerate(team.lines):
            name = _name(team) if n == 0 else Text()
            hours = [Text(display.hours(each.board_ms).replace("-", "−")) for each in line.amounts]
            more = [Text(display.signed_money(line.difference_nano))] if several else []
            yield [name, Text(CHARGE_WORDS[ChargeKind(line.kind)]), *hours, *_money(line.amounts), *more]


def _proof(found: ChargebackPreview, heads: list[str]) -> Iterator[str]:
    for letter, each in zip(heads, found.policies, strict=True):
        charged, kept, whole = (display.money(part.nano) for part in (each.charged, each.kept, each.capacity))
        proof = f"difference {each.difference.nano} nano"
        yield f"{letter}: charged {charged} + kept {kept} = capacity {whole} {found.currency}: {proof}"


_PLATFORM = _KEPT


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
        else f"it pays from {display.percent(one.needed)} drawn on, and {display.percent(one.drawn)} would "
        f"have been drawn, {display.percent(one.utilisation)} by teams and the rest by GPUs that stood idle"
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


def print_statement(found: TeamStatement, console: Console) -> None:
    """What a team pays, line by line; amounts rounded to cents."""
    title = f"Statement of {display.name(found.team)}, {display.month_name(found.month)}, {found.currency}"
    rows = [
        [Text(CHARGE_WORDS[ChargeKind(each.kind)]), *_amounts(each.board_ms, each.nano)]
        for each in found.lines
    ]
    rows += [
        [
            Text(display.visible(f"adjustment {each.reference}: {each.reason}")),
            *_amounts(each.board_ms, each.nano),
        ]
        for each in found.adjustments
    ]
    rows.append([Text("total", "bold"), *_amounts(found.total_board_ms, found.total_nano)])
    parts: list[RenderableType] = [
        Text(title, "bold"),
        filled("Charges", ["line", "GPU-h", found.currency], rows, {0}, console.width),
    ]
    jobs = [
        [shown_name(f"{each.namespace}/{each.job}"), *_amounts(each.board_ms, each.nano)]
        for each in found.jobs
    ]
    if found.prices:
        prices = [_price_row(each) for each in found.prices]
        heads = ["GPU", "price book", "first use", "last use", f"{found.ledger_currency}/GPU-h", "GPU-h"]
        heads.append(found.ledger_currency)
        parts.append(filled("Held, at which prices", heads, prices, {0, 1, 2, 3}, console.width))
    if found.quotas:
        heads = ["GPU", "queue", "quota GPU-h", "used", "idle", "lent", "borrowed", "cost of idle", "of lent"]
        quotas = [_quota_row(each) for each in found.quotas]
        parts.append(filled("Quota", heads, quotas, {0, 1}, console.width))
    if found.shares:
        seen = any(each.whole_nano is not None for each in found.shares)
        heads = ["what", "GPU", "spread", "own weight", "GPU-h", found.currency]
        heads += ["all weights", "all GPU-h", f"all {found.currency}"] if seen else []
        shares = [_spread_row(each) + (_whole_of(each) if seen else []) for each in found.shares]
        parts.append(filled("Shares of nobody's time", heads, shares, {0, 1, 2}, console.width))
    if found.contracts is not None:
        heads = ["by the list", "at these prices", "by the contracts", "of it not used"]
        of = found.contracts
        views = (of.list_nano, of.contracted_nano, of.effective_nano, of.unused_nano)
        row = [[Text(display.money(nano).replace("-", "−")) for nano in views]]
        title = f"What it used, in three views, {found.ledger_currency}"
        parts.append(filled(title, heads, row, (), console.width))
    if found.rules:
        heads = ["rule of the team rules", "GPU-h", found.ledger_currency]
        rules = [_rule_row(each) for each in found.rules]
        parts.append(filled("Why this team", heads, rules, {0}, console.width, most_of=200))
    if jobs:
        parts.append(filled("Dearest jobs", ["job", "GPU-h", found.currency], jobs, {0}, console.width))
    if found.units:
        heads = [
            "job",
            "unit",
            "counted",
            f"{found.ledger_currency} each",
            "per million",
            "of its time",
            "idle",
        ]
        units = [_unit_row(each) for each in found.units]
        parts.append(filled("Unit cost, by what its pods count", heads, units, {0, 1}, console.width))
    parts.append(Text("\n".join(_remarks_of(found))))
    print_parts(parts, console)


def _unit_row(found: JobUnitCost) -> list[Text]:
    cost = found.cost
    return [
        shown_name(f"{found.namespace}/{found.job}"),
        shown_name(cost.name),
        Text(count_words(cost.amount)),
        Text(display.money(cost.per_unit_nano, 9)),
        Text(display.money(cost.per_million_nano)),
        Text(display.percent(cost.coverage)),
        Text(display.percent(cost.idle_share)),
    ]


def _price_row(found: StatementPrice) -> list[Text]:
    span = (iso(at)[:16].replace("T", " ") for at in (found.held.start_ms, found.held.end_ms))
    dates = [Text(each) for each in span]
    price = Text(display.price(found.price_nano))
    return [
        shown_name(found.model),
        shown_name(found.rate_id),
        *dates,
        price,
        *_amounts(found.board_ms, found.nano),
    ]


def _quota_row(found: StatementQuota) -> list[Text]:
    times = (
        *(found.nominal_board_ms, found.used_board_ms, found.idle_board_ms, found.lent_board_ms),
        found.borrowed_board_ms,
    )
    return [
        shown_name(found.model),
        shown_name(found.queue) if found.queue else Text("all of the team"),
        *(Text(display.hours(each)) for each in times),
        *(Text(display.money(each)) for each in (found.idle_nano, found.lent_nano)),
    ]


def _spread_row(found: StatementShare | SummarySpread) -> list[Text]:
    return [
        Text(CHARGE_WORDS[ChargeKind(found.kind)]),
        shown_name(found.model),
        Text(found.rule.replace("_", " ")),
        Text(display.hours(found.weight_ms)),
        *_amounts(found.board_ms, found.nano),
    ]


def _whole_of(found: StatementShare) -> list[Text]:
    if found.whole_weight_ms is None or found.whole_board_ms is None or found.whole_nano is None:
        return [Text(display.MISSING)] * 3
    weights = Text(display.hours(found.whole_weight_ms))
    return [weights, Text(display.hours(found.whole_board_ms)), Text(display.money(found.whole_nano))]


def print_summary(found: StatementSummary, console: Console) -> None:
    """What every team pays, what the platform keeps, and the proof; amounts rounded to cents."""
    title = f"Statements of {display.month_name(found.month)}, {found.currency}"
    closed = ", charged as when it was closed" if found.as_closed else ""
    policy = f"Policy: {display.visible(found.policy)}. Month {found.state}{closed}, digest {found.digest}."
    spread = [_spread_row(each) for each in found.spreads]
    parts: list[RenderableType] = [Text(title, "bold"), *summary_parts(found, console.width)]
    if spread:
        heads = ["what", "GPU", "spread", "all weights", "GPU-h", found.currency]
        parts.append(filled("Nobody's time that teams share", heads, spread, {0, 1, 2}, console.width))
    print_parts([*parts, Text(policy)], console)


def _rule_row(found: StatementRule) -> list[Text]:
    rule = "not recorded" if found.rule is None else display.visible(found.rule, 600)
    return [Text(rule), *_amounts(found.board_ms, found.nano)]


def _amounts(board_ms: int, nano: int | None) -> tuple[Text, Text]:
    return Text(display.hours(board_ms).replace("-", "−")), Text(display.money(nano).replace("-", "−"))


def _remarks_of(found: TeamStatement) -> Iterator[str]:
    if found.jobs_more:
        yield f"{display.counted(found.jobs_more, 'more job')} in {display.visible(found.jobs_again)}."
    if found.cost_centre is not None:
        yield f"Cost centre: {display.name(found.cost_centre)}."
    if found.budget is not None:
        part = display.percent(found.budget.part)
        budget = f"{display.money(found.budget.monthly_nano)} {found.budget.currency}"
        yield f"Budget: {part} of {budget} were held."
    yield from (each.words for each in found.budgets)
    if found.avoidable is not None and found.avoidable.board_ms:
        amount = f"{display.money(found.avoidable.nano)} {found.ledger_currency}"
        yield f"Could have been avoided, of what is used: {amount} (gpucost waste says how)."
    if found.unpriced_board_ms:
        hours = display.hours_or_less(found.unpriced_board_ms)
        yield f"{hours} GPU-hours have no price, and are in no amount."
    for each in found.not_observed:
        gone = display.duration(each.unobserved_ms)
        yield f"Not observed, and in no team's use: {gone} of {each.span} in {display.name(each.cluster)}."
    closed = ", charged as when it was closed" if found.as_closed else ""
    yield f"Policy: {display.visible(found.policy)}. Month {found.state}{closed}, digest {found.digest}."
    yield f"Digest of the charges of all teams: {found.charges_digest}."
    for quota in found.quotas:
        name = f"{display.visible(quota.model)}, {display.visible(quota.queue) or 'all of the team'}"
        if quota.asked_board_ms != quota.nominal_board_ms:
            asked, there = (display.hours(each) for each in (quota.asked_board_ms, quota.nominal_board_ms))
            why = "for the GPUs that were there"
            yield f"Quota of {name}: it asks for {asked} GPU-hours, scaled to {there} {why}."
        if quota.unlent_board_ms:
            unlent = display.hours(quota.unlent_board_ms)
            yield f"Quota of {name}: {unlent} GPU-hours of borrowed came out of GPUs in no quota."
        if quota.taken_board_ms:
            taken = display.hours(quota.taken_board_ms)
            yield f"Quota of {name}: {taken} GPU-hours of lent went to pods past all quotas."
    for line in found.lines:
        yield f"{CHARGE_WORDS[ChargeKind(line.kind)]}: {line.why}. Again: {display.visible(line.again)}"
