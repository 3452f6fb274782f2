"""Months as FOCUS: the twin of gpucost export focus, and what gpucost import focus asks of a server. A team
has its own rows, whatever it asks for; who imports sees all teams.

A month may be larger than memory: it is written to a file, which is sent and removed. What is wrong is said
before anything is sent. An invoice itself stays where it is: the command puts it beside what the ledger has
of each node, and sends the differences.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

import gpucost
from gpucost.access.principal import Principal
from gpucost.api.routes import requests
from gpucost.api.routes.months import MonthText, refuse_part
from gpucost.api.routes.reports import OneTeam
from gpucost.api.routes.requests import RequestBody, refuse_unknown_parameters, require_json
from gpucost.api.routes.responses import MEDIA_TYPES, ResponseBody, cached_response, described
from gpucost.api.server.authentication import Accountant, Adjuster, Reader, authenticate
from gpucost.api.server.errors import responses
from gpucost.api.server.services import ApiServices, KnownServices, OneCluster, nothing_held
from gpucost.api.server.threads import in_own_thread
from gpucost.domain.time import Month
from gpucost.reports.base.document import to_json
from gpucost.reports.focus.charge_corrections import CorrectionStyle
from gpucost.reports.focus.focus_columns import FocusDataset, FocusVersion
from gpucost.reports.focus.invoice_reconciliation import LedgerNodes, NodeDifference
from gpucost.service.reporting.closed_charges import policy_in_force
from gpucost.service.reporting.focus_exports import FocusExports, FocusRequest
from gpucost.service.reporting.invoice_imports import book_differences, ledger_nodes
from gpucost.service.reporting.month_closing import scope_of_team
from gpucost.service.reporting.rendering import ReportFormat

router = APIRouter(dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)])
changes = APIRouter(
    dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters), Depends(require_json)]
)

_PART = 1 << 20
_LONGEST_NAME, _MOST_DIFFERENCES = 600, 1_000
_MOST_NANO = 10**18


@dataclass(frozen=True, slots=True)
class FocusQuestion:
    """What is asked of a month, and of whom."""

    request: FocusRequest
    cluster: str | None
    team: str | None


def question(
    month: MonthText,
    version: Annotated[Literal["1.2", "1.3", "1.4"], Query(description="version of FOCUS")] = "1.3",
    by: Annotated[Literal["job", "team"], Query(description="what there is a row for")] = "job",
    grain: Annotated[Literal["hour", "day"], Query(description="length of a charge period")] = "day",
    corrections: Annotated[
        Literal["delta", "ledger"],
        Query(description="corrections: the difference, or taken back and charged anew"),
    ] = "delta",
    unpriced: Annotated[
        Literal["refuse", "null"],
        Query(description="GPU time without a price: refused, or in rows without costs"),
    ] = "refuse",
    cluster: OneCluster = None,
    team: OneTeam = None,
) -> FocusQuestion:
    """Raises InputError for a month that is none."""
    style = CorrectionStyle(corrections)
    request = FocusRequest(Month.parse(month), FocusVersion(version), by, grain, style, unpriced)
    return FocusQuestion(request, cluster, team)


Question = Annotated[FocusQuestion, Depends(question)]


class DifferenceText(RequestBody):
    """What is to be booked of a node."""

    cluster: Annotated[str, Field(max_length=_LONGEST_NAME, description="of the ledger")]
    node: Annotated[str, Field(max_length=_LONGEST_NAME, description="by the name in its cluster")]
    resource: Annotated[str, Field(max_length=_LONGEST_NAME, description="what the invoice calls it")]
    nano: Annotated[
        int, Field(ge=-_MOST_NANO, le=_MOST_NANO, description="invoice less ledger, in nano-units")
    ]
    why: Annotated[str, Field(max_length=200, description="its causes, in words")]


class DifferencesBody(RequestBody):
    """An invoice's differences in one month."""

    file: Annotated[str, Field(max_length=200, description="its name, for the audit trail")]
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the file")]
    nodes: Annotated[
        tuple[DifferenceText, ...], Field(max_length=_MOST_DIFFERENCES, description="a node each")
    ]


def _files() -> dict[str, Any]:
    binary = {"type": "string", "format": "binary"}
    return {
        "description": "the dataset, with the columns of the version",
        "content": {
            MEDIA_TYPES[ReportFormat.CSV]: {"schema": {"type": "string"}},
            MEDIA_TYPES[ReportFormat.PARQUET]: {"schema": binary},
        },
    }


