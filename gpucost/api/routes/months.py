"""Months as they are settled: which are closed, what closing one makes final, closing it, and what each team
pays for it (statements, previews of other charge policies); and the digest of a week.

A team reads its own statement and digest only, whatever it asks for. What closes a month and what a statement
says is of all clusters, so who is bound to some of them is told neither.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from gpucost.access.principal import Principal
from gpucost.api.routes import requests
from gpucost.api.routes.requests import RequestBody, Words, refuse_unknown_parameters, require_json
from gpucost.api.routes.responses import ResponseBody, answer, cached_response, chosen, described
from gpucost.api.server.authentication import Accountant, Closer, Reader, authenticate
from gpucost.api.server.errors import ApiError, not_found, responses
from gpucost.api.server.services import ApiServices, KnownServices, nothing_held
from gpucost.api.server.threads import in_own_thread
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.errors import ChargesChanged, ConfigError, ErrorRemark, InputError, shorten
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS, Month
from gpucost.ledger.db.records import CloseRefused
from gpucost.reports.base.document import to_json
from gpucost.reports.charges.charge_previews import ChargebackPreview, PreviewGrouping
from gpucost.reports.charges.charge_statements import TeamStatement
from gpucost.reports.digest.week_model import IsoWeek, WeekDigest
from gpucost.reports.month.model import ClosePreview, MonthStatus, MonthStatuses, StatementSummary
from gpucost.reports.month.month_end import ForecastScore, MonthForecast
from gpucost.service.notifications.digests import DigestScheduler
from gpucost.service.reporting import charge_reports
from gpucost.service.reporting.charge_reports import kept_statements, policy_digest, preview_charges
from gpucost.service.reporting.month_closing import month_status, month_statuses, preview_close
from gpucost.service.reporting.month_forecasts import forecast_score, month_forecast
from gpucost.service.reporting.rendering import ReportFormat, render_statements, render_summary
from gpucost.service.reporting.report_service import LedgerStand
from gpucost.service.reporting.team_names import allowed_teams, known_teams

logger = logging.getLogger(__name__)

router = APIRouter(dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)])
changes = APIRouter(
    dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters), Depends(require_json)]
)

_FORMATS = (ReportFormat.JSON, ReportFormat.CSV, ReportFormat.HTML, ReportFormat.XLSX)
StatementForm = Annotated[
    Literal["json", "csv", "html", "xlsx"] | SkipJsonSchema[None],
    Query(description="wins over the Accept header"),
]
_SUMMARY_FORMATS = (ReportFormat.JSON, ReportFormat.CSV)
SummaryForm = Annotated[
    Literal["json", "csv"] | SkipJsonSchema[None], Query(description="wins over the Accept header")
]
MonthText = Annotated[
    str, Path(max_length=64, description="a month in UTC, such as 2026-10", examples=["2026-10"])
]
_LONGEST_NAME = 253
_MOST_POLICIES = 4


class CloseBody(RequestBody):
    """How a month is closed."""

    reason: Annotated[
        Words,
        Field(description="closes in spite of what is missing; at most 1,000 characters"),
    ] = ""
    yes: Annotated[bool, Field(description="closes in spite of warnings, but not of what is missing")] = False


class PolicyText(RequestBody):
    """A charge policy that is only tried."""

    name: Annotated[str, Field(max_length=_LONGEST_NAME, description="name of its file, for errors")]
    text: Annotated[str, Field(description="the policy, YAML as in docs/charges.md")]
    files: Annotated[
        dict[str, str],
        Field(default_factory=dict, max_length=2, description="texts of the files that it names, by name"),
    ]

    def beside(self, name: str) -> tuple[str, str]:
        """Text and name of a file that it names. Raises ConfigError where the body has none."""
        if name not in self.files:
            raise ConfigError(self.name, "files", name, "with its text, in files beside the policy")
        return self.files[name], name


class PreviewBody(RequestBody):
    """Policies to try."""

    policies: Annotated[
        tuple[PolicyText, ...],
        Field(
            min_length=1, max_length=_MOST_POLICIES, description="the first is what the last is compared with"
        ),
    ]
    by: Annotated[PreviewGrouping, Field(description="what there is a line for")] = PreviewGrouping.TEAM


@router.get(
    "/v1/months",
    response_class=Response,
    responses={
        200: described(MonthStatuses, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 503),
    },
)
async def get_months(principal: Reader, known: KnownServices) -> Response:
    """Which months the ledger has, which of them are closed, and what keeps the others open."""
    return await _statuses(principal, known, None)


@router.get(
    "/v1/months/{month}",
    response_class=Response,
    responses={
        200: described(MonthStatuses, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 422, 503),
    },
)
async def get_month(principal: Reader, known: KnownServices, month: MonthText) -> Response:
    """Whether one month is closed, and what keeps it open. One that the ledger has nothing of is empty."""
    return await _statuses(principal, known, Month.parse(month))


async def _statuses(principal: Principal, known: ApiServices, month: Month | None) -> Response:
    def make() -> ResponseBody:
        return _json(month_statuses(known.reporting, principal.scope, month, known.close_coverage))

    return await cached_response(known, principal.scope, ("months", month), make)


def _json(report: object, *headers: tuple[str, str]) -> ResponseBody:
    return ResponseBody(to_json(report).encode(), "application/json", headers)


@router.get(
    "/v1/months/{month}/forecast",
    response_class=Response,
    responses={
        200: described(MonthForecast, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 404, 422, 503),
    },
)
async def get_forecast(principal: Reader, known: KnownServices, month: MonthText) -> Response:
    """What teams will have held at the end of a month that goes on, with an interval. A month that is over,
    or begins after the ledger's end, has none."""
    wanted, now_ms = Month.parse(month), known.now()

    def make() -> ResponseBody:
        found = month_forecast(known.reporting, principal.scope, wanted, now_ms)
        if found is None:
            raise not_found(
                "month", month, "only the month where the ledger ends, or that begins there, has one"
            )
        return _json(found)

    asked = "forecast", wanted, now_ms // HOUR_MS
    return await cached_response(known, principal.scope, asked, make)


