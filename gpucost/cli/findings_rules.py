"""gpucost findings rehearse, explain: what the detectors would say, and what they look for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpucost.cli.context import Context, context_of, now_ms
from gpucost.cli.exits import Exit, complain
from gpucost.cli.output import Output, refuse_table_file, stdout, write
from gpucost.detectors.findings import Pattern
from gpucost.domain.errors import InputError
from gpucost.domain.time import DAY_MS, iso
from gpucost.domain.waste import Waste

if TYPE_CHECKING:
    from gpucost.detectors.rule_settings import RuleSettings
    from gpucost.reports.rehearsal import Rehearsal


def rehearse(
    ctx: typer.Context,
    days: Annotated[int, typer.Option(help="How many whole days, up to the last one.", min=1, max=92)] = 7,
    cluster: Annotated[str | None, typer.Option(help="Only this cluster; else all of the source.")] = None,
    detector: Annotated[
        list[Pattern] | None,
        typer.Option(
            "--detector",
            metavar="PATTERN",
            help="Only this one, whether it is enabled or not. Repeat it.",
        ),
    ] = None,
    format_: Annotated[Literal["table", "json"], typer.Option("--format", "-f")] = "table",
    output: Output = None,
) -> None:
    """What would have been found in the last days with the settings as they are. Nothing is written.

    Each whole day is looked at as on its evening; a finding of several days is one line, with its waste added
    up. Rules that need the state of now (CPU-only pods, topology) find nothing in the past.
    """
    from gpucost.reports.document import to_json
    from gpucost.reports.terminal_rehearsal import print_rehearsal

    refuse_table_file(format_ == "table", output)
    context = context_of(ctx)
    report = _rehearsed(context, days, cluster, detector or None)
    if not report.clusters:
        raise typer.Exit(Exit.SOURCE)
    if format_ == "table":
        print_rehearsal(report, stdout(whole=True))
    else:
        write(to_json(report), output)


def explain(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help=f"One of {', '.join(Pattern)}; or a bucket: {', '.join(Waste)}."),
    ],
) -> None:
    """What an anti-pattern is, where its page is, and its settings: as they are, and their defaults.

    The name of a bucket of the waste ledger leads to the anti-patterns that claim its time.
    """
    from gpucost.reports.causes import patterns_of
    from gpucost.reports.explained import explained
    from gpucost.reports.terminal_rehearsal import print_bucket, print_explained

    buckets, patterns = list(map(str, Waste)), list(map(str, Pattern))
    if name not in (*buckets, *patterns):
        raise InputError("NAME", name, ", ".join(dict.fromkeys((*patterns, *buckets))))
    found = [Pattern(name)] if name in patterns else []
    if name in buckets:
        found = list(dict.fromkeys((*patterns_of(Waste(name)), *found)))
        print_bucket(Waste(name), found, stdout())
    for pattern in found:
        print_explained(explained(pattern, context_of(ctx).settings.detectors.of(pattern)), stdout())


def _rehearsed(
    context: Context, days: int, cluster: str | None, patterns: Collection[Pattern] | None
) -> Rehearsal:
    """The rehearsal of every cluster of the source that has a whole day of those asked for."""
    from gpucost.reports.rehearsal import OnDays, RehearsedCluster, RehearsedUnsaid, rehearsal
    from gpucost.reports.values import Amount
    from gpucost.service.wiring.detection import build_rehearsing
    from gpucost.service.wiring.pipeline import rules_of
    from gpucost.service.wiring.source import open_source

    settings = context.settings
    book = context.book(settings)
    source = open_source(settings, book, now_ms)
    clusters = source.clusters()
    if cluster is not None and cluster not in clusters:
        raise InputError("--cluster", cluster, ", ".join(clusters) or "nothing: the source knows no cluster")
    rules = rules_of(settings, book, context.teams)
    rehearsing = build_rehearsing(settings.detectors, source, rules)
    if patterns is not None:
        rehearsing = replace(rehearsing, detectors=_only(rehearsing.detectors, patterns))
    looked, found, unsaid = list[RehearsedCluster](), list[OnDays](), list[RehearsedUnsaid]()
    for name in clusters if cluster is None else (cluster,):
        covered = source.covered(name)
        end_ms = 0 if covered is None else min(now_ms(), covered.end_ms) // DAY_MS * DAY_MS
        whole = 0 if covered is None else min(days, -(-(end_ms - covered.start_ms) // DAY_MS))
        if whole < 1:
            complain(f"{name}: the source holds {covered or 'nothing'}: not the end of a single day")
            continue
        looked.append(RehearsedCluster(name, iso(end_ms), whole))
        told = rehearsing.rehearse(name, days, end_ms)
        for failure in told.failures:
            complain(f"{name}: the detector {failure.pattern} failed: {type(failure.error).__name__}")
        found += [
            OnDays(each.finding, each.days, each.of, Amount(each.board_ms, each.nano))
            for each in told.findings
        ]
        unsaid += [
            RehearsedUnsaid(each.pattern.value, each.because, each.lacks_data, each.times)
            for each in told.withheld
        ]
    return rehearsal(book.currency, days, looked, found, unsaid)


def _only(rules: RuleSettings, patterns: Collection[Pattern]) -> RuleSettings:
    """What is named runs, whether the settings enable it or not."""
    from gpucost.detectors.rule_settings import RuleSettings
    from gpucost.detectors.settings import overridden

    named = {pattern: rules.of(pattern) for pattern in patterns}
    running = {
        pattern: replace(scoped, default=overridden(scoped.default, {"enabled": True}))
        for pattern, scoped in named.items()
    }
    return RuleSettings(running).only(patterns)
