"""Several clusters in one ledger: one of them, all of them, and keys that are bound to some."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from gpucost.access.keys import format_key, hash_secret
from gpucost.access.principal import AccessRole
from gpucost.api.app import create_app
from gpucost.detectors.findings import FindingSubject, SubjectKind
from gpucost.domain.scope import EVERYTHING
from gpucost.ledger.ledger import Ledger
from gpucost.service.detection.finding_records import record_of
from gpucost.service.settings.api import ApiKey, ApiSettings
from tests.api.findings import finding as found
from tests.api.findings import life
from tests.ledger.clones import CLUSTERS, TEAMS, WHOLE, fill
from tests.support.ledgers import new_ledger

NOW_MS = WHOLE.end_ms + 1
MONTH = "2026-10"
SPAN = "2026-10-01T00:00:00Z/2026-10-01T04:00:00Z"
KEYS = {
    "fin": (AccessRole.FINANCE, (), ()),
    "fin-alpha": (AccessRole.FINANCE, (), ("alpha",)),
    "admin-alpha": (AccessRole.ADMIN, (), ("alpha",)),
    "prom-alpha": (AccessRole.METRICS, (), ("alpha",)),
    "red-beta": (AccessRole.VIEWER, ("red",), ("beta",)),
    "red": (AccessRole.VIEWER, ("red",), ()),
    "gone": (AccessRole.FINANCE, (), ("gamma",)),
}
SETTINGS = ApiSettings(
    keys=tuple(
        ApiKey(
            id=name, sha256=hash_secret(name), role=role, teams=frozenset(teams), clusters=frozenset(clusters)
        )
        for name, (role, teams, clusters) in KEYS.items()
    )
)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    url = new_ledger(tmp_path_factory.mktemp("clusters") / "ledger.db")
    with Ledger.open(url, now=lambda: NOW_MS) as opened:
        fill(opened, EVERYTHING, finds=False)
        for cluster, uid in (("alpha", "job-8"), ("beta", "job-9")):
            subject = FindingSubject(SubjectKind.JOB, cluster, "train", "ml", uid)
            opened.save_findings(
                cluster, [record_of(cluster, life(found(uid, "red", 9, subject=subject)), None)]
            )
        yield opened


@pytest.fixture(scope="module")
def clients(ledger: Ledger) -> dict[str, TestClient]:
    app = create_app(ledger, SETTINGS, now=lambda: NOW_MS)
    return {
        name: TestClient(app, headers={"Authorization": f"Bearer {format_key(name, name)}"}) for name in KEYS
    }


def get(client: TestClient, url: str) -> dict[str, Any]:
    response = client.get(url)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


AMOUNTS = ("board_ms", "nano", "unpriced_board_ms")


def added(parts: list[dict[str, Any]]) -> dict[str, int]:
    return {name: sum(part[name] or 0 for part in parts) for name in AMOUNTS}


def of(part: dict[str, Any]) -> dict[str, int]:
    return added([part])


def test_the_reports_of_the_clusters_add_up_to_the_whole(clients: dict[str, TestClient]) -> None:
    """To the nano-unit: what is held, by team, and every bucket of capacity and of waste."""
    fin = clients["fin"]
    whole = get(fin, f"/v1/reports/{MONTH}")
    parts = [get(fin, f"/v1/reports/{MONTH}?cluster={name}") for name in CLUSTERS]
    assert whole["clusters_in_scope"] is None
    assert [part["clusters_in_scope"] for part in parts] == [[name] for name in CLUSTERS]
    assert added([part["totals"]["held"] for part in parts]) == of(whole["totals"]["held"])
    assert of(whole["capacity"]["capacity"]) == added([part["capacity"]["capacity"] for part in parts])
    for bucket in ("held", "unallocated", "unavailable", "unknown", "overcommitted"):
        split = [part["capacity"]["buckets"][bucket] for part in parts]
        assert added(split) == of(whole["capacity"]["buckets"][bucket]), bucket
        assert whole["capacity"]["buckets"][bucket]["nano"] > 0
    for team in TEAMS:
        rows = [row["row"] for report in (whole, *parts) for row in report["teams"]]
        [all_of, *split] = [row["held"] for row in rows if row["group"]["team"] == team]
        assert added(split) == of(all_of)
    by_bucket = {row["waste"]: row["amount"] for row in whole["waste"]["buckets"]}
    for name, amount in by_bucket.items():
        split = [row["amount"] for part in parts for row in part["waste"]["buckets"] if row["waste"] == name]
        assert added(split) == of(amount), name
    totals = {row["group"]["cluster"]: of(row["held"]) for row in whole["clusters"]}
    assert totals == {name: of(part["totals"]["held"]) for name, part in zip(CLUSTERS, parts, strict=True)}


def test_so_do_waste_and_allocations(clients: dict[str, TestClient]) -> None:
    fin = clients["fin"]
    whole = get(fin, f"/v1/waste?window={SPAN}")["capacity"]
    parts = [get(fin, f"/v1/waste?window={SPAN}&cluster={name}")["capacity"] for name in CLUSTERS]
    assert added(parts) == of(whole)
    total = get(fin, f"/v1/allocations?window={SPAN}")["total"]
    parts = [get(fin, f"/v1/allocations?window={SPAN}&cluster={name}")["total"] for name in CLUSTERS]
    assert added(parts) == of(total) == of(whole)


def test_the_clusters_are_in_every_format(clients: dict[str, TestClient]) -> None:
    rows = list(csv.DictReader(io.StringIO(clients["fin"].get(f"/v1/reports/{MONTH}?format=csv").text)))
    assert [row["cluster"] for row in rows if row["section"] == "cluster"] == [*CLUSTERS]
    page = clients["fin"].get(f"/v1/reports/{MONTH}?format=html").text
    assert "alpha" in page
    assert "beta" in page
    assert "Adjustments are of no cluster" not in page
    one = clients["fin"].get(f"/v1/reports/{MONTH}?format=html&cluster=alpha").text
    assert "Adjustments are of no cluster" in one
    assert "beta" not in one


ONE_CLUSTER = (
    f"/v1/reports/{MONTH}?cluster=",
    f"/v1/allocations?window={SPAN}&cluster=",
    f"/v1/waste?window={SPAN}&cluster=",
    "/v1/jobs/job-0?cluster=",
    "/v1/jobs/job-0/receipt?cluster=",
    "/v1/jobs?job=x&cluster=",
    "/v1/findings?cluster=",
    "/v1/queues?cluster=",
    "/v1/nodes?cluster=",
    "/v1/state?cluster=",
    "/v1/teams?cluster=",
    "/v1/jobs?cluster=",
)


@pytest.mark.fault(47)
@pytest.mark.parametrize("url", ONE_CLUSTER)
def test_an_unknown_cluster_is_told_from_an_empty_one(url: str, clients: dict[str, TestClient]) -> None:
    for who, name, known in (
        ("fin", "gamma", "alpha, beta"),
        ("fin", "", "alpha, beta"),
        ("fin-alpha", "beta", "alpha"),
        ("red-beta", "alpha", "beta"),
        ("gone", "gamma", "nothing yet: the ledger has no cluster"),
    ):
        refused = clients[who].get(f"{url}{name}")
        error = refused.json()["error"]
        assert (refused.status_code, error["field"], error["allowed"]) == (422, "cluster", known), (who, url)


def names(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {text for item in value.values() for text in names(item)}
    if isinstance(value, list):
        return {text for item in value for text in names(item)}
    return {value} if isinstance(value, str) else set()


@pytest.mark.fault(47)
@pytest.mark.parametrize(
    ("who", "own", "other"), [("fin-alpha", "alpha", "beta"), ("red-beta", "beta", "alpha")]
)
def test_a_bound_key_sees_its_clusters_as_if_there_were_no_other(
    who: str, own: str, other: str, clients: dict[str, TestClient]
) -> None:
    for url in (
        f"/v1/reports/{MONTH}",
        f"/v1/allocations?window={SPAN}&group_by=cluster,node,team",
        f"/v1/allocations?window={SPAN}&group_by=node&job_uid=job-1",
        f"/v1/waste?window={SPAN}",
        "/v1/jobs/job-1",
        "/v1/jobs/job-1/receipt",
        "/v1/findings",
    ):
        answer = get(clients[who], url)
        seen = names(answer)
        assert own in seen, url
        assert other not in seen, url
    month = get(clients[who], f"/v1/reports/{MONTH}")
    assert [row["cluster"] for row in month["provenance"]["clusters"]] == [own]
    assert (month["provenance"]["month_digest"], month["adjustments"]) == ("", [])
    assert (month["capacity"] is None) == (who == "red-beta")


@pytest.mark.fault(47)
def test_a_finding_of_another_cluster_is_not_found(clients: dict[str, TestClient], ledger: Ledger) -> None:
    foreign = next(each for each in ledger.findings(EVERYTHING) if each.subject_uid == "job-9")
    assert clients["red-beta"].get(f"/v1/findings/{foreign.id}").status_code == 200
    for who in ("fin-alpha", "admin-alpha", "gone"):
        answer = clients[who].get(f"/v1/findings/{foreign.id}")
        missing = clients[who].get("/v1/findings/99999")
        assert (answer.status_code, missing.status_code) == (404, 404)
    refused = clients["admin-alpha"].post(f"/v1/findings/{foreign.id}/acknowledge", json={"note": ""})
    assert refused.status_code == 404
    assert ledger.finding(EVERYTHING, foreign.id or 0) == foreign


@pytest.mark.fault(47)
def test_a_window_that_another_cluster_cuts_is_nothing_to_a_bound_key(clients: dict[str, TestClient]) -> None:
    odd = "2026-10-01T01:00:00Z/2026-10-01T03:00:00Z"  # beta has windows of two hours
    cut = clients["fin"].get(f"/v1/waste?window={odd}")
    assert (cut.status_code, "beta" in cut.text) == (422, True)
    assert clients["fin-alpha"].get(f"/v1/waste?window={odd}").status_code == 200


def test_the_same_job_in_two_clusters_is_two_jobs(clients: dict[str, TestClient]) -> None:
    both = clients["fin"].get("/v1/jobs/job-0")
    error = both.json()["error"]
    assert (both.status_code, error["field"]) == (422, "cluster")
    assert error["allowed"] == "one of alpha, beta: each has a job of this uid"
    for cluster in CLUSTERS:
        one = get(clients["fin"], f"/v1/jobs/job-0?cluster={cluster}")
        assert one["clusters"] == [cluster]
        assert one["ledger"]["clusters"] == [cluster]
    assert get(clients["fin-alpha"], "/v1/jobs/job-0")["clusters"] == ["alpha"]


@pytest.mark.fault(47)
def test_readiness_and_metrics_are_of_the_clusters_of_the_key(clients: dict[str, TestClient]) -> None:
    assert [each["cluster"] for each in get(clients["fin"], "/readyz")["clusters"]] == [*CLUSTERS]
    for who in ("fin-alpha", "prom-alpha"):
        assert [each["cluster"] for each in get(clients[who], "/readyz")["clusters"]] == ["alpha"]
        text = clients[who].get("/metrics").text
        assert 'gpu_cluster="alpha"' in text
        assert "beta" not in text
        assert "gpucost_build_info" in text
        assert "gpucost_ledger_up 1.0" in text
    assert 'gpu_cluster="beta"' in clients["fin"].get("/metrics").text
    assert get(clients["gone"], "/readyz")["clusters"] == []
    assert "alpha" not in clients["gone"].get("/metrics").text


def test_a_month_of_another_cluster_is_no_month(clients: dict[str, TestClient]) -> None:
    answer = clients["gone"].get(f"/v1/reports/{MONTH}")
    assert answer.status_code == 404
    assert MONTH not in answer.json()["error"]["allowed"]
