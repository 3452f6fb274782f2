"""The digest of a week: in brief, as it is posted; and whole, as the command prints it, with one sentence,
the numbers, what to do, and the basis of the numbers.

A section lists what wasted most in the week and is over: there is nothing to do now, but something to avoid
next time. Its charts show days side by side, teams one below the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from fractions import Fraction
from shlex import quote

from gpucost.domain.buckets import ORDER, Waste
from gpucost.domain.money import round_half_even
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Month, iso
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.compose.wording import (
    amount,
    brief,
    change_words,
    cost,
    gpu_hours,
    sentence,
)
from gpucost.notify.message import (
    ChartBar,
    MessageChart,
    MessageFact,
    MessageLink,
    MessageSection,
    NotificationMessage,
)
from gpucost.notify.notices import Notice, NoticeKind, NoticeRank, NoticeStage
from gpucost.reports.base import display
from gpucost.reports.base.values import (
    NOTHING,
    CostAmount,
    costliest_first,
    ratio,
)
from gpucost.reports.digest.week_model import (
    DayOfWeek,
    IsoWeek,
    WeekBudget,
    WeekDigest,
)
from gpucost.reports.month.change_causes import cause_words
from gpucost.reports.waste.recommendations import (
    HABITS,
    PATTERN_OF_HELD_WASTE,
    Recommendation,
    page_of,
)
from gpucost.reports.waste.waste_report import JobWaste, WasteReport
from gpucost.reports.waste.waste_table import (
    LABELS,
    is_broken,
    last_day,
    looked_at,
    meaning_of,
    proof,
    shown_buckets,
)

_MOST_TEAMS = 10
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
# Bars of less than this are drawn in minutes: whole hours would be too coarse.
_HOURS_FROM_MS = 100 * HOUR_MS


def days_chart(digest: WeekDigest) -> MessageChart | None:
    """A column for each day, by bucket of waste; a day without windows in the ledger is a gap. None where
    nothing is in any bucket."""
    found = [day.buckets or {} for day in digest.days]
    present = _present(found)
    if not present:
        return None
    unit, unit_ms = _unit(found)
    bars = tuple(
        ChartBar(
            _DAYS[date.fromisoformat(day.day).weekday()],
            _parts(day.buckets, present, unit_ms),
            _shown(day),
        )
        for day in digest.days
    )
    return MessageChart("By day", unit, _labels(present), tuple(present), bars, upright=True)


def teams_chart(digest: WeekDigest) -> MessageChart | None:
    """What the costliest teams held, by bucket of waste; None where no window was assessed."""
    rows = [each for each in digest.teams if each.waste is not None and each.row.held.board_ms][:_MOST_TEAMS]
    buckets = [{row.waste: row.amount for row in each.waste.buckets} for each in rows if each.waste]
    present = _present(buckets)
    if not present:
        return None
    unit, unit_ms = _unit(buckets)
    bars = tuple(
        ChartBar(
            display.name(each.row.group["team"]),
            _parts(held, present, unit_ms),
            cost(each.row.held.nano, digest.currency),
        )
        for each, held in zip(rows, buckets, strict=True)
    )
    cut = f", the costliest {len(rows)} of {len(digest.teams)}" if len(digest.teams) > len(rows) else ""
    return MessageChart(f"By team{cut}", unit, _labels(present), tuple(present), bars)


def _present(bars: Sequence[Mapping[str, CostAmount]]) -> list[str]:
    """The buckets that have time in any bar: productive first, then waste, in their order."""
    names = {waste for bar in bars for waste, found in bar.items() if found.board_ms}
    return sorted(names, key=lambda waste: (waste != Waste.PRODUCTIVE, ORDER[Waste(waste)]))


def _labels(present: Sequence[str]) -> tuple[str, ...]:
    return tuple(LABELS[Waste(waste)] for waste in present)


def _unit(bars: Sequence[Mapping[str, CostAmount]]) -> tuple[str, int]:
    longest_ms = max(sum(found.board_ms for found in bar.values()) for bar in bars)
    return ("GPU-hours", HOUR_MS) if longest_ms >= _HOURS_FROM_MS else ("GPU-minutes", MINUTE_MS)


def _parts(
    buckets: Mapping[str, CostAmount] | None, present: Sequence[str], unit_ms: int
) -> tuple[int | None, ...]:
    if buckets is None:
        return (None,) * len(present)
    return tuple(
        round_half_even(found.board_ms, unit_ms) if (found := buckets.get(waste)) else 0 for waste in present
    )


def _shown(day: DayOfWeek) -> str:
    if day.buckets is None:
        return "missing"
    hours = display.hours(sum(found.board_ms for found in day.buckets.values()), 0)
    part = "" if day.covered >= 1 else f", {display.percent(day.covered)} of the day"
    return f"{hours} h{part}"


def over_sections(digest: WeekDigest) -> Iterator[MessageSection]:
    """One section where fewer actions are open than a digest has room for."""
    items = tuple(_item(row, digest) for row in digest.over)
    more = f" {digest.more_over:,} more are not shown." if items and digest.more_over else ""
    if digest.actions:
        if items:
            yield MessageSection("What else wasted most", text=f"It is over.{more}", items=items)
    elif items:
        text = f"Nothing now: no finding goes on. What wasted most is over:{more}"
        yield MessageSection("What to do", text=text, items=items)
    else:
        yield MessageSection("What to do", text="Nothing: no finding goes on.")


def _item(row: JobWaste, digest: WeekDigest) -> str:
    """``nlp/train, idle: USD 68.80, 10.0 GPU-hours; is over. Next time: ... (page)``."""
    waste = Waste(row.waste)
    job = display.name(f"{row.namespace}/{row.job}" if row.job else "")
    of = "" if digest.team else f" of {display.name(row.team)}"
    return (
        f"{job}{of}, {LABELS[waste].lower()}: {amount(row.amount, digest.currency)}; is over. "
        f"Next time: {HABITS[waste]} ({page_of(PATTERN_OF_HELD_WASTE[waste])})"
    )


_LINE, _CHANGE = 72, 70
_TOP_TEAMS = 5
_MOST_CAUSES = 5
_BEFORE = "the week before"
# A part of the unknown time that a summary need not mention.
_LITTLE = Fraction(1, 100)


def digest_key(week: IsoWeek | str, team: str) -> str:
    """``digest:week:2026-W43:vision``; the platform's ends with the colon."""
    return f"digest:week:{week}:{team}"


