"""Pages of findings: what the API says, for whom it may be said, and the forms by which they are answered."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response

from gpucost.api.app import create_app
from gpucost.detectors.engine.lifecycle import FindingLifeState
from gpucost.detectors.findings import FindingAction, FindingEvidence, FindingSubject, SubjectKind
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.ledger.db.records import FindingState
from gpucost.ledger.ledger import Ledger
from gpucost.reports.base import display, page_addresses
from gpucost.service.detection.loop import DetectorStatus
from tests.api.conftest import SETTINGS, Clients
from tests.api.findings import CLUSTER, FOREIGN, finding, ledger_with_findings, life, save
from tests.api.test_findings import WITHHELD, looked
from tests.service.worlds import NOW_MS, Clock

PAGE = {"Accept": "text/html"}
HOSTILE = '<script>alert("x")</script>\u202e' + "y" * 20_000


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finding-pages")
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


def shown_ids(page: Response) -> list[int]:
    """The findings of a list, in its order."""
    assert page.status_code == 200, page.text
    return [int(found) for found in re.findall(r'<th scope="row"><a href="/finding/(\d+)"', page.text)]


def texts(page: Response) -> str:
    """What a reader reads."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.text)).split())


def post(client: TestClient, url: str, said: dict[str, str], **headers: str) -> Response:
    sent: Response = client.post(url, data=said, headers={**PAGE, **headers}, follow_redirects=False)
    return sent


def test_the_list_is_that_of_the_api(clients: Clients) -> None:
    for query in ("", "?state=resolved", "?pattern=not_advertised", "?team=research", "?state=open,muted"):
        page, found = clients.fin.get(f"/findings{query}"), clients.fin.get(f"/v1/findings{query}").json()
        assert shown_ids(page) == [row["id"] for row in found["findings"]], query
        for row in found["findings"]:
            assert row["summary"] in texts(page)
            if row["wasted"]["nano"] is not None:
                assert f">{display.money(row['wasted']['nano'])}<" in page.text


def test_what_a_form_leaves_empty_chooses_all(clients: Clients) -> None:
    page = clients.fin.get("/findings?state=&pattern=&team=&cluster=")
    assert shown_ids(page) == [2, 5, 1, 6, 4, 3]
    assert shown_ids(clients.fin.get(f"/findings?cluster={CLUSTER}&state=open,acknowledged")) == [
        2,
        5,
        1,
        4,
        3,
    ]
    for query, field in (("state=x", "state"), ("pattern=x", "pattern"), ("cluster=x", "cluster")):
        refused = clients.fin.get(f"/findings?{query}", headers=PAGE)
        assert refused.status_code == 422
        assert f"<code>{field}</code>" in refused.text


def test_pages_of_the_list_have_each_finding_once(clients: Clients, ledger: Ledger) -> None:
    save(ledger, *(life(finding(f"many-{at}", "vision", at + 1)) for at in range(60)))
    seen: list[int] = []
    url: str | None = "/findings"
    while url:
        page = clients.fin.get(url)
        seen += shown_ids(page)
        following = re.search(r'href="([^"]*)" rel="next"', page.text)
        url = unescape(following[1]) if following else None
    assert len(seen) == len(set(seen)) == 66


def test_a_team_sees_its_own(clients: Clients) -> None:
    page = clients.ada.get("/findings?state=open,acknowledged,muted,resolved")
    assert set(shown_ids(page)) == {1, 4, 7}
    said = texts(page).split()
    assert not FOREIGN.intersection(said)
    assert "Not found, and why" not in page.text, "what was withheld is told to who sees every team"
    foreign, absent = (clients.ada.get(f"/finding/{number}", headers=PAGE) for number in (2, 9))
    assert (foreign.status_code, absent.status_code) == (404, 404)
    assert foreign.text.replace("<code>2<", "<code>9<") == absent.text
    assert "Not found, and why" in clients.fin.get("/findings").text


def test_what_is_over_is_summed_and_nothing_is_called_saved(clients: Clients, ledger: Ledger) -> None:
    over = {"state": FindingLifeState.RESOLVED, "closed_at_ms": NOW_MS - HOUR_MS}
    long_ago = NOW_MS - 40 * DAY_MS
    [known] = save(ledger, life(finding("known", "research", 5)))
    ledger.acknowledge(EVERYTHING, known.id or 0, "ada", "")
    [record] = [each for each in ledger.live_findings(CLUSTER) if each.id == known.id]
    ledger.save_findings(CLUSTER, [replace(record, state=FindingState.RESOLVED, closed_at_ms=NOW_MS)], [])
    save(
        ledger,
        life(finding("gone", "vision", 30), **over),
        life(finding("earlier", "vision", 99), **over | {"last_seen_ms": long_ago}),
    )
    said = texts(clients.fin.get("/findings"))
    assert "3 findings seen in the last 30 days are resolved; 1 of them had been acknowledged" in said
    assert "they wasted 105.00 USD together" in said, "70, 30 and 5"
    assert "2 findings seen in the last 30 days are resolved" in texts(clients.ada.get("/findings"))
    assert "they wasted 75.00 USD together" in texts(clients.fin.get("/findings?team=research"))
    rows = clients.fin.get(f"/v1/findings?state=resolved&since={'2026-09-01'}").json()["findings"]
    assert sum(row["wasted"]["nano"] for row in rows if row["subject"]["name"] != "earlier") == 105 * 10**9


