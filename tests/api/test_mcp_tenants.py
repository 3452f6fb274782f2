"""Every tool as a viewer of one team: nothing of another team, and a name of theirs is a name of nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import pytest
from fastapi import FastAPI

from gpucost.api.app import create_app
from gpucost.api.tools.tool_arguments import ReportPart
from gpucost.api.tools.tool_catalog import TOOLS
from gpucost.reports.month.allocations import DIMENSIONS
from tests.api.advisor_worlds import advising, ever_current, job
from tests.api.assistants import bearer, called
from tests.api.conftest import SETTINGS
from tests.api.test_foreign_names import DAY, OTHER, OWN, absent, crowded, foreign, world_ledger
from tests.cluster import builders
from tests.service.worlds import Clock

MONTH = "2026-10"
PARTS = get_args(ReportPart)
LABELS = {"team": OTHER}


class Call(NamedTuple):
    tool: str
    arguments: Mapping[str, Any]


OWN_CALLS = (
    Call("report", {"month": MONTH, "parts": list(PARTS)}),
    Call("report", {"month": MONTH, "team": OWN}),
    *(Call("allocations", {"window": DAY, "group_by": name}) for name in DIMENSIONS),
    Call("allocations", {"window": DAY, "group_by": "team,job", "limit": 1}),
    Call("job", {"name": "mine"}),
    Call("job", {"uid": "job-mine"}),
    Call("findings", {"limit": 1}),
    Call("findings", {"id": 1}),
    Call("statement", {"month": MONTH}),
    Call("statement", {"month": MONTH, "team": OWN}),
    Call("advise", {"manifest": job("new", namespace="ml"), "suggestions": True}),
    Call("explain", {"kind": "Job", "namespace": "ml", "name": "mine"}),
    Call("queues", {}),
)
WAITS = Call("job", {"name": "zq-wl"})
FOREIGN_CALLS = (
    Call("report", {"month": MONTH, "team": OTHER}),
    *(Call("allocations", {"window": DAY, "filters": {name: foreign(name)}}) for name in DIMENSIONS),
    WAITS,
    Call("job", {"name": "zq-job"}),
    Call("job", {"name": "zq-namespace/zq-job"}),
    Call("job", {"uid": "zq-job_uid"}),
    Call("findings", {"team": OTHER}),
    Call("statement", {"month": MONTH, "team": OTHER}),
    Call("advise", {"manifest": job("x", namespace="zq-space"), "suggestions": False}),
    Call("explain", {"kind": "Job", "namespace": "zq-space", "name": "zq-job"}),
    Call("queues", {"queue": "zq-queue"}),
)
"""Each names something of the other team."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    clock = Clock()
    watched, asked = crowded(), builders.pod_set(gpus=8)
    waiting = builders.workload("zq-wl", asked, queue="main", namespace="zq-space", labels=LABELS)
    workloads = {**watched.found.workloads, waiting.meta.uid: waiting}
    watched.found = replace(watched.found, workloads=workloads)
    with world_ledger(tmp_path_factory.mktemp("tools"), clock) as ledger:
        found = ever_current(advising(watched=watched))
        settings = SETTINGS.model_copy(update={"rate": 0, "refused_rate": 0})
        yield create_app(ledger, settings, now=clock, advising=found)


def told(app: FastAPI, key_id: str, calls: tuple[Call, ...]) -> list[tuple[bool, str]]:
    """Whether it was refused, and all that a client gets of it."""
    return [
        (
            found.is_error,
            json.dumps([found.structured_content, [each.model_dump() for each in found.content]]),
        )
        for found in called(app, bearer(key_id), calls)
    ]


def of_nobody(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: of_nobody(each) for name, each in value.items()}
    return absent(value) if isinstance(value, str) else value


def test_every_tool_is_tried() -> None:
    for calls in (OWN_CALLS, FOREIGN_CALLS):
        assert {call.tool for call in calls} == set(TOOLS)


def test_nothing_of_the_other_team_is_in_any_answer(app: FastAPI) -> None:
    for call, (is_error, text) in zip(OWN_CALLS, told(app, "ada", OWN_CALLS), strict=True):
        assert "zq" not in text, call
        assert not is_error, call


def test_a_name_of_others_is_a_name_of_nobody(app: FastAPI) -> None:
    nobody = tuple(Call(call.tool, of_nobody(call.arguments)) for call in FOREIGN_CALLS)
    theirs, none = told(app, "ada", FOREIGN_CALLS), told(app, "ada", nobody)
    for call, one, other in zip(FOREIGN_CALLS, theirs, none, strict=True):
        assert (one[0], absent(one[1])) == other, call
    (one, other) = told(app, "ada", (Call("findings", {"id": 2}), Call("findings", {"id": 8})))
    assert one[0]
    assert one[1].replace("2", "8") == other[1]


def test_who_may_see_both_is_told_of_both(app: FastAPI) -> None:
    """That the tests above can fail."""
    seen = [text for is_error, text in told(app, "fin", FOREIGN_CALLS) if not is_error and "zq" in text]
    assert len(seen) >= len(FOREIGN_CALLS) - 3
    statement, queues = (
        text for _, text in told(app, "fin", (Call("statement", {"month": MONTH}), Call("queues", {})))
    )
    assert OTHER in statement
    assert "zq-wl" in queues
    ((is_error, waits),) = told(app, "fin", (WAITS,))
    assert not is_error
    assert "zq-space" in waits, "a job that held nothing yet is listed as one that waits"
