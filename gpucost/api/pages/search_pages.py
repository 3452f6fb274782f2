"""Search: jobs, teams, people, queues and nodes by a part of their name, of those that the reader may see.

The ledger bounds what is looked at (``gpucost.ledger.usage.name_search``). ``month`` is the one that results
lead to; the newest without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from pydantic.json_schema import SkipJsonSchema

from gpucost.api.pages.page_layout import PageContent, PageFrame, content, months_seen, shown
from gpucost.api.routes.requests import refuse_unknown_parameters
from gpucost.api.server.authentication import Reader, authenticate
from gpucost.api.server.services import ApiServices, KnownServices
from gpucost.domain.scope import Scope
from gpucost.domain.time import Month
from gpucost.ledger.usage.name_search import (
    LEAST_TEXT,
    MOST_FOUND,
    MOST_HOLDERS,
    FoundJob,
    check_search,
)
from gpucost.reports.base import display

router = APIRouter(
    dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)], include_in_schema=False
)


@dataclass(frozen=True, slots=True)
class SearchResults:
    """What was found, by kind; ``cut`` says that only the newest pods were looked at."""

    jobs: tuple[FoundJob, ...]
    teams: tuple[str, ...]
    users: tuple[str, ...]
    queues: tuple[str, ...]
    nodes: tuple[tuple[str, str], ...]
    cut: bool

    @property
    def count(self) -> int:
        return sum(len(each) for each in (self.jobs, self.teams, self.users, self.queues, self.nodes))


@router.get("/search")
async def show_search(
    request: Request,
    principal: Reader,
    known: KnownServices,
    q: Annotated[str, Query(max_length=1_000, description="a part of a name, at least two characters")] = "",
    month: Annotated[
        str | SkipJsonSchema[None], Query(max_length=64, description="the month that results lead to")
    ] = None,
) -> Response:
    """Names that have ``q`` in them; without it, what can be searched for."""
    months = await months_seen(known, principal.scope)
    wanted = Month.parse(month) if month else next(iter(months), None)
    asked = check_search(q) if q.strip() else ""

    def make() -> PageContent:
        found = results(known, principal.scope, asked, wanted) if asked else None
        return content(
            f"Search: {display.visible(asked, 60)}" if asked else "Search",
            "search_page.html.j2",
            asked=asked,
            found=found,
            month=wanted,
            several=len(known.ledger.clusters(scope=principal.scope)) > 1,
            most=MOST_FOUND,
            least=LEAST_TEXT,
            looked_at=MOST_HOLDERS,
        )

    frame = PageFrame(request, known, principal, "search", wanted)
    return await shown(frame, ("search", asked, wanted), make)


def results(known: ApiServices, scope: Scope, asked: str, month: Month | None) -> SearchResults:
    """The names in the ledger, teams of the team rules, and nodes, that the reader may see."""
    hits, words = known.ledger.find_names(scope, asked), asked.casefold()
    # The rules are of all clusters: who sees some is told who held GPUs in these.
    ruled = known.reporting.accounts.keys() if scope.clusters is None else ()
    named = {
        team for team in ruled if words in team.casefold() and (scope.teams is None or team in scope.teams)
    }
    teams = sorted({team for team in hits.teams if not team.startswith("__")} | named)
    nodes = _own_nodes(known, scope, words, month) if hits.nodes is None else hits.nodes
    return SearchResults(hits.jobs, tuple(teams)[:MOST_FOUND], hits.users, hits.queues, nodes, hits.cut)


def _own_nodes(
    known: ApiServices, scope: Scope, words: str, month: Month | None
) -> tuple[tuple[str, str], ...]:
    """The nodes that the reader's teams had GPUs of in ``month``: whatever is asked, the same is read."""
    if month is None:
        return ()
    found = known.reporting.allocations(scope, month.window, ("cluster", "node")).report.rows
    rows = {(each.group["cluster"], each.group["node"]) for each in found}
    own = (each for each in rows if words in each[1].casefold())
    return tuple(sorted(own, key=lambda each: (each[1], each[0]))[:MOST_FOUND])
