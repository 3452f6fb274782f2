"""gpucost demo: a simulated month through the real pipeline, its report, and the proof that it adds up."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpucost.cli.commands.serve import answer, listen, url_of
from gpucost.cli.terminal.exit_codes import ExitCode, as_ctrl_c, complain
from gpucost.cli.terminal.output import bars, make_folder, progress, stdout, write_file
from gpucost.domain.errors import ErrorRemark, InputError

if TYPE_CHECKING:
    import socket

    from gpucost.demo.stack import WatchedStep
    from gpucost.domain.time import Window
    from gpucost.service.wiring.demo_month import DemoMonth

_PORT = 8080


def demo(
    once: Annotated[bool, typer.Option("--once", help="End after the report; serve nothing.")] = False,
    seed: Annotated[
        int | None,
        typer.Option(help="Another cluster of the same kind; the same seed, the same bytes.", min=0),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Where the files go; else a new temporary folder."),
    ] = None,
    with_stack: Annotated[
        bool,
        typer.Option("--full", help="With Prometheus, Alertmanager and a chat room, as of now, live."),
    ] = False,
    with_check: Annotated[
        bool,
        typer.Option(
            "--check", help="With --full: an idle job becomes a finding, an alert, a message; then it ends."
        ),
    ] = False,
    rules: Annotated[
        list[Path] | None,
        typer.Option("--rules", metavar="FILE", help="Other rules for that Prometheus than gpucost's own."),
    ] = None,
) -> None:
    """A month of a simulated GPU cluster: recorded, attributed, reported, and served on loopback.

    Its settings are written too, so that every other command can be tried on it.

    The last line of --once says how far the lines are from the capacity, computed apart from them: 0.
    """
    from gpucost.service.wiring.demo_month import DEMO_MONTH, DemoMonth

    place = folder or Path(tempfile.mkdtemp(prefix="gpucost-demo-"))
    make_folder(place, "--dir")
    if with_stack:
        _full(place.absolute(), tuple(file.absolute() for file in rules or ()), seed, with_check)
        return
    for name, given in (("--check", with_check), ("--rules", bool(rules))):
        if given:
            raise InputError(name, ErrorRemark("given"), "with --full only")
    with DemoMonth.record(place, seed) as run:
        with progress(f"{DEMO_MONTH}", len(run.pending())) as advance:
            run.ingest(advance)
        with progress("where it went", len(run.unassessed())) as advance:
            run.assess(advance)
        run.detect()
        _show(run, place)
        difference = run.difference()
        if difference.uncounted:
            complain(f"nodes without a GPU count: {', '.join(difference.uncounted)}")
        if not once and difference.is_zero:
            _serve(run)
        typer.echo(
            f"conservation: difference {difference.board_ms} GPU-ms, {difference.nano} nano-{run.currency}"
        )
        if not difference.is_zero:
            raise typer.Exit(ExitCode.VERIFICATION)


def _full(place: Path, rules: tuple[Path, ...], seed: int | None, with_check: bool) -> None:
    """The whole stack, until Ctrl-C or SIGTERM; with ``with_check``, until the checks are done."""
    from gpucost.demo.full import DemoCheck, NotShown, full, own_rules
    from gpucost.demo.grafana import NAMES, own_boards
    from gpucost.demo.stack import SHORT

    typer.echo(f"files and logs: {place}")
    try:
        typer.echo("starting Prometheus, Alertmanager, gpucost and a chat room ...")
        history = SHORT if with_check else None
        with as_ctrl_c(), ExitStack() as opened:
            with _told_steps() as watch:
                found = opened.enter_context(full(place, rules or own_rules(), seed, history, watch))
            width = max(len(what) for what, _ in found.places)
            for what, url in found.places:
                typer.echo(f"{what:{width}}  {url}")
            if found.grafana is None:
                typer.echo(
                    f"no {' or '.join(NAMES)} is installed: the dashboards for it are in {own_boards()}"
                )
            if with_check:
                DemoCheck(found, typer.echo).run()
                typer.echo("shown: a finding, an alert and a message, and the end of all three")
            else:
                typer.echo("Ctrl-C ends it.")
                threading.Event().wait()
    except KeyboardInterrupt:
        typer.echo("ended")
    except NotShown as error:
        complain(str(error))
        raise typer.Exit(ExitCode.VERIFICATION) from None


@contextmanager
def _told_steps() -> Iterator[WatchedStep]:
    """A line for each step, and in a terminal a bar for each that has many parts."""
    with bars() as add:

        def watch(step: str, parts: int) -> Callable[[str, Window], None]:
            typer.echo(f"  {step} ...")
            return add(step, parts)

        yield watch


def _show(run: DemoMonth, place: Path) -> None:
    from gpucost.reports.render.html import to_html
    from gpucost.reports.render.terminal_month import print_month
    from gpucost.service.wiring.demo_month import (
        CONFIG,
        DEMO_MONTH,
        LEDGER,
        REPORT,
    )

    report = run.report()
    print_month(report, stdout())
    page = place / REPORT
    write_file(page, to_html(report).encode("utf-8"))
    typer.echo(f"report: {page}\nledger: {place / LEDGER}\nlook further:")
    typer.echo(f"  export GPUCOST_CONFIG={shlex.quote(str((place / CONFIG).absolute()))}")
    for command in (
        *(f"report {DEMO_MONTH}", f"compare {DEMO_MONTH}", f"waste {DEMO_MONTH}", "findings"),
        *(f"savings {DEMO_MONTH}", f"replay {DEMO_MONTH}"),
        *["replay --trace philly"] * _has_traces(),
    ):
        typer.echo(f"  {_program()} {command}")


def _has_traces() -> bool:
    """Whether public traces lie where a replay finds them by itself."""
    from gpucost.service.replay.public_traces import trace_folder

    try:
        trace_folder(None, os.environ)
    except InputError:
        return False
    return True


def _program() -> str:
    """The path of this program; the virtual environment of make is not on PATH."""
    program = Path(sys.argv[0])
    if program.name != "gpucost" or shutil.which("gpucost") == str(program.absolute()):
        return "gpucost"
    return shlex.quote(str(program))


def _serve(run: DemoMonth) -> None:
    from gpucost.demo.month_app import demo_app
    from gpucost.reports.base.page_addresses import month_page
    from gpucost.service.wiring.demo_month import DEMO_MONTH

    with demo_app(run) as app, _free() as listener:
        base = url_of(listener)
        for path in (
            f"/v1/reports/{DEMO_MONTH}?format=html",
            f"/v1/allocations?window={DEMO_MONTH}&group_by=team,model",
            "/metrics",
        ):
            typer.echo(f"{base}{path}")
        typer.echo(f"pages: {base}{month_page(DEMO_MONTH)}")
        typer.echo("Ctrl-C ends it.")
        answer(app, listener)


def _free() -> socket.socket:
    """The usual port, or any free one."""
    try:
        return listen("127.0.0.1", _PORT)
    except InputError:
        return listen("127.0.0.1", 0)
