"""Inputs of ``gpucost advise`` and ``gpucost explain``: a state, prices and the history of the ledger; and
the manifests in question."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpucost.cli.state.state_command import (
    catalog_of,
    loaded_from,
    owner_keys,
    undisturbed,
)
from gpucost.cli.terminal.context import CommandContext
from gpucost.cli.terminal.exit_codes import complain, fields_as
from gpucost.domain.errors import ErrorRemark, InputError, LedgerError

if TYPE_CHECKING:
    from gpucost.advisor.model.answers import Advice, JobSuggestion
    from gpucost.advisor.request.context import AdvisorContext
    from gpucost.advisor.wait.run_times import RunTimes
    from gpucost.cli.remote.api_client import RemoteApi
    from gpucost.cluster.objects.jobs import JobManifests
    from gpucost.service.settings.model import Settings

STDIN = "-"
_STDIN_NAME = "standard input"

State = Annotated[
    str,
    typer.Option(
        metavar="DUMP",
        help="A dump, a folder of them, or - for stdin (see gpucost state dump), instead of a cluster.",
    ),
]
At = Annotated[
    str,
    typer.Option(metavar="TIME", help="When it is asked; else when the dump was taken, or now."),
]
Prices = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A price book; else the one of the settings, or gpucost's own."),
]
Namespace = Annotated[
    str,
    typer.Option("--namespace", "-n", metavar="NAME", help="Where a manifest names none; else default."),
]


@dataclass(frozen=True, slots=True)
class AdviceSource:
    """The options: which cluster or dump, as of when, and further sources."""

    state: str = ""
    kubeconfig: Path | None = None
    context: str = ""
    kubernetes_url: str = ""
    at: str = ""
    prices: Path | None = None
    namespace: str = "default"
    team_labels: str = ""
    extra_resources: str = ""

    @property
    def is_named(self) -> bool:
        """Whether an option says which cluster, dump or facts to use: then no server is asked."""
        where = (self.state, self.context, self.kubernetes_url, self.at, self.team_labels)
        files = (self.kubeconfig, self.prices)
        return bool(any(where) or self.extra_resources) or any(each is not None for each in files)


def server_of(context: CommandContext, asked: AdviceSource) -> RemoteApi | None:
    """The server that one is logged in to, where no option names a cluster: it knows the cluster, its prices
    and past runs. Says on stderr that it is asked."""
    return context.watching(is_named=asked.is_named, dump_option="--state")


def currency_of(answers: Sequence[Advice], more: Sequence[JobSuggestion] = ()) -> str:
    """The currency of a server's prices, which is that of all of them; empty where nothing has one."""
    prices = [each.price for each in answers]
    suggested = [*more, *(one for each in answers for one in each.suggestions)]
    named = [*(each.currency for each in prices if each is not None), *(each.currency for each in suggested)]
    return next((name for name in named if name), "")


def knowledge(context: CommandContext, asked: AdviceSource) -> AdvisorContext:
    """Everything that answers are based on. Raises InputError and SourceError."""
    from gpucost.advisor.request.context import AdvisorContext
    from gpucost.cli.state.source import ClusterLocation
    from gpucost.cluster.views.overview import ClusterOverview
    from gpucost.kube.manifests import manifest_of, reread
    from gpucost.kube.manifests.writer import document_of
    from gpucost.service.wiring.inputs import load_book

    book = context.book(context.settings) if asked.prices is None else load_book(asked.prices)
    keys = owner_keys(asked.team_labels)
    where = ClusterLocation(asked.kubeconfig, asked.context, asked.kubernetes_url)
    dump = asked.state or ("" if any(where) else context.dump())
    with undisturbed(), fields_as({"--from": "--state"}):
        loaded = loaded_from(dump, keys, where, asked.at)
    settings = context.settings.advisor
    state = replace(loaded.state, schedulers=settings.assumed(loaded.state.schedulers))
    overview = ClusterOverview(state, catalog_of(asked.extra_resources), keys)
    run_times = _run_times(context)
    return AdvisorContext(
        overview,
        reread,
        book,
        _cluster(context.settings),
        run_times=run_times,
        settings=settings.advisor(),
        write=document_of,
        read_new=lambda document: manifest_of(document, "the job", state.at_ms, asked.namespace),
    )


def _cluster(settings: Settings) -> str:
    """The name of the cluster that is asked about, as far as settings say it."""
    return settings.detectors.cluster or settings.prometheus.cluster


def _run_times(context: CommandContext) -> RunTimes:
    """Past runs in the ledger of the settings. A ledger that cannot be read is reported on stderr, if it was
    named; the wait is predicted without history then, and says so."""
    from gpucost.advisor.wait.run_times import NO_HISTORY

    settings = context.settings
    is_named = "ledger" in settings.model_fields_set
    if not is_named and not settings.ledger.may_exist():
        context.refuse_server()
        return NO_HISTORY
    # Imported here, since where there is no ledger its database is not needed.
    from gpucost.service.advisor.run_history import run_times_of

    try:
        with context.ledger() as ledger:
            return run_times_of(ledger, _cluster(settings))
    except LedgerError as error:
        if is_named:
            complain(f"no history of run times: {error}")
        return NO_HISTORY


def manifests(files: Sequence[tuple[str, bytes]], at_ms: int, namespace: str) -> JobManifests:
    """The jobs of all files, by place, in order. Raises InputError that names document and field, and for no
    job."""
    from gpucost.cluster.objects.jobs import JobManifests
    from gpucost.kube.manifests import read_manifests

    found = [read_manifests(content, place, at_ms, namespace) for place, content in files]
    jobs = tuple(job for each in found for job in each.jobs)
    skipped = tuple(said for each in found for said in each.skipped)
    if not jobs:
        raise InputError(
            "--filename", ErrorRemark(f"no job in it ({'; '.join(skipped)})"), "the manifest of a job"
        )
    return JobManifests(jobs, skipped)


def contents(places: Sequence[str]) -> list[tuple[str, bytes]]:
    """Place and content of each ``-f``; ``-`` is standard input. Raises InputError."""
    if places.count(STDIN) > 1:
        raise InputError("--filename", STDIN, "standard input once")
    return [(_STDIN_NAME if place == STDIN else place, _content(place)) for place in places]


def _content(place: str) -> bytes:
    from gpucost.kube.dumps.dump import read
    from gpucost.kube.manifests.reader import MOST_BYTES

    if place == STDIN:
        return read(_STDIN_NAME, sys.stdin.buffer, MOST_BYTES)
    try:
        with Path(place).open("rb") as stream:
            return read(place, stream, MOST_BYTES)
    except OSError as error:
        remark = ErrorRemark(error.strerror or "cannot be read")
        raise InputError(place, remark, "a file that can be read, or - for standard input") from None