def digest_notice(digest: WeekDigest, links: MessageLinks, *, since_ms: int) -> Notice:
    """A notice that is sent once. ``since_ms`` is when it was due. Its version changes when a week that was
    sent with windows missing, or not assessed, has become whole."""
    looked = digest.waste is not None and not digest.waste.assessment.missing
    return Notice(
        key=digest_key(digest.week, digest.team),
        group=f"digest:week:{digest.team}",
        kind=NoticeKind.DIGEST,
        stage=NoticeStage.ONCE,
        rank=NoticeRank.INFO,
        team=digest.team,
        cluster="",
        since_ms=since_ms,
        version="whole" if digest.coverage.whole and looked else "partial",
        message=digest_brief(digest, links),
    )


def digest_brief(digest: WeekDigest, links: MessageLinks) -> NotificationMessage:
    """A digest as it is posted: what the week cost and wasted, and what brings most back. The rest stands on
    the page, and in what the command prints."""
    found = digest.budget
    spent = "" if found is None or found.part is None else f" {display.percent(found.part)} of the budget."
    return NotificationMessage(
        title=f"{_who(digest)}: week {_number(digest)} of {digest.week[:4]}",
        summary=f"{_summary(digest)}{spent}",
        sections=(_first_actions(digest),),
        links=_links(digest, links),
        footer=_command(digest),
    )


