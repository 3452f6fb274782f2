"""gpucost export focus: the bill in the form that finance systems read; gpucost import focus: a cloud's bill,
beside the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal, Protocol

import typer

from gpucost.cli.commands.month import known_teams, user
from gpucost.cli.terminal.context import CommandContext, context_of
from gpucost.cli.terminal.exit_codes import complain, fields_as
from gpucost.cli.terminal.output import (
    Output,
    held,
    make_folder,
    refuse_table_file,
    stdout,
    write,
    write_made,
)
from gpucost.domain.errors import ConfigError, InputError

if TYPE_CHECKING:
    from fractions import Fraction

    from gpucost.charges.contract_terms import ContractBook
    from gpucost.cli.remote.api_client import RemoteApi
    from gpucost.domain.rates import NodeIdentity
    from gpucost.domain.time import Month
    from gpucost.ledger.ledger import Ledger
    from gpucost.reports.focus.focus_columns import FocusDataset
    from gpucost.reports.focus.invoice_reconciliation import InvoiceReconciliation, LedgerNodes
    from gpucost.service.reporting.focus_exports import FocusExports, FocusRequest

export_app = typer.Typer(no_args_is_help=True, help="The bill for other systems.", rich_markup_mode=None)
import_app = typer.Typer(no_args_is_help=True, help="Bills of others.", rich_markup_mode=None)


@export_app.callback()
def export_group() -> None:
    """The bill for other systems."""


@import_app.callback()
def import_group() -> None:
    """Bills of others."""


@export_app.command("focus")
def export_focus(
    ctx: typer.Context,
    month: Annotated[str, typer.Argument(metavar="MONTH", help="A month in UTC, such as 2026-10.")],
    version: Annotated[Literal["1.2", "1.3", "1.4"], typer.Option(help="Version of FOCUS.")] = "1.3",
    format_: Annotated[
        Literal["csv", "parquet"], typer.Option("--format", "-f", help="Of the files.")
    ] = "csv",
    by: Annotated[Literal["job", "team"], typer.Option(help="What there is a row for.")] = "job",
    grain: Annotated[Literal["hour", "day"], typer.Option(help="Length of a charge period.")] = "day",
    dataset: Annotated[
        Literal["CostAndUsage", "ContractCommitment", "BillingPeriod", "InvoiceDetail"],
        typer.Option(help="Which dataset; --output-dir writes every one that the version has."),
    ] = "CostAndUsage",
    team: Annotated[str | None, typer.Option(help="Of this team only, as the team itself sees it.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Of this cluster only.")] = None,
    contracts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The contracts (YAML); else those of the charge policy."),
    ] = None,
    corrections: Annotated[
        Literal["delta", "ledger"],
        typer.Option(help="delta: the difference; ledger: what was charged is taken back, and charged anew."),
    ] = "delta",
    unpriced: Annotated[
        Literal["refuse", "null"],
        typer.Option(help="GPU time without a price: refuse it, or write rows without costs."),
    ] = "refuse",
    output: Output = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Every dataset of the version, and metadata.json, in this folder."),
    ] = None,
) -> None:
    """A month as FOCUS (FinOps Open Cost and Usage Specification): a row for each job or team, node and hour
    or day, and for what nobody held.

    Rows of a node and day add up to what its GPUs cost; all of them to the ledger, to the nano-unit. The
    month is read a day at a time. Of a closed month the files are the same bytes each time.
    """
    from gpucost.domain.time import Month
    from gpucost.reports.focus.charge_corrections import CorrectionStyle
    from gpucost.reports.focus.focus_columns import FocusVersion
    from gpucost.service.reporting.focus_exports import FocusRequest

    with fields_as({"month": "MONTH"}):
        wanted = Month.parse(month)
    if output is not None and output_dir is not None:
        raise InputError("--output-dir", str(output_dir), "without --output")
    refuse_table_file(False, output)
    request = FocusRequest(wanted, FocusVersion(version), by, grain, CorrectionStyle(corrections), unpriced)
    context = context_of(ctx)
    remote = context.remote()
    with fields_as(_FIELDS):
        if remote is not None:
            _export(
                _of_server(remote, team, cluster, contracts), request, dataset, format_, output, output_dir
            )
            return
        with _exports(context, wanted, team, cluster, contracts) as exports:
            _export(_OfLedger(exports), request, dataset, format_, output, output_dir)


class _Source(Protocol):
    """A ledger, or a server."""

    @property
    def of_all_clusters(self) -> bool:
        """Contracts are of all clusters: else there are none."""

    def write(
        self, request: FocusRequest, dataset: FocusDataset, format_: str, target: IO[bytes]
    ) -> None: ...

    def metadata(self, request: FocusRequest) -> Mapping[str, object]: ...


@dataclass(frozen=True)
class _OfLedger:
    exports: FocusExports

    @property
    def of_all_clusters(self) -> bool:
        return self.exports.scope.clusters is None

    def write(self, request: FocusRequest, dataset: FocusDataset, format_: str, target: IO[bytes]) -> None:
        self.exports.write(request, dataset, format_, target, author=user())

    def metadata(self, request: FocusRequest) -> Mapping[str, object]:
        return self.exports.metadata(request)


@dataclass(frozen=True)
class _OfServer:
    remote: RemoteApi
    seen: Mapping[str, str | None]
    of_all_clusters: bool

    def write(self, request: FocusRequest, dataset: FocusDataset, format_: str, target: IO[bytes]) -> None:
        from gpucost.service.reporting.rendering import ReportFormat

        asked = self._asked(request) | {"dataset": dataset.value}
        self.remote.focus_file(request.month, ReportFormat(format_), target, **asked)

    def metadata(self, request: FocusRequest) -> Mapping[str, object]:
        return self.remote.focus_metadata(request.month, **self._asked(request))

    def _asked(self, request: FocusRequest) -> dict[str, str | None]:
        return {
            **self.seen,
            "version": request.version.value,
            "by": request.by,
            "grain": request.grain,
            "corrections": request.corrections.value,
            "unpriced": request.unpriced,
        }


def _of_server(remote: RemoteApi, team: str | None, cluster: str | None, contracts: Path | None) -> _OfServer:
    if contracts is not None:
        allowed = "no --contracts: a server goes by those of its charge policy"
        raise InputError("--contracts", str(contracts), allowed)
    is_whole = cluster is None and remote.me().clusters is None
    return _OfServer(remote, {"team": team, "cluster": cluster}, is_whole)


def _export(
    source: _Source,
    request: FocusRequest,
    dataset: str,
    format_: str,
    output: Path | None,
    output_dir: Path | None,
) -> None:
    """One dataset to ``output``, or all of the version into ``output_dir``."""
    from gpucost.reports.focus.focus_columns import FocusDataset, datasets_of

    def write_one(which: FocusDataset, file: Path | None) -> None:
        def make(target: IO[bytes]) -> None:
            source.write(request, which, format_, target)

        write_made(make, file, is_binary=format_ == "parquet")

    if output_dir is None:
        write_one(FocusDataset(dataset), output)
        return
    make_folder(output_dir, "--output-dir")
    wanted = [
        each
        for each in datasets_of(request.version)
        if source.of_all_clusters or each is not FocusDataset.CONTRACT_COMMITMENT
    ]
    for each in wanted:
        write_one(each, output_dir / f"{request.month}-{each}.{format_}")
    write(_json(source.metadata(request)), output_dir / f"{request.month}-metadata.json")
    complain(f"{len(wanted) + 1} files written to {output_dir}")


def _json(document: Mapping[str, object]) -> str:
    import json

    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


_FIELDS = {
    "month": "MONTH",
    "team": "--team",
    "cluster": "--cluster",
    "version": "--version",
    "dataset": "--dataset",
    "window": "--grain",
    "step": "--grain",
}


@contextmanager
def _exports(
    context: CommandContext,
    month: Month,
    team: str | None,
    cluster: str | None,
    contracts: Path | None,
) -> Iterator[FocusExports]:
    """What an export begins with. Raises InputError for a month that the ledger lacks, and for a team or
    cluster that it does not know."""
    import gpucost
    from gpucost.domain.scope import EVERYTHING, Scope
    from gpucost.service.reporting.focus_exports import FocusExports
    from gpucost.service.reporting.team_names import allowed_teams

    with context.ledger() as ledger:
        if not ledger.windows(month.window):
            raise InputError("MONTH", str(month), held(ledger, "a month of"))
        seen = EVERYTHING
        if cluster is not None:
            known = ledger.clusters()
            if cluster not in known:
                raise InputError("--cluster", cluster, ", ".join(known))
            seen = seen.within((cluster,))
        if team is not None:
            teams = known_teams(context, ledger, month)
            if team not in teams:
                raise InputError("--team", team, allowed_teams(team, teams))
            seen = Scope(frozenset({team}), seen.clusters)
        book = _contracts(context, ledger, month, contracts)
        yield FocusExports(ledger, seen, gpucost.__version__, book)


def _contracts(
    context: CommandContext, ledger: Ledger, month: Month, file: Path | None
) -> ContractBook | None:
    """The contracts of ``file``, else of the policy that the month is charged by."""
    from gpucost.domain.scope import EVERYTHING
    from gpucost.service.reporting.closed_charges import policy_in_force
    from gpucost.service.reporting.commitment_reporting import CommitmentReporting
    from gpucost.service.wiring.inputs import load_contracts, load_policy

    if file is None:
        policy = load_policy(context.settings.charges.policy, context.teams)
        return policy_in_force(ledger, month, policy)[0].contracts
    declared = frozenset(team.name for team in context.teams.teams)
    teams = CommitmentReporting(ledger, EVERYTHING).teams()
    book = load_contracts(file, declared or context.teams.names | teams)
    if ledger.currency not in (None, book.currency):
        allowed = f"{ledger.currency}, the currency of the ledger"
        raise ConfigError(str(file), "currency", book.currency, allowed)
    return book


@import_app.command("focus")
def import_focus(
    ctx: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A FOCUS file, or a Cost and Usage Report: CSV, .gz or Parquet."),
    ],
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[CLUSTER=]FILE",
            help="Provider ids that the ledger lacks: kubectl get nodes -o json, or CSV with cluster, node, "
            "provider_id.",
        ),
    ] = None,
    month: Annotated[str | None, typer.Option(help="Of this month only; else all of the file.")] = None,
    cost: Annotated[
        Literal["effective", "billed", "contracted"], typer.Option(help="Which cost is compared.")
    ] = "effective",
    rate: Annotated[
        list[str] | None,
        typer.Option(metavar="CURRENCY=RATE", help="What one unit of another currency is in the ledger's."),
    ] = None,
    repeated: Annotated[
        Literal["once", "each"],
        typer.Option(help="Rows that are the same in every column: count them once, or each."),
    ] = "once",
    as_adjustments: Annotated[
        bool,
        typer.Option("--as-adjustments", help="Book each node's difference, in closed months. Idempotent."),
    ] = False,
    author: Annotated[str | None, typer.Option(help="Who books them; by default the user.")] = None,
    format_: Annotated[Literal["table", "json"], typer.Option("--format", "-f")] = "table",
    output: Output = None,
) -> None:
    """A cloud's invoice beside the ledger: per node and month what each says, the difference and why (price,
    missing hours, commitment, tax, not in the cluster, not observed).

    Nothing is written without --as-adjustments. Rows that cannot be read are refused one by one, with the
    reason.
    """
    from functools import partial

    from gpucost.domain.scope import EVERYTHING
    from gpucost.domain.time import Month
    from gpucost.reports.base import display
    from gpucost.reports.base.document import to_json
    from gpucost.reports.focus.invoice_reconciliation import InvoiceCost, node_differences
    from gpucost.reports.focus.terminal_invoice import print_reconciliation
    from gpucost.service.reporting.invoice_imports import book_differences, ledger_nodes, reconcile_file

    refuse_table_file(format_ == "table", output)
    context = context_of(ctx)
    remote = context.remote()
    if remote is not None and author is not None:
        raise InputError("--author", author, "no --author: the server records who the key is of")

    def read(known: Callable[[Month], LedgerNodes]) -> InvoiceReconciliation:
        return reconcile_file(
            known,
            file,
            _identities(nodes or []),
            cost=InvoiceCost(cost),
            rates=_rates(rate or []),
            month=None if month is None else Month.parse(month),
            count_repeated=repeated == "each",
        )

    made = 0
    with fields_as({"month": "--month"}):
        if remote is not None:
            found = read(remote.ledger_nodes)
            if as_adjustments:
                made = remote.book_differences(node_differences(found), found.file, found.digest)
        else:
            with context.ledger() as ledger:
                found = read(partial(ledger_nodes, ledger, EVERYTHING))
                if as_adjustments:
                    wanted, who = node_differences(found), author or user()
                    made = len(book_differences(ledger, wanted, found.file, found.digest, who))
    if format_ == "json":
        write(to_json(found), output)
    else:
        print_reconciliation(found, stdout())
    for line in found.refused[:_MOST_SHOWN]:
        complain(f"row {line.row}: {line.field}: {line.value!r} is not allowed; allowed: {line.allowed}")
    if found.refused_count:
        complain(f"{found.refused_count} of {found.lines + found.refused_count} rows were not read")
    if found.repeated_lines:
        complain(
            f"rows that say in every column what another one says, and were left out: {found.repeated_lines} "
            f"({display.money(found.repeated_nano)} {found.currency}); --repeated each counts them"
        )
    if as_adjustments:
        bare = [
            display.visible(f"{each.cluster}/{each.node}")
            for each in found.nodes
            if each.resource and each.unpriced_ms
        ]
        if bare:
            more = f" and {len(bare) - _MOST_SHOWN} more" if len(bare) > _MOST_SHOWN else ""
            names = f"{', '.join(bare[:_MOST_SHOWN])}{more}"
            complain(
                f"nothing is booked of {names}: GPU time there has no price, and nobody knows whose the "
                "difference is"
            )
        complain(f"{made} adjustments booked")


_MOST_SHOWN = 10


def _identities(given: list[str]) -> list[NodeIdentity]:
    from gpucost.service.reporting.invoice_imports import read_nodes

    found: list[NodeIdentity] = []
    for each in given:
        cluster, equals, name = each.partition("=")
        file = Path(name if equals else each)
        try:
            text = file.read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise InputError("--nodes", str(file), f"a file that can be read ({reason})") from None
        found += read_nodes(text, str(file), cluster if equals else "")
    return found


def _rates(given: list[str]) -> dict[str, Fraction]:
    from fractions import Fraction

    from gpucost.domain.money import NANO, check_currency, parse_nano

    found: dict[str, Fraction] = {}
    for each in given:
        code, _, text = each.partition("=")
        nano = parse_nano(text, "--rate")
        if nano <= 0:
            raise InputError("--rate", each, "CURRENCY=RATE, a rate above 0")
        found[check_currency(code, "--rate")] = Fraction(nano, NANO)
    return found