def test_one_finding_says_what_the_api_says(clients: Clients) -> None:
    page, row = clients.fin.get("/finding/1"), clients.fin.get("/v1/findings/1").json()["finding"]
    said = texts(page)
    for part in (row["summary"], row["action"]["text"], row["wasted"]["formula"], *row["checked"]):
        assert part in said
    assert f"<code>{row['action']['patch']}</code></pre>" in page.text
    assert "busy 0.0125 ratio gpucost_pod_gpu_busy_ratio" in said
    assert "40.00 USD 5.0 GPU-hours" in said
    assert (
        f'href="{page_addresses.job_page("uid-train", cluster=CLUSTER)}"'.replace("&", "&amp;") in page.text
    )
    assert f'href="{page_addresses.team_page("research", "2026-10")}"' in page.text
    assert 'href="/v1/findings/1"' in page.text


def test_forms_are_for_who_may_answer(clients: Clients) -> None:
    for client, may in ((clients.ada, True), (clients.root, True), (clients.fin, False)):
        assert ('<form method="post" action="/finding/1/' in client.get("/finding/1").text) is may
    assert '<form method="post" action="/finding' not in clients.ada.get("/finding/7").text, "it is over"
    for client in (clients.fin, clients.vera):
        refused = post(client, "/finding/1/acknowledge", {"note": "x"})
        assert refused.status_code == 403


def test_a_finding_is_answered_as_over_the_api(clients: Clients) -> None:
    answered = post(clients.ada, "/finding/1/acknowledge", {"csrf": "", "note": "seen\r\nand known"})
    assert (answered.status_code, answered.headers["location"]) == (303, "/finding/1")
    muted = post(clients.ada, "/finding/1/mute", {"for": "2h", "reason": "a test run"})
    assert muted.status_code == 303
    page = texts(clients.ada.get("/finding/1"))
    assert "Acknowledged by ada" in page
    assert "Muted until" in page
    assert post(clients.ada, "/finding/1/unmute", {"reason": "it is over"}).status_code == 303
    events = clients.fin.get("/v1/findings/1").json()["events"]
    assert [(each["author"], each["action"]) for each in events[1:]] == [
        ("ada", "acknowledge"),
        ("ada", "mute"),
        ("ada", "unmute"),
    ]
    assert events[1]["detail"] == "seen\nand known"
    assert events[2]["detail"].endswith(": a test run")
    assert events[3]["detail"] == "it is over"


@pytest.mark.parametrize(
    ("path", "said", "status", "field"),
    [
        ("1/mute", {"for": "", "reason": "x"}, 422, "until"),
        ("1/mute", {"for": "99w", "reason": "x"}, 422, "for"),
        ("1/mute", {"for": "1h", "reason": "x" * 1001}, 422, "reason"),
        ("1/mute", {"for": "1h", "until": "2026-12-01"}, 422, "until"),
        ("1/acknowledge", {"note": "a\0b"}, 422, "note"),
        ("1/acknowledge", {"author": "root"}, 400, "author"),
        ("2/acknowledge", {"note": "x"}, 404, "id"),
        ("9/mute", {"for": "1h"}, 404, "id"),
        ("7/mute", {"for": "1h"}, 409, None),
    ],
)
def test_what_is_not_in_order_is_refused_by_name(
    path: str, said: dict[str, str], status: int, field: str | None, clients: Clients, ledger: Ledger
) -> None:
    number = int(path.partition("/")[0])
    before = ledger.finding(EVERYTHING, number)
    refused = post(clients.ada, f"/finding/{path}", said)
    assert refused.status_code == status, refused.text
    assert field is None or f"<dt>Field</dt><dd><code>{field}</code></dd>" in refused.text
    assert ledger.finding(EVERYTHING, number) == before


def test_no_other_site_posts_a_form(clients: Clients, ledger: Ledger) -> None:
    before = ledger.finding(EVERYTHING, 1)
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": "http://testserver"},  # whoever is on the wire could have written that page
    ):
        assert post(clients.ada, "/finding/1/acknowledge", {"note": "x"}, **headers).status_code == 403, (
            headers
        )
    as_json = clients.ada.post("/finding/1/acknowledge", json={"note": "x"}, headers=PAGE)
    assert as_json.status_code == 415
    twice = clients.ada.post(
        "/finding/1/acknowledge",
        content="note=a&note=b",
        headers={"Content-Type": "application/x-www-form-urlencoded"},
    )
    assert twice.json()["error"]["code"] == "repeated_parameter"
    assert ledger.finding(EVERYTHING, 1) == before
    for headers in ({"Sec-Fetch-Site": "same-origin", "Origin": "null"}, {"Origin": "https://testserver"}):
        assert post(clients.ada, "/finding/1/acknowledge", {"note": "x"}, **headers).status_code == 303


def test_hostile_names_are_text(clients: Clients, ledger: Ledger) -> None:
    subject = FindingSubject(SubjectKind.JOB, CLUSTER, HOSTILE[:250], HOSTILE[:250], "uid-x")
    bad = finding(
        "x",
        HOSTILE[:250],
        1_000,
        subject=subject,
        summary=HOSTILE,
        action=FindingAction(HOSTILE, HOSTILE, 1.0),
        evidence=(FindingEvidence(HOSTILE, HOSTILE, HOSTILE, HOSTILE),),
        checked=(HOSTILE,),
        queue=HOSTILE[:250],
        user=HOSTILE[:250],
    )
    [record] = save(ledger, life(bad))
    ledger.acknowledge(EVERYTHING, record.id or 0, HOSTILE[:200], HOSTILE[:900])
    for url in ("/findings", f"/finding/{record.id}"):
        page = clients.root.get(url)
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "\u202e" not in re.sub(r' value="[^"]*"', "", page.text), "a form sends the name as it is"
        assert "style=" not in page.text
        assert len(page.text) < 60_000
        assert page.headers["content-security-policy"].startswith("default-src 'none'; style-src 'self'")
