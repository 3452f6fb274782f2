"""Months, statements and digests through the API: who may see what of them, and who may close one.

The ledger is the day of ``tests.service.worlds``, or days made here; teams research and vision.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from gpucost.access.keys import format_key, hash_secret
from gpucost.access.principal import AccessRole
from gpucost.api.app import create_app
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, MINUTE_MS, Month, Window
from gpucost.ledger.ledger import Ledger
from gpucost.reports.month.inputs import TeamAccount
from gpucost.service.reporting import charge_reports
from gpucost.service.settings.api import ApiKey
from tests.api.conftest import SETTINGS, Clients
from tests.api.every_route import strings
from tests.ledger.builders import MONTH, hour, ingest, line
from tests.ledger.tampering import tamper
from tests.service.test_charged_changes import POLICY as OWNERS
from tests.service.test_charged_changes import fill
from tests.service.worlds import Clock, filled_ledger
from tests.support.ledgers import new_ledger

STATEMENT, STATEMENTS = "/v1/months/2026-10/statement", "/v1/months/2026-10/statements"
CLOSE = "/v1/months/2026-10/close"
SPREAD = """
version: 1
name: idle by use
policies: [{idle_of_nobody: by_use}]
quotas: [{team: vision, model: H100, gpus: 3, queue: zq-queue, cohort: zq-cohort}]
limits: [{team: vision, floor: 12345}]
"""
OCTOBER = Month(2026, 10)


def policy(text: str) -> PolicyBook:
    return PolicyBook.parse(text, "policy.yaml", {})


@pytest.fixture(scope="module")
def spread(ledger: Ledger) -> Clients:
    accounts = {"research": TeamAccount("cc-1", None), "vision": TeamAccount("cc-2", None)}
    return Clients(create_app(ledger, SETTINGS, now=Clock(), policy=policy(SPREAD), accounts=accounts))


@pytest.mark.fault(47)
def test_a_team_reads_what_finance_has_of_it_and_no_more(spread: Clients) -> None:
    """Its share of the idle time is in it, and nothing that is another's: no name, no quota, no limit."""
    own = spread.ada.get(STATEMENT, params={"team": "research"})
    of_finance = spread.fin.get(STATEMENT, params={"team": "research"})
    assert (own.status_code, own.content) == (200, of_finance.content)
    assert own.headers["gpucost-ledger"]
    found = own.json()
    assert {row["kind"] for row in found["lines"]} == {"borrowed", "nobodys_idle"}
    assert (found["policy"], found["cost_centre"]) == ("idle by use", "cc-1")
    assert found["total_nano"] == sum(row["nano"] for row in found["lines"])
    foreign = {"vision", "detect", "job-detect", "uid-detect", "batch", "cq", "cc-2", "zq-queue", "zq-cohort"}
    assert not strings(found) & foreign
    assert "12345" not in own.text
    # Of two that share, the whole tells what the other bears.
    assert [(row["rule"], row["board_ms"] > 0) for row in found["shares"]] == [("by_use", True)]
    assert {row[name] for row in found["shares"] for name in row if name.startswith("whole_")} == {None}
    for format_ in ("csv", "html"):
        page = spread.ada.get(STATEMENTS, params={"format": format_})
        assert page.status_code == 200
        assert "research" in page.text
        assert not [name for name in ("vision", ">detect<", "cc-2", "zq-") if name in page.text], format_


@pytest.mark.fault(47)
def test_all_of_them_are_all_that_the_caller_may_see(spread: Clients) -> None:
    everything, own = spread.fin.get(STATEMENTS).json(), spread.ada.get(STATEMENTS).json()
    assert [each["team"] for each in everything] == ["research", "vision"]
    assert own == [everything[0]]
    whole, part = (clients.get("/v1/months/2026-10/charges").json() for clients in (spread.fin, spread.ada))
    totals = {each["team"]: each["total_nano"] for each in everything}
    assert {each["team"]: each["total_nano"] for each in whole["teams"]} == totals
    assert whole["proof"]["difference_nano"] == whole["proof"]["difference_board_ms"] == 0
    reports = [clients.get("/v1/reports/2026-10").json()["charges"] for clients in (spread.fin, spread.ada)]
    assert [{**whole, **reports[0]}, {**part, **reports[1]}] == [whole, part]
    assert [each["rule"] for each in whole["spreads"]] == ["by_use"]
    assert part["spreads"] == []
    [row] = part["teams"]
    assert row in whole["teams"]
    assert (row["team"], part["proof"], part["charges_digest"]) == ("research", None, None)
    assert everything[1] == spread.vera.get(STATEMENT, params={"team": "vision"}).json()
    assert spread.prom.get(STATEMENTS).status_code == 403