@router.get(
    "/v1/focus/{month}",
    response_class=Response,
    responses={200: _files(), **responses(400, 401, 403, 404, 422, 503)},
)
async def get_focus(
    principal: Reader,
    known: KnownServices,
    asked: Question,
    format: Annotated[Literal["csv", "parquet"], Query(description="of the file")] = "csv",
    dataset: Annotated[
        Literal["CostAndUsage", "ContractCommitment", "BillingPeriod", "InvoiceDetail"],
        Query(description="which dataset; the version must have it"),
    ] = "CostAndUsage",
) -> Response:
    """A month as FOCUS (FinOps Open Cost and Usage Specification), of the teams and clusters that the caller
    may see; of a closed month the same bytes each time. Costs are by the contracts of the charge policy,
    except for a caller who is bound to clusters: contracts are of all of them. The audit trail says who
    asked."""
    request, which = asked.request, FocusDataset(dataset)

    def make() -> IO[bytes]:
        exports = _exports(known, principal, asked)
        target: IO[bytes] = TemporaryFile()  # noqa: SIM115
        try:
            exports.write(request, which, format, target, author=principal.id)
        except BaseException:
            target.close()
            raise
        target.seek(0)
        return target

    async with known.gate.turn(known.gate.until()):
        content = await in_own_thread(make)
    name = f"gpucost-focus-{request.month}-{which}.{format}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(_parts(content), media_type=MEDIA_TYPES[ReportFormat(format)], headers=headers)


def _parts(content: IO[bytes]) -> Iterator[bytes]:
    with content:
        while part := content.read(_PART):
            yield part


def _exports(known: ApiServices, principal: Principal, asked: FocusQuestion) -> FocusExports:
    """Raises InputError for a cluster or team that the caller does not know, ApiError for a month of which
    the ledger has nothing."""
    month = asked.request.month
    scope = known.reporting.of_cluster(principal.scope, asked.cluster)
    scope = scope_of_team(known.reporting, scope, month, asked.team)
    if not known.ledger.windows(month.window, scope=scope):
        raise nothing_held(known, scope, "month", str(month))
    contracts = None
    if principal.scope.clusters is None:
        contracts = policy_in_force(known.ledger, month, known.policy)[0].contracts
    return FocusExports(known.ledger, scope, gpucost.__version__, contracts)


@router.get(
    "/v1/focus/{month}/metadata",
    response_class=Response,
    responses={
        200: {"description": "the metadata", "content": {"application/json": {"schema": {"type": "object"}}}},
        **responses(400, 401, 403, 404, 422, 503),
    },
)
async def get_focus_metadata(principal: Reader, known: KnownServices, asked: Question) -> Response:
    """What goes beside the files of a month: their schemas, and whether they are final."""

    def make() -> bytes:
        found = _exports(known, principal, asked).metadata(asked.request)
        return (json.dumps(found, ensure_ascii=False, indent=2) + "\n").encode()

    async with known.gate.turn(known.gate.until()):
        return Response(await in_own_thread(make), media_type="application/json")


@router.get(
    "/v1/focus/{month}/nodes",
    response_class=Response,
    responses={
        200: described(LedgerNodes, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 422, 503),
    },
)
async def get_focus_nodes(principal: Accountant, known: KnownServices, month: MonthText) -> Response:
    """What the ledger has of each node in a month, and which machine of a cloud it is: what a cloud's invoice
    is put beside. A month that the ledger has nothing of is empty."""
    wanted = Month.parse(month)

    def make() -> ResponseBody:
        found = ledger_nodes(known.ledger, principal.scope, wanted)
        return ResponseBody(to_json(found).encode(), "application/json", ())

    return await cached_response(known, principal.scope, ("focus nodes", wanted), make)


@changes.post(
    "/v1/focus/{month}/differences",
    response_class=Response,
    responses={
        200: {
            "description": "how many adjustments were booked",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        **responses(400, 401, 403, 409, 413, 415, 422, 503),
    },
    openapi_extra=requests.described(DifferencesBody),
)
async def book_focus_differences(
    principal: Adjuster,
    known: KnownServices,
    month: MonthText,
    body: Annotated[DifferencesBody, Depends(requests.read(DifferencesBody))],
) -> Response:
    """Book by how much a cloud's invoice differs from a closed month, as adjustments of the teams that held
    its nodes. The same again books nothing. 409 for a month that is open."""
    wanted = Month.parse(month)
    refuse_part(principal, "an adjustment")
    nodes = [NodeDifference(**each.model_dump()) for each in body.nodes]

    def book() -> int:
        return len(book_differences(known.ledger, {wanted: nodes}, body.file, body.digest, principal.id))

    async with known.gate.turn(known.gate.until()):
        booked = await in_own_thread(book)
    return Response(json.dumps({"booked": booked}) + "\n", media_type="application/json")
