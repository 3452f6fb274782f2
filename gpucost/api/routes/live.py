"""The watched cluster as it is now: GET /v1/queues, /v1/nodes, and /v1/state for ``gpucost state show``.

Live estimates, made of the state that the advisor answers from. ``queues_now`` and ``nodes_now`` are what the
pages show.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic.json_schema import SkipJsonSchema

from gpucost.access.principal import Principal
from gpucost.api.routes.requests import JSON, refuse_unknown_parameters
from gpucost.api.routes.responses import described
from gpucost.api.server.authentication import Reader, authenticate
from gpucost.api.server.errors import advisor_busy, no_state, responses
from gpucost.api.server.services import ApiServices, KnownServices, OneCluster
from gpucost.api.server.threads import in_own_thread
from gpucost.reports.base.document import to_json
from gpucost.reports.live.nodes_now import NodesNow
from gpucost.reports.live.queues_now import QueuesNow
from gpucost.reports.live.state_document import state_json
from gpucost.reports.live.state_facts import StateFacts
from gpucost.service.advisor.advisor_service import NoState
from gpucost.service.advisor.live_reports import AdvisorTaken, LiveJobs, LiveReports
from gpucost.service.reporting.rendering import ReportFormat

router = APIRouter(dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)])

_LONGEST_NAME = 253
_STATUSES = (400, 401, 403, 422, 503)


@router.get(
    "/v1/queues",
    response_class=Response,
    responses={200: described(QueuesNow, ReportFormat.JSON, of_ledger=False), **responses(*_STATUSES)},
)
async def get_queues(
    principal: Reader,
    known: KnownServices,
    cluster: OneCluster = None,
    queue: Annotated[
        str | SkipJsonSchema[None],
        Query(max_length=_LONGEST_NAME, description="only this ClusterQueue, cohort or queue of Volcano"),
    ] = None,
) -> Response:
    """Queues now: quota, use, loans, who waits and why, money an hour, and when a job may start. A team's
    caller has its own jobs, and its own part of the queues that it may use."""
    found = await in_own_thread(queues_now, known, principal, cluster, queue)
    return Response(to_json(found), media_type=JSON)


@router.get(
    "/v1/nodes",
    response_class=Response,
    responses={200: described(NodesNow, ReportFormat.JSON, of_ledger=False), **responses(*_STATUSES)},
)
async def get_nodes(
    principal: Reader,
    known: KnownServices,
    cluster: OneCluster = None,
    node: Annotated[
        str | SkipJsonSchema[None], Query(max_length=_LONGEST_NAME, description="only this node")
    ] = None,
) -> Response:
    """Nodes now: who is on which GPUs, what is free, broken or closed, and money an hour. A team's caller has
    the nodes where its pods are, and these pods."""
    found = await in_own_thread(nodes_now, known, principal, cluster, node)
    return Response(to_json(found), media_type=JSON)


_STATE = described(StateFacts, ReportFormat.JSON, of_ledger=False)
_STATE["content"][JSON]["schema"] = {
    "type": "object",
    "title": StateFacts.__name__,
    "description": StateFacts.__doc__,
    "properties": {name.removesuffix("_ms"): {} for name in StateFacts.__dataclass_fields__},
}


@router.get("/v1/state", response_class=Response, responses={200: _STATE, **responses(*_STATUSES)})
async def get_state(principal: Reader, known: KnownServices, cluster: OneCluster = None) -> Response:
    """The state of the cluster as gpucost state show --format json prints it. A team's caller has its own
    jobs, gangs, and part of the queues; nodes, loans and problems are left out."""
    found = await in_own_thread(state_now, known, principal, cluster)
    return Response(state_json(found), media_type=JSON)


def queues_now(
    known: ApiServices, principal: Principal, cluster: str | None = None, queue: str | None = None
) -> QueuesNow:
    """The queues that the caller may see. Raises ApiError (503) where there is no current state, InputError
    for a cluster or queue that the caller does not see."""
    with _watched(known, principal, cluster) as live:
        return live.queues(principal.scope, queue)


def nodes_now(
    known: ApiServices, principal: Principal, cluster: str | None = None, node: str | None = None
) -> NodesNow:
    """The nodes that the caller may see. Raises as ``queues_now``."""
    with _watched(known, principal, cluster) as live:
        return live.nodes(principal.scope, node)


def state_now(known: ApiServices, principal: Principal, cluster: str | None = None) -> StateFacts:
    """The facts that the caller may see. Raises as ``queues_now``."""
    with _watched(known, principal, cluster) as live:
        return live.state(principal.scope)


def live_jobs(known: ApiServices, principal: Principal, cluster: str | None = None) -> LiveJobs | None:
    """The jobs of the watched cluster that the caller may see; None where they are not known now, or another
    cluster is asked for."""
    live, scope = known.live, principal.scope
    if live is None or not scope.sees_cluster(live.cluster) or cluster not in (None, live.cluster):
        return None
    try:
        return live.jobs(scope)
    except (NoState, AdvisorTaken):
        return None


@contextmanager
def _watched(known: ApiServices, principal: Principal, cluster: str | None) -> Iterator[LiveReports]:
    """What is known of the watched cluster. Raises ApiError (503) where there is none that the caller may
    see, where its state is not known, and while too many ask."""
    live, scope = known.live, principal.scope
    if live is None or not scope.sees_cluster(live.cluster):
        known.reporting.of_cluster(scope, cluster)
        yours = "" if scope.clusters is None else " that you may see"
        raise no_state(f"this gpucost watches no cluster{yours}: see the setting detectors.state")
    if cluster is not None and cluster != live.cluster:
        known.reporting.of_cluster(scope, cluster)
        raise no_state(f"this gpucost watches {live.cluster}: it does not know what {cluster} is like now")
    try:
        yield live
    except NoState as error:
        raise no_state(str(error)) from None
    except AdvisorTaken as error:
        raise advisor_busy(int(str(error))) from None
