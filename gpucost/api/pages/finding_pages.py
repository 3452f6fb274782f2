"""Findings: what is wrong and what it costs, the dearest first; and one of them, with the change to make, its
evidence, what became of it, and the forms by which people answer it.

The rows, their order and their pages are those of ``GET /v1/findings``; an answer is given by the routes of
``gpucost.api.routes.findings``, with the same roles and the same checks of what is said.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from gpucost.access.principal import AccessRole, Principal
from gpucost.api.pages.page_layout import PageContent, PageFrame, content, months_seen, read_form, shown
from gpucost.api.routes import findings, requests
from gpucost.api.routes.findings import LONGEST_CURSOR, FindingId, FindingsParams, no_such_finding
from gpucost.api.routes.requests import refuse_unknown_parameters
from gpucost.api.server.authentication import Reader, Responder, authenticate
from gpucost.api.server.services import ApiServices, KnownServices
from gpucost.detectors.engine.lifecycle import LIVE
from gpucost.detectors.findings import WastePattern
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, SECOND_MS, Month, iso, parse_instant
from gpucost.ledger.db.records import FindingState
from gpucost.ledger.stores.findings import LONGEST_NOTE, MOST_PER_PAGE
from gpucost.notify.compose.finding import TITLES
from gpucost.reports.base import page_addresses
from gpucost.reports.waste.findings import FindingEntry, SubjectPart
from gpucost.service.reporting.finding_reports import finding_report, resolved_part
from gpucost.service.reporting.finding_savings import savings

router = APIRouter(
    dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)], include_in_schema=False
)

PAGE_ROWS = 50
LOOKED_BACK_DAYS = 30
STATES = {
    "": "going on",
    "open": "open",
    "acknowledged": "acknowledged",
    "muted": "muted",
    "resolved": "resolved",
    ",".join(FindingState): "all",
}
"""What may be chosen, as the API takes it, and how it is called."""
MUTES = ("8h", "1d", "3d", "1w", "2w", "4w")
_RESPONDERS = frozenset({AccessRole.TEAM_ADMIN, AccessRole.ADMIN})

_Text = Annotated[str, Query(max_length=2_000)]
_Cursor = Annotated[str, Query(max_length=LONGEST_CURSOR)]


@router.get("/findings")
async def list_findings(
    request: Request,
    principal: Reader,
    known: KnownServices,
    state: _Text = "",
    pattern: _Text = "",
    team: _Text = "",
    cluster: _Text = "",
    after: _Cursor = "",
) -> Response:
    """What is wrong, the dearest first. A filter that is empty chooses all, as a form sends it."""
    # Ages are not part of the ledger; the day is enough for what a list says of them.
    now_ms = known.now() // SECOND_MS * SECOND_MS
    chosen = {"state": state, "pattern": pattern, "team": team, "cluster": cluster}
    given = {name: text for name, text in {**chosen, "after": after}.items() if text}
    params = FindingsParams.model_validate({**given, "limit": PAGE_ROWS})

    def make() -> PageContent:
        return _listed(known, principal, params, chosen, now_ms)

    asked = "findings", params.model_dump_json(), now_ms, known.detectors.evaluations
    # The first page has what findings are worth, which reads spans by job.
    is_heavy = params.after is None
    return await shown(PageFrame(request, known, principal, "findings"), asked, make, heavy=is_heavy)


def _listed(
    known: ApiServices, principal: Principal, params: FindingsParams, chosen: dict[str, str], now_ms: int
) -> PageContent:
    report = findings.findings_listed(known, principal, params, now_ms)
    scope = principal.scope
    resolved = resolved_part(
        known.ledger,
        scope,
        iso((now_ms // DAY_MS - LOOKED_BACK_DAYS) * DAY_MS)[:10],
        cluster=params.cluster,
        patterns=params.pattern.split(",") if params.pattern else None,
        teams=params.team.split(",") if params.team else None,
    )
    asked = {name: text for name, text in chosen.items() if text}
    month = Month.of(now_ms)
    seen = known.reporting.of_cluster(scope, params.cluster)
    if params.team:
        teams = frozenset(params.team.split(","))
        seen = Scope(teams if scope.teams is None else teams & scope.teams, seen.clusters)
    saved = None if params.after else savings(known.reporting, seen, month)
    return content(
        "Findings",
        "findings_page.html.j2",
        report=report,
        resolved=resolved,
        chosen=chosen,
        states=STATES,
        state_name=STATES.get(chosen["state"], chosen["state"]),
        patterns={pattern.value: TITLES[pattern] for pattern in WastePattern},
        teams=_teams(known, scope, chosen["team"]),
        clusters=known.ledger.clusters(scope=scope),
        titles=TITLES,
        here=page_addresses.address("/findings", **asked),
        following=None
        if report.next is None
        else page_addresses.address("/findings", **asked, after=report.next),
        rows_json=page_addresses.address("/v1/findings", **asked, limit=str(MOST_PER_PAGE)),
        is_later=params.after is not None,
        looked_back=LOOKED_BACK_DAYS,
        subject_page=subject_page,
        saved=None if saved is None else saved.report,
        savings_json=page_addresses.address(
            "/v1/savings", month=str(month), team=chosen["team"], cluster=chosen["cluster"]
        ),
    )


def _teams(known: ApiServices, scope: Scope, chosen: str) -> tuple[str, ...]:
    """The teams to choose from: the reader's own, or those of findings that go on."""
    found = scope.teams
    if found is None:
        found = frozenset(row.team for row in known.ledger.finding_sums(scope, states=LIVE))
    return tuple(sorted(found.union([chosen]) - {""}))


