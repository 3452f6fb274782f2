"""What a month would have been under other rules: the replays of it that were kept, each beside its baseline.

The figures are those of ``GET /v1/months/{month}/replays/{name}``, for the same roles. Nothing is played for
a page: ``gpucost replay MONTH --keep NAME`` keeps one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from pydantic.json_schema import SkipJsonSchema

from gpucost.api.pages.page_layout import PageContent, PageFrame, content
from gpucost.api.routes.months import MonthText, refuse_part
from gpucost.api.routes.requests import refuse_unknown_parameters
from gpucost.api.server.authentication import Accountant, authenticate
from gpucost.api.server.errors import not_found
from gpucost.api.server.services import KnownServices
from gpucost.api.server.threads import in_own_thread
from gpucost.domain.errors import InputError
from gpucost.domain.time import Month
from gpucost.reports.base import display
from gpucost.reports.render.html import timeline_charts
from gpucost.reports.replay.scenario_answer import ReplayReport, ScenarioAnswer
from gpucost.reports.replay.terminal_replay import (
    NOT_TOLD,
    cluster_rows,
    difference_words,
    group_name,
    money_rows,
    short,
    shown_groups,
    why_words,
)
from gpucost.service.replay.kept_replays import kept_names, kept_report

router = APIRouter(
    dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)], include_in_schema=False
)
OneReplay = Annotated[str | SkipJsonSchema[None], Query(max_length=60, description="the name it is kept by")]
OneScenario = Annotated[str | SkipJsonSchema[None], Query(max_length=253, description="one of its scenarios")]
MOST_GROUPS = 60


@router.get("/month/{month}/what-if")
async def show_what_if(
    request: Request,
    principal: Accountant,
    known: KnownServices,
    month: MonthText,
    replay: OneReplay = None,
    scenario: OneScenario = None,
) -> Response:
    """The replays of a month; of one of them a scenario above its baseline."""
    wanted = Month.parse(month)
    refuse_part(principal, "what every team waits and pays")
    folder = known.settings.replays
    names = kept_names(folder, wanted)
    name = replay or (names[0] if names else None)
    found = None
    if name is not None:
        async with known.gate.turn(known.gate.until()):
            found = await in_own_thread(kept_report, folder, wanted, name)
        if found is None:
            raise not_found("replay", name, ", ".join(names) or "none is kept of this month")
    frame = PageFrame(request, known, principal, "month", wanted)
    return await frame.response(_page(wanted, names, name or "", found, scenario))


def _page(
    month: Month, names: tuple[str, ...], name: str, found: ReplayReport | None, scenario: str | None
) -> PageContent:
    base = chosen = None
    if found is not None:
        base, chosen = found.scenarios[0], _chosen(found, scenario)
    shown = [] if base is None or chosen is None else [base] if chosen is base else [base, chosen]
    return content(
        f"What if: {display.month_name(month)}",
        "what_if_page.html.j2",
        month=month,
        names=names,
        name=name,
        found=found,
        base=base,
        chosen=chosen,
        groups=[] if chosen is None else shown_groups(chosen)[:MOST_GROUPS],
        cluster=list(_cluster(found, shown)),
        charts=tuple(zip(shown, timeline_charts([_steps(each) for each in shown], "day"), strict=True)),
        short=short,
        group_name=group_name,
        money_rows=money_rows,
        difference_words=difference_words,
        why_words=why_words,
        not_told=NOT_TOLD,
    )


def _cluster(found: ReplayReport | None, shown: Sequence[ScenarioAnswer]) -> Iterator[tuple[str, list[str]]]:
    """Each figure of the cluster by its name, in each of ``shown``."""
    if found is None:
        return
    figures = [dict(cluster_rows(each.cluster, found.currency)) for each in shown]
    for name in dict.fromkeys(name for each in figures for name in each):
        yield name, [each.get(name, display.MISSING) for each in figures]


def _chosen(found: ReplayReport, scenario: str | None) -> ScenarioAnswer:
    """The first that changes something, unless one is named. Raises InputError."""
    if scenario is None:
        return found.scenarios[min(1, len(found.scenarios) - 1)]
    named = {each.name: each for each in found.scenarios}
    if scenario not in named:
        raise InputError("scenario", scenario, ", ".join(named))
    return named[scenario]


def _steps(found: ScenarioAnswer) -> Mapping[str, tuple[int, int]]:
    """By day, or by hour where the window is short."""
    is_short = len(found.timeline) > 1 and found.timeline[0].start[:10] == found.timeline[1].start[:10]
    length = 16 if is_short else 10
    return {
        each.start[:length].replace("T", " "): (each.held_board_ms, each.waiting_board_ms)
        for each in found.timeline
    }
