"""Months as FOCUS: the twin of gpucost export focus. A team has its own rows, whatever it asks for.

A month may be larger than memory: it is written to a file, which is sent and removed. What is wrong is said
before anything is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse

import gpucost
from gpucost.access.principal import Principal
from gpucost.api.routes.months import MonthText
from gpucost.api.routes.reports import OneTeam
from gpucost.api.routes.requests import refuse_unknown_parameters
from gpucost.api.routes.responses import MEDIA_TYPES
from gpucost.api.server.authentication import Reader, authenticate
from gpucost.api.server.errors import responses
from gpucost.api.server.services import ApiServices, KnownServices, OneCluster, nothing_held
from gpucost.api.server.threads import in_own_thread
from gpucost.domain.time import Month
from gpucost.reports.focus.charge_corrections import CorrectionStyle
from gpucost.reports.focus.focus_columns import FocusDataset, FocusVersion
from gpucost.service.reporting.charge_reports import policy_in_force
from gpucost.service.reporting.focus_exports import FocusExports, FocusRequest
from gpucost.service.reporting.month_closing import scope_of_team
from gpucost.service.reporting.rendering import ReportFormat

router = APIRouter(dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)])

_PART = 1 << 20
_Version = Annotated[Literal["1.2", "1.3", "1.4"], Query(description="version of FOCUS")]
_By = Annotated[Literal["job", "team"], Query(description="what there is a row for")]
_Grain = Annotated[Literal["hour", "day"], Query(description="length of a charge period")]
_Style = Annotated[
    Literal["delta", "ledger"],
    Query(description="corrections: the difference, or taken back and charged anew"),
]
_Unpriced = Annotated[
    Literal["refuse", "null"],
    Query(description="GPU time without a price: refused, or in rows without costs"),
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
    month: MonthText,
    version: _Version = "1.3",
    format: Annotated[Literal["csv", "parquet"], Query(description="of the file")] = "csv",
    dataset: Annotated[
        Literal["CostAndUsage", "ContractCommitment", "BillingPeriod", "InvoiceDetail"],
        Query(description="which dataset; the version must have it"),
    ] = "CostAndUsage",
    by: _By = "job",
    grain: _Grain = "day",
    corrections: _Style = "delta",
    unpriced: _Unpriced = "refuse",
    cluster: OneCluster = None,
    team: OneTeam = None,
) -> Response:
    """A month as FOCUS (FinOps Open Cost and Usage Specification), of the teams and clusters that the caller
    may see; of a closed month the same bytes each time. Costs are by the contracts of the charge policy,
    except for a caller who is bound to clusters: contracts are of all of them."""
    wanted = Month.parse(month)
    request = FocusRequest(wanted, FocusVersion(version), by, grain, CorrectionStyle(corrections), unpriced)
    which = FocusDataset(dataset)

    def make() -> IO[bytes]:
        exports = _exports(known, principal, wanted, cluster, team)
        exports.check(request, which)
        target: IO[bytes] = TemporaryFile()  # noqa: SIM115
        try:
            exports.write(request, which, format, target)
        except BaseException:
            target.close()
            raise
        target.seek(0)
        return target

    async with known.gate.turn(known.gate.until()):
        content = await in_own_thread(make)
    name = f"gpucost-focus-{wanted}-{which}.{format}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(_parts(content), media_type=MEDIA_TYPES[ReportFormat(format)], headers=headers)


def _parts(content: IO[bytes]) -> Iterator[bytes]:
    with content:
        while part := content.read(_PART):
            yield part


def _exports(
    known: ApiServices, principal: Principal, month: Month, cluster: str | None, team: str | None
) -> FocusExports:
    """Raises InputError for a cluster or team that the caller does not know, ApiError for a month of which
    the ledger has nothing."""
    scope = known.reporting.of_cluster(principal.scope, cluster)
    scope = scope_of_team(known.reporting, scope, month, team)
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
async def get_focus_metadata(
    principal: Reader,
    known: KnownServices,
    month: MonthText,
    version: _Version = "1.3",
    by: _By = "job",
    grain: _Grain = "day",
    corrections: _Style = "delta",
    unpriced: _Unpriced = "refuse",
    cluster: OneCluster = None,
    team: OneTeam = None,
) -> Response:
    """What goes beside the files of a month: their schemas, and whether they are final."""
    wanted = Month.parse(month)
    request = FocusRequest(wanted, FocusVersion(version), by, grain, CorrectionStyle(corrections), unpriced)

    def make() -> bytes:
        found = _exports(known, principal, wanted, cluster, team).metadata(request)
        return (json.dumps(found, ensure_ascii=False, indent=2) + "\n").encode()

    async with known.gate.turn(known.gate.until()):
        return Response(await in_own_thread(make), media_type="application/json")