def subject_page(subject: SubjectPart, month: Month | None = None) -> str:
    """The page of what a finding is about; empty where there is none."""
    match subject.kind:
        case "job":
            return page_addresses.job_page(subject.uid or subject.name, cluster=subject.cluster)
        case "queue":
            return page_addresses.queues_page(cluster=subject.cluster, queue=subject.name)
        case "node":
            return page_addresses.nodes_page(cluster=subject.cluster, node=subject.name)
        case "team" if month is not None:
            return page_addresses.team_page(subject.name, month)
    return ""


@router.get("/finding/{id}")
async def show_finding(request: Request, principal: Reader, known: KnownServices, id: FindingId) -> Response:
    """One finding. What has a form in it is of one reader, so this page is made for every request."""
    frame = PageFrame(request, known, principal, "findings")
    months = await months_seen(known, principal.scope)
    return await frame.response(await run_in_threadpool(_finding, frame, id, months))


def _finding(frame: PageFrame, finding_id: int, months: tuple[Month, ...]) -> PageContent:
    known, principal = frame.known, frame.principal
    report = finding_report(known.ledger, principal.scope, finding_id, known.now())
    if report is None:
        raise no_such_finding(finding_id)
    row = report.finding
    month = _month_of(row, months)
    return content(
        f"{TITLES[WastePattern(row.pattern)]}, finding {row.id}",
        "finding_page.html.j2",
        report=report,
        row=row,
        heading=TITLES[WastePattern(row.pattern)],
        is_over=row.state == FindingState.RESOLVED,
        is_muted=row.state == FindingState.MUTED,
        may_answer=principal.role in _RESPONDERS,
        csrf=frame.form_token,
        mutes=MUTES,
        longest=LONGEST_NOTE,
        month=month,
        subject_href=subject_page(row.subject, month),
        team_of=row.team if month is not None and not row.team.startswith("__") else "",
    )


def _month_of(row: FindingEntry, months: tuple[Month, ...]) -> Month | None:
    """The month in which it was last seen, of those that the reader may choose; else the newest of them."""
    seen = Month.of(max(0, parse_instant(row.last_seen) - 1))
    return seen if seen in months else months[0] if months else None


# --- answers --------------------------------------------------------------------------------------------


def form(*names: str) -> Callable[[Request], Awaitable[dict[str, str]]]:
    """A dependency that reads a form of these fields, after the caller is known."""

    async def read(request: Request) -> dict[str, str]:
        return await read_form(request, *names)

    return read


def _body(form: dict[str, str]) -> bytes:
    """A form as the API's body: what is empty was not given. It is checked as that, and errors say so."""
    return json.dumps({name: text for name, text in form.items() if text}).encode()


def _back(finding_id: int) -> Response:
    return RedirectResponse(page_addresses.finding_page(finding_id), HTTPStatus.SEE_OTHER)


@router.post("/finding/{id}/acknowledge")
def acknowledge(
    principal: Responder,
    known: KnownServices,
    id: FindingId,
    said: Annotated[dict[str, str], Depends(form("note"))],
) -> Response:
    """Say that somebody knows."""
    findings.acknowledge(principal, known, id, requests.parsed(requests.AcknowledgeBody, _body(said)))
    return _back(id)


@router.post("/finding/{id}/mute")
def mute(
    principal: Responder,
    known: KnownServices,
    id: FindingId,
    said: Annotated[dict[str, str], Depends(form("for", "until", "reason"))],
) -> Response:
    """Be silent about it for a while."""
    findings.mute(principal, known, id, requests.parsed(requests.MuteBody, _body(said)))
    return _back(id)


@router.post("/finding/{id}/unmute")
def unmute(
    principal: Responder,
    known: KnownServices,
    id: FindingId,
    said: Annotated[dict[str, str], Depends(form("reason"))],
) -> Response:
    """End a mute."""
    findings.unmute(principal, known, id, requests.parsed(requests.UnmuteBody, _body(said)))
    return _back(id)
