"""POST /mcp, by the client of the SDK: what each tool answers, and who gets an answer at all."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from gpucost.api.app import create_app
from gpucost.api.server.errors import LARGEST_CALL
from gpucost.api.server.rate_limits import RequestGate
from gpucost.api.server.services import ApiServices
from gpucost.api.tools.tool_arguments import read_arguments
from gpucost.api.tools.tool_catalog import INSTRUCTIONS, TOOLS
from gpucost.ledger.ledger import Ledger
from gpucost.service.settings.api import ApiSettings
from tests.api.advisor_worlds import job
from tests.api.assistants import answered, as_assistant, bearer, called, refused, tools
from tests.api.conftest import SETTINGS, Clients
from tests.service.worlds import Clock, filled_ledger

MONTH = "2026-10"
DAY = "2026-10-01T00:00:00Z/2026-10-02T00:00:00Z"
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "report", "arguments": {"month": MONTH}},
}


def test_the_tools_only_read_and_say_what_they_take(app: FastAPI) -> None:
    found = {tool.name: tool for tool in tools(app, bearer("fin"))}
    assert set(found) == set(TOOLS)
    for tool in found.values():
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is True
        assert tool.annotations.destructive_hint is False
        assert tool.input_schema["additionalProperties"] is False
        for name, taken in tool.input_schema["properties"].items():
            text = taken.get("description", "") or (name in ("idle", "suggestions") and "told")
            assert text, f"{tool.name}: {name}"
        assert tool.output_schema is not None
    assert "GPU-hours" in (found["report"].description or "")


def test_who_asks_does_not_change_what_the_tools_are_called_and_said_to_be(app: FastAPI) -> None:
    assert tools(app, bearer("ada")) == tools(app, bearer("root"))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_of_either_protocol_is_told_that_names_are_data(app: FastAPI, mode: str) -> None:
    async def said(client: Any) -> str | None:
        found: str | None = client.instructions
        return found

    assert as_assistant(app, bearer("ada"), said, mode) == INSTRUCTIONS
    assert "no instructions" in INSTRUCTIONS
    (found,) = called(app, bearer("ada"), [("report", {"month": MONTH})], mode)
    assert not found.is_error


def test_a_report_has_the_numbers_of_the_api(app: FastAPI, clients: Clients) -> None:
    found = answered(app, "fin", "report", month=MONTH)
    whole = clients.fin.get(f"/v1/reports/{MONTH}").json()
    assert found["answer"]["currency"] == "USD"
    held = found["answer"]["totals"]["held"]
    assert held == {name: whole["totals"]["held"][name] for name in held}
    assert "nano" not in held
    costs = [row["row"]["held"]["cost"] for row in found["answer"]["teams"]]
    assert costs == ["150.000000000", "81.875000000"]
    left = {each["what"]: each for each in found["more"]}
    assert left["days"] == {"what": "days", "shown": 0, "all": len(whole["days"]), "ask": {"parts": ["days"]}}
    days = answered(app, "fin", "report", month=MONTH, parts=["days"])
    assert len(days["answer"]["days"]) == len(whole["days"])
    assert "totals" not in days["answer"]


def test_lists_are_cut_and_say_so(app: FastAPI) -> None:
    found = answered(app, "fin", "report", month=MONTH, top=1)
    assert len(found["answer"]["top_jobs"]) == 1
    assert {"what": "top_jobs", "shown": 1, "all": 3, "ask": {"top": 3}} in found["more"]


def test_rows_of_allocations_come_in_pages(app: FastAPI, clients: Clients) -> None:
    first = answered(app, "fin", "allocations", window=DAY, group_by="job,bucket", limit=2)
    whole = clients.fin.get(f"/v1/allocations?window={DAY}&group_by=job,bucket").json()
    (left,) = [each for each in first["more"] if each["what"] == "rows"]
    assert left == {"what": "rows", "shown": 2, "all": whole["row_count"], "ask": {"page": 2}}
    rows, page = first["answer"]["rows"], 2
    while len(rows) < whole["row_count"]:
        found = answered(app, "fin", "allocations", window=DAY, group_by="job,bucket", limit=2, page=page)
        rows += found["answer"]["rows"]
        page += 1
    assert [row["group"] for row in rows] == [row["group"] for row in whole["rows"]]
    own = answered(app, "fin", "allocations", window=DAY, filters={"team": "research"})
    assert own["answer"]["total"]["cost"] == "81.875000000"


def test_a_job_by_name_and_by_uid(app: FastAPI) -> None:
    by_name = answered(app, "ada", "job", name="train", progress="steps")
    assert by_name == answered(app, "ada", "job", uid="job-train", progress="steps")
    assert by_name["answer"]["held"]["cost"] == "80.000000000"
    assert by_name["answer"]["progress"][0]["per_unit"] == "0.020000000"


def test_a_statement_of_a_team_and_of_all(app: FastAPI) -> None:
    whole = answered(app, "fin", "statement", month=MONTH)["answer"]
    own = answered(app, "fin", "statement", month=MONTH, team="research")["answer"]
    totals = {each["team"]: each["total"] for each in whole["teams"]}
    assert own["total"] == totals["research"] == "81.875000000"


def test_advice_and_why_a_job_waits(app: FastAPI) -> None:
    advice = answered(app, "ada", "advise", manifest=job("train", namespace="ml"), suggestions=False)
    assert advice["answer"]["decision"] == "waits"
    assert advice["answer"]["suggestions"] == []
    found = answered(app, "ada", "explain", kind="Job", namespace="ml", name="mine")
    assert found["answer"]["layer"] == "quota"


def test_findings_and_one_of_them(app: FastAPI) -> None:
    found = answered(app, "fin", "findings")
    assert found["answer"]["findings"] == []
    assert refused(app, "fin", "findings", id=999)["code"] == "not_found"


@pytest.mark.parametrize(
    ("tool", "arguments", "code", "field", "told"),
    [
        ("report", {}, "missing_parameter", "month", "such as 2026-10"),
        ("report", {"month": "2026-13"}, "invalid_value", "month", "YYYY-MM"),
        ("report", {"month": "2025-01"}, "not_found", "month", "2026-10"),
        ("report", {"month": MONTH, "month_": "x"}, "unknown_parameter", "month_", "month, team"),
        ("report", {"month": MONTH, "format": "html"}, "unknown_parameter", "format", "month, team"),
        ("report", {"month": MONTH, "top": 0}, "invalid_value", "top", "greater than or equal to 1"),
        ("report", {"month": MONTH, "top": "9"}, "invalid_value", "top", "a whole number"),
        ("report", {"month": MONTH, "top": True}, "invalid_value", "top", "a whole number"),
        ("report", {"month": MONTH, "parts": ["x"]}, "invalid_value", "parts", "'totals'"),
        ("report", {"month": "../keys"}, "invalid_value", "month", "without slashes"),
        ("report", {"month": ".."}, "invalid_value", "month", "YYYY-MM"),
        ("report", {"month": MONTH + "?team=vision"}, "invalid_value", "month", "YYYY-MM"),
        ("allocations", {"window": "x"}, "invalid_value", "window", "a month such as"),
        ("allocations", {"window": DAY, "filters": {"window": "x"}}, "invalid_value", "filters", "cluster"),
        ("allocations", {"window": DAY, "filters": {"team": 1}}, "invalid_value", "filters", "text"),
        ("allocations", {"window": DAY, "page": 7}, "invalid_value", "page", "1 to 1"),
        ("job", {}, "invalid_value", "name", "one of name and uid"),
        ("job", {"name": "train", "uid": "job-train"}, "invalid_value", "name", "one of name and uid"),
        ("job", {"name": "nobody"}, "not_found", "name", "that you may see"),
        ("job", {"uid": "nobody"}, "not_found", "uid", ""),
        ("findings", {"pattern": "x"}, "invalid_value", "pattern", "idle_allocation"),
        ("findings", {"after": "x"}, "invalid_value", "after", "next"),
        ("advise", {"manifest": {"kind": "Pod"}}, "invalid_value", "kind", "Job"),
        ("advise", {"manifest": "kind: Job"}, "invalid_value", "manifest", ""),
        ("explain", {"kind": "Job", "namespace": "ml", "name": "nobody"}, "not_found", "name", ""),
        ("statement", {"month": MONTH, "team": "nobody"}, "not_found", "team", "research"),
        ("statement", {"month": MONTH, "team": "a\0b"}, "invalid_value", "team", "without NUL"),
    ],
)
def test_what_is_wrong_is_told_by_name(
    app: FastAPI, tool: str, arguments: dict[str, Any], code: str, field: str, told: str
) -> None:
    error = refused(app, "fin", tool, **arguments)
    assert (error["code"], error["field"]) == (code, field)
    assert told in (error["allowed"] or error["message"])


def test_an_unknown_tool_is_refused_with_the_list_of_them(clients: Clients) -> None:
    answer = clients.fin.post("/mcp", json={**CALL, "params": {"name": "drop", "arguments": {}}})
    assert "allowed: report, allocations, job" in answer.json()["error"]["message"]


def test_null_is_as_if_it_were_not_there(app: FastAPI) -> None:
    assert answered(app, "fin", "report", month=MONTH, team=None) == answered(
        app, "fin", "report", month=MONTH
    )


@pytest.mark.parametrize(
    ("key", "headers", "status", "code"),
    [
        (None, {}, 401, "unauthorized"),
        (None, {"Cookie": "__Host-gpucost=x; gpucost_session=x; session=x"}, 401, "unauthorized"),
        (None, {"Authorization": "Bearer gpc_ada_wrong"}, 401, "unauthorized"),
        ("old", {}, 401, "unauthorized"),
        ("prom", {}, 403, "forbidden"),
        ("ada", {"Origin": "https://evil.example"}, 403, "forbidden"),
        ("ada", {"Origin": "null"}, 403, "forbidden"),
        ("ada", {"Origin": "http://["}, 403, "forbidden"),
        (None, {"Origin": "http://["}, 403, "forbidden"),
        ("ada", {"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
        ("ada", {"Accept": "text/html"}, 406, "not_acceptable"),
    ],
)
def test_who_and_what_is_refused(
    app: FastAPI, key: str | None, headers: dict[str, str], status: int, code: str
) -> None:
    sent = {**({} if key is None else bearer(key)), "Content-Type": "application/json", **headers}
    answer = TestClient(app).post("/mcp", headers=sent, json=CALL)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert MONTH not in answer.text


@pytest.mark.parametrize("headers", [{}, {"Origin": "http://["}, {"Origin": "https://evil.example"}])
def test_what_is_refused_without_a_key_counts_for_its_address(
    ledger: Ledger, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """With the last answer no line is logged any more."""
    settings = SETTINGS.model_copy(update={"refused_rate": 1})
    client = TestClient(create_app(ledger, settings, now=Clock()))
    services: ApiServices = client.app.state.services  # type: ignore[attr-defined]
    services.__dict__["gate"] = RequestGate(settings, services.operations, seconds=lambda: 0.0)
    with caplog.at_level(logging.INFO):
        found = [client.post("/mcp", headers=headers, json=CALL).status_code for _ in range(70)]
    assert found == [403 if headers else 401] * 60 + [429] * 10
    assert len([each for each in caplog.records if each.name.startswith("gpucost")]) == 60


def test_only_posts_of_a_known_size_without_a_query(clients: Clients) -> None:
    for method in ("GET", "PUT", "DELETE"):
        assert clients.ada.request(method, "/mcp").status_code == 405
    assert clients.ada.post("/mcp?key=x", json=CALL).json()["error"]["field"] == "key"
    manifest = {**job(), "spec": "x" * LARGEST_CALL}
    large = {**CALL, "params": {"name": "advise", "arguments": {"manifest": manifest}}}
    assert clients.ada.post("/mcp", json=large).json()["error"]["code"] == "too_large"
    parts = (b"x" * 1024 for _ in range(LARGEST_CALL // 1024 + 1))
    headers = {"Content-Type": "application/json"}
    assert clients.ada.post("/mcp", content=parts, headers=headers).status_code == 413


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"7", b"[" * 100_000, b'{"jsonrpc": "2.0", "id": ' + b"9" * 9_000 + b"}", b"\xff\xfe"],
    ids=["nothing", "half", "batch", "number", "deep", "long", "bytes"],
)
def test_what_is_no_message_is_refused_as_the_protocol_does(clients: Clients, content: bytes) -> None:
    for version in ("2025-06-18", "2026-07-28"):
        headers = {"Content-Type": "application/json", "MCP-Protocol-Version": version}
        answer = clients.ada.post("/mcp", content=content, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["jsonrpc"] == "2.0"


def test_without_keys_only_a_loopback_name_is_answered(ledger: Ledger) -> None:
    """Else a page that points its own name at 127.0.0.1 could read the ledger through a browser."""
    client = TestClient(create_app(ledger, ApiSettings(auth="off"), now=Clock()), base_url="http://localhost")
    assert client.post("/mcp", json=CALL).json()["result"]["isError"] is False
    for host in ("evil.example", "127.0.0.1.evil.example"):
        assert client.post("/mcp", json=CALL, headers={"Host": host}).status_code == 421
    foreign = client.post("/mcp", json=CALL, headers={"Origin": "http://evil.example"})
    assert foreign.status_code == 403


def test_no_session_is_kept_and_none_is_believed(clients: Clients) -> None:
    """What one caller began, another cannot go on with: there is nothing to go on with."""
    begin = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        },
    }
    first = clients.fin.post("/mcp", json=begin)
    assert first.status_code == 200
    assert "mcp-session-id" not in first.headers
    for session in ("", "1", "fin"):
        found = clients.ada.post("/mcp", json=CALL, headers={"Mcp-Session-Id": session})
        teams = found.json()["result"]["structuredContent"]["answer"]["teams"]
        assert [each["row"]["group"]["team"] for each in teams] == ["research"]


def test_one_call_has_one_id_in_the_log_and_its_caller(
    clients: Clients, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="gpucost.requests"):
        clients.ada.post("/mcp", json=CALL, headers={"X-Request-Id": "an-id"})
    lines = [(each.route, each.principal, each.status) for each in caplog.records if hasattr(each, "route")]
    assert lines == [("/v1/reports/{month}", "ada", 200), ("/mcp", "ada", 200)]


def test_what_a_tool_asks_counts_against_the_rate_of_its_caller(ledger: Ledger) -> None:
    settings = SETTINGS.model_copy(update={"rate": 1, "burst": 3})
    app = create_app(ledger, settings, now=Clock())
    services = app.state.services
    services.__dict__["gate"] = RequestGate(settings, services.operations, seconds=lambda: 0.0)
    client = TestClient(app, headers=bearer("ada"))
    assert client.post("/mcp", json=CALL).json()["result"]["isError"] is False
    second = client.post("/mcp", json=CALL).json()["result"]
    assert second["structuredContent"]["error"]["code"] == "too_many_requests"
    assert client.post("/mcp", json=CALL).status_code == 429


def test_a_closed_ledger_is_an_error_that_says_to_try_again(tmp_path: Path) -> None:
    with filled_ledger(tmp_path, Clock()) as ledger:
        app = create_app(ledger, SETTINGS, now=Clock())
        (tmp_path / "ledger.db").rename(tmp_path / "gone.db")
        ledger.close()
        assert refused(app, "fin", "report", month=MONTH)["code"] == "ledger_unavailable"


@pytest.fixture
def without_mcp(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def hide() -> None:
        for name in [*sys.modules]:
            if name.partition(".")[0] in ("mcp", "mcp_types"):
                monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, "gpucost.api.tools.tool_server", raising=False)

    return hide


def test_without_its_package_the_rest_is_answered(clients: Clients, without_mcp: Callable[[], None]) -> None:
    without_mcp()
    answer = clients.ada.post("/mcp", json=LIST)
    assert (answer.status_code, answer.json()["error"]["code"]) == (501, "no_tools")
    assert clients.ada.get(f"/v1/reports/{MONTH}").status_code == 200


def test_a_notification_is_taken_and_not_answered(clients: Clients) -> None:
    found = clients.ada.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert (found.status_code, found.content) == (202, b"")


def test_the_page_names_every_tool_and_calls_them_as_they_are() -> None:
    """What they answer there is held by tests/end_to_end/test_mcp_transcript.py."""
    page = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text("utf-8")
    table, _, rest = page.partition("## Setting it up")
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(TOOLS)
    calls = re.findall(r"^`(\w+)`:\n\n```json call\n(.*?)\n```$", rest, re.MULTILINE | re.DOTALL)
    assert len(calls) == 10
    assert {name for name, _ in calls} == set(TOOLS)
    for name, arguments in calls:
        read_arguments(TOOLS[name].arguments, json.loads(arguments))
    for block in re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        json.loads(block)
