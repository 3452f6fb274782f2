"""gpucost replay: a month that happened, or a trace, under other quotas, policies, prices or nodes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpucost.cli.terminal.context import context_of, now_ms
from gpucost.cli.terminal.exit_codes import as_ctrl_c, complain, fields_as
from gpucost.cli.terminal.output import (
    Output,
    make_folder,
    progress,
    refuse_table_file,
    stdout,
    write,
    write_file,
    write_made,
)
from gpucost.domain.errors import ErrorRemark, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpucost.advisor.replay.history_record import ReplayHistory
    from gpucost.advisor.replay.what_if_change import WhatIfChange
    from gpucost.charges.contract_terms import ContractBook
    from gpucost.charges.policy_file import PolicyBook
    from gpucost.cli.terminal.context import CommandContext
    from gpucost.reports.replay.scenario_answer import ReplayReport, ScenarioAnswer
    from gpucost.reports.replay.scenario_figures import PlayedScenario
    from gpucost.service.replay.scenario_runner import HoldRule

_TRACE = "philly or helios: a public trace in place of a month"


def replay(
    ctx: typer.Context,
    month: Annotated[
        str | None,
        typer.Argument(metavar="[MONTH]", help="A month in UTC, such as 2026-10; else --trace or --history."),
    ] = None,
    change: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="What is different (YAML); repeat it for more scenarios."),
    ] = None,
    trace: Annotated[str | None, typer.Option(metavar="NAME", help=_TRACE)] = None,
    traces: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where traces lie; else GPUCOST_TRACES says it."),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="A history in a file: Parquet, SWF, or recorded histories of Kueue."
        ),
    ] = None,
    configuration: Annotated[
        str, typer.Option(metavar="NAME", help="Of Kueue's histories: which, such as kh-008/A.")
    ] = "",
    gpus: Annotated[
        int | None, typer.Option(min=1, help="With --history: so many GPUs in all, whatever nodes there are.")
    ] = None,
    price: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="Of a GPU-hour, where the history has no price.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of several clusters, this one.")
    ] = None,
    hold: Annotated[
        Literal["auto", "after", "together", "quota", "nodes"],
        typer.Option(
            help="What holds a job: quota and then nodes (after), quota for what fits on nodes (together), "
            "one of them alone; auto takes that which repeats best what happened."
        ),
    ] = "auto",
    goal: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help='What is wanted, such as "p90(vision) <= 1h"; several joined by and.'
        ),
    ] = None,
    space: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --goal: what may be changed, in which steps (YAML)."),
    ] = None,
    minimise: Annotated[
        Literal["cost"], typer.Option(help="With --goal: of the points that reach it, that with the least.")
    ] = "cost",
    loop: Annotated[
        Literal["both", "open"],
        typer.Option(help="both: also the closed loop, where it is known whose jobs are whose."),
    ] = "both",
    seed: Annotated[int, typer.Option(min=0, help="Of the intervals; the same seed, the same bytes.")] = 1,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes for scenarios; else as many as there are processors.")
    ] = None,
    format_: Annotated[
        Literal["table", "json", "csv", "parquet"],
        typer.Option(
            "--format",
            "-f",
            help="table for people; csv and parquet have every start, json all.",
        ),
    ] = "table",
    output: Output = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of a change file, and replay nothing.")
    ] = False,
    keep: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of a MONTH: keep the report for pages, where api.replays says."),
    ] = None,
) -> None:
    """What would have been: a month replayed under other quotas, policies, prices or nodes.

    First it is replayed with nothing changed, and compared with what happened; a difference smaller than that
    error is not told apart. docs/what-if.md has the fields of a change, and what a replay cannot know.
    """
    if schema:
        _write_schema(output)
        return
    from gpucost.reports.replay.scenario_figures import ReplayFigures
    from gpucost.reports.replay.starts_file import StartsFile
    from gpucost.reports.replay.terminal_replay import print_limits
    from gpucost.service.replay.kept_replays import kept_text
    from gpucost.service.replay.scenario_runner import HOLD_WORDS, held_by

    refuse_table_file(format_ == "table", output)
    context = context_of(ctx)
    kept = None if keep is None else _kept(context, month, keep)
    changes = [_read_change(file) for file in change or ()]
    _refuse_twice(changes)
    if (goal is None) != (space is None):
        raise InputError("--space" if space is None else "--goal", ErrorRemark("missing"), "both or neither")
    found = _history(context, month, trace, traces, history, configuration, gpus, cluster)
    if price is not None:
        found = _priced(found, price)
    if goal is not None and space is not None:
        _search(found, goal, space, minimise, changes, hold, format_, output)
        return
    rule = _rule(found, changes, hold)
    if rule is not None:
        found = held_by(found, rule)
    words = _words(found) if rule is None else HOLD_WORDS[rule]
    policy = _policy(context) if month is not None else None
    figures = ReplayFigures(found, words, seed)
    finished = 0
    with StartsFile(found, format_) as starts:
        try:
            with as_ctrl_c():
                for each in _played(context, found, changes, policy, loop == "both", processes):
                    answer = figures.add(each)
                    if format_ == "table":
                        _print(figures.report(), answer)
                    else:
                        starts.add(each.run)
                    finished += 1
        except KeyboardInterrupt:
            if not finished:
                raise
            complain(f"stopped: {finished} of {len(changes) + 1} scenarios are finished, and shown")
        report = figures.report(finished)
        if kept is not None:
            write_file(kept, kept_text(report).encode())
            complain(f"kept in {kept}")
        if format_ == "table":
            print_limits(report, stdout())
        else:
            write_made(lambda target: starts.write(report, target), output, is_binary=format_ == "parquet")


def _write_schema(output: Path | None) -> None:
    from gpucost.advisor.replay.what_if_change import WhatIfChange

    write(json.dumps(WhatIfChange.file_schema(), indent=2) + "\n", output)


def _search(
    history: ReplayHistory,
    goal: str,
    file: Path,
    _minimise: str,
    changes: Sequence[WhatIfChange],
    hold: str,
    format_: str,
    output: Path | None,
) -> None:
    """The cheapest of a space that reaches a goal, played in open loop."""
    from gpucost.advisor.replay.goal_search import SearchSpace, parse_goal
    from gpucost.advisor.replay.scenario_run import check_change
    from gpucost.reports.base.document import to_json
    from gpucost.reports.render.terminal_parts import print_parts
    from gpucost.reports.replay.goal_answer import goal_answer, goal_parts
    from gpucost.service.replay.scenario_runner import held_by
    from gpucost.service.settings.loader import read_config

    if changes:
        raise InputError("--change", changes[0].name, "none beside --goal: the space has what may change")
    if format_ not in ("table", "json"):
        raise InputError("--format", format_, "table or json with --goal")
    terms, space = parse_goal(goal), SearchSpace.parse(read_config(file), str(file))
    for corner in ([0] * len(space.knobs), [len(each.steps) - 1 for each in space.knobs]):
        top = space.change(corner)
        check_change(history, top)
    rule = _rule(history, [top], hold)
    if rule is not None:
        history = held_by(history, rule)
    with progress("points, most of which are not played", sum(1 for _ in space.points())) as advance:
        found = goal_answer(history, space, terms, goal, lambda: advance("", history.window))
    if format_ == "json":
        write(to_json(found), output)
    else:
        print_parts(list(goal_parts(found, terms)), stdout())


def _kept(context: CommandContext, month: str | None, name: str) -> Path:
    """Where the report goes; its folder is made."""
    from gpucost.domain.time import Month
    from gpucost.service.replay.kept_replays import kept_file

    folder = context.settings.api.replays
    if month is None or folder is None:
        found = ErrorRemark("without a MONTH" if month is None else "without api.replays in the settings")
        raise InputError("--keep", found, "a name, with a MONTH, and api.replays in the settings")
    with fields_as({"month": "MONTH"}):
        file = kept_file(folder, Month.parse(month), name, "--keep")
    make_folder(folder, "api.replays")
    return file


def _print(report: ReplayReport, answer: ScenarioAnswer) -> None:
    from gpucost.reports.replay.terminal_replay import print_head, print_scenario

    console = stdout()
    if len(report.scenarios) == 1:
        print_head(report, console)
    print_scenario(report, answer, console)


def _read_change(file: Path) -> WhatIfChange:
    from gpucost.advisor.replay.what_if_change import WhatIfChange
    from gpucost.service.settings.loader import read_config

    found = WhatIfChange.parse(read_config(file), str(file))
    update: dict[str, str] = {} if found.name else {"name": file.stem}
    for key in ("charges", "commitments"):
        named = getattr(found, key)
        if named is not None:
            update[key] = str(file.parent / named)
    return found.model_copy(update=update)


def _refuse_twice(changes: Sequence[WhatIfChange]) -> None:
    names = ["baseline"]
    for each in changes:
        if each.name in names:
            raise InputError("--change", each.name, "a name that no other scenario has, nor baseline")
        names.append(each.name)


def _history(
    context: CommandContext,
    month: str | None,
    trace: str | None,
    traces: Path | None,
    path: Path | None,
    configuration: str,
    gpus: int | None,
    cluster: str | None,
) -> ReplayHistory:
    given = [
        name
        for name, value in (("MONTH", month), ("--trace", trace), ("--history", path))
        if value is not None
    ]
    if len(given) != 1:
        raise InputError(
            "MONTH", ErrorRemark(" and ".join(given) or "missing"), "one of MONTH, --trace and --history"
        )
    if trace is not None:
        from gpucost.service.replay.public_traces import trace_folder, trace_history

        return trace_history(trace, trace_folder(traces, os.environ))
    if path is not None:
        from gpucost.service.replay.history_files import file_history

        return file_history(path, gpus, configuration)
    assert month is not None
    return _observed(context, month, cluster)


def _observed(context: CommandContext, month: str, cluster: str | None) -> ReplayHistory:
    """Of the source and the ledger of the settings."""
    from gpucost.domain.time import Month
    from gpucost.service.wiring.replaying import build_replaying

    with fields_as({"month": "MONTH", "cluster": "--cluster"}), context.ledger() as ledger:
        wanted = Month.parse(month)
        book = context.book(context.settings)
        return build_replaying(context.settings, ledger, book, context.teams, now_ms).observed(
            wanted, cluster
        )


def _policy(context: CommandContext) -> PolicyBook:
    from gpucost.service.wiring.inputs import load_policy

    return load_policy(context.settings.charges.policy, context.teams)


def _priced(history: ReplayHistory, price: str) -> ReplayHistory:
    from gpucost.domain.money import parse_nano

    nano = Fraction(parse_nano(price, "--price"))
    pools = {
        name: pool if pool.price is not None else replace(pool, price=nano)
        for name, pool in history.pools.items()
    }
    return replace(history, pools=pools)


def _rule(history: ReplayHistory, changes: Sequence[WhatIfChange], hold: str) -> HoldRule | None:
    """None where the history leaves no choice."""
    from gpucost.service.replay.scenario_runner import HoldRule, best_rule, rules_of

    rules = rules_of(history, changes)
    if not rules:
        if hold != "auto":
            raise InputError("--hold", hold, "auto: in this history it is known what holds a job")
        return None
    if hold != "auto":
        if hold not in rules:
            raise InputError("--hold", hold, f"auto, {', '.join(rules)}: of what the changes are about")
        return HoldRule(hold)
    with progress("what holds jobs", len(rules)) as advance:
        return best_rule(history, rules, lambda: advance("", history.window))


def _words(history: ReplayHistory) -> str:
    if history.kueue is not None:
        return "quota alone, by the rules of Kueue"
    if history.volcano is not None:
        return "queues of Volcano and room on nodes, in sessions of its scheduler"
    line = "first in, first out, strictly, in each pool"
    return line if history.has_nodes else f"{line}, by GPUs"


def _played(
    context: CommandContext,
    history: ReplayHistory,
    changes: Sequence[WhatIfChange],
    policy: PolicyBook | None,
    with_closed: bool,
    processes: int | None,
) -> Iterator[PlayedScenario]:
    from gpucost.reports.replay.scenario_figures import PlayedScenario
    from gpucost.service.replay.scenario_runner import played
    from gpucost.service.wiring.inputs import load_contracts, read_policy

    count = processes or os.cpu_count() or 1
    policies = {
        each.charges: read_policy(Path(each.charges), context.teams) for each in changes if each.charges
    }
    contracts = {
        each.commitments: load_contracts(Path(each.commitments)) for each in changes if each.commitments
    }
    _refuse_currencies(history, [*([] if policy is None else [policy]), *policies.values()], contracts)
    with progress("scenarios", len(changes) + 1) as advance:
        pairs = played(
            history,
            changes,
            with_closed=with_closed,
            processes=count,
            done=lambda _: advance("", history.window),
        )
        for pair in pairs:
            made = pair.open.change
            own = policies[made.charges] if made.charges else policy
            bound = contracts[made.commitments] if made.commitments else None
            yield PlayedScenario(pair.open, pair.closed, own, bound)


def _refuse_currencies(
    history: ReplayHistory, policies: Sequence[PolicyBook], contracts: Mapping[str, ContractBook]
) -> None:
    """Before anything is played. Raises ConfigError for a rate that is missing, and InputError."""
    from gpucost.reports.replay.scenario_money import currency_or_its

    for each in policies:
        each.currency_of(currency_or_its(history.currency, each), history.window)
    for file, book in contracts.items():
        if history.currency and book.currency != history.currency:
            allowed = f"{history.currency}, the currency of the history"
            raise InputError(f"{file}: currency", book.currency, allowed)
        for policy in policies:
            if policy.file.currency not in (None, book.currency):
                allowed = f"{policy.file.currency}, the currency of the charge policy {policy.title}"
                raise InputError(f"{file}: currency", book.currency, allowed)
