"""What each tool takes: parameters of the API by their names there. Unknown ones are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from gpucost.api.routes import requests
from gpucost.api.routes.requests import RequestBody
from gpucost.api.server.errors import missing_parameter, unknown_parameter
from gpucost.detectors.engine.lifecycle import LIVE
from gpucost.detectors.findings import FindingSeverity, WastePattern
from gpucost.ledger.db.records import FindingState
from gpucost.reports.month.allocations import DIMENSIONS
from gpucost.service.reporting.report_service import WINDOW_FORMS

_LONGEST_NAME, _LONGEST_TEXT, _LONGEST_CURSOR = 253, 2_000, 24_000
MOST_ROWS = 50
"""Most rows of a list that a caller may ask for: more do not fit into a model's context."""
MOST_FINDINGS = 20

ReportPart = Literal[
    "totals",
    "teams",
    "top_jobs",
    "comparison",
    "causes",
    "charges",
    "adjustments",
    "problems",
    "provenance",
    "capacity",
    "waste",
    "models",
    "job_kinds",
    "projects",
    "queues",
    "clusters",
    "days",
    "methods",
]
USUAL_PARTS: tuple[ReportPart, ...] = (
    "totals",
    "teams",
    "top_jobs",
    "comparison",
    "causes",
    "charges",
    "problems",
    "provenance",
)

MonthText = Annotated[str, Field(max_length=64, description="a month in UTC, such as 2026-10")]
OptionalName = Annotated[str | SkipJsonSchema[None], Field(max_length=_LONGEST_NAME)]
OptionalText = Annotated[str | SkipJsonSchema[None], Field(max_length=_LONGEST_TEXT)]
OneCluster = Annotated[OptionalName, Field(description="of this cluster only; all of them without")]
TopRows = Annotated[
    int, Field(ge=1, le=MOST_ROWS, description=f"most rows of each list in the answer, 1 to {MOST_ROWS}")
]


class ReportArguments(RequestBody):
    """A month, and which parts of its report."""

    month: MonthText
    team: Annotated[OptionalName, Field(description="as this team sees it; all that you may see without")] = (
        None
    )
    cluster: OneCluster = None
    parts: Annotated[
        tuple[ReportPart, ...],
        Field(min_length=1, max_length=18, description="parts of the report; the others are named in `more`"),
    ] = USUAL_PARTS
    top: TopRows = 10


class AllocationArguments(RequestBody):
    """A window, and how its usage is grouped."""

    window: Annotated[str, Field(max_length=_LONGEST_TEXT, description=WINDOW_FORMS)]
    group_by: Annotated[
        str,
        Field(
            max_length=_LONGEST_TEXT,
            description=f"dimensions, separated by commas: {', '.join(DIMENSIONS)}",
        ),
    ] = "team"
    step: Annotated[
        OptionalText, Field(description="length of a row's time, such as 1h or 1d; one row without it")
    ] = None
    idle: Annotated[
        Literal["separate", "proportional", "by_quota"],
        Field(description="who bears unallocated time; a viewer: separate"),
    ] = "separate"
    filters: Annotated[
        dict[str, str],
        Field(
            default_factory=dict,
            max_length=len(DIMENSIONS),
            description='by dimension, the values to keep, separated by commas: {"team": "vision"}; '
            "a value __unallocated__ of team is time that nobody held",
        ),
    ]
    limit: Annotated[int, Field(ge=1, le=MOST_ROWS, description="rows on a page")] = 10
    page: Annotated[int, Field(ge=1, le=1_000_000, description="page, from 1")] = 1


class JobArguments(RequestBody):
    """A job: by name or uid, one of the two."""

    name: Annotated[
        str | SkipJsonSchema[None],
        Field(
            min_length=1,
            max_length=2 * _LONGEST_NAME + 1,
            description="name of the job, or its namespace/name; where several have it, they are listed",
        ),
    ] = None
    uid: Annotated[OptionalName, Field(description="uid of the job's Kubernetes object")] = None
    cluster: OneCluster = None
    progress: Annotated[
        OptionalName, Field(description="name of a progress metric, for the cost of a step, epoch or token")
    ] = None
    top: TopRows = 10


