"""gpucost advisor: recorded decisions of a real scheduler, compared with the rules of the advisor."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpucost.cli.state.state_command import ContextName, Kubeconfig, Url
from gpucost.cli.terminal.exit_codes import complain
from gpucost.cli.terminal.output import (
    Output,
    refuse_table_file,
    stdout,
    write,
)

if TYPE_CHECKING:
    from gpucost.advisor.verify.case_schema import SchedulerCase
    from gpucost.advisor.verify.case_writer import CaseDocument
    from gpucost.advisor.verify.history_check import HistoryReport
    from gpucost.advisor.verify.history_files import SchedulerHistory
    from gpucost.advisor.verify.replay import ReplayReport
    from gpucost.cli.advise.advisor_screen import CaseSource

app = typer.Typer(
    no_args_is_help=True, help="Check the advisor against a real scheduler.", rich_markup_mode=None
)
DISAGREES = 1
"""Exit code where a recorded fact and the rules differ."""


@app.command()
def verify(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="CASES...", help="Files of recorded cases or histories, gzipped or not; - for stdin."
        ),
    ],
    everything: Annotated[bool, typer.Option("--all", help="Every disagreement.")] = False,
    format_: Annotated[
        Literal["table", "json"], typer.Option("--format", "-f", help="table for people, json for programs.")
    ] = "table",
    output: Output = None,
) -> None:
    """Replay recorded decisions of a real scheduler through the advisor's rules, and compare every fact.

    Prints how many facts agree, by fact and by rule, whose decisions they are and where that Kueue is known
    to decide otherwise, and every disagreement. Of files of histories, in which a scheduler ran over days:
    each configuration, replayed from arrivals and run times, and whether every admission, eviction and end
    agrees to the second. Exit code 1 if there is any disagreement, 2 for a file that makes no sense.
    docs/advisor-cases.md has both schemas.

    With --format json, nothing cut: rules, recorded, agrees, cases, facts, by_fact, by_rule, disagreements,
    histories.
    """
    from gpucost.advisor.verify.replay import verify as replay
    from gpucost.cli.advise.advisor_screen import as_data, lines
    from gpucost.cli.advise.history_screen import history_data, history_lines
    from gpucost.domain.errors import ErrorRemark, InputError

    refuse_table_file(format_ == "table", output)
    sources: list[CaseSource] = []
    histories: list[HistoryReport] = []
    report = replay(_cases(files, sources, histories))
    if not report.facts.of and not histories:
        raise InputError(
            "CASES", ErrorRemark("nothing that is expected in them"), "cases with expected facts"
        )
    if format_ == "json":
        found = {**as_data(report, sources), "histories": history_data(histories)}
        found["agrees"] = _agree(report, histories)
        write(json.dumps(found, indent=2) + "\n", output)
    else:
        width = stdout().width
        screens = [lines(report, width, everything=everything, sources=sources)] if report.facts.of else []
        screens += [history_lines(histories, width, None if everything else 3)] if histories else []
        for place, screen in enumerate(screens):
            sys.stdout.write("\n" if place else "")
            for line in screen:
                sys.stdout.write(line.rstrip() + "\n")
    if not _agree(report, histories):
        raise typer.Exit(DISAGREES)


def _agree(report: ReplayReport, histories: Sequence[HistoryReport]) -> bool:
    return not report.disagreements and all(each.passes for each in histories)


def _cases(
    files: Sequence[str], sources: list[CaseSource], histories: list[HistoryReport]
) -> Iterator[SchedulerCase]:
    """The cases of all files, each named after its file where there are several; ``sources`` get every file
    of cases, ``histories`` what became of those in the others."""
    from gpucost.advisor.verify.case_files import MOST_BYTES, cases_of, decoded
    from gpucost.advisor.verify.history_files import has_histories, histories_of
    from gpucost.cli.advise.advisor_screen import CaseSource
    from gpucost.kube.dumps.dump import content_of, read

    for file in files:
        name = "standard input" if file == "-" else file
        stdin = sys.stdin.buffer
        content = read(name, stdin, MOST_BYTES) if file == "-" else content_of(Path(file), MOST_BYTES)
        whole = decoded(content, name)
        if has_histories(whole):
            recorded = histories_of(whole, name)
            if recorded.unread:
                complain(f"{name}: not read: {', '.join(recorded.unread)}")
            histories += _checked(recorded.histories, "" if len(files) == 1 else f"{name}: ")
            continue
        found = cases_of(whole, name)
        sources.append(CaseSource(name, found.origin))
        if found.unread:
            complain(f"{name}: not read: {', '.join(found.unread)}")
        for case in found.cases:
            yield case if len(files) == 1 else replace(case, id=f"{name}: {case.id}")


def _checked(recorded: Sequence[SchedulerHistory], prefix: str) -> Iterator[HistoryReport]:
    """Each configuration; a terminal is told how far it is."""
    from gpucost.advisor.verify.history_check import checked

    of = sum(len(each.configurations) for each in recorded)
    done = 0
    for history in recorded:
        for report in checked(history):
            done += 1
            if sys.stderr.isatty():
                complain(f"{report.name}: {'agrees' if report.agrees else 'differs'} ({done:,} of {of:,})")
            yield replace(report, history=prefix + report.history)


@app.command()
def record(
    before: Annotated[
        str, typer.Option(metavar="DUMP", help="A dump of the cluster before the decisions.")
    ] = "",
    after: Annotated[str, typer.Option(metavar="DUMP", help="A dump of the same cluster after them.")] = "",
    watch: Annotated[
        int,
        typer.Option(metavar="SECONDS", help="Watch a live cluster for so long, instead of dumps.", min=0),
    ] = 0,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Of no effect any more: --watch follows writes.")
    ] = 1.0,
    most: Annotated[
        int, typer.Option(metavar="CASES", help="End --watch once there are so many.", min=1, max=10_000)
    ] = 500,
    fair_sharing: Annotated[
        bool | None,
        typer.Option(
            "--fair-sharing/--no-fair-sharing", help="Kueue's setting, where its ConfigMap cannot be read."
        ),
    ] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Aliases instead of names, labels and taints; no messages.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: ContextName = "",
    kubernetes_url: Url = "",
    output: Output = None,
) -> None:
    """Write down what a cluster's own Kueue decided, as cases that gpucost advisor verify replays.

    From two dumps (gpucost state dump), of which only what can be of one scheduling cycle is written; or from
    a live cluster, a case for each admission and preemption in each cohort tree as Kueue writes them. Only
    facts that the API tells: who was admitted, where and with which flavors, who was preempted for whom and
    why, who got no quota and what Kueue said of it. The file says which version of Kueue decided so, with
    which feature gates. --watch says at the end what was left out and why, and how many cases agree with the
    rules; Ctrl-C ends it early, with what was recorded until then. A file whose name ends in .gz is gzipped.
    """
    del every
    from gpucost.cli.advise.case_recorder import RecordingLimits, from_dumps, watched
    from gpucost.cli.state.source import ClusterLocation
    from gpucost.domain.errors import ErrorRemark, InputError

    where = ClusterLocation(kubeconfig, context, kubernetes_url)
    if bool(before) != bool(after) or bool(before) == bool(watch):
        remark = ErrorRemark(
            "missing" if not watch or bool(before) != bool(after) else "given beside --watch"
        )
        raise InputError("--before", remark, "--before and --after, or --watch and a cluster")
    if before and any(where):
        raise InputError("--before", before, "none where a cluster is named")
    found = (
        from_dumps(before, after, fair_sharing, anonymous=anonymous)
        if before
        else watched(where, RecordingLimits(watch, most), fair_sharing, anonymous=anonymous)
    )
    write(_encoded(found, output), output)


def _encoded(found: CaseDocument, output: Path | None) -> str | bytes:
    text = json.dumps(found, indent=1) + "\n"
    is_gzipped = output is not None and output.name.endswith(".gz")
    return gzip.compress(text.encode(), mtime=0) if is_gzipped else text
