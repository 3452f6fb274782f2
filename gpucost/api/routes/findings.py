"""GET /v1/findings and the answers to them: acknowledge, mute, unmute; the cursor of the list; and GET
/v1/savings: what findings are worth.

The cursor holds the ids that were given. The list is ordered by cost, which changes with every evaluation; a
position in that order would lose findings that climb past it, and repeat those that fall below it. The ids
that were given do not change. A cursor of 1,000 findings is about 2 kB.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from gpucost.access.principal import Principal
from gpucost.api.routes import requests
from gpucost.api.routes.requests import (
    AcknowledgeBody,
    MuteBody,
    UnmuteBody,
    WholeNumber,
    refuse_unknown_parameters,
    require_json,
)
from gpucost.api.routes.responses import (
    MEDIA_TYPES,
    ResponseBody,
    cached_response,
    described,
)
from gpucost.api.server.authentication import Reader, Responder, authenticate
from gpucost.api.server.errors import not_found, responses
from gpucost.api.server.services import ApiServices, KnownServices, nothing_held
from gpucost.detectors.engine.lifecycle import LIVE
from gpucost.detectors.findings import FindingSeverity, WastePattern
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.time import SECOND_MS, Month, parse_day_or_instant, parse_duration
from gpucost.ledger.db.records import FindingRecord, FindingState
from gpucost.ledger.stores.findings import MOST_PER_PAGE
from gpucost.reports.base.document import to_json
from gpucost.reports.month.savings_report import SavingsReport
from gpucost.reports.waste.findings import FindingReport, FindingsReport
from gpucost.service.reporting.finding_reports import finding_report, row_of, withheld_of
from gpucost.service.reporting.finding_savings import savings
from gpucost.service.reporting.rendering import ReportFormat, render_finding, render_findings

MOST_GIVEN = 4_000
"""Most ids in a cursor: more would make addresses longer than proxies take (8 kB)."""
LONGEST_CURSOR = 24_000
_LONGEST_ID_BYTES = 10
_LONGEST_ID_BITS = 63
_ALLOWED = "the `next` of the page before, as it was given"


def encode_cursor(given: Collection[int]) -> str:
    """Ids above 0 -> a text for a URL; the same for the same ids."""
    raw, before = bytearray(), 0
    for finding_id in sorted(given):
        step, before = finding_id - before, finding_id
        while step > 127:
            raw.append(step & 127 | 128)
            step >>= 7
        raw.append(step)
    return base64.urlsafe_b64encode(zlib.compress(bytes(raw), 9)).decode().rstrip("=")


def decode_cursor(text: str) -> frozenset[int]:
    """The ids that ``encode_cursor`` was given. Raises InputError for any other text."""
    try:
        packed = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
        inflate = zlib.decompressobj()
        raw = inflate.decompress(packed, (MOST_GIVEN + 1) * _LONGEST_ID_BYTES)
    except (UnicodeEncodeError, binascii.Error, zlib.error):
        raise InputError("after", text, _ALLOWED) from None
    found = frozenset(_ids(raw))
    if not inflate.eof or inflate.unused_data or len(found) > MOST_GIVEN or encode_cursor(found) != text:
        raise InputError("after", text, _ALLOWED)
    return found


def _ids(raw: Iterable[int]) -> Iterable[int]:
    finding_id = step = shift = 0
    for byte in raw:
        if shift > _LONGEST_ID_BITS:
            raise InputError("after", "a cursor", _ALLOWED)
        step |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            finding_id += step
            yield finding_id
            step = shift = 0


router = APIRouter(dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)])
changes = APIRouter(
    dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters), Depends(require_json)]
)

_MAX_TEXT = 2_000
_LARGEST_ID = 2**63 - 1

Text = Annotated[str, Field(max_length=_MAX_TEXT)]
OptionalText = Annotated[str | SkipJsonSchema[None], Field(max_length=_MAX_TEXT)]
FindingId = Annotated[WholeNumber, Path(ge=1, le=_LARGEST_ID, description="id of a finding")]


class FindingsParams(BaseModel):
    """The query."""

    cluster: Annotated[OptionalText, Field(description="of this cluster only")] = None
    state: Annotated[Text, Field(description=f"states, separated by commas: {', '.join(FindingState)}")] = (
        ",".join(LIVE)
    )
    pattern: Annotated[
        OptionalText, Field(description=f"patterns, separated by commas: {', '.join(WastePattern)}")
    ] = None
    severity: Annotated[
        OptionalText, Field(description=f"severities, separated by commas: {', '.join(FindingSeverity)}")
    ] = None
    team: Annotated[OptionalText, Field(description="of these teams, separated by commas")] = None
    since: Annotated[
        OptionalText,
        Field(description="seen then or later: a day (midnight UTC) or RFC 3339 with a zone"),
    ] = None
    limit: Annotated[WholeNumber, Field(ge=1, le=MOST_PER_PAGE, description="findings on a page")] = 100
    after: Annotated[
        str | SkipJsonSchema[None],
        Field(max_length=LONGEST_CURSOR, description="the `next` of the page before"),
    ] = None


@router.get(
    "/v1/findings",
    response_class=Response,
    responses={
        200: described(FindingsReport, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 422, 503),
    },
)
async def get_findings(
    principal: Reader, known: KnownServices, params: Annotated[FindingsParams, Query()]
) -> Response:
    """What is wrong and what it costs, the dearest first, of the teams the caller may see.

    While findings change between pages, no finding is repeated and none that was there all the time is lost.
    """
    # The age of a finding, and what detectors withheld, are not part of the ledger.
    now_ms = known.now() // SECOND_MS * SECOND_MS
    asked = "findings", params.model_dump_json(), now_ms, known.detectors.evaluations
    return await cached_response(
        known, principal.scope, asked, lambda: _listed(known, principal, params, now_ms), heavy=False
    )


def _listed(known: ApiServices, principal: Principal, params: FindingsParams, now_ms: int) -> ResponseBody:
    report = findings_listed(known, principal, params, now_ms)
    content = render_findings(report, ReportFormat.JSON)
    return ResponseBody(
        content.encode() if isinstance(content, str) else content, MEDIA_TYPES[ReportFormat.JSON]
    )


def findings_listed(
    known: ApiServices, principal: Principal, params: FindingsParams, now_ms: int
) -> FindingsReport:
    """One page of the findings that ``params`` asks for. Raises InputError for values that nothing has."""
    known.reporting.of_cluster(principal.scope, params.cluster)
    known.reporting.check_teams(principal.scope, _split(params.team), nobody=True)
    given = frozenset[int]() if params.after is None else decode_cursor(params.after)
    patterns = _words("pattern", params.pattern, WastePattern)
    found = _Listing(known, principal, params, patterns).after(given)
    page, more = found[: params.limit], len(found) > params.limit
    told = given | {record.id for record in page if record.id is not None}
    if more and len(told) > MOST_GIVEN:
        allowed = f"at most {MOST_GIVEN} findings on all pages; filters make the list shorter"
        raise InputError("after", params.after, allowed)
    withheld = None
    if principal.scope.sees_every_team and params.after is None:
        looks = known.detectors.looks()
        seen = {name: look for name, look in looks.items() if principal.scope.sees_cluster(name)}
        withheld = withheld_of(seen, params.cluster, patterns)
    return FindingsReport(
        currency=known.reporting.currency,
        teams_in_scope=None if principal.scope.teams is None else tuple(sorted(principal.scope.teams)),
        findings=tuple(row_of(record, now_ms, principal.scope) for record in page),
        next=encode_cursor(told) if more else None,
        withheld=None if withheld is None else withheld.rows,
        withheld_count=None if withheld is None else withheld.count,
    )


class SavingsParams(BaseModel):
    """The query."""

    month: Annotated[Text, Field(description="a month in UTC, such as 2026-10")]
    team: Annotated[OptionalText, Field(description="of what this team can act on")] = None
    cluster: Annotated[OptionalText, Field(description="of findings in this cluster only")] = None


@router.get(
    "/v1/savings",
    response_class=Response,
    responses={
        200: described(SavingsReport, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 404, 422, 503),
    },
)
async def get_savings(
    principal: Reader, known: KnownServices, params: Annotated[SavingsParams, Query()]
) -> Response:
    """What open findings could give back in a month, and what those acted upon saved in this one."""
    month = Month.parse(params.month)

    def make() -> ResponseBody:
        reporting = known.reporting
        scope = reporting.of_team(reporting.of_cluster(principal.scope, params.cluster), params.team)
        found = savings(reporting, scope, month)
        if found is None:
            raise nothing_held(known, scope, "month", params.month)
        return ResponseBody(to_json(found.report).encode(), MEDIA_TYPES[ReportFormat.JSON], ())

    asked = ("savings", month, params.team, params.cluster)
    return await cached_response(known, principal.scope, asked, make)


@router.get(
    "/v1/findings/{id}",
    response_class=Response,
    responses={
        200: described(FindingReport, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 404, 422, 503),
    },
)
def get_finding(principal: Reader, known: KnownServices, id: FindingId) -> Response:
    """One finding and its events. A finding that the caller may not see is not found."""
    return _one(known, principal, id)


def _change(body: type[requests.RequestBody]) -> dict[str, Any]:
    """The parts of the OpenAPI entry that routes which change a finding share."""
    return {
        "response_class": Response,
        "responses": {
            200: described(FindingReport, ReportFormat.JSON, of_ledger=False),
            **responses(400, 401, 403, 404, 409, 413, 415, 422, 503),
        },
        "openapi_extra": requests.described(body),
    }


@changes.post("/v1/findings/{id}/acknowledge", **_change(AcknowledgeBody))
def acknowledge(
    principal: Responder,
    known: KnownServices,
    id: FindingId,
    body: Annotated[AcknowledgeBody, Depends(requests.read(AcknowledgeBody))],
) -> Response:
    """Say that somebody knows. Answers with the finding as it is now; a resolved one is a 409."""
    _require(known, principal, id)
    known.ledger.acknowledge(principal.scope, id, principal.id, body.note)
    return _one(known, principal, id)


@changes.post("/v1/findings/{id}/mute", **_change(MuteBody))
def mute(
    principal: Responder,
    known: KnownServices,
    id: FindingId,
    body: Annotated[MuteBody, Depends(requests.read(MuteBody))],
) -> Response:
    """Be silent about a finding, at most a year. Answers with the finding; a resolved one is a 409."""
    field, text, until_ms = _until(body, known.now)
    _require(known, principal, id)
    try:
        known.ledger.mute(principal.scope, id, principal.id, until_ms, body.reason)
    except InputError as error:
        if error.field != "until":
            raise
        raise InputError(field, text, error.allowed) from None
    return _one(known, principal, id)


@changes.post("/v1/findings/{id}/unmute", **_change(UnmuteBody))
def unmute(
    principal: Responder,
    known: KnownServices,
    id: FindingId,
    body: Annotated[UnmuteBody, Depends(requests.read(UnmuteBody))],
) -> Response:
    """End a mute. Answers with the finding; one that is not muted stays as it is."""
    _require(known, principal, id)
    known.ledger.unmute(principal.scope, id, principal.id, body.reason)
    return _one(known, principal, id)


class _Listing:
    """The findings that a query asks for, of one principal."""

    def __init__(
        self, known: ApiServices, principal: Principal, params: FindingsParams, patterns: list[str] | None
    ) -> None:
        self._known, self._principal, self._params, self._patterns = known, principal, params, patterns
        self._states = _words("state", params.state, FindingState)
        self._severities = _words("severity", params.severity, FindingSeverity)
        self._since_ms = None if params.since is None else parse_day_or_instant(params.since, "since")

    def after(self, given: frozenset[int]) -> list[FindingRecord]:
        """A page and one more of the findings that were not given yet, the dearest first."""
        wanted = self._params.limit + 1
        found: dict[int | None, FindingRecord] = {}
        for record in self._all(min(MOST_PER_PAGE, wanted + len(given))):
            if record.id not in given:
                found.setdefault(record.id, record)
            if len(found) == wanted:
                break
        return list(found.values())

    def _all(self, at_once: int) -> Iterator[FindingRecord]:
        last: tuple[int | None, int] | None = None
        params = self._params
        while True:
            records = self._known.ledger.findings(
                self._principal.scope,
                cluster=params.cluster,
                states=self._states,
                patterns=self._patterns,
                teams=None if params.team is None else _split(params.team),
                severities=self._severities,
                since_ms=self._since_ms,
                limit=at_once,
                after=last,
            )
            yield from records
            if len(records) < at_once:
                return
            assert records[-1].id is not None
            last = (records[-1].nano, records[-1].id)


def _words(field: str, text: str | None, known: type[StrEnum]) -> list[str] | None:
    """Values separated by commas, each one of ``known``. Raises InputError for any other."""
    if text is None:
        return None
    found = text.split(",")
    for value in found:
        if value not in list(known):
            raise InputError(field, value, ", ".join(known))
    return found


def _split(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(text.split(","))


def _until(body: MuteBody, now: Callable[[], int]) -> tuple[str, str, int]:
    """The key that sets the end (``until`` or ``for``), its value, and the instant. Raises InputError unless
    exactly one of them is there."""
    if (body.until is None) == (body.duration is None):
        given = "neither" if body.until is None else "both"
        raise InputError("until", ErrorRemark(f"{given} of until and for are given"), "one of until and for")
    if body.until is not None:
        return "until", body.until, parse_day_or_instant(body.until, "until")
    assert body.duration is not None
    return "for", body.duration, now() + parse_duration(body.duration, "for")


def _require(known: ApiServices, principal: Principal, finding_id: int) -> None:
    """Raises a 404 for a finding that does not exist or that the principal may not see: both look alike."""
    if known.ledger.finding(principal.scope, finding_id) is None:
        raise no_such_finding(finding_id)


def no_such_finding(finding_id: int) -> Exception:
    return not_found("id", finding_id, "no such finding")


def _one(known: ApiServices, principal: Principal, finding_id: int) -> Response:
    report = finding_report(known.ledger, principal.scope, finding_id, known.now())
    if report is None:
        raise no_such_finding(finding_id)
    return Response(render_finding(report), media_type=MEDIA_TYPES[ReportFormat.JSON])
