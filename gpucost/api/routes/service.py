"""The index, and the routes for machines: liveness, readiness, metrics, and the OpenAPI document."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel, Field

from gpucost.api.metrics.collector import registry_of_clusters
from gpucost.api.routes.requests import refuse_unknown_parameters
from gpucost.api.server.authentication import Operator, Reader, authenticate
from gpucost.api.server.errors import loop_stalled, responses
from gpucost.api.server.services import ApiServices, KnownServices, ReadinessState
from gpucost.domain.scope import Scope
from gpucost.service.ingest.status import ClusterStatus

public = APIRouter(dependencies=[Depends(refuse_unknown_parameters)])
router = APIRouter(dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)])


class Index(BaseModel):
    """The routes, and what each of them answers."""

    routes: dict[str, str]


class Health(BaseModel):
    """How the process is, in a word or two."""

    status: str


class ClusterReadiness(BaseModel):
    """How one cluster stands. Null is "not known yet", never 0."""

    cluster: str
    lag_seconds: float | None = Field(description="how far the settled windows are behind now, never below 0")
    source_up: bool | None = Field(description="whether the last read of the source succeeded")
    pending_windows: int | None = Field(description="windows that have ended and are not in the ledger")
    lost_windows: int | None = Field(description="windows that nobody holds any more")
    open_because: list[str] = Field(description="what could not be read, and why")


class Readiness(BaseModel):
    """The ledger answers; how far it is."""

    status: str
    currency: str | None
    clusters: list[ClusterReadiness]


@public.get("/healthz", responses=responses(400))
async def healthz() -> Health:
    """Whether the process answers; asks nobody else."""
    return Health(status="ok")


@public.get(
    "/healthz/ready", responses={**responses(400), 503: {"model": Health, "description": "not ready"}}
)
async def healthz_ready(known: KnownServices, response: Response) -> Health:
    """Whether requests should be sent here: ready; with 503 stopping, loop stalled or ledger unavailable."""
    found = await known.readiness.look()
    if found is not ReadinessState.READY:
        response.status_code = 503
    return Health(status=found.value)


@router.get("/", responses=responses(400, 401))
def index(request: Request) -> Index:
    """The routes of this API, for whoever has any key. A browser is led to the page of the newest month."""
    paths = request.app.openapi()["paths"]
    return Index(routes={path: _told(item) for path, item in paths.items()})


def _told(item: dict[str, Any]) -> str:
    """The description of a path's GET; where it has none, that of its POST, marked as such."""
    method = "get" if "get" in item else "post"
    text = str(item[method]["description"]).partition("\n\n")[0]
    return text if method == "get" else f"POST: {text}"


@router.get("/readyz", responses=responses(400, 401, 403, 503))
def readyz(principal: Operator, known: KnownServices) -> Readiness:
    """Whether the ledger can be read, and how far it is behind. 503 when it cannot, or the loop is dead.

    Clusters are those that the caller may see.
    """
    stalled = known.status.stalled()
    if stalled is not None:
        raise loop_stalled(stalled)
    clusters = cluster_readiness(known, principal.scope)
    return Readiness(status="ready", currency=known.ledger.currency, clusters=clusters)


def cluster_readiness(known: ApiServices, scope: Scope) -> list[ClusterReadiness]:
    """How each cluster of ``scope`` stands, by name."""
    ledger, status = known.ledger, known.status.clusters()
    clusters = []
    for name in sorted({*ledger.clusters(scope=scope), *filter(scope.sees_cluster, status)}):
        lag_ms, found = known.lag_ms(name), status.get(name, ClusterStatus())
        clusters.append(
            ClusterReadiness(
                cluster=name,
                lag_seconds=None if lag_ms is None else lag_ms / 1000,
                source_up=found.up,
                pending_windows=found.pending,
                lost_windows=found.lost,
                open_because=[str(failure) for failure in found.failures],
            )
        )
    return clusters


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {
            "description": "Prometheus text or OpenMetrics",
            "content": {
                "text/plain": {"schema": {"type": "string"}},
                "application/openmetrics-text": {"schema": {"type": "string"}},
            },
        },
        **responses(400, 401, 403),
    },
)
def metrics(request: Request, principal: Operator) -> Response:
    """The service's own metrics, and the cost of the current month by team and job.

    Who is bound to clusters gets what is of these, and what is of no cluster at all.
    """
    found = request.app.state.registry
    assert isinstance(found, CollectorRegistry)
    if principal.scope.clusters is not None:
        found = registry_of_clusters(found, principal.scope)
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(found), media_type=content_type)


@router.get("/v1/openapi.json", responses=responses(400, 401, 403))
def openapi(request: Request, principal: Reader) -> dict[str, Any]:
    """This description of the API, as OpenAPI 3.1."""
    del principal
    found: dict[str, Any] = request.app.openapi()
    return found
