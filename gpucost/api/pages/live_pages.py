"""Queues and nodes as they are now: who waits and why, what is lent to whom, who is on which GPU, what is
free or broken, and what it costs an hour.

Live estimates, of the state that the advisor answers from: they say as of when, and never look like a month.
The figures are those of ``GET /v1/queues`` and ``GET /v1/nodes``; what is added up here, is added up of their
rows. Never kept: the state is no part of the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from gpucost.api.pages.page_layout import PageContent, PageFrame, content, months_seen
from gpucost.api.routes.live import nodes_now, queues_now
from gpucost.api.routes.requests import WholeNumber, refuse_unknown_parameters
from gpucost.api.server.authentication import Reader, authenticate
from gpucost.api.server.errors import ApiError
from gpucost.api.server.services import KnownServices
from gpucost.api.server.threads import in_own_thread
from gpucost.domain.time import DAY_MS, MINUTE_MS, Month, parse_instant
from gpucost.reports.base import display, page_addresses
from gpucost.reports.live.nodes_now import LiveNode, NodeGpus, NodesNow
from gpucost.reports.live.queues_now import QueuesNow

router = APIRouter(
    dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)], include_in_schema=False
)

MOST_WAITING = 60
MOST_QUEUES = 100
MOST_NAMES = 300
MOST_NODES = 48
MOST_SLOTS = 16
"""Most GPUs of a resource that are drawn one by one; of more the numbers say it."""
MOST_TEAMS = 6
OTHER_TEAMS = "others"
NO_STATE = "no_state"

Name = Annotated[str, Query(max_length=253)]


@router.get("/queues")
async def show_queues(
    request: Request, principal: Reader, known: KnownServices, cluster: Name = "", queue: Name = ""
) -> Response:
    """Quota, use, loans, and who waits for what reason."""
    frame = PageFrame(request, known, principal, "queues")
    months = await months_seen(known, principal.scope)

    def make() -> PageContent:
        found = queues_now(known, principal, cluster or None)
        if queue not in {each.name for each in found.queues}:
            # Of an old link, or of a namespace: all queues help more than a refusal.
            return _queues(found, found, "", months, missing=queue)
        return _queues(found, queues_now(known, principal, cluster or None, queue), queue, months)

    return await _shown(frame, cluster, make_page=make)


@router.get("/nodes")
async def show_nodes(
    request: Request,
    principal: Reader,
    known: KnownServices,
    cluster: Name = "",
    node: Name = "",
    page: Annotated[WholeNumber, Query(ge=1, le=10_000, description="of many nodes, counted from 1")] = 1,
) -> Response:
    """Who is on which GPU, what is free, and what is broken."""
    frame = PageFrame(request, known, principal, "nodes")
    months = await months_seen(known, principal.scope)

    def make() -> PageContent:
        found = nodes_now(known, principal, cluster or None)
        if node not in {each.name for each in found.nodes}:
            return _nodes(found, "", page, months, missing=node)
        return _nodes(nodes_now(known, principal, cluster or None, node), node, page, months)

    return await _shown(frame, cluster, make_page=make)


async def _shown(frame: PageFrame, cluster: str, make_page: Callable[[], PageContent]) -> Response:
    """The page, or what there is to do where no cluster is watched, or its state is not known."""
    known, scope = frame.known, frame.principal.scope
    live = known.live
    if live is None or not scope.sees_cluster(live.cluster):
        await run_in_threadpool(known.reporting.of_cluster, scope, cluster or None)
        return await frame.response(_unwatched(frame.section, ""))
    try:
        found = await in_own_thread(make_page)
    except ApiError as error:
        if error.body.error.code != NO_STATE:
            raise
        late = replace(frame, status=error.status, headers=error.headers)
        return await late.response(_unwatched(frame.section, error.body.error.message))
    return await frame.response(found)


def _unwatched(section: str, why: str) -> PageContent:
    return content(f"{section.capitalize()} now", "unwatched_page.html.j2", section=section, why=why)


# --- queues ---------------------------------------------------------------------------------------------


def _queues(
    every: QueuesNow, found: QueuesNow, queue: str, months: Sequence[Month], missing: str = ""
) -> PageContent:
    """``every`` has the queues to choose from, ``found`` what is shown; there is no queue called ``missing``
    that the reader may see."""
    priced = [each for each in found.queues if each.is_queue]
    return content(
        "Queues now",
        "queues_page.html.j2",
        found=found,
        chosen=queue,
        missing=missing,
        names=[each.name for each in every.queues][:MOST_NAMES],
        queues=found.queues[:MOST_QUEUES],
        waiting=found.waiting[:MOST_WAITING],
        waiting_gpus=_units(each.gpus for each in found.waiting),
        per_hour_nano=_sum(each.per_hour_nano for each in priced),
        unpriced_pods=sum(each.unpriced_pods for each in priced),
        borrowed=_units({each.resource: each.borrowed} for each in found.loans),
        month=months[0] if months else None,
        waited=lambda since: waited(found.at, since),
        moment=lambda instant: moment(found.at, instant),
        part=used_part,
        rows_json=page_addresses.address("/v1/queues", queue=queue),
    )


def used_part(reserved: int | None, nominal: int | None) -> Fraction | None:
    """How much of its own quota a queue has given; above 1 where it borrows. None where one is not known."""
    return None if reserved is None or not nominal else Fraction(reserved, nominal)


def waited(at: str, since: str) -> str:
    """How long, to the minute."""
    length_ms = parse_instant(at) - parse_instant(since)
    return "less than a minute" if length_ms < MINUTE_MS else rounded(length_ms)


def rounded(length_ms: int) -> str:
    """``1 h 56 min``; days from two on."""
    if length_ms >= 2 * DAY_MS:
        return display.span_of_days(length_ms)
    hours, minutes = divmod(length_ms // MINUTE_MS, 60)
    return " ".join(f"{count} {unit}" for count, unit in ((hours, "h"), (minutes, "min")) if count)


def moment(at: str, instant: str | None) -> str:
    """``14:30`` of the day of ``at``, else ``2026-11-02 14:30``; a dash for none."""
    if instant is None:
        return display.MISSING
    day, _, time = instant.partition("T")
    return time[:5] if at.startswith(day) else f"{day} {time[:5]}"


def _units(rows: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """GPU units by resource, by name."""
    found: dict[str, int] = {}
    for row in rows:
        for resource, count in row.items():
            found[resource] = found.get(resource, 0) + count
    return dict(sorted(found.items()))


def _sum(amounts: Iterable[int | None]) -> int | None:
    known = [each for each in amounts if each is not None]
    return sum(known) if known else None


# --- nodes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuSlot:
    """One GPU unit of a node, drawn: ``css`` colours it, ``title`` says what it is. Which pod is on which
    board is said by few clusters, so the order of slots means nothing."""

    css: str
    title: str


@dataclass(frozen=True, slots=True)
class SlotRow:
    """The units of one resource of a node; ``slots`` are empty where there are too many to draw."""

    resource: str
    slots: tuple[GpuSlot, ...]


@dataclass(frozen=True, slots=True)
class ModelSum:
    """Nodes of one model and resource, added up; None where it is not known of one of them."""

    model: str
    product: str
    resource: str
    nodes: int
    count: int
    held: int | None
    free: int | None
    unavailable: int | None


def _nodes(found: NodesNow, node: str, page: int, months: Sequence[Month], missing: str = "") -> PageContent:
    """There is no node called ``missing`` that the reader may see."""
    colours = team_colours(found.nodes)
    ranked, first = sorted(found.nodes, key=_worst_first), (page - 1) * MOST_NODES
    shown = ranked[first : first + MOST_NODES]
    return content(
        "Nodes now" if not node else f"Node {display.name(node, 60)}, now",
        "nodes_page.html.j2",
        found=found,
        chosen=node,
        missing=missing,
        nodes=[(each, slot_rows(each, colours)) for each in shown],
        models=model_sums(found.nodes),
        page=page,
        before=min(first, len(ranked)),
        following=page + 1 if first + MOST_NODES < len(ranked) else None,
        colours=colours,
        others=OTHER_TEAMS,
        has_others=len({pod.team for each in found.nodes for pod in each.pods}) > len(colours),
        holes=sum(bool(each.has_hole) for each in found.nodes),
        closed=sum(bool(each.closed) for each in found.nodes),
        held_nano=_sum(each.held_per_hour_nano for each in found.nodes),
        free_nano=_sum(each.free_per_hour_nano for each in found.nodes),
        held_unpriced=_unpriced(found.nodes, "held"),
        free_unpriced=_unpriced(found.nodes, "free"),
        month=months[0] if months else None,
        waited=lambda since: waited(found.at, since),
        rows_json=page_addresses.address("/v1/nodes", node=node),
    )


def _unpriced(nodes: Iterable[LiveNode], part: Literal["held", "free"]) -> int:
    """Nodes of which GPUs of this part cost something that is not known."""
    return sum(
        getattr(node, f"{part}_per_hour_nano") is None and any(getattr(each, part) for each in node.gpus)
        for node in nodes
    )


def _worst_first(node: LiveNode) -> tuple[int, str]:
    """What is closed or broken, then holes, then the rest, by name."""
    broken = any(each.unavailable for each in node.gpus) or any(each.unhealthy_gpus for each in node.pods)
    return 0 if node.closed or not node.is_ready or broken else 1 if node.has_hole else 2, node.name


def team_colours(nodes: Iterable[LiveNode]) -> dict[str, str]:
    """The class of each of the teams that hold most; the others share one."""
    held: dict[str, int] = {}
    for node in nodes:
        for pod in node.pods:
            held[pod.team] = held.get(pod.team, 0) + sum(pod.gpus.values())
    ranked = sorted(held, key=lambda team: (-held[team], team))
    return {team: f"s{at}" for at, team in enumerate(ranked[:MOST_TEAMS])}


def slot_rows(node: LiveNode, colours: Mapping[str, str]) -> tuple[SlotRow, ...]:
    """The units of a node, those that are held first."""
    return tuple(SlotRow(each.resource, tuple(_slots(node, each, colours))) for each in node.gpus)


def _slots(node: LiveNode, gpus: NodeGpus, colours: Mapping[str, str]) -> Iterator[GpuSlot]:
    if gpus.count > MOST_SLOTS:
        return
    told = 0
    for pod in node.pods:
        who = f"{display.name(pod.team, 40)}: {display.name(pod.job, 60)}"
        for _ in range(min(pod.gpus.get(gpus.resource, 0), gpus.count - told)):
            told += 1
            yield GpuSlot(colours.get(pod.team, OTHER_TEAMS), who)
    # Held by a pod that the reader does not see, or that is not read, is not told from free.
    if gpus.free is None or gpus.unavailable is None:
        yield from [GpuSlot("nobody", "not yours, or free: not told")] * (gpus.count - told)
        return
    rest = gpus.count - told - gpus.free - gpus.unavailable
    yield from [GpuSlot(OTHER_TEAMS, "held")] * max(0, rest)
    yield from [GpuSlot("free", "free")] * gpus.free
    yield from [GpuSlot("unavailable", node.closed or "broken, or not advertised")] * gpus.unavailable


def model_sums(nodes: Iterable[LiveNode]) -> tuple[ModelSum, ...]:
    """By model, product (which says how GPUs are cut or shared) and resource, the most units first."""
    of: dict[tuple[str, str, str], list[NodeGpus]] = {}
    for node in nodes:
        for each in node.gpus:
            of.setdefault((node.model, node.product, each.resource), []).append(each)
    found = [
        ModelSum(
            model,
            product,
            resource,
            len(rows),
            sum(each.count for each in rows),
            _whole(each.held for each in rows),
            _whole(each.free for each in rows),
            _whole(each.unavailable for each in rows),
        )
        for (model, product, resource), rows in of.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.count, each.model, each.product, each.resource)))


def _whole(counts: Iterable[int | None]) -> int | None:
    """The sum; None where one of them is not known."""
    known = list(counts)
    there = [each for each in known if each is not None]
    return sum(there) if len(there) == len(known) else None
