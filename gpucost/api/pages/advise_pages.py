"""Advise: a manifest is pasted, and the answer says whether, when and at what price it would run, and what to
change. Explain: what holds a job that is in the cluster. Nothing is submitted, and nothing is kept.

The answers are those of ``POST /v1/advisor/advice`` and ``GET /v1/explain``: within the same limits, and
redacted in the same way. They are of now, and never part of a month. Where no cluster is watched, the pages
say which setting it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from gpucost.access.principal import Principal
from gpucost.advisor.model.answers import Advice, SchedulingDecision, SuggestedChangeKind
from gpucost.api.pages.page_layout import PageFrame, content, is_page, read_form
from gpucost.api.routes.advisor import UnreadQuestion, advised, explained
from gpucost.api.routes.requests import refuse_unknown_parameters
from gpucost.api.server.authentication import Reader, admit, authenticate
from gpucost.api.server.errors import (
    ADVISE_PATH,
    BYTES_A_REQUEST,
    LARGEST_ADVISE_FORM,
    LARGEST_MANIFEST,
    ApiError,
    ErrorDetail,
    missing_parameter,
    too_large,
)
from gpucost.api.server.services import ApiServices, KnownServices
from gpucost.api.server.threads import in_own_thread
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.time import iso
from gpucost.reports.base import display
from gpucost.reports.render import advice_text

router = APIRouter(
    dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)], include_in_schema=False
)

MANIFEST = "manifest"
"""The field of the form."""
DECISIONS: Mapping[SchedulingDecision, str] = {
    SchedulingDecision.NOW: "runs now",
    SchedulingDecision.LATER: "runs later",
    SchedulingDecision.WAITS: "waits",
    SchedulingDecision.NEVER: "never runs as it is",
    SchedulingDecision.UNKNOWN: "not known",
}
"""What would become of it, in a word or two."""
EXAMPLE = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  namespace: my-namespace
  labels: {kueue.x-k8s.io/queue-name: my-queue}
spec:
  template:
    spec:
      containers:
      - name: main
        image: example.com/train
        resources: {limits: {nvidia.com/gpu: 8}}
      restartPolicy: Never
"""
_LONGEST_NAME = 253


@router.get(ADVISE_PATH)
async def ask_advice(request: Request, principal: Reader, known: KnownServices) -> Response:
    """The form."""
    return await _advise_page(PageFrame(request, known, principal, "advise"), "")


async def _form(request: Request) -> dict[str, str]:
    return await read_form(request, MANIFEST)


@router.post(ADVISE_PATH, max_body_size=LARGEST_ADVISE_FORM)
async def show_advice(
    request: Request,
    principal: Reader,
    known: KnownServices,
    said: Annotated[dict[str, str], Depends(_form)],
) -> Response:
    """The answer, and the form once more. What is wrong with the manifest stands above it, so that nobody has
    to paste it again. Each KiB counts as one more request, as for the API."""
    text = said[MANIFEST]
    try:
        found = await _advised(principal, known, text)
    except (ApiError, InputError) as error:
        if not is_page(request):
            raise
        refused = _refused(error)
        frame = PageFrame(request, known, principal, "advise", status=refused[0], headers=refused[1])
        return await _advise_page(frame, text, error=refused[2])
    return await _advise_page(PageFrame(request, known, principal, "advise"), text, found)


async def _advised(principal: Principal, known: ApiServices, text: str) -> Advice:
    if not text.strip():
        raise InputError(MANIFEST, ErrorRemark("missing"), "the manifest of one job, YAML or JSON")
    sent = text.encode("utf-8", "surrogatepass")
    if len(sent) > LARGEST_MANIFEST:
        raise too_large(LARGEST_MANIFEST)
    admit(known, principal, len(sent) // BYTES_A_REQUEST)
    return await in_own_thread(advised, principal, known, UnreadQuestion(sent, is_json=False))


def _refused(error: ApiError | InputError) -> tuple[int, Mapping[str, str], ErrorDetail]:
    if isinstance(error, ApiError):
        return error.status, error.headers, error.body.error
    said = ErrorDetail(
        code="invalid_value",
        message=str(error),
        field=error.field,
        value=None,
        allowed=error.allowed,
    )
    return HTTPStatus.UNPROCESSABLE_ENTITY, {}, said


async def _advise_page(
    frame: PageFrame, text: str, found: Advice | None = None, *, error: ErrorDetail | None = None
) -> Response:
    return await frame.response(
        content(
            "Advise" if found is None else f"Advise: {display.name(found.subject.name, 60)}",
            "advise_page.html.j2",
            text=text,
            found=found,
            error=error,
            csrf=frame.form_token,
            example=EXAMPLE,
            most_bytes=LARGEST_MANIFEST,
            **_common(frame.known, frame.principal),
        )
    )


@router.get("/explain")
async def show_explanation(
    request: Request,
    principal: Reader,
    known: KnownServices,
    kind: Annotated[str, Query(max_length=_LONGEST_NAME, description="kind of the job, such as Job")] = "",
    namespace: Annotated[str, Query(max_length=_LONGEST_NAME, description="its namespace")] = "",
    name: Annotated[str, Query(max_length=_LONGEST_NAME, description="its name")] = "",
) -> Response:
    """What holds a job, layer by layer, since when, and what to do; without a name, a form that asks for
    one. A job of a team that the reader may not see is not found."""
    given = {"kind": kind, "namespace": namespace, "name": name}
    common, found = _common(known, principal), None
    if name or namespace:
        for field, text in given.items():
            if not text:
                raise missing_parameter(field, f"the {field} of the job")
        if common["watched"]:
            found = await in_own_thread(explained, principal, known, kind, namespace, name)
    title = "Why a job waits" if found is None else f"What holds {display.name(name, 60)}"
    frame = PageFrame(request, known, principal, "advise")
    return await frame.response(content(title, "explain_page.html.j2", found=found, given=given, **common))


def _common(known: ApiServices, principal: Principal) -> dict[str, Any]:
    """What both pages need: the watched cluster (empty where the reader sees none), its time, and words."""
    watched, state = known.cluster_now
    seen = bool(watched) and principal.scope.sees_cluster(watched)
    return {
        "watched": watched if seen else "",
        "at": iso(state.at_ms) if seen and state is not None else "",
        "decisions": DECISIONS,
        "words": advice_text,
        "kinds": SuggestedChangeKind,
        "iso": iso,
    }