def _first_actions(digest: WeekDigest) -> MessageSection:
    """What to do, a line each, with the change of the first; and how much the other findings would bring."""
    items = [brief(_line(row, digest), _LINE) for row in digest.actions]
    if not items:
        return MessageSection(text="Nothing to do now: no finding goes on.")
    if digest.more_actions:
        items.append(f"{_daily(digest.more_daily_nano, digest)}: {digest.more_actions:,} more")
    change = brief(digest.actions[0].action, _CHANGE)
    return MessageSection(text=f"What brings most back; first: {change}", items=tuple(items))


def _line(row: Recommendation, digest: WeekDigest) -> str:
    like, costs = "", [] if row.daily_nano is None else [row.daily_nano]
    if row.alike is not None:
        like = f" and {len(row.alike.findings):,} like it"
        costs += [] if row.alike.daily_nano is None else [row.alike.daily_nano]
    return f"{_daily(sum(costs) if costs else None, digest)}: {display.name(row.subject)}{like}"


def _daily(nano: int | None, digest: WeekDigest) -> str:
    return "no amount" if nano is None else f"{cost(nano, digest.currency)} a day"


def digest_message(digest: WeekDigest, links: MessageLinks) -> NotificationMessage:
    """All of a digest, as the command prints it; that of a team names no other team."""
    return NotificationMessage(
        title=f"{_who(digest)}: week {_number(digest)}, {_days(digest)}",
        summary=_summary(digest),
        facts=tuple(_facts(digest)),
        sections=tuple(_sections(digest)),
        links=_links(digest, links),
        footer=f"gpucost {digest.code_version}, {digest.week}, Monday to Sunday in UTC; "
        f"again: {_command(digest)}",
    )


def _command(digest: WeekDigest) -> str:
    """The command that prints all of it."""
    team = f" --team {quote(display.name(digest.team))}" if digest.team else ""
    return f"gpucost digest {digest.week}{team}"


def _who(digest: WeekDigest) -> str:
    return display.name(digest.team) if digest.team else "All teams"


def _number(digest: WeekDigest) -> int:
    return IsoWeek.parse(digest.week).number


def _days(digest: WeekDigest) -> str:
    first, last = digest.window.start_ms, digest.window.end_ms - 1
    return f"{iso(first)[:10]} to {iso(last)[:10]}"


def _summary(digest: WeekDigest) -> str:
    who = display.name(digest.team) if digest.team else "The clusters"
    what = f"cost {cost(digest.cost.nano, digest.currency)}"
    if digest.cost.nano is None:
        what = f"{'held' if digest.team else 'had'} {gpu_hours(digest.cost.board_ms)} without a price"
    change = change_words(digest.change, _BEFORE)
    parts = [
        f"{who} {what} in week {_number(digest)}{f', {change}' if change else ''}",
        *_cause_words(digest),
        *_wasted_words(digest),
    ]
    return f"{'; '.join([*parts, *_missing(digest)])}."


def _cause_words(digest: WeekDigest) -> Iterator[str]:
    """The largest cause of the change."""
    if digest.causes and digest.change is not None and digest.change.nano:
        first = digest.causes[0]
        of = "" if digest.team else f"{display.name(first.team)}: "
        yield f"most of all {of}{cause_words(first)} ({display.signed_money(first.nano)})"


def _wasted_words(digest: WeekDigest) -> Iterator[str]:
    if not digest.cost.board_ms:
        return
    if digest.waste is None:
        yield "no detector has looked at it"
        return
    wasted, base = digest.waste.wasted, _base(digest)
    share = display.percent(_share(wasted, digest.cost, digest)) if wasted.board_ms else "none"
    yield f"{share} of the {base} {'was' if _in_money(digest) else 'were'} wasted"
    unknown = _share(_unknown(digest.waste), digest.cost, digest)
    if unknown is not None and unknown >= _LITTLE:
        unseen = " or not looked at" if digest.waste.assessment.missing else ""
        yield f"{display.percent(unknown)} was not measured{unseen}"


