"""POST /v1/advisor/advice and GET /v1/explain: what would become of a job, and what holds one back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import JSONResponse, Response

from gpucost.access.principal import LOOPBACK, Principal
from gpucost.advisor.model.answers import Advice, AdviceSubject, Explanation
from gpucost.advisor.model.encoding import document, schema
from gpucost.advisor.model.redaction import redact_advice, redact_explanation
from gpucost.api.routes import requests
from gpucost.api.routes.requests import (
    JSON,
    YAML,
    AdviceBody,
    refuse_unknown_parameters,
    require_type,
)
from gpucost.api.server.authentication import Reader, admit, authenticate
from gpucost.api.server.errors import (
    ADVICE_PATH,
    BYTES_A_REQUEST,
    LARGEST_MANIFEST,
    MOST_MANIFEST_VALUES,
    advisor_busy,
    media_type,
    no_state,
    not_found,
    responses,
)
from gpucost.api.server.services import ApiServices, KnownServices
from gpucost.api.server.threads import in_own_thread
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.kube.manifests.reader import checked, documents
from gpucost.service.advisor.advisor_service import AdvisorService, AdvisorSnapshot, NoState

_GUARDS = [Depends(authenticate), Depends(refuse_unknown_parameters)]
router = APIRouter(dependencies=_GUARDS)
questions = APIRouter(dependencies=[*_GUARDS, Depends(require_type(JSON, *YAML))])

_BODY = "body"


@dataclass(frozen=True, slots=True)
class AdviceQuestion:
    """The content of a request for advice."""

    manifest: Mapping[str, Any]
    suggestions: bool = True


@dataclass(frozen=True, slots=True)
class UnreadQuestion:
    """A body as it was received. Parsing may cost as much as answering, so it belongs to the turn: in a
    thread, and never where all requests are accepted."""

    content: bytes
    is_json: bool


async def _unread(request: Request) -> UnreadQuestion:
    return UnreadQuestion(await request.body(), media_type(request) == JSON)


def _question(unread: UnreadQuestion) -> AdviceQuestion:
    """JSON is an ``AdviceBody``; YAML is the manifest itself. Raises ApiError and InputError.

    Neither may have an anchor, alias or tag, be nested deeper than ``yaml_documents.DEEPEST``, or hold more
    than ``MOST_MANIFEST_VALUES``: YAML is refused at the first of these, before the rest is parsed.
    """
    if unread.is_json:
        sent = requests.parsed(AdviceBody, unread.content)
        return AdviceQuestion(checked(sent.manifest, "manifest", MOST_MANIFEST_VALUES), sent.suggestions)
    found = documents(unread.content, _BODY, MOST_MANIFEST_VALUES)
    if len(found) != 1:
        raise InputError(_BODY, ErrorRemark(f"{len(found)} documents"), "the manifest of one job")
    return AdviceQuestion(found[0].document)


def _described(answer: type[Advice | Explanation]) -> dict[str, Any]:
    """The OpenAPI entry of a success. The fields are those of the dataclass, by the rules of
    ``gpucost.advisor.model.encoding``."""
    properties: dict[str, Any] = {"schema": {"type": "string", "const": schema(answer)}, "subject": {}}
    content = {"schema": {"type": "object", "title": answer.__name__, "properties": properties}}
    content["schema"]["required"] = list(properties)
    return {"description": (answer.__doc__ or "").partition("\n")[0], "content": {JSON: content}}


@questions.post(
    ADVICE_PATH,
    max_body_size=LARGEST_MANIFEST,
    response_class=Response,
    responses={200: _described(Advice), **responses(400, 401, 403, 404, 413, 415, 422, 503)},
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                JSON: {"schema": AdviceBody.model_json_schema()},
                YAML[0]: {"schema": {"type": "string", "description": "the manifest of one job"}},
            },
        }
    },
)
async def get_advice(
    principal: Reader, known: KnownServices, unread: Annotated[UnreadQuestion, Depends(_unread)]
) -> Response:
    """Whether a job would run if it were submitted now, when, at what price, and what to change.

    Nothing is submitted. A namespace in which nothing is of the caller's teams is not found. Of a manifest
    each KiB counts as one more request against ``api.rate``.
    """
    admit(known, principal, len(unread.content) // BYTES_A_REQUEST)
    return await in_own_thread(_advice, principal, known, unread)


def _advice(principal: Principal, known: ApiServices, unread: UnreadQuestion) -> Response:
    return JSONResponse(document(advised(principal, known, unread)))


def advised(principal: Principal, known: ApiServices, unread: UnreadQuestion) -> Advice:
    """The answer to ``unread``, as the caller may see it. Raises InputError, which names the field, and
    ApiError: 404 for a namespace of others, 503 where there is no state, or too many ask."""
    with _asked(known, principal) as (advising, informed):
        question = _question(unread)
        manifest = advising.read(question.manifest, informed, _BODY)
        teams, tenants = principal.scope.teams, informed.tenants
        if teams is not None and not tenants.works_in(teams, manifest.namespace):
            raise not_found("metadata.namespace", manifest.namespace, "nothing of your teams is there")
        found = advising.advise(manifest, informed, suggestions=question.suggestions, teams=teams)
        return found if teams is None else redact_advice(found, tenants.of_teams(teams), question.manifest)


@router.get(
    "/v1/explain/{kind}/{namespace}/{name}",
    response_class=Response,
    responses={200: _described(Explanation), **responses(400, 401, 403, 404, 422, 503)},
)
async def get_explanation(
    principal: Reader,
    known: KnownServices,
    kind: Annotated[str, Path(max_length=253, description="kind of the job, such as Job or PyTorchJob")],
    namespace: Annotated[str, Path(max_length=253, description="its namespace")],
    name: Annotated[str, Path(max_length=253, description="its name")],
) -> Response:
    """What holds a job, layer by layer, since when, and what to do.

    A job of a team that the caller may not see is not found.
    """
    return await in_own_thread(_explanation, principal, known, kind, namespace, name)


def _explanation(principal: Principal, known: ApiServices, kind: str, namespace: str, name: str) -> Response:
    return JSONResponse(document(explained(principal, known, kind, namespace, name)))


def explained(principal: Principal, known: ApiServices, kind: str, namespace: str, name: str) -> Explanation:
    """What holds a job, as the caller may see it. Raises ApiError: 404 for a job of others, 503 where there
    is no state, or too many ask."""
    with _asked(known, principal) as (advising, informed):
        found, teams, tenants = None, principal.scope.teams, informed.tenants
        if teams is None or tenants.owns(teams, AdviceSubject(kind, namespace, name)):
            found = advising.explain(kind, namespace, name, informed, teams=teams)
        if found is None:
            raise not_found("name", name, "no such job")
        if teams is None:
            return found
        written = tenants.written_for(found.subject.uid, namespace)
        return redact_explanation(found, tenants.of_teams(teams), written)


@contextmanager
def _asked(known: ApiServices, principal: Principal) -> Iterator[tuple[AdvisorService, AdvisorSnapshot]]:
    """A turn to ask the advisor. Raises a 503 without a current state, while too many ask or the same key
    does."""
    advising, scope = known.advising, principal.scope
    if advising is None or not scope.sees_cluster(advising.watched.cluster):
        yours = "" if scope.clusters is None else " that you may see"
        raise no_state(f"this gpucost watches no cluster{yours}: see the setting detectors.state")
    who = "" if principal is LOOPBACK else principal.id  # without keys callers are not distinguished
    with advising.turns.one(who) as is_free:
        if not is_free:
            raise advisor_busy(1 if advising.turns.is_asking(who) else advising.turns.most, who)
        try:
            informed = advising.informed()
        except NoState as error:
            raise no_state(str(error)) from None
        yield advising, informed
