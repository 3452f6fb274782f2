"""Findings over HTTP: what is listed and in which order, who sees what, and what people may say."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.api.app import create_app
from gpucost.api.routes import findings
from gpucost.detectors.engine.evaluation import RuleEvaluation, RuleFailure
from gpucost.detectors.findings import (
    FindingAction,
    FindingEvidence,
    FindingSubject,
    SubjectKind,
    TeamView,
    WastePattern,
    WithheldFinding,
)
from gpucost.domain.errors import InputError
from gpucost.domain.money import NANO
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS, iso
from gpucost.ledger.ledger import Ledger
from gpucost.service.detection.loop import DetectorStatus
from gpucost.service.detection.runner import DetectorRun
from gpucost.service.settings.api import ApiSettings
from tests.api.conftest import SETTINGS, Clients
from tests.api.every_route import strings
from tests.api.findings import CLUSTER, FOREIGN, finding, ledger_with_findings, life, save
from tests.api.test_errors import error_of
from tests.service.worlds import NOW_MS, Clock

URL = "/v1/findings"
JSON = {"Content-Type": "application/json"}
WITHHELD = (
    WithheldFinding(
        WastePattern.GANG_STALL, FindingSubject(SubjectKind.JOB, CLUSTER, "detect", "vision"), "it had begun"
    ),
    WithheldFinding(
        WastePattern.FRAGMENTATION, FindingSubject(SubjectKind.CLUSTER, CLUSTER, CLUSTER), "no state", True
    ),
)


def looked(withheld: tuple[WithheldFinding, ...], *failed: WastePattern) -> DetectorRun:
    failures = tuple(RuleFailure(pattern, ValueError()) for pattern in failed)
    return DetectorRun(RuleEvaluation(NOW_MS, (), withheld, pd.DataFrame(), failures), (), ())


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("findings")
    ledger_with_findings(folder, Clock()).close()
    return folder / "ledger.db"


@pytest.fixture
def ledger(filled: Path, tmp_path: Path) -> Iterator[Ledger]:
    """One of its own for every test: they change it."""
    shutil.copy(filled, tmp_path)
    with Ledger.open(f"sqlite:///{tmp_path / filled.name}", now=Clock()) as found:
        yield found


@pytest.fixture
def clients(ledger: Ledger) -> Clients:
    status = DetectorStatus()
    status.looked(CLUSTER, looked(WITHHELD), 1.5)
    return Clients(create_app(ledger, SETTINGS, now=Clock(), detectors=status))


def ids(document: dict[str, Any]) -> list[int]:
    return [row["id"] for row in document["findings"]]


# --- reading --------------------------------------------------------------------------------------------


def test_the_dearest_come_first_and_what_has_no_price_last(clients: Clients) -> None:
    found = clients.fin.get(URL).json()
    assert ids(found) == [2, 5, 1, 6, 4, 3], "7 is resolved"
    assert (found["next"], found["currency"], found["schema"]) == (None, "USD", "gpucost/FindingsReport/v1")
    assert [row["speaks"] for row in found["findings"]] == [True, True, True, False, False, False]


def test_a_finding_says_everything(clients: Clients) -> None:
    [row] = clients.fin.get(f"{URL}?team=research&state=open&limit=1").json()["findings"]
    assert row.pop("fingerprint")
    assert row == {
        "id": 1,
        "pattern": "idle_allocation",
        "variant": "batch",
        "severity": "medium",
        "state": "open",
        "speaks": True,
        "subject": {
            "kind": "job",
            "cluster": "c",
            "namespace": "research",
            "name": "train",
            "uid": "uid-train",
        },
        "team": "research",
        "queue": "batch",
        "user": "",
        "since": iso(NOW_MS - 5 * HOUR_MS),
        "opened_at": iso(NOW_MS - HOUR_MS),
        "last_seen": iso(NOW_MS),
        "closed_at": None,
        "summary": "train held a GPU for 5 h and did nothing with it",
        "evidence": [
            {"name": "busy", "value": 0.0125, "unit": "ratio", "shown_by": "gpucost_pod_gpu_busy_ratio"},
            {"name": "pods", "value": 3, "unit": "", "shown_by": ""},
            {"name": "class", "value": "batch", "unit": "", "shown_by": ""},
        ],
        "wasted": {
            "board_ms": 5 * HOUR_MS,
            "gpu_hours": "5.000000000",
            "nano": 40 * NANO,
            "cost": "40.000000000",
            "formula": "boards × time without use",
            "counted": True,
        },
        "now": {
            "boards": 1.0,
            "hourly_nano": 8 * NANO,
            "hourly": "8.000000000",
            "daily_nano": 192 * NANO,
            "daily": "192.000000000",
        },
        "action": {"text": "Delete the job.", "patch": "kubectl delete job train", "frees_boards": 1.5},
        "checked": ["no checkpoint was written"],
        "acknowledged": None,
        "muted_until": None,
        "exempt_until": None,
        "rehearsal": False,
        "documentation": "docs/detectors/idle_allocation.md",
    }


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("state=resolved", [7]),
        ("state=open,resolved", [2, 7, 5, 1, 4, 3]),
        ("state=muted", [6]),
        ("pattern=not_advertised", [5]),
        ("severity=high", []),
        ("severity=high,medium", [2, 5, 1, 6, 4, 3]),
        ("team=vision", [2, 6, 3]),
        ("team=", [5]),
        ("cluster=c", [2, 5, 1, 6, 4, 3]),
        ("since=2026-10-02", [2, 5, 1, 6, 4, 3]),
        ("since=2026-10-03", []),
    ],
)
def test_filters(query: str, expected: list[int], clients: Clients) -> None:
    assert ids(clients.fin.get(f"{URL}?{query}").json()) == expected


@pytest.mark.parametrize(
    ("url", "code", "field", "allowed"),
    [
        (f"{URL}?stat=open", "unknown_parameter", "stat", "state"),
        (f"{URL}?state=open&state=muted", "repeated_parameter", "state", "commas"),
        (f"{URL}?state=opened", "invalid_value", "state", "open, acknowledged, muted, resolved"),
        (f"{URL}?state=", "invalid_value", "state", "open"),
        (f"{URL}?pattern=idle", "invalid_value", "pattern", "idle_allocation"),
        (f"{URL}?severity=bad", "invalid_value", "severity", "critical"),
        (f"{URL}?since=yesterday", "invalid_value", "since", "2026-10-01"),
        (f"{URL}?limit=0", "invalid_value", "limit", "greater than or equal to 1"),
        (f"{URL}?limit=1001", "invalid_value", "limit", "less than or equal to 1000"),
        (f"{URL}?team=a%00b", "invalid_value", "team", "NUL"),
        (f"{URL}?cluster=d", "invalid_value", "cluster", "c"),
        (f"{URL}?cluster={'x' * 3000}", "invalid_value", "cluster", "2000 characters"),
        (f"{URL}?after=x", "invalid_value", "after", "`next`"),
        (f"{URL}?after=%C3%A4", "invalid_value", "after", "`next`"),
        (f"{URL}/x", "invalid_value", "id", "a whole number"),
        (f"{URL}/0", "invalid_value", "id", "greater than or equal to 1"),
        (f"{URL}/1?x=1", "unknown_parameter", "x", "no parameters"),
    ],
)
def test_what_is_wrong_is_named(url: str, code: str, field: str, allowed: str, clients: Clients) -> None:
    response = clients.fin.get(url)
    error = error_of(response)
    assert response.status_code in (400, 422)
    assert (error["code"], error["field"]) == (code, field)
    assert allowed in error["allowed"]


def test_one_finding_with_its_events(clients: Clients) -> None:
    found = clients.fin.get(f"{URL}/2").json()
    [row] = clients.fin.get(f"{URL}?limit=1").json()["findings"]
    assert found["finding"] == row
    assert found["events"] == [
        {"at": iso(NOW_MS - HOUR_MS), "author": "gpucost", "action": "opened", "detail": ""}
    ]


def test_what_was_held_back_is_told_once_and_to_who_sees_everything(clients: Clients) -> None:
    found = clients.fin.get(f"{URL}?limit=5").json()
    assert [(row["pattern"], row["because"], row["lacks_data"]) for row in found["withheld"]] == [
        ("fragmentation", "no state", True),
        ("gang_stall", "it had begun", False),
    ]
    assert found["withheld_count"] == 2
    assert found["withheld"][1]["subject"]["name"] == "detect"
    second = clients.fin.get(f"{URL}?limit=5&after={found['next']}").json()
    assert (second["withheld"], second["withheld_count"]) == (None, None)
    assert clients.fin.get(f"{URL}?pattern=gang_stall").json()["withheld_count"] == 1
    assert clients.fin.get(f"{URL}?cluster=c").json()["withheld_count"] == 2
    own = clients.ada.get(URL).json()
    assert (own["withheld"], own["withheld_count"]) == (None, None)


# --- paging ---------------------------------------------------------------------------------------------


@given(st.frozensets(st.integers(1, 2**63 - 1), max_size=200))
def test_a_cursor_comes_back_as_it_was(given_ids: frozenset[int]) -> None:
    assert findings.decode_cursor(findings.encode_cursor(given_ids)) == given_ids


@given(st.text(max_size=60))
def test_no_text_breaks_a_cursor(text: str) -> None:
    with contextlib.suppress(InputError):
        assert findings.encode_cursor(findings.decode_cursor(text)) == text


def test_a_cursor_is_short_and_does_not_inflate() -> None:
    most = findings.encode_cursor(range(1, 3 * findings.MOST_GIVEN, 3))
    assert len(findings.decode_cursor(most)) == findings.MOST_GIVEN
    spread = findings.encode_cursor(range(1, 150 * findings.MOST_GIVEN, 150))
    assert len(spread) < 8_000
    with pytest.raises(InputError, match="after"):
        findings.decode_cursor(findings.encode_cursor(range(1, 1_000_000)))


def test_pages_lose_and_repeat_nothing_while_findings_change(clients: Clients, ledger: Ledger) -> None:
    """Between pages, evaluations move findings past the cursor in both directions, and people answer some."""
    save(ledger, *(life(finding(f"job-{n}", "vision", 1000 + 10 * n)) for n in range(20)))
    there = set(ids(clients.fin.get(f"{URL}?limit=1000").json()))
    told: list[int] = []
    url: str | None = f"{URL}?limit=3"
    turn = 0
    while url is not None:
        page = clients.fin.get(url).json()
        told += ids(page)
        turn += 1
        cheapest, dearest = _by_cost(ledger)[-4:], _by_cost(ledger)[:2]
        _cost(ledger, {each: 10_000 + turn * 10 + n for n, each in enumerate(cheapest)})
        _cost(ledger, {each: n for n, each in enumerate(dearest)})
        clients.root.post(f"{URL}/{told[-1]}/acknowledge", json={})
        save(ledger, life(finding(f"new-{turn}", "vision", 5)))
        url = None if page["next"] is None else f"{URL}?limit=3&after={page['next']}"
        assert turn < 60
    assert len(told) == len(set(told))
    assert there <= set(told)


def _by_cost(ledger: Ledger) -> list[int]:
    found = ledger.findings(EVERYTHING, states=["open"], limit=1000)
    return [record.id for record in found if record.id is not None]


def _cost(ledger: Ledger, dollars: dict[int, int]) -> None:
    records = [ledger.finding(EVERYTHING, each) for each in dollars]
    changed = [
        replace(record, nano=nano * NANO)
        for record, nano in zip(records, dollars.values(), strict=True)
        if record is not None
    ]
    ledger.save_findings(CLUSTER, changed)


def test_pages_of_more_than_the_ledger_gives_at_once(clients: Clients, ledger: Ledger) -> None:
    save(ledger, *(life(finding(f"job-{n}", "vision", n % 7)) for n in range(1_200)))
    first = clients.fin.get(f"{URL}?limit=700").json()
    second = clients.fin.get(f"{URL}?limit=700&after={first['next']}").json()
    told = ids(first) + ids(second)
    assert second["next"] is None
    assert len(told) == len(set(told)) == 1_206
    costs = [row["wasted"]["nano"] for page in (first, second) for row in page["findings"]]
    assert [cost for cost in costs if cost is not None] == sorted(
        (cost for cost in costs if cost is not None), reverse=True
    )


def test_a_list_ends_before_its_cursor_outgrows_an_address(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "MOST_GIVEN", 2)
    first = clients.fin.get(f"{URL}?limit=2").json()
    error = error_of(clients.fin.get(f"{URL}?limit=2&after={first['next']}"))
    assert (error["field"], "filters" in error["allowed"]) == ("after", True)


# --- who sees what --------------------------------------------------------------------------------------


@pytest.mark.fault(47)
def test_a_team_sees_its_own_findings_only(clients: Clients) -> None:
    own = clients.ada.get(f"{URL}?state=open,acknowledged,muted,resolved").json()
    assert ids(own) == [7, 1, 4]
    assert own["teams_in_scope"] == ["research"]
    assert not strings(own) & FOREIGN
    for name in ("vision", "nobody", ""):  # the last: the platform's own
        assert clients.ada.get(f"{URL}?team={name}").json()["error"]["allowed"] == "research"
    assert ids(clients.vera.get(URL).json()) == [2, 6, 3]


@pytest.mark.fault(47)
@pytest.mark.parametrize("path", ["", "/acknowledge", "/mute", "/unmute"])
def test_what_another_team_has_is_as_if_it_were_not_there(
    path: str, clients: Clients, ledger: Ledger
) -> None:
    def ask(finding_id: int) -> tuple[int, str]:
        url = f"{URL}/{finding_id}{path}"
        body = {"for": "1h"} if path == "/mute" else {}
        response = clients.ada.post(url, json=body) if path else clients.ada.get(url)
        return response.status_code, response.text.replace(str(finding_id), "N")

    before = ledger.findings(EVERYTHING)
    missing = ask(999)
    assert missing[0] == 404
    for foreign in (2, 5, 6):
        assert ask(foreign) == missing
    assert ledger.findings(EVERYTHING) == before


@pytest.mark.parametrize(
    ("who", "reads", "changes"),
    [("ada", 200, 200), ("root", 200, 200), ("fin", 200, 403), ("prom", 403, 403), ("old", 401, 401)],
)
def test_roles(who: str, reads: int, changes: int, clients: Clients) -> None:
    client = getattr(clients, who)
    assert client.get(URL).status_code == client.get(f"{URL}/1").status_code == reads
    for path, body in (("acknowledge", {}), ("mute", {"for": "1h"}), ("unmute", {})):
        response = client.post(f"{URL}/1/{path}", json=body)
        assert response.status_code == changes
    if changes == 403:
        assert error_of(response)["message"].endswith("may not change this")


def test_a_strangers_body_is_not_read(clients: Clients) -> None:
    for content in (b"{", b"[" * 60_000, b"\xff"):
        response = clients.anybody.post(f"{URL}/1/acknowledge", content=content, headers=JSON)
        assert response.status_code == 401


# --- what people say ------------------------------------------------------------------------------------


def test_acknowledging_names_who_and_says_why(clients: Clients) -> None:
    note = 'we know – "ä" 統 \u202e'
    found = clients.ada.post(f"{URL}/1/acknowledge", json={"note": note}).json()
    assert found["finding"]["state"] == "acknowledged"
    assert found["finding"]["acknowledged"] == {"by": "ada", "at": iso(NOW_MS), "note": note}
    assert found["finding"]["speaks"] is False
    assert found["events"][-1] == {
        "at": iso(NOW_MS),
        "author": "ada",
        "action": "acknowledge",
        "detail": note,
    }
    assert clients.fin.get(f"{URL}/1").json() == found


@pytest.mark.parametrize(
    ("body", "until_ms"),
    [
        ({"for": "8h"}, NOW_MS + 8 * HOUR_MS),
        ({"until": iso(NOW_MS + DAY_MS), "reason": "exam week"}, NOW_MS + DAY_MS),
        ({"until": "2026-10-03"}, NOW_MS + DAY_MS - HOUR_MS),
    ],
)
def test_muting_for_a_time_and_ending_it(body: dict[str, str], until_ms: int, clients: Clients) -> None:
    found = clients.ada.post(f"{URL}/1/mute", json=body).json()
    assert (found["finding"]["state"], found["finding"]["muted_until"]) == ("muted", iso(until_ms))
    assert body.get("reason", "") in found["events"][-1]["detail"]
    loud = clients.ada.post(f"{URL}/1/unmute", json={}).json()
    assert (loud["finding"]["state"], loud["finding"]["muted_until"]) == ("open", None)
    assert clients.ada.post(f"{URL}/1/unmute", json={}).json() == loud, "nothing more to end"


@pytest.mark.parametrize("path", ["acknowledge", "mute"])
def test_what_is_over_cannot_be_answered(path: str, clients: Clients) -> None:
    response = clients.ada.post(f"{URL}/7/{path}", json={"for": "1h"} if path == "mute" else {})
    assert response.status_code == 409
    message = error_of(response)["message"]
    assert (
        message == f"finding 7 is resolved since {iso(NOW_MS - 60_000)}: there is nothing left to do about it"
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "field", "allowed"),
    [
        ("mute", {}, 422, "until", "one of until and for"),
        ("mute", {"until": "2026-10-03", "for": "1h"}, 422, "until", "one of until and for"),
        ("mute", {"until": "2026-10-01"}, 422, "until", "later than now"),
        ("mute", {"until": "2028-10-01"}, 422, "until", "at most a year"),
        ("mute", {"until": "soon"}, 422, "until", "2026-10-01"),
        ("mute", {"until": 1790000000}, 422, "until", "text"),
        ("mute", {"for": "99w"}, 422, "for", "at most a year"),
        ("mute", {"for": "999999999w"}, 422, "for", "at most a year"),
        ("mute", {"for": "0h"}, 422, "for", "such as 15m"),
        ("mute", {"for": "1h", "reason": "x" * 1001}, 422, "reason", "at most 1000 characters"),
        ("mute", {"for": "1h", "note": "x"}, 400, "note", "until, for, reason"),
        ("mute", {"duration": "1h"}, 400, "duration", "until, for, reason"),
        ("acknowledge", {"note": "a\0b"}, 422, "note", "NUL"),
        ("acknowledge", {"note": "\ud800"}, 422, "body", "a JSON object with note"),
        ("acknowledge", {"note": None}, 422, "note", "text"),
        ("acknowledge", {"note": ["x"]}, 422, "note", "text"),
        ("acknowledge", {"author": "root"}, 400, "author", "note"),
        ("acknowledge", {"\ud800": 1}, None, None, "note"),
        ("acknowledge", [], 422, "body", "a JSON object with note"),
        ("acknowledge", "x", 422, "body", "a JSON object"),
        ("unmute", {"x": 1}, 400, "x", "reason"),
    ],
)
def test_bodies_are_what_they_should_be(
    path: str,
    body: Any,
    status: int | None,
    field: str | None,
    allowed: str,
    clients: Clients,
    ledger: Ledger,
) -> None:
    before = ledger.finding(EVERYTHING, 1)
    response = clients.ada.post(f"{URL}/1/{path}", content=json.dumps(body), headers=JSON)
    error = error_of(response)
    assert status in (None, response.status_code)
    assert 400 <= response.status_code < 500
    assert field in (None, error["field"])
    assert allowed in error["allowed"]
    assert ledger.finding(EVERYTHING, 1) == before


@pytest.mark.parametrize(
    "content", [b"", b"{", b"nul", b"\xff\xfe{}", b"[" * 60_000, b'{"note":"a"}x', b"NaN"]
)
def test_what_is_no_json_is_refused(content: bytes, clients: Clients) -> None:
    response = clients.ada.post(f"{URL}/1/acknowledge", content=content, headers=JSON)
    assert response.status_code == 422
    assert error_of(response)["field"] == "body"


@pytest.mark.fault(50)
def test_a_large_body_is_refused_however_it_comes(clients: Clients) -> None:
    def chunks() -> Iterator[bytes]:
        yield from [b" " * 10_000] * 20

    for content in (b" " * 200_000, chunks()):
        response = clients.ada.post(f"{URL}/1/acknowledge", content=content, headers=JSON)
        assert (response.status_code, error_of(response)["code"]) == (413, "too_large")


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/jsonx", None],
)
def test_a_page_of_another_site_cannot_answer_for_somebody(content_type: str | None, ledger: Ledger) -> None:
    """Without keys a browser's request may come from any page; what browsers send without asking first is
    refused."""
    local = Clients(create_app(ledger, ApiSettings(auth="off"), now=Clock())).anybody
    headers = {"Host": "localhost", "Origin": "https://evil.example"}
    headers |= {} if content_type is None else {"Content-Type": content_type}
    response = local.post(f"{URL}/1/acknowledge", content=b"{}", headers=headers)
    assert (response.status_code, error_of(response)["code"]) == (415, "unsupported_media_type")
    asked = local.options(
        f"{URL}/1/acknowledge", headers={**headers, "Access-Control-Request-Method": "POST"}
    )
    assert "access-control-allow-origin" not in asked.headers
    assert asked.status_code == 405
    json_type = {**headers, "Content-Type": "application/json; charset=utf-8"}
    mine = local.post(f"{URL}/1/acknowledge", content=b"{}", headers=json_type).json()
    assert mine["finding"]["acknowledged"]["by"] == "loopback"


def test_only_post_changes_something(clients: Clients) -> None:
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        response = clients.root.request(method, f"{URL}/1/acknowledge")
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
    response = clients.root.post(f"{URL}/1")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")


# --- names ----------------------------------------------------------------------------------------------

HOSTILE = 'x"} 1\n# TYPE evil counter\n<script>\\ \u202e=cmd()'


def test_hostile_names_are_words_like_any_other(clients: Clients, ledger: Ledger) -> None:
    subject = FindingSubject(SubjectKind.JOB, CLUSTER, HOSTILE, HOSTILE, HOSTILE)
    [record] = save(ledger, life(finding("x", "research", 900, subject=subject, summary=HOSTILE)))
    row = clients.ada.get(f"{URL}/{record.id}").json()["finding"]
    assert row["subject"]["name"] == row["summary"] == HOSTILE
    response = clients.ada.get(f"{URL}/{record.id}")
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.fault(63)
def test_a_key_of_a_team_gets_the_words_for_the_team_and_nobody_gets_labels(
    ledger: Ledger, clients: Clients
) -> None:
    """A finding of research that names what vision runs; its team sees that without the name."""
    own, foreign, label = "said-to-its-own", "canary-of-vision", "canary-of-a-label"
    found = finding(
        "shared",
        "research",
        90,
        summary=foreign,
        evidence=(FindingEvidence(foreign, foreign),),
        action=FindingAction(foreign, foreign),
        labels={"note": label},
        team_view=TeamView(own, (FindingEvidence(own, own),), FindingAction(own, own)),
    )
    [record] = save(ledger, life(found))
    urls = (URL, f"{URL}/{record.id}", "/v1/waste?window=2026-10")
    for url in urls:
        told, whole = clients.ada.get(url).text, clients.fin.get(url).text
        assert own in told, url
        assert foreign not in told, url
        assert foreign in whole, url
        assert own not in whole, url
        assert label not in told + whole, url