@router.get(
    "/v1/forecasts/score",
    response_class=Response,
    responses={
        200: described(ForecastScore, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 503),
    },
)
async def get_forecast_score(principal: Reader, known: KnownServices) -> Response:
    """How past forecasts of month's ends did, of the teams that the caller may see: coverage of their
    intervals, WAPE and MASE by days left; of those that were kept, and of others made again."""

    def make() -> ResponseBody:
        return _json(forecast_score(known.reporting, principal.scope))

    return await cached_response(known, principal.scope, ("forecast score",), make)


@router.get(
    "/v1/months/{month}/close",
    response_class=Response,
    responses={
        200: described(ClosePreview, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 422, 503),
    },
)
async def get_close(principal: Accountant, known: KnownServices, month: MonthText) -> Response:
    """What closing a month makes final: amounts of all teams, warnings and blockers. Nothing is closed."""
    wanted = Month.parse(month)
    refuse_part(principal, "what closes a month")

    def make() -> ResponseBody:
        return _json(preview_close(known.reporting, wanted, known.close_coverage))

    return await cached_response(known, principal.scope, ("close", wanted), make)


@changes.post(
    "/v1/months/{month}/close",
    response_class=Response,
    responses={
        200: described(MonthStatus, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 409, 413, 415, 422, 503),
    },
    openapi_extra=requests.described(CloseBody),
)
async def close_month(
    principal: Closer,
    known: KnownServices,
    month: MonthText,
    body: Annotated[CloseBody, Depends(requests.read(CloseBody))],
) -> Response:
    """Close a month for good. 409 where something is missing and there is no reason, and where there are
    warnings and neither yes nor a reason. A month that is closed stays as it is."""
    wanted = Month.parse(month)
    refuse_part(principal, "what closes a month")
    async with known.gate.turn(known.gate.until()):
        found = await in_own_thread(_close, principal, known, wanted, body)
    return _json(found).response()


def _close(principal: Principal, known: ApiServices, month: Month, body: CloseBody) -> MonthStatus:
    before = month_status(known.reporting, EVERYTHING, month, known.close_coverage)
    if before.is_closed:
        return before
    preview = preview_close(known.reporting, month, known.close_coverage)
    if not preview.is_confirmed(reason=body.reason, yes=body.yes):
        named = "; ".join(f"{each.what}: {each.detail}" for each in preview.warnings[:20])
        more = len(preview.warnings) - 20
        raise ApiError(
            HTTPStatus.CONFLICT,
            "close_warned",
            f"{month} is not closed: {named}" + (f"; and {more} more" if more > 0 else ""),
            field="yes",
            allowed="yes: true closes it all the same, reason says why",
        )
    try:
        with _fits(principal):
            charge_reports.close_month(
                known.reporting,
                month,
                known.policy,
                author=principal.id,
                min_coverage=known.close_coverage,
                reason=body.reason or None,
            )
    except CloseRefused as error:
        raise ApiError(
            HTTPStatus.CONFLICT, "close_refused", str(error), field="reason", allowed="a reason"
        ) from None
    return month_status(known.reporting, EVERYTHING, month, known.close_coverage)