@pytest.mark.fault(47)
@pytest.mark.parametrize(
    "name",
    [
        *("vision", "nobody", "Research", "research ", "research/", "research%", "%72esearch", "../research"),
        *("research\n", "research\x1b[2J", "research,vision", "' OR 1=1 --", "__unallocated__", "", "*"),
    ],
)
def test_any_name_but_ones_own_is_not_found(name: str, spread: Clients) -> None:
    """The same answer for a team that exists and one that does not, before anything is read."""
    for url, more in ((STATEMENT, {}), ("/v1/digest", {"week": "2026-W40"})):
        answer = spread.ada.get(url, params={"team": name, **more})
        if not name and url == "/v1/digest":
            assert answer.status_code == 422
            continue
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["message"]) == (404, "not_found", "no such team")
        assert error["value"] == name
        assert error["allowed"] in ("research", "research (did you mean this?), or another of: research")
    if name not in ("vision",):
        missing = spread.fin.get(STATEMENT, params={"team": name})
        assert missing.status_code == 404
        assert "research, vision" in missing.json()["error"]["allowed"]


@pytest.mark.parametrize(
    ("url", "status", "code"),
    [
        (STATEMENT, 422, "missing_parameter"),
        (f"{STATEMENT}?team=a&team=b", 400, "repeated_parameter"),
        (f"{STATEMENT}?team=a%00", 422, "invalid_value"),
        (f"{STATEMENT}?team={'x' * 254}", 422, "invalid_value"),
        (f"{STATEMENT}?team=research&policy=x", 400, "unknown_parameter"),
        (f"{STATEMENTS}?team=research", 400, "unknown_parameter"),
        (f"{STATEMENTS}?format=parquet", 422, "invalid_value"),
        (f"{STATEMENTS}?cluster=c", 400, "unknown_parameter"),
        ("/v1/months/2026-13", 422, "invalid_value"),
        ("/v1/months/2026-10?all=1", 400, "unknown_parameter"),
        ("/v1/months/2026-08/statements", 404, "not_found"),
        ("/v1/digest?week=2026-W60", 422, "invalid_value"),
        ("/v1/digest?week=2026-W20", 404, "not_found"),
    ],
)
def test_what_is_wrong_is_refused_by_name(url: str, status: int, code: str, clients: Clients) -> None:
    answer = clients.fin.get(url)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


@pytest.mark.fault(47)
def test_who_sees_some_clusters_is_given_no_statement_of_all(ledger: Ledger) -> None:
    """Its name in another cluster would be in it, and an amount of a part would be no bill."""
    grants = (
        ("one", AccessRole.VIEWER, {"research"}),
        ("acc", AccessRole.FINANCE, set[str]()),
        ("adm", AccessRole.ADMIN, set[str]()),
    )
    keys = tuple(
        ApiKey(id=name, sha256=hash_secret("s"), role=role, teams=frozenset(teams), clusters=frozenset({"c"}))
        for name, role, teams in grants
    )
    app = create_app(ledger, SETTINGS.model_copy(update={"keys": keys}), now=Clock())
    for name, _, _ in grants:
        client = TestClient(app, headers={"Authorization": f"Bearer {format_key(name, 's')}"})
        for url in (f"{STATEMENT}?team=research", f"{STATEMENT}?team=x", STATEMENTS, "/v1/digest", CLOSE):
            assert client.get(url).status_code == 403, url
        assert client.post(CLOSE, json={"reason": "x"}).status_code == 403
        [month] = client.get("/v1/months").json()["months"]
        assert (month["state"], month["digest"]) == ("open", None)


