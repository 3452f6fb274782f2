"""What teams would pay for a month by other rules: one or two charge policies are pasted, and nothing is
written. The figures are those of ``POST /v1/months/{month}/chargeback``, for the same roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from gpucost.access.principal import Principal
from gpucost.api.pages.page_layout import PageContent, PageFrame, content, read_form
from gpucost.api.routes.months import MonthText, PolicyText, PreviewBody, previewed, refuse_part
from gpucost.api.routes.requests import refuse_unknown_parameters
from gpucost.api.server.authentication import Accountant, authenticate
from gpucost.api.server.services import ApiServices, KnownServices
from gpucost.api.server.threads import in_own_thread
from gpucost.charges.cell_charges import PLATFORM, ChargeKind
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.time import Month
from gpucost.reports.base import display
from gpucost.reports.charges.charge_previews import ChargebackPreview, PreviewGrouping, PreviewTeam
from gpucost.reports.charges.charge_statements import CHARGE_WORDS

router = APIRouter(
    dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)], include_in_schema=False
)

FIRST, SECOND, GROUPING = "first", "second", "by"
"""The fields of the form: two policies as YAML, and what there is a line for."""
_WORDS: Mapping[str, str] = {kind.value: words for kind, words in CHARGE_WORDS.items()}
_GROUPINGS = {PreviewGrouping.TEAM: "team", PreviewGrouping.COST_CENTRE: "cost centre"}


@router.get("/month/{month}/preview")
async def ask_preview(
    request: Request, principal: Accountant, known: KnownServices, month: MonthText
) -> Response:
    """The form, with the policy in force in it."""
    wanted = Month.parse(month)
    refuse_part(principal, "what teams pay")
    said = {FIRST: known.policy.text, SECOND: "", GROUPING: PreviewGrouping.TEAM.value}
    frame = PageFrame(request, known, principal, "month", wanted)
    return await frame.response(_page(frame, wanted, said, None))


async def _form(request: Request) -> dict[str, str]:
    return await read_form(request, FIRST, SECOND, GROUPING)


@router.post("/month/{month}/preview")
async def show_preview(
    request: Request,
    principal: Accountant,
    known: KnownServices,
    month: MonthText,
    said: Annotated[dict[str, str], Depends(_form)],
) -> Response:
    """What each team would pay, and the form once more. It has no address of its own: policies are no part of
    one, and are kept nowhere."""
    wanted = Month.parse(month)
    refuse_part(principal, "what teams pay")
    async with known.gate.turn(known.gate.until()):
        found = await in_own_thread(_previewed, principal, known, wanted, said)
    frame = PageFrame(request, known, principal, "month", wanted)
    return await frame.response(_page(frame, wanted, said, found))


def _previewed(
    principal: Principal, known: ApiServices, month: Month, said: Mapping[str, str]
) -> ChargebackPreview:
    """Files that a policy names are those of the policy in force. Raises InputError, ApiError."""
    policies = tuple(
        PolicyText(name=name, text=said[name], files=dict(known.policy.files))
        for name in (FIRST, SECOND)
        if said[name].strip()
    )
    if not policies:
        raise InputError(FIRST, ErrorRemark("missing"), "a charge policy as YAML, as in docs/charges.md")
    grouping = said[GROUPING] or PreviewGrouping.TEAM.value
    if grouping not in list(PreviewGrouping):
        raise InputError(GROUPING, grouping, ", ".join(PreviewGrouping))
    return previewed(principal, known, month, PreviewBody(policies=policies, by=PreviewGrouping(grouping)))


def _page(
    frame: PageFrame, month: Month, said: Mapping[str, str], found: ChargebackPreview | None
) -> PageContent:
    return content(
        f"{display.month_name(month)} by other rules",
        "preview_page.html.j2",
        month=month,
        said=said,
        found=found,
        groupings=_GROUPINGS,
        csrf=frame.form_token,
        words=_WORDS,
        kinds=ChargeKind,
        relative=relative,
        is_kept=lambda each: each.team == PLATFORM,
        in_force=frame.known.policy,
    )


def relative(found: PreviewTeam) -> str:
    """What it would pay more or less, of what it pays by the first policy; a dash from nothing."""
    first = found.totals[0].nano
    return display.signed_percent(Fraction(found.difference_nano, first)) if first > 0 else display.MISSING