def _listed(success: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI entry of a list of what ``success`` describes."""
    content = {
        media: {"schema": {"type": "array", "items": found["schema"]}} if media == requests.JSON else found
        for media, found in success["content"].items()
    }
    return {**success, "content": content}


@router.get(
    "/v1/months/{month}/statements",
    response_class=Response,
    responses={
        200: _listed(described(TeamStatement, *_FORMATS)),
        **responses(400, 401, 403, 404, 406, 409, 422, 503),
    },
)
async def get_statements(
    request: Request, principal: Reader, known: KnownServices, month: MonthText, format: StatementForm = None
) -> Response:
    """What each team pays for a month, of the teams that the caller may see: those with a charge or an
    adjustment, by name."""
    wanted, format_ = Month.parse(month), chosen(request, format, _FORMATS)
    refuse_part(principal, "a statement")

    def make() -> ResponseBody:
        found, summary, stand = seen_statements(principal, known, wanted)
        there = [each for each in found if each.lines or each.adjustments]
        if not there and format_ in (ReportFormat.HTML, ReportFormat.XLSX):
            raise not_found("month", month, "no team that you may see has a charge or an adjustment")
        # Who sees some teams only has no use for a summary of them.
        whole = None if summary.proof is None else summary
        content = render_statements(there, format_, summary=whole)
        return answer(content, format_, stand, f"statements-{wanted}")

    asked = "statements", wanted, format_, policy_digest(known.policy)
    return await cached_response(known, principal.scope, asked, make)


@router.get(
    "/v1/months/{month}/statement",
    response_class=Response,
    responses={
        200: described(TeamStatement, *_FORMATS),
        **responses(400, 401, 403, 404, 406, 409, 422, 503),
    },
)
async def get_statement(
    request: Request,
    principal: Reader,
    known: KnownServices,
    month: MonthText,
    team: Annotated[str, Query(max_length=_LONGEST_NAME, description="the team, by its whole name")],
    format: StatementForm = None,
) -> Response:
    """What one team pays for a month, and how each figure is worked out again. A team that the caller may not
    see is not found."""
    wanted, format_ = Month.parse(month), chosen(request, format, _FORMATS)
    refuse_part(principal, "a statement")
    refuse_foreign(principal, team)

    def make() -> ResponseBody:
        found, _, stand = seen_statements(principal, known, wanted)
        own = [each for each in found if each.team == team]
        if not own:
            raise no_such_team(principal, team, {each.team for each in found})
        return answer(render_statements(own, format_, one=True), format_, stand, f"statement-{wanted}")

    asked = "statement", wanted, team, format_, policy_digest(known.policy)
    return await cached_response(known, principal.scope, asked, make)


def seen_statements(
    principal: Principal, known: ApiServices, month: Month
) -> tuple[list[TeamStatement], StatementSummary, LedgerStand]:
    """The statements that the caller may see. Idle time is charged out of all teams' time: all are made."""
    with _fits(principal):
        found = kept_statements(known.reporting, month, known.policy)
    if found is None:
        raise nothing_held(known, principal.scope, "month", str(month))
    teams = principal.scope.teams
    seen = [each for each in found.report.statements if teams is None or each.team in teams]
    return seen, found.report.summary.seen_by(teams), found.stand


@router.get(
    "/v1/months/{month}/charges",
    response_class=Response,
    responses={
        200: described(StatementSummary, *_SUMMARY_FORMATS),
        **responses(400, 401, 403, 404, 406, 409, 422, 503),
    },
)
async def get_charges(
    request: Request, principal: Reader, known: KnownServices, month: MonthText, format: SummaryForm = None
) -> Response:
    """What every team pays for a month, of the teams that the caller may see: the totals of their statements.
    Who sees every team has what the platform keeps, too, and the proof that it adds up to the capacity."""
    wanted, format_ = Month.parse(month), chosen(request, format, _SUMMARY_FORMATS)
    refuse_part(principal, "what teams pay")

    def make() -> ResponseBody:
        _, summary, stand = seen_statements(principal, known, wanted)
        return answer(render_summary(summary, format_), format_, stand, f"charges-{wanted}")

    asked = "charges", wanted, format_, policy_digest(known.policy)
    return await cached_response(known, principal.scope, asked, make)


@contextmanager
def _fits(principal: Principal) -> Iterator[None]:
    """Turns what is wrong with the policy of the settings, and a closed month that is not charged as it was,
    into a 409, which is no fault of the request. Only who sees every team is told what: the reason may name
    teams."""
    try:
        yield
    except ChargesChanged as error:
        why = error.whole if principal.scope.sees_every_team else str(error)
        raise ApiError(HTTPStatus.CONFLICT, "ledger_conflict", why) from None
    except ConfigError as error:
        logger.warning("the charge policy does not fit the ledger: %s", shorten(str(error), 500))
        why = f": {error}" if principal.scope.sees_every_team else "; the log of the service says why"
        raise ApiError(
            HTTPStatus.CONFLICT, "policy_unfit", f"the charge policy does not fit the ledger{why}"
        ) from None


def refuse_part(principal: Principal, what: str) -> None:
    """Raises ApiError (403) for a caller who sees some clusters only."""
    if principal.scope.clusters is not None:
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            "forbidden",
            f"{what} is of all clusters, and you may see some of them",
            field="Authorization",
            allowed="a caller who is not bound to clusters",
        )