def test_a_month_is_charged_once_for_all_who_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the ledger changes, or the policy does."""
    counted: list[str] = []
    charged = charge_reports.charges

    def counting(*arguments: Any) -> Any:
        counted.append(arguments[1].title)
        return charged(*arguments)

    monkeypatch.setattr(charge_reports, "charges", counting)
    with filled_ledger(tmp_path, Clock()) as own:
        apps = [create_app(own, SETTINGS, now=Clock(), policy=policy(SPREAD)) for _ in range(2)]
        shared = apps[0].state.services
        apps[1].state.services = replace(shared, policy=policy(PLAIN))
        first, second = Clients(apps[0]), Clients(apps[1])
        asked = ((first.fin, STATEMENTS), (first.ada, f"{STATEMENT}?team=research"), (first.vera, STATEMENTS))
        for client, url in (*asked, *asked):
            assert client.get(url).status_code == 200
        assert counted == ["idle by use"]
        plain = second.ada.get(f"{STATEMENT}?team=research").json()
        assert (counted, plain["policy"]) == (["idle by use", "plain"], "plain")
        before = first.fin.get(STATEMENTS).json()
        ingest(own, hour(30), line(hour(30), cluster="c", team="vision"), cluster="c")
        after = first.fin.get(STATEMENTS).json()
        assert counted[2:] == ["idle by use"]
        assert before != after


PLAIN = "version: 1\nname: plain\n"


@pytest.mark.fault(47)
def test_a_policy_that_does_not_fit_is_told_to_who_sees_all_teams_only(ledger: Ledger) -> None:
    text = "version: 1\nname: a\nlimits: [{team: visoin, cap: 1}]\n"
    clients = Clients(create_app(ledger, SETTINGS, now=Clock(), policy=policy(text)))
    told, untold = clients.fin.get(STATEMENTS), clients.ada.get(STATEMENTS)
    assert (told.status_code, untold.status_code) == (409, 409)
    assert "policy.yaml: limits[0].team: 'visoin'" in told.json()["error"]["message"]
    assert "vis" not in untold.text


@pytest.mark.fault(47)
def test_what_a_closed_month_was_charged_otherwise_is_told_to_who_sees_all_teams_only(tmp_path: Path) -> None:
    """Prices were changed in the database. Statements are refused; pages and reports say why they have no
    charges, and name no other team."""
    now = Clock(OCTOBER.window.end_ms)
    with (
        filled_ledger(tmp_path, Clock()) as own,
        Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", now=now) as late,
    ):
        del own
        app = create_app(late, SETTINGS, now=now, policy=policy(SPREAD.partition("quotas")[0]))
        clients = Clients(app)
        assert clients.root.post(CLOSE, json={"reason": "half a month"}).status_code == 200
        tamper(f"sqlite:///{tmp_path / 'ledger.db'}", "UPDATE usage_line SET nano = nano + 7")
        clients = Clients(create_app(late, SETTINGS, now=now, policy=policy(PLAIN)))
        why = "the charges of 2026-10 are not those that it was closed with"
        for url in (STATEMENTS, "/v1/months/2026-10/charges"):
            answer = clients.ada.get(url)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["message"]) == (409, "ledger_conflict", why), url
        assert "research, vision); gpucost month verify" in clients.fin.get(STATEMENTS).text
        for url in ("/v1/reports/2026-10", "/month/2026-10", "/month/2026-10/team?team=research"):
            answer = clients.ada.get(url)
            assert answer.status_code == 200
            assert why in answer.text
            assert "vision" not in re.findall(r"\w+", answer.text)


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Ledger]:
    """October, of which the twelfth was not observed for 40 minutes."""
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=lambda: OCTOBER.window.end_ms) as ledger:
        for n in range(31):
            start_ms = OCTOBER.window.start_ms + n * DAY_MS
            day = Window(start_ms, start_ms + DAY_MS)
            ingest(ledger, day, line(day), observed_ms=DAY_MS - (n == 11) * 40 * MINUTE_MS)
        yield ledger


def test_warnings_are_named_and_ask_for_yes_or_a_reason(whole: Ledger) -> None:
    clients = Clients(create_app(whole, SETTINGS, now=lambda: OCTOBER.window.end_ms))
    shown = clients.fin.get(CLOSE).json()
    assert [each["what"] for each in shown["warnings"]] == ["gap"]
    assert (shown["status"]["state"], shown["status"]["blockers"]) == ("open", [])
    assert sum(team["amount"]["nano"] for team in shown["teams"]) == shown["total"]["nano"]
    for body in ({}, {"yes": False}, {"reason": "  "}):
        refused = clients.root.post(CLOSE, json=body)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["field"]) == (409, "close_warned", "yes")
        assert "gap: alpha: 40 min of 2026-10-12" in error["message"]
    closed = clients.root.post(CLOSE, json={"yes": True})
    assert (closed.status_code, closed.json()["state"], closed.json()["author"]) == (200, "closed", "root")
    assert clients.root.post(CLOSE, json={"reason": "later"}).json() == closed.json()
    assert clients.ada.get("/v1/months/2026-10").json()["months"] == [without_schema(closed.json())]
    [entry] = [each for each in whole.audit(EVERYTHING) if "close" in each.action]
    assert entry.author == "root"
    assert clients.fin.get(CLOSE).json()["status"]["digest"] == closed.json()["digest"]


def without_schema(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "schema"}


def test_what_is_missing_needs_a_reason_and_yes_is_none(tmp_path: Path) -> None:
    now = Clock(OCTOBER.window.end_ms)
    with (
        filled_ledger(tmp_path, Clock()) as own,
        Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", now=now) as late,
    ):
        del own
        clients = Clients(create_app(late, SETTINGS, now=now))
        refused = clients.root.post(CLOSE, json={"yes": True}).json()["error"]
        assert (refused["code"], refused["field"]) == ("close_refused", "reason")
        assert clients.fin.get(CLOSE).json()["status"]["blockers"]
        for who in (clients.fin, clients.ada, clients.vera, clients.prom):
            assert who.post(CLOSE, json={"reason": "x"}).status_code == 403
        for body in ({"reason": "x", "author": "eve"}, {"reason": 1}, {"reason": "x" * 1_001}, []):
            assert clients.root.post(CLOSE, json=body).status_code in (400, 422)
        for reason in ("a\0b", "\ud800"):
            sent = json.dumps({"reason": reason}).encode()
            answer = clients.root.post(CLOSE, content=sent, headers={"Content-Type": "application/json"})
            assert answer.status_code == 422, answer.text
        assert late.month(MONTH).closed_at_ms is None
        closed = clients.root.post(CLOSE, json={"reason": "half a month"}).json()
        assert (closed["author"], closed["reason"]) == ("root", "half a month")
        assert clients.fin.get(STATEMENTS).json()[0]["digest"] == closed["digest"]


def test_a_month_that_has_not_ended_stays_open(clients: Clients) -> None:
    answer = clients.root.post(CLOSE, json={"reason": "too early"})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "month")


def test_coverage_is_that_of_the_settings(whole: Ledger) -> None:
    strict = create_app(whole, SETTINGS, now=lambda: OCTOBER.window.end_ms, close_coverage=Fraction(1))
    [month] = Clients(strict).fin.get("/v1/months").json()["months"]
    assert month["blockers"]


def test_policies_are_tried_by_who_sees_every_team(clients: Clients) -> None:
    url, good = "/v1/months/2026-10/chargeback", {"name": "a.yaml", "text": PLAIN}
    found = clients.fin.post(url, json={"policies": [good, {"name": "b.yaml", "text": SPREAD}]})
    assert (found.status_code, [each["file"] for each in found.json()["policies"]]) == (
        200,
        ["a.yaml", "b.yaml"],
    )
    assert all(each["difference"]["nano"] == 0 for each in found.json()["policies"])
    bomb = "version: 1\nname: &a [x, x]\nrates: [*a, *a]\n"
    for body, field in (
        ({"policies": []}, "policies"),
        ({"policies": [good] * 5}, "policies"),
        ({"policies": [{"name": "b", "text": bomb}]}, "b:2: rates[0]"),
        ({"policies": [{"name": "b", "text": "x: 1"}]}, "b:"),
        ({"policies": [{"name": "b", "text": f"{PLAIN}quotas_file: /etc/passwd\n"}]}, "b: files"),
        ({"policies": [good], "by": "queue"}, "by"),
        ({"policies": [{"name": "b", "text": "[" * 5_000}]}, "b"),
        (
            {"policies": [{"name": "b", "text": "version: 1\nname: a\nlimits: [{team: x, cap: 1}]"}]},
            "b: limits[0].team",
        ),
    ):
        refused = clients.fin.post(url, json=body)
        assert refused.status_code == 422, refused.text
        assert refused.json()["error"]["field"].startswith(field), refused.text
    assert clients.ada.post(url, json={"policies": [good]}).status_code == 403


def test_months_are_listed_oldest_first(clients: Clients) -> None:
    found = clients.vera.get("/v1/months").json()
    assert [(each["month"], each["state"]) for each in found["months"]] == [("2026-10", "open")]
    empty = clients.vera.get("/v1/months/2026-08").json()["months"]
    assert [(each["state"], each["version"]) for each in empty] == [("empty", 0)]


def test_the_digest_of_a_team_has_nothing_of_the_other(clients: Clients) -> None:
    found = clients.ada.get("/v1/digest", params={"week": "2026-W40", "team": "research"})
    assert found.status_code == 200, found.text
    assert not strings(found.json()) & {"vision", "detect", "job-detect"}
    everything = clients.fin.get("/v1/digest").json()
    assert (everything["team"], {row["row"]["group"]["team"] for row in everything["teams"]}) == (
        "",
        {"research", "vision"},
    )
    assert clients.fin.get("/v1/digest?team=nobody").status_code == 404
    assert clients.ada.get("/v1/digest").status_code == 422


def test_why_teams_are_charged_another_amount(tmp_path: Path) -> None:
    """Research lent half of its quota, and holds it itself now; it sees its own row, and no other."""
    text = OWNERS.replace("red", "research").replace("blue", "vision") % (8, 8)
    asked = {"window": "2026-10", "before": "2026-09", "charged": "true"}
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=Clock()) as own:
        fill(own, [{"research": 4, "vision": 4}], [{"research": 4}])
        clients = Clients(create_app(own, SETTINGS, now=Clock(), policy=policy(text)))
        whole = clients.fin.get("/v1/changes", params=asked).json()
        assert {row["group"] for row in whole["rows"]} == {"research", "vision"}
        assert whole["change_nano"] == sum(each["nano"] for each in whole["causes"]) == 0
        alone = clients.ada.get("/v1/changes", params=asked).json()
        (row,) = alone["rows"]
        assert row == next(each for each in whole["rows"] if each["group"] == "research")
        assert "lending" in {each["kind"] for each in row["causes"]}
        refused = clients.ada.get("/v1/changes", params=asked | {"by": "model"})
        assert (refused.status_code, refused.json()["error"]["field"]) == (422, "by")
        used = clients.ada.get("/v1/changes", params=asked | {"charged": "false"}).json()
        assert "lending" not in {each["kind"] for each in used["causes"]}
        page_of = {"url": "/month/2026-10/change?charged=true", "headers": {"Accept": "text/html"}}
        of_all, of_research = (each.get(**page_of).text for each in (clients.fin, clients.ada))
        assert all('id="charged"' in page and "less quota lent" in page for page in (of_all, of_research))
        assert "vision" in of_all
        assert "vision" not in of_research
        first = clients.fin.get(**page_of | {"url": "/month/2026-10/change"}).text
        assert 'href="/month/2026-10/change?charged=true#charged"' in first
        assert 'id="charged"' not in first
        plain = Clients(create_app(own, SETTINGS, now=Clock()))
        page = plain.fin.get(**page_of).text
        assert 'id="causes"' in page
        assert 'id="charged"' not in page