def _in_money(digest: WeekDigest) -> bool:
    """Whether shares are of money: where all of it has a price. One base for the whole message."""
    return bool(digest.cost.nano) and not digest.cost.unpriced_board_ms


def _base(digest: WeekDigest) -> str:
    return "cost" if _in_money(digest) else "GPU-hours"


def _share(part: CostAmount, whole: CostAmount, digest: WeekDigest) -> Fraction | None:
    if _in_money(digest):
        return None if part.nano is None else ratio(part.nano, whole.nano)
    return ratio(part.board_ms, whole.board_ms)


def _amount_and(words: str, found: CostAmount, digest: WeekDigest) -> str:
    """An amount with ``words`` about a share behind the amount that the share is of."""
    if _in_money(digest):
        return amount(found, digest.currency, of_money=words)
    return amount(found, digest.currency, of_hours=words)


def _unknown(waste: WasteReport) -> CostAmount:
    return next((row.amount for row in waste.buckets if row.waste == Waste.UNKNOWN), NOTHING)


def _missing(digest: WeekDigest) -> Iterator[str]:
    coverage = digest.coverage
    if coverage.missing_ms:
        clusters = (
            f" of {display.counted(len(coverage.clusters), 'cluster')}" if len(coverage.clusters) > 1 else ""
        )
        missing = display.span_of_days(coverage.missing_ms)
        yield f"{missing} of the week{clusters} are not in the ledger, nor in these numbers"
    if not coverage.settled:
        yield "not all of it is settled"


def _facts(digest: WeekDigest) -> Iterator[MessageFact]:
    currency, busy = digest.currency, digest.utilisation.busy
    # For all teams it is the cost of the clusters, with or without a holder: the capacity of reports.
    yield MessageFact("Cost" if digest.team else "Capacity", amount(digest.cost, currency))
    if not digest.team:
        yield MessageFact("Held by teams", amount(digest.held, currency))
    if digest.change is None:
        yield MessageFact("Week before", f"not compared: {digest.not_compared}")
    else:
        words = change_words(digest.change, _BEFORE)
        yield MessageFact(
            "Week before", f"{amount(digest.change.previous, currency)}{f' ({words})' if words else ''}"
        )
    if digest.budget is not None:
        yield MessageFact("Budget", _budget(digest))
    if digest.waste is None:
        yield MessageFact("Wasted", "not known: no detector has looked at this week")
    else:
        of = f" of the {_base(digest)}"
        yield MessageFact("Wasted", _part(digest.waste.wasted, digest, of))
        yield MessageFact("Unknown", _part(_unknown(digest.waste), digest, of))
    if busy is None:
        yield MessageFact("Busy", "not observed")
    else:
        seen = f"use was measured for {display.percent(busy.coverage)} of what was held"
        yield MessageFact("Busy", f"{display.percent(busy.mean)}; {seen}")
    if digest.waits is not None:
        yield MessageFact("Waited", _waited(digest))


def _part(found: CostAmount, digest: WeekDigest, of: str = "") -> str:
    return _amount_and(f"{display.percent(_share(found, digest.cost, digest), 1)}{of}", found, digest)


def _budget(digest: WeekDigest) -> str:
    found, currency = digest.budget, digest.currency
    assert found is not None
    month = cost(found.monthly_nano, currency)
    of = "" if digest.team else f" of {display.counted(found.teams, 'team')} with a budget"
    spent = f"; they held {cost(found.spent.nano, currency)}" if of else ""
    if found.week_nano is None or found.covered is None:
        return f"{month} a month{of}: not compared, clusters lack different parts of the week{spent}"
    of_days = "the week's part" if found.covered == 1 else f"the part of {_days_of(found.covered)}"
    week = cost(found.week_nano, currency)
    return f"{display.percent(found.part)} of {week}, {of_days} of {month} a month{of}{spent}"


