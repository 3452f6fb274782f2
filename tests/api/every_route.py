"""Every route of the API: an address of each, who may ask it, and what another team gets."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from gpucost.access.grants import AccessGrant, GroupGrants
from gpucost.access.principal import AccessRole
from tests.api.advisor_worlds import job

PUBLIC = {
    *(("GET", "/healthz"), ("GET", "/healthz/ready"), ("GET", "/static/{name}")),
    *(("GET", "/login"), ("POST", "/login"), ("GET", "/login/start"), ("GET", "/login/callback")),
    ("POST", "/logout"),  # what ends no session does nothing
}
REPORT = "/v1/reports/2026-10"
DAY = "window=2026-10-01T00:00:00Z/2026-10-02T00:00:00Z"
RESEARCHS = {"research", "train", "tune", "uid-train", "job-train", "bob", "llm", "ml", "mine", "theirs"}
"""What another team must not see: names of research, its namespace, its jobs, its people, its key."""

EVERYBODY = frozenset(AccessRole)
READERS = frozenset({AccessRole.VIEWER, AccessRole.TEAM_ADMIN, AccessRole.FINANCE, AccessRole.ADMIN})
OPERATORS = frozenset({AccessRole.METRICS, AccessRole.FINANCE, AccessRole.ADMIN})
ADMINS = frozenset({AccessRole.TEAM_ADMIN, AccessRole.ADMIN})
ACCOUNTANTS = frozenset({AccessRole.FINANCE, AccessRole.ADMIN})
ALERTERS = frozenset({AccessRole.ALERTS, AccessRole.ADMIN})


class Route(NamedTuple):
    """One route. ``url`` is of something of team research, where it is of a team; ``roles`` may ask it.

    ``foreign`` is what the team-admin of another team gets, with ``body`` where something is posted: a form
    as text, else JSON.
    """

    url: str
    roles: frozenset[AccessRole]
    foreign: int
    body: Any = None


NEW_KEY = {"id": "stolen", "role": "viewer", "teams": ["research"]}
ROUTES = {
    ("GET", "/"): Route("/", EVERYBODY, 200),
    ("GET", "/months"): Route("/months", READERS, 200),
    ("GET", "/month"): Route("/month?month=2026-10", READERS, 200),
    ("GET", "/month/{month}"): Route("/month/2026-10", READERS, 200),
    ("GET", "/month/{month}/change"): Route("/month/2026-10/change?team=research", READERS, 422),
    ("GET", "/month/{month}/team"): Route("/month/2026-10/team?team=research", READERS, 404),
    ("GET", "/job"): Route("/job?job=job-train", READERS, 404),
    ("GET", "/search"): Route("/search?q=train&month=2026-10", READERS, 200),
    ("GET", "/advise"): Route("/advise", READERS, 200),
    ("POST", "/advise"): Route("/advise", READERS, 404, f"manifest={quote(json.dumps(job(namespace='ml')))}"),
    ("GET", "/explain"): Route("/explain?kind=Job&namespace=ml&name=mine", READERS, 404),
    ("GET", "/method"): Route("/method", READERS, 200),
    ("GET", "/method/{page:path}"): Route("/method/waste", READERS, 200),
    ("GET", "/findings"): Route("/findings", READERS, 200),
    ("GET", "/finding/{id}"): Route("/finding/1", READERS, 404),
    ("POST", "/finding/{id}/acknowledge"): Route("/finding/1/acknowledge", ADMINS, 404, "note=x"),
    ("POST", "/finding/{id}/mute"): Route("/finding/1/mute", ADMINS, 404, "for=2h&reason=x"),
    ("POST", "/finding/{id}/unmute"): Route("/finding/1/unmute", ADMINS, 404, "reason=x"),
    ("GET", "/queues"): Route("/queues", READERS, 200),
    ("GET", "/nodes"): Route("/nodes", READERS, 200),
    ("GET", "/month/{month}/data"): Route("/month/2026-10/data", READERS, 200),
    ("GET", "/month/{month}/preview"): Route("/month/2026-10/preview", ACCOUNTANTS, 403),
    ("POST", "/month/{month}/preview"): Route(
        "/month/2026-10/preview", ACCOUNTANTS, 403, "first=version:+1%0Aname:+a%0A"
    ),
    ("GET", "/month/{month}/what-if"): Route("/month/2026-10/what-if", ACCOUNTANTS, 403),
    ("GET", "/v1/months/{month}/replays"): Route("/v1/months/2026-10/replays", ACCOUNTANTS, 403),
    ("GET", "/v1/months/{month}/replays/{name}"): Route(
        "/v1/months/2026-10/replays/lend-8", ACCOUNTANTS, 403
    ),
    ("GET", "/v1/me"): Route("/v1/me", EVERYBODY, 200),
    ("GET", "/v1/openapi.json"): Route("/v1/openapi.json", READERS, 200),
    ("GET", "/v1/reports/{month}"): Route(REPORT, READERS, 200),
    ("GET", "/v1/focus/{month}"): Route("/v1/focus/2026-10", READERS, 200),
    ("GET", "/v1/focus/{month}/metadata"): Route("/v1/focus/2026-10/metadata", READERS, 200),
    ("GET", "/v1/focus/{month}/nodes"): Route("/v1/focus/2026-10/nodes", ACCOUNTANTS, 403),
    ("POST", "/v1/focus/{month}/differences"): Route(
        "/v1/focus/2026-10/differences",
        frozenset({AccessRole.ADMIN}),
        403,
        {"file": "f", "digest": "0" * 64, "nodes": []},
    ),
    ("GET", "/v1/allocations"): Route(f"/v1/allocations?{DAY}&group_by=team,job,user", READERS, 200),
    ("GET", "/v1/waste"): Route(f"/v1/waste?{DAY}", READERS, 200),
    ("GET", "/v1/changes"): Route(
        "/v1/changes?window=2026-10-01T12:00:00Z/2026-10-02T00:00:00Z", READERS, 200
    ),
    ("GET", "/v1/jobs"): Route("/v1/jobs?job=nobody", READERS, 200),
    ("GET", "/v1/jobs/{uid}"): Route("/v1/jobs/job-train", READERS, 404),
    ("GET", "/v1/jobs/{uid}/receipt"): Route("/v1/jobs/job-train/receipt", READERS, 404),
    ("GET", "/v1/findings"): Route("/v1/findings", READERS, 200),
    ("GET", "/v1/savings"): Route("/v1/savings?month=2026-10", READERS, 200),
    ("GET", "/v1/findings/{id}"): Route("/v1/findings/1", READERS, 404),
    ("GET", "/v1/explain/{kind}/{namespace}/{name}"): Route("/v1/explain/Job/ml/mine", READERS, 404),
    ("GET", "/v1/queues"): Route("/v1/queues", READERS, 200),
    ("GET", "/v1/nodes"): Route("/v1/nodes", READERS, 200),
    ("GET", "/v1/state"): Route("/v1/state", READERS, 200),
    ("GET", "/v1/teams"): Route("/v1/teams", READERS, 200),
    ("GET", "/v1/budgets"): Route("/v1/budgets?month=2026-10", READERS, 200),
    ("GET", "/v1/budgets/status"): Route("/v1/budgets/status", READERS, 200),
    ("GET", "/v1/incidents"): Route("/v1/incidents", READERS, 200),
    ("GET", "/v1/forecasts/score"): Route("/v1/forecasts/score", READERS, 200),
    ("GET", "/v1/prices"): Route("/v1/prices", READERS, 200),
    ("GET", "/v1/months"): Route("/v1/months", READERS, 200),
    ("GET", "/v1/months/{month}"): Route("/v1/months/2026-10", READERS, 200),
    ("GET", "/v1/months/{month}/forecast"): Route("/v1/months/2026-10/forecast", READERS, 200),
    ("GET", "/v1/months/{month}/close"): Route("/v1/months/2026-10/close", ACCOUNTANTS, 403),
    ("GET", "/v1/months/{month}/charges"): Route("/v1/months/2026-10/charges", READERS, 200),
    ("GET", "/v1/months/{month}/statements"): Route("/v1/months/2026-10/statements", READERS, 200),
    ("GET", "/v1/months/{month}/statement"): Route(
        "/v1/months/2026-10/statement?team=research", READERS, 404
    ),
    ("GET", "/v1/digest"): Route("/v1/digest?week=2026-W40&team=research", READERS, 404),
    ("POST", "/v1/months/{month}/close"): Route(
        "/v1/months/2026-10/close", frozenset({AccessRole.ADMIN}), 403, {"reason": "x"}
    ),
    ("POST", "/v1/months/{month}/chargeback"): Route(
        "/v1/months/2026-10/chargeback",
        ACCOUNTANTS,
        403,
        {"policies": [{"name": "a", "text": "version: 1\nname: a\n"}]},
    ),
    ("GET", "/v1/keys"): Route("/v1/keys", ADMINS, 200),
    ("GET", "/metrics"): Route("/metrics", OPERATORS, 403),
    ("GET", "/readyz"): Route("/readyz", OPERATORS, 403),
    ("POST", "/v1/findings/{id}/acknowledge"): Route(
        "/v1/findings/1/acknowledge", ADMINS, 404, {"note": "x"}
    ),
    ("POST", "/v1/findings/{id}/mute"): Route(
        "/v1/findings/1/mute", ADMINS, 404, {"until": "2026-12-01", "reason": "x"}
    ),
    ("POST", "/v1/findings/{id}/unmute"): Route("/v1/findings/1/unmute", ADMINS, 404, {}),
    ("POST", "/v1/advisor/advice"): Route(
        "/v1/advisor/advice", READERS, 404, {"manifest": job(namespace="ml"), "suggestions": False}
    ),
    ("POST", "/mcp"): Route("/mcp", READERS, 200, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
    ("POST", "/v1/keys"): Route("/v1/keys", ADMINS, 422, NEW_KEY),
    ("POST", "/v1/keys/{id}/revoke"): Route("/v1/keys/theirs/revoke", ADMINS, 404, {}),
    ("GET", "/v1/sessions"): Route("/v1/sessions", READERS, 200),
    ("POST", "/v1/sessions/{id}/revoke"): Route("/v1/sessions/theirs/revoke", READERS, 404, {}),
    ("POST", "/v1/alerts/alertmanager"): Route("/v1/alerts/alertmanager", ALERTERS, 403, {}),
}
EVERY_ROUTE = pytest.mark.parametrize("route", ROUTES, ids=" ".join)
HEADERS: dict[str, list[str]] = {
    "nothing": [],
    "empty": [""],
    "no token": ["Bearer"],
    "blanks": ["Bearer   "],
    "nonsense": ["Bearer nonsense"],
    "wrong secret": ["Bearer gpc_ada_wrong"],
    "another's secret": ["Bearer gpc_nobody_s3cret_of-ada"],
    "no secret": ["Bearer gpc_ada_"],
    "no prefix": ["Bearer xxx_ada_s3cret_of-ada"],
    "basic": ["Basic gpc_ada_s3cret_of-ada"],
    "no scheme": ["gpc_ada_s3cret_of-ada"],
    "expired key": ["Bearer gpc_old_o"],
    "revoked key": ["Bearer gpc_gone_g"],
    "no id": ["Bearer gpc__"],
    "not ASCII": ["Bearer gpc_ada_s3cret_of-ad\u00e4"],
    "two headers": ["Bearer gpc_ada_s3cret_of-ada", "Bearer gpc_ada_s3cret_of-ada"],
    "long": ["Bearer " + "x" * 50_000],
}
BEFORE_US = {
    "X-Forwarded-User": "root",
    "X-Forwarded-Email": "root@example.com",
    "X-Forwarded-Groups": "gpu-admins",
    "X-Forwarded-Access-Token": "gpc_ada_s3cret_of-ada",
    "X-Remote-User": "root",
    "X-API-Key": "gpc_ada_s3cret_of-ada",
    "Cookie": "session=gpc_ada_s3cret_of-ada",
}
"""What proxies write for others. It is ignored: any client could write it."""
GRANTS = GroupGrants(
    (
        AccessGrant(groups=("gpu-admins",), role=AccessRole.ADMIN),
        AccessGrant(groups=("gpu-finance",), role=AccessRole.FINANCE),
        AccessGrant(groups=("gpu-leads",), team_groups="gpu-{team}-members", role=AccessRole.TEAM_ADMIN),
        AccessGrant(team_groups="gpu-{team}-members"),
    )
)


def strings(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {text for item in value.values() for text in strings(item)} | set(value)
    if isinstance(value, list):
        return {text for item in value for text in strings(item)}
    return {value} if isinstance(value, str) else set()