class FindingArguments(RequestBody):
    """Which findings; or the ``id`` of one, with its events."""

    id: Annotated[
        int | SkipJsonSchema[None], Field(ge=1, le=2**63 - 1, description="this one only, with its events")
    ] = None
    cluster: OneCluster = None
    team: Annotated[OptionalText, Field(description="of these teams, separated by commas")] = None
    state: Annotated[
        str,
        Field(
            max_length=_LONGEST_TEXT, description=f"states, separated by commas: {', '.join(FindingState)}"
        ),
    ] = ",".join(LIVE)
    pattern: Annotated[
        OptionalText, Field(description=f"patterns, separated by commas: {', '.join(WastePattern)}")
    ] = None
    severity: Annotated[
        OptionalText, Field(description=f"severities, separated by commas: {', '.join(FindingSeverity)}")
    ] = None
    since: Annotated[
        OptionalText, Field(description="seen then or later: a day (midnight UTC) or RFC 3339 with a zone")
    ] = None
    limit: Annotated[int, Field(ge=1, le=MOST_FINDINGS, description="findings on a page")] = 5
    after: Annotated[
        str | SkipJsonSchema[None],
        Field(max_length=_LONGEST_CURSOR, description="the `next` of the page before"),
    ] = None


class AdviceArguments(RequestBody):
    """The job that might be submitted."""

    manifest: Annotated[
        dict[str, Any],
        Field(description="the manifest of one job as kubectl would send it, as JSON: kind, metadata, spec"),
    ]
    suggestions: Annotated[
        bool, Field(description="whether to look for changes that help, which takes longer")
    ] = True
    top: TopRows = 5


class ExplanationArguments(RequestBody):
    """A job that is in the cluster."""

    kind: Annotated[
        str, Field(min_length=1, max_length=_LONGEST_NAME, description="kind, such as Job or PyTorchJob")
    ]
    namespace: Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME, description="its namespace")]
    name: Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME, description="its name")]
    top: TopRows = 10


class QueueArguments(RequestBody):
    """Which queues."""

    cluster: OneCluster = None
    queue: Annotated[
        OptionalName, Field(description="only this ClusterQueue, cohort or queue of Volcano; all without")
    ] = None
    top: TopRows = 20


class StatementArguments(RequestBody):
    """A month, and of whom."""

    month: MonthText
    team: Annotated[
        OptionalName,
        Field(description="the team, by its whole name: its statement; without, the totals of all teams"),
    ] = None
    top: TopRows = 10


A = TypeVar("A", bound=RequestBody)


def read_arguments(model: type[A], sent: Mapping[str, Any]) -> A:
    """``sent`` as a client sent it; null is as if it were not there. Raises ApiError and InputError, which
    name the argument."""
    given = {name: value for name, value in sent.items() if value is not None}
    known = tuple(model.model_fields)
    for name in given:
        if name not in known:
            raise unknown_parameter(name, known)
    for name, field in model.model_fields.items():
        if field.is_required() and name not in given:
            raise missing_parameter(name, field.description)
    return requests.parsed(model, json.dumps(given).encode())


def input_schema(model: type[RequestBody]) -> dict[str, Any]:
    """The JSON schema of the arguments, without the titles that repeat their names."""
    found = _without_titles(model.model_json_schema())
    assert isinstance(found, dict)
    return found


def _without_titles(value: Any) -> Any:
    if isinstance(value, dict):
        # A property may be called title; a title of a schema is text.
        return {
            name: _without_titles(each)
            for name, each in value.items()
            if name != "title" or not isinstance(each, str)
        }
    return [_without_titles(each) for each in value] if isinstance(value, list) else value
