"""Names that are attacks: in paths, filters and exports. Nothing but the name itself is meant by them."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from gpucost.ledger.ledger import Ledger
from gpucost.service.reporting.rendering import ReportFormat
from tests.api.conftest import Clients
from tests.ledger.builders import MONTH, hour, ingest, line
from tests.service.worlds import Clock
from tests.support.ledgers import new_ledger

DAY = "2026-10-01T00:00:00Z/2026-10-02T00:00:00Z"
SQL = (
    "%",
    "_",
    "res%",
    "re_earch",
    "research%",
    "' OR '1'='1",
    "research'--",
    "research; DROP TABLE unit",
    "\\",
)


@pytest.mark.fault(52)
@pytest.mark.parametrize("value", SQL)
def test_no_filter_has_wildcards_or_sql(value: str, clients: Clients) -> None:
    for name in ("job", "namespace", "job_uid", "user"):
        found = clients.fin.get("/v1/allocations", params={"window": DAY, name: value})
        assert (found.status_code, found.json()["rows"]) == (200, []), name
    assert clients.fin.get("/v1/jobs", params={"user": value}).json()["jobs"] == []
    for url in ("/v1/findings", f"/v1/allocations?window={DAY}", "/v1/jobs", f"/v1/waste?window={DAY}"):
        assert (
            clients.fin.get(
                url, params={"window": DAY, "team": value} if "?" in url else {"team": value}
            ).json()["error"]["field"]
            == "team"
        )
    assert clients.fin.get("/v1/allocations", params={"window": DAY, "cluster": value}).status_code == 422
    assert clients.fin.get(f"/v1/jobs/{value.replace('%', '%25')}").status_code == 404
    assert clients.fin.get("/v1/allocations", params={"window": DAY}).json()["rows"], "the tables are there"


TRAVERSALS = (
    "..%2f..%2fetc%2fpasswd",
    "%2fetc%2fpasswd",
    "..%5c..%5cetc",
    "....//....//etc/passwd",
    "%2e%2e%2f2026-10",
    "2026-10%2f..%2f2026-10",
    "2026-10%00",
    "2026-10%00.html",
    "2026-10%5c..%5c2026-10",
    "2026-10.html",
    "file:%2f%2f%2fetc%2fpasswd",
)


@pytest.mark.fault(54)
@pytest.mark.parametrize("name", TRAVERSALS)
@pytest.mark.parametrize("root", ["/v1/reports/", "/v1/jobs/", "/v1/findings/"])
def test_no_name_leads_out_of_its_place(root: str, name: str, clients: Clients) -> None:
    for suffix in ("", "?format=csv") if root == "/v1/reports/" else ("",):
        found = clients.root.get(f"{root}{name}{suffix}")
        assert found.status_code in (404, 422), found.text
        assert found.json()["error"]["code"], "the one shape"
        assert "root:" not in found.text
        assert "content-disposition" not in found.headers


@pytest.mark.fault(54)
def test_the_name_of_a_file_is_made_of_ids_and_dates(clients: Clients) -> None:
    names = [
        clients.fin.get(url).headers["content-disposition"]
        for url in (
            "/v1/reports/2026-10?format=csv&cluster=c",
            f"/v1/allocations?window={DAY}&format=csv&user=..%2f..%2fx",
            f"/v1/waste?window={DAY}&format=csv",
        )
    ]
    assert names == [
        f'attachment; filename="gpucost-{name}.csv"' for name in ("2026-10", "allocations", "waste")
    ]


@pytest.mark.fault(47)
@pytest.mark.parametrize("format_", ["csv", "parquet", "html", "json"])
def test_no_export_of_a_team_names_another(format_: str, clients: Clients) -> None:
    body = clients.ada.get(f"/v1/reports/2026-10?format={format_}").content.replace(b"provisional", b"")
    for foreign in (b"vision", b"job-detect", b">detect<", b"__unallocated__"):
        assert foreign not in body, foreign
    assert b"research" in body


@pytest.mark.fault(47)
@pytest.mark.parametrize(
    "dim", ["team", "job", "job_uid", "user", "pod", "queue", "bucket", "rate_id", "node"]
)
def test_grouping_and_filtering_by_what_is_hidden_finds_nothing(dim: str, clients: Clients) -> None:
    everybody = clients.fin.get(
        f"/v1/allocations?window={DAY}&group_by=team,{dim}"
        if dim != "team"
        else f"/v1/allocations?window={DAY}&group_by=team"
    ).json()["rows"]
    own = clients.ada.get(f"/v1/allocations?window={DAY}&group_by={dim}").json()
    theirs = {row["group"][dim] for row in everybody if row["group"]["team"] != "research"}
    mine = {row["group"][dim] for row in everybody if row["group"]["team"] == "research"}
    assert {row["group"][dim] for row in own["rows"]} == mine
    for value in filter(None, theirs - mine):
        found = clients.ada.get("/v1/allocations", params={"window": DAY, dim: value}).json()
        if dim == "team":
            assert found["error"]["allowed"] == "research"
            continue
        assert (found["rows"], found["row_count"], found["total"]["board_ms"]) == ([], 0, 0), value


@pytest.mark.fault(53)
def test_a_hostile_cluster_team_and_job_are_text_in_every_table(tmp_path: Path) -> None:
    from gpucost.domain.scope import EVERYTHING
    from gpucost.service.reporting.rendering import render_month
    from gpucost.service.reporting.report_service import ReportService

    hostile = '=cmd|" /C calc"!A0'
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=Clock()) as ledger:
        for cluster in (hostile, "@SUM(1)"):
            row = line(hour(0), cluster=cluster, team="+1", job="\t=1", project="-2+3", namespace=hostile)
            ingest(ledger, hour(0), row, cluster=cluster)
        answer = ReportService(ledger, "test", {}).month(EVERYTHING, MONTH, every_job=True)
        assert answer is not None
        text = render_month(answer.report, ReportFormat.CSV)
    assert isinstance(text, str)
    cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
    assert not [cell for cell in cells if cell[:1] in ("=", "+", "@", "\t", "-")]
    assert {f"'{hostile}", "'@SUM(1)", "'+1", "'-2+3"} <= set(cells)