def refuse_foreign(principal: Principal, team: str) -> None:
    """Another team is not found, like one that does not exist; nothing is read to say so."""
    if principal.scope.teams is not None and team not in principal.scope.teams:
        raise no_such_team(principal, team, set())


def no_such_team(principal: Principal, team: str, known: set[str]) -> ApiError:
    """The teams that the caller may see are named: of all of them those that are ``known``."""
    seen = principal.scope.teams
    return not_found("team", team, "no such team", allowed_teams(team, known if seen is None else seen))


@changes.post(
    "/v1/months/{month}/chargeback",
    response_class=Response,
    responses={
        200: described(ChargebackPreview, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 404, 413, 415, 422, 503),
    },
    openapi_extra=requests.described(PreviewBody),
)
async def preview_chargeback(
    principal: Accountant,
    known: KnownServices,
    month: MonthText,
    body: Annotated[PreviewBody, Depends(requests.read(PreviewBody))],
) -> Response:
    """What each team would pay under each policy of the body, the difference, and line by line why. Nothing
    is written."""
    wanted = Month.parse(month)
    refuse_part(principal, "what teams pay")
    async with known.gate.turn(known.gate.until()):
        return _json(await in_own_thread(previewed, principal, known, wanted, body)).response()


def previewed(principal: Principal, known: ApiServices, month: Month, body: PreviewBody) -> ChargebackPreview:
    """What each team would pay under the policies of ``body``. Raises InputError, which names the line, and
    ApiError for a month of which the ledger has nothing."""
    reporting = known.reporting
    if not reporting.stand(EVERYTHING, month.window).windows:
        raise nothing_held(known, principal.scope, "month", str(month))
    centres = {team: account.cost_centre for team, account in reporting.accounts.items()}
    teams = known_teams(known.ledger, centres.keys(), month)
    try:
        books = [
            PolicyBook.parse(each.text, each.name, reporting.quotas, each.beside) for each in body.policies
        ]
        for book in books:
            book.check_teams(teams)
        return preview_charges(reporting, EVERYTHING, month, books, centres, grouping=body.by)
    except ConfigError as error:
        place = error.file if error.line is None else f"{error.file}:{error.line}"
        raise InputError(f"{place}: {error.field}", error.value, error.allowed) from None


@router.get(
    "/v1/digest",
    response_class=Response,
    responses={
        200: described(WeekDigest, ReportFormat.JSON, of_ledger=False),
        **responses(400, 401, 403, 404, 422, 503),
    },
)
async def get_digest(
    principal: Reader,
    known: KnownServices,
    week: Annotated[
        str | SkipJsonSchema[None],
        Query(max_length=64, description="an ISO week in UTC, such as 2026-W43; else the last whole one"),
    ] = None,
    team: Annotated[
        str | SkipJsonSchema[None],
        Query(max_length=_LONGEST_NAME, description="one team; without it the platform, of every team"),
    ] = None,
) -> Response:
    """The digest of a week: cost, waste, the actions that save most, the costliest jobs. A team's has nothing
    of the others in it; who is bound to teams asks for one of them."""
    refuse_part(principal, "a digest")
    wanted = None if week is None else IsoWeek.parse(week)
    teams = principal.scope.teams
    if teams is not None and not team:
        raise InputError("team", ErrorRemark("missing"), f"one of yours: {', '.join(sorted(teams))}")
    refuse_foreign(principal, team or "")
    digesting = DigestScheduler(known.reporting, known.budgets)
    if wanted is None:
        wanted = await in_own_thread(digesting.last, known.now())

    def make() -> ResponseBody:
        found = None if wanted is None else digesting.week(wanted, team or "")
        if wanted is None or found is None:
            raise nothing_held(known, principal.scope, "week", week or "")
        if team and team not in (there := set(digesting.teams(wanted))):
            raise no_such_team(principal, team, there)
        return _json(found)

    return await cached_response(known, principal.scope, ("digest", wanted, team), make)
