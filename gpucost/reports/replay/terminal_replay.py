"""A replay in a terminal.

The error of the baseline comes before anything that is concluded, the limits last; a difference that is not
told apart is said to be so, whatever it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS, iso
from gpucost.reports.base import display
from gpucost.reports.render.terminal_parts import new_table, print_parts, shown_name
from gpucost.reports.replay.scenario_answer import (
    BaselineError,
    ClusterAnswer,
    GroupAnswer,
    ReplayReport,
    ScenarioAnswer,
    WaitDifference,
    WaitFigures,
)
from gpucost.reports.waste.waste_table import LABELS

NOT_TOLD = "not told apart"
MOST_GROUPS = 40


def short(ms: int) -> str:
    """A length of time in at most three digits, for tables."""
    if ms < MINUTE_MS:
        return f"{ms / SECOND_MS:.0f} s"
    if ms < HOUR_MS:
        return f"{ms / MINUTE_MS:.0f} min"
    hours = ms / HOUR_MS
    return f"{hours:.1f} h" if hours < 100 else f"{hours:,.0f} h"


def print_head(report: ReplayReport, console: Console) -> None:
    """What was replayed, and how well that repeats what happened: before anything that is concluded."""
    print_parts(list(head_parts(report)), console)


def print_scenario(report: ReplayReport, found: ScenarioAnswer, console: Console) -> None:
    print_parts(list(scenario_parts(report, found)), console)


def print_limits(report: ReplayReport, console: Console) -> None:
    print_parts([_limits(report)], console)


def head_parts(report: ReplayReport) -> Iterator[RenderableType]:
    """What was replayed, and how well that repeats what happened."""
    yield Text(
        f"Replay of {display.visible(report.history)}: {report.jobs:,} jobs, "
        f"{iso(report.window.start_ms)} to {iso(report.window.end_ms)}\nWhat holds a job: {report.rules}"
    )
    yield _baseline(report.baseline, report.currency)


def _baseline(found: BaselineError | None, currency: str) -> RenderableType:
    if found is None:
        return Text("Baseline: what really happened is not recorded, so that no error can be told.")
    table = new_table("Baseline: the replay with nothing changed, beside what happened")
    for name in ("", "happened", "replayed"):
        table.add_column(name, justify="left" if not name else "right")
    rows = (
        ("wait p50", short(found.recorded.p50_ms), short(found.replayed.p50_ms)),
        ("wait p90", short(found.recorded.p90_ms), short(found.replayed.p90_ms)),
        ("wait p99", short(found.recorded.p99_ms), short(found.replayed.p99_ms)),
        ("wait, mean", short(found.recorded.mean_ms), short(found.replayed.mean_ms)),
        ("within 5 min", display.percent(found.recorded.soon, 1), display.percent(found.replayed.soon, 1)),
        (
            "waited for, GPU-h",
            *map(_hours, (found.recorded.pending_board_ms, found.replayed.pending_board_ms)),
        ),
        ("held, GPU-h", _hours(found.recorded_board_ms), _hours(found.replayed_board_ms)),
        ("evictions", f"{found.recorded_evictions:,}", f"{found.replayed_evictions:,}"),
    )
    for row in (*rows, *money_rows(found, currency)):
        table.add_row(*row)
    order = ""
    if found.order is not None:
        order = f"; {display.percent(found.order, 1)} of neighbours in the same order"
    table.caption = (
        f"Error of starts: p50 {short(found.start_p50_ms)}, p90 "
        f"{short(found.start_p90_ms)}, mean {short(found.start_mean_ms)}; "
        f"{found.exact:,} of {found.jobs:,} to the instant{order}. "
        f"A difference that is smaller than the error of its own figure is {NOT_TOLD}."
    )
    return table


def money_rows(found: BaselineError, currency: str) -> Iterator[tuple[str, str, str]]:
    """What was held, and all GPU time, as the ledger has them and as replayed; nothing without a ledger."""
    amounts = (
        ("held", found.recorded_held_nano, found.replayed_held_nano),
        ("capacity", found.recorded_capacity_nano, found.replayed_capacity_nano),
    )
    for name, recorded, replayed in amounts:
        if recorded is not None and replayed is not None:
            yield f"{name}, {currency or 'cost'}", display.money(recorded), display.money(replayed)


def _hours(board_ms: int) -> str:
    return display.hours(board_ms, 2)


def scenario_parts(report: ReplayReport, found: ScenarioAnswer) -> Iterator[RenderableType]:
    """One scenario: groups, cluster, jobs, remarks."""
    is_base = found is report.scenarios[0]
    yield _waits(found, is_base=is_base)
    yield _use(found, report.currency)
    yield _cluster(found, report)
    if found.jobs:
        yield _jobs(found)
    if found.closed:
        yield _closed(found)
    remarks = [f"- {display.visible(each, 400)}" for each in found.remarks]
    if found.restless is not None:
        remarks.append(
            f"- preemption has no rest from {found.restless.at} on; nothing after it was replayed:"
        )
        remarks += [f"    {display.visible(each, 400)}" for each in found.restless.pairs]
    if remarks:
        yield Text("\n".join(remarks))


def _waits(found: ScenarioAnswer, *, is_base: bool) -> RenderableType:
    table = new_table(f"Scenario {display.visible(found.name)}: waits")
    table.add_column("of")
    heads = ["jobs", "p50", "p90", "p99", "≤ 5 min"]
    for name in [*heads, *([] if is_base else ["p90 differs by", "mean differs by"])]:
        table.add_column(name, justify="right")
    shown = shown_groups(found)
    for each in shown[: MOST_GROUPS + 1]:
        differences = [] if is_base else [difference_words(each.p90), difference_words(each.mean)]
        table.add_row(shown_name(group_name(each)), *_wait_cells(each.waits), *differences)
    more = len(shown) - MOST_GROUPS - 1
    if more > 0:
        table.caption = f"{more} more: --format json has all."
    return table


def _use(found: ScenarioAnswer, currency: str) -> RenderableType:
    shown = shown_groups(found)
    has_quota = any(each.borrowed_board_ms is not None for each in shown)
    has_money = any(each.nano is not None for each in shown)
    title = "GPU-hours and money" if has_money else "GPU-hours"
    table = new_table(f"Scenario {display.visible(found.name)}: {title}")
    charged = any(each.charged_nano is not None for each in shown)
    bound = any(each.contracts_nano is not None for each in shown)
    differs = any(each.nano_difference is not None for each in shown)
    heads = [
        "held",
        *("preempted", "starved", "fragmented"),
        *["quota", "borrowed", "lent"] * has_quota,
        *[currency or "cost"] * has_money,
    ]
    heads += ["differs by"] * differs + ["charged"] * charged + ["by contracts"] * bound
    for name in ["of", *heads]:
        table.add_column(name, justify="left" if name == "of" else "right")
    for each in shown[: MOST_GROUPS + 1]:
        quota = each.nominal_board_ms, each.borrowed_board_ms, each.lent_board_ms
        waste = each.preempted_board_ms, each.starved_board_ms, each.fragmented_board_ms
        row = [display.hours(ms) for ms in (each.board_ms, *waste)]
        row += [display.MISSING if ms is None else display.hours(ms) for ms in quota] if has_quota else []
        row += [display.money(each.nano)] * has_money
        row += [display.signed_money(each.nano_difference)] * differs
        row += [display.money(each.charged_nano)] * charged + [display.money(each.contracts_nano)] * bound
        table.add_row(shown_name(group_name(each)), *row)
    return table


def shown_groups(found: ScenarioAnswer) -> list[GroupAnswer]:
    """Without the teams that are their queue, as in traces."""
    queues = {each.name: each for each in found.groups if each.kind == "queue"}
    return [
        each
        for each in found.groups
        if each.kind != "team" or each.name not in queues or queues[each.name].waits != each.waits
    ]


def group_name(each: GroupAnswer) -> str:
    """``team vision``, ``queue research``, ``all``."""
    return f"{each.kind} {each.name}".strip()


def difference_words(found: WaitDifference | None) -> str:
    """With its interval, or that it is not told apart."""
    if found is None:
        return display.MISSING
    if not found.told:
        return NOT_TOLD
    return f"{_signed(found.ms)} ({_signed(found.low_ms)} to {_signed(found.high_ms)})"


def _signed(ms: int) -> str:
    return f"{'-' if ms < 0 else '+'}{short(abs(ms))}" if ms else "0"


def _cluster(found: ScenarioAnswer, report: ReplayReport) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for row in cluster_rows(found.cluster, report.currency):
        table.add_row(*row)
    off = f"{found.cluster.conservation_board_ms} GPU-ms, {found.cluster.conservation_nano} nano"
    table.add_row("teams and nobody less capacity", off)
    return table


def cluster_rows(one: ClusterAnswer, currency: str) -> list[tuple[str, str]]:
    """The figures of a cluster by their names; amounts of money only where there is a price."""
    rows = [
        ("capacity, GPU-h", display.hours(one.capacity_board_ms)),
        ("utilisation", display.percent(one.utilisation, 1)),
        *((f"{LABELS[each].lower()}, GPU-h", display.hours(ms)) for each, ms in one.waste.by_bucket.items()),
        ("fragmentation", display.percent(one.fragmentation, 1)),
        ("Jain's index of use over quota", _number(one.jain)),
        ("slowdown, mean", _number(one.slowdown)),
    ]
    if one.capacity_nano is not None and one.capacity_board_ms:
        rows.append((f"capacity, {currency or 'cost'}", display.money(one.capacity_nano)))
        rows.append((f"held by nobody, {currency or 'cost'}", display.money(one.unallocated_nano)))
        if one.kept_nano is not None:
            rows.append(("kept by the platform", display.money(one.kept_nano)))
    return rows


def _number(value: object) -> str:
    return display.MISSING if value is None else f"{float(value):,.3f}"  # type: ignore[arg-type]


def _jobs(found: ScenarioAnswer) -> RenderableType:
    table = new_table(f"The {len(found.jobs)} jobs whose wait changed most, and what held them")
    for name in ("job", "team", "GPUs", "before", "after", "held by", "then by"):
        table.add_column(name, justify="right" if name in ("GPUs", "before", "after") else "left")
    for each in found.jobs:
        table.add_row(
            shown_name(each.name),
            shown_name(each.team),
            f"{each.gpus:,}",
            short(each.wait_before_ms),
            short(each.wait_after_ms),
            why_words(each.layer_before, each.held_by_before),
            why_words(each.layer_after, each.held_by_after),
        )
    return table


def why_words(layer: str, held_by: str) -> str:
    """What held a job, and who had the GPUs."""
    return display.visible(f"{layer}: {held_by}" if held_by else layer or "nothing", 200)


def _closed(found: ScenarioAnswer) -> RenderableType:
    table = new_table("Closed loop: a user's next job comes after the last one ended")
    for name in ("of", "jobs", "wait p50", "p90", "p99", "≤ 5 min"):
        table.add_column(name, justify="left" if name == "of" else "right")
    for name, each in [*found.closed.items()][:MOST_GROUPS]:
        table.add_row(shown_name(name), *_wait_cells(each))
    table.caption = (
        "Only groups that differ from the open loop, in which arrivals are as recorded. "
        f"{found.closed_missing:,} jobs do not come within the window."
    )
    return table


def _wait_cells(each: WaitFigures) -> Sequence[str]:
    waits = (short(ms) for ms in (each.p50_ms, each.p90_ms, each.p99_ms))
    return f"{each.jobs:,}", *waits, display.percent(each.soon, 1)


def _limits(report: ReplayReport) -> RenderableType:
    lines = [f"- {display.visible(each, 400)}" for each in report.limits]
    return Text("\n".join(["What this cannot know:", *lines]))