def _days_of(covered: Fraction) -> str:
    """``6 of 7 days``, ``6.3 of 7 days``: never seven where the week is not whole."""
    days = min(round(float(covered * 7), 1), 6.9)
    return f"{days:g} of 7 days"


def _waited(digest: WeekDigest) -> str:
    found = digest.waits
    assert found is not None
    words = []
    if found.p50_ms is not None and found.p90_ms is not None and found.longest_ms is not None:
        started = display.counted(found.started, "workload")
        p50, p90, longest = (_wait(each) for each in (found.p50_ms, found.p90_ms, found.longest_ms))
        words.append(
            f"{started} started, half of them within {p50}, nine in ten within {p90}, all within {longest}"
        )
    if found.waiting:
        words.append(f"{found.waiting:,} still waiting")
    if found.cut:
        words.append("of those that asked last")
    return "; ".join(words)


def _wait(length_ms: int) -> str:
    """Rounded up to minutes: seconds do not matter here."""
    return display.span_of_days(-(-length_ms // MINUTE_MS) * MINUTE_MS) if length_ms else "0 min"


def _sections(digest: WeekDigest) -> Iterator[MessageSection]:
    if digest.waste is not None and digest.cost.board_ms:
        yield MessageSection(
            "Where it went", items=tuple(_buckets(digest, digest.waste)), chart=days_chart(digest)
        )
    if digest.causes:
        more = len(digest.causes) - _MOST_CAUSES
        cut = f", {_MOST_CAUSES} of {more + _MOST_CAUSES:,}" if more > 0 else ""
        yield MessageSection(f"Why it changed{cut}", items=tuple(_causes(digest)))
    if digest.budgets:
        yield MessageSection("Budgets", items=tuple(brief(each.words, _LINE) for each in digest.budgets))
    yield from _actions(digest)
    yield from over_sections(digest)
    if digest.teams:
        yield MessageSection("Costliest teams", items=tuple(_teams(digest)), chart=teams_chart(digest))
    if digest.jobs:
        more = digest.job_count - len(digest.jobs)
        title = (
            f"Costliest jobs, {len(digest.jobs)} of {digest.job_count:,}" if more > 0 else "Costliest jobs"
        )
        yield MessageSection(title, items=tuple(_jobs(digest)))
    yield MessageSection("What this rests on", items=tuple(_grounds(digest)))


def _causes(digest: WeekDigest) -> Iterator[str]:
    for cause in digest.causes[:_MOST_CAUSES]:
        of = "" if digest.team else f"{display.name(cause.team)}: "
        yield f"{display.signed_money(cause.nano)} {digest.currency} {of}{cause_words(cause)}"


def _buckets(digest: WeekDigest, waste: WasteReport) -> Iterator[str]:
    """Waste first, the dearest bucket first."""
    rows = [row for row in shown_buckets(waste) if row.amount.board_ms]
    for row in sorted(rows, key=lambda row: (not row.is_waste, costliest_first(row.amount, row.waste))):
        label, meaning = LABELS[Waste(row.waste)], meaning_of(waste, row)
        yield f"{label}: {_part(row.amount, digest, f' of the {_base(digest)}')}; {meaning}"


def _actions(digest: WeekDigest) -> Iterator[MessageSection]:
    if not digest.actions:
        return
    count = len(digest.actions)
    if count == 1:
        what, they = "The action that brings most back", "it brings"
    else:
        what, they = f"The {count} actions that bring most back", "they bring"
    more = f" {digest.more_actions:,} more: gpucost findings." if digest.more_actions else ""
    yield MessageSection(what, text=f"By the money {they} back in a day, as things stand now.{more}")
    for number, row in enumerate(digest.actions, 1):
        yield MessageSection(
            f"{number}. {_title(row, digest)}",
            text="\n".join(_action(row, digest)),
            code=row.patch.strip("\n"),
        )


def _title(row: Recommendation, digest: WeekDigest) -> str:
    """The subject, its owner, and the saving; a view of time that other rows count too is in no sum."""
    of = f" of {display.name(row.team)}" if row.team and not digest.team else ""
    back = (
        "no amount"
        if row.daily_nano is None
        else f"{cost(row.daily_nano, digest.currency)} a day at its rate of now"
    )
    outside = "" if row.counted else ", not in the sums above"
    return f"{row.subject_kind} {display.name(row.subject)}{of}: {back}{outside}"


def _action(row: Recommendation, digest: WeekDigest) -> Iterator[str]:
    yield sentence(row.summary)
    yield f"It wasted {last_day(row, digest.currency)}."
    yield row.action
    if row.alike is not None:
        others = display.counted(len(row.alike.findings), "more finding")
        costs = row.alike.daily_nano
        together = ""
        if costs is not None:
            with_this = cost(costs + (row.daily_nano or 0), digest.currency)
            another = f"another {cost(costs, digest.currency)} a day at their rate of now"
            together = f": {another}, {with_this} with this one"
        yield f"And {others} like it{together}."


def _teams(digest: WeekDigest) -> Iterator[str]:
    for each in digest.teams[:_TOP_TEAMS]:
        row = each.row
        wasted = (
            ""
            if each.waste is None
            else f"{display.percent(_share(each.waste.wasted, row.held, digest))} of it wasted"
        )
        change = change_words(row.change, _BEFORE)
        than = f", {change}" if change else ""
        what = _amount_and(wasted, row.held, digest)
        yield f"{display.name(row.group['team'])}: {what}{_of_budget(each.budget)}{than}"
    rest = digest.teams[_TOP_TEAMS:]
    if rest:
        held = sum((each.row.held for each in rest), NOTHING)
        yield f"{display.counted(len(rest), 'more team')}: {amount(held, digest.currency)}"


def _of_budget(found: WeekBudget | None) -> str:
    if found is None or found.covered is None:
        return ""
    of = "the week's budget" if found.covered == 1 else f"the budget of {_days_of(found.covered)}"
    return f", {display.percent(found.part)} of {of}"


def _jobs(digest: WeekDigest) -> Iterator[str]:
    for row in digest.jobs:
        busy = row.utilisation.busy
        seen = "not observed" if busy is None else f"busy {display.percent(busy.mean)}"
        teams = "" if digest.team else f" ({', '.join(map(display.name, row.teams))})"
        job = f"{row.namespace}/{row.job}" if row.job else ""
        yield f"{display.name(job)}{teams}: {amount(row.held, digest.currency)}, {seen}"


def _grounds(digest: WeekDigest) -> Iterator[str]:
    coverage, busy = digest.coverage, digest.utilisation.busy
    clusters = "cluster was" if len(coverage.clusters) == 1 else "clusters were"
    yield (
        f"{display.percent(coverage.covered, 1)} of the week is in the ledger; "
        f"the {clusters} watched for {display.percent(coverage.observed, 1)} of that."
    )
    if busy is not None:
        yield f"Use was measured for {display.percent(busy.coverage, 1)} of what was held."
    for each in coverage.clusters:
        if each.missing_ms:
            yield f"Cluster {display.name(each.cluster)}: {display.span_of_days(each.missing_ms)} missing."
    if not coverage.settled:
        yield "Some windows may still change by late data."
    if digest.waste is not None:
        yield looked_at(digest.waste.assessment)
        if is_broken(digest.waste):
            yield proof(digest.waste)


def _links(digest: WeekDigest, links: MessageLinks) -> tuple[MessageLink, ...]:
    """The page of the month in which the week ends; else the dashboard at the week."""
    then = digest.window
    return links.month(Month.of(then.end_ms - 1), digest.team, then)
