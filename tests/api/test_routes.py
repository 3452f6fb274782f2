"""What the routes answer: the formats, the numbers, the ledger they name."""

from __future__ import annotations

import csv
import io
import re
from io import BytesIO
from zipfile import ZipFile

import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpucost.api.app import create_app
from gpucost.api.routes.responses import LEDGER_HEADER, MEDIA_TYPES
from gpucost.domain.errors import LedgerUnavailable
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS, Month
from gpucost.ledger.ledger import Ledger
from gpucost.service.ingest.status import LoopStatus, WindowFailure
from gpucost.service.metrics import SERVICE_METRICS
from gpucost.service.reporting.rendering import ReportFormat
from gpucost.service.reporting.report_service import ReportService
from gpucost.service.settings.api import ApiSettings
from tests.api.conftest import Clients
from tests.service.worlds import DAY, Clock
from tests.support.frames import hours

REPORT = "/v1/reports/2026-10"
WINDOW = "window=2026-10-01T00:00:00Z/2026-10-02T00:00:00Z"


def test_the_report_adds_up(clients: Clients) -> None:
    report = clients.fin.get(REPORT).json()
    buckets = report["capacity"]["buckets"]
    parts = sum(buckets[name]["board_ms"] for name in ("held", "unallocated", "unavailable", "unknown"))
    assert parts == report["capacity"]["capacity"]["board_ms"] == 16 * 24 * HOUR_MS
    assert (report["capacity"]["difference_board_ms"], report["capacity"]["difference_nano"]) == (0, 0)
    assert {row["row"]["group"]["team"]: row["row"]["held"]["cost"] for row in report["teams"]} == {
        "vision": "150.000000000",
        "research": "81.875000000",
    }


@pytest.mark.parametrize("format_", [each for each in ReportFormat if each is not ReportFormat.XLSX])
def test_every_format_by_parameter_and_by_header(format_: ReportFormat, clients: Clients) -> None:
    by_parameter = clients.fin.get(f"{REPORT}?format={format_}")
    by_header = clients.fin.get(REPORT, headers={"Accept": MEDIA_TYPES[format_]})
    assert by_parameter.content == by_header.content
    assert by_parameter.headers["content-type"].partition(";")[0] == MEDIA_TYPES[format_]
    assert len(by_parameter.headers[LEDGER_HEADER]) == 64


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("*/*", "application/json"),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html"),
        ("application/json;q=0.1, text/csv", "text/csv"),
        ("text/*", "text/csv"),
        ("text/csv;q=0, application/json", "application/json"),
        ("text/csv;q=high, application/json;q=0.5", "application/json"),
    ],
)
def test_the_accept_header_is_weighed(accept: str, expected: str, clients: Clients) -> None:
    response = clients.fin.get(REPORT, headers={"Accept": accept})
    assert response.headers["content-type"].partition(";")[0] == expected


def test_the_tables_hold_every_job(clients: Clients) -> None:
    response = clients.fin.get(f"{REPORT}?format=csv")
    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert {row["job"] for row in rows if row["section"] == "job"} == {"train", "tune", "detect"}
    assert response.headers["content-disposition"] == 'attachment; filename="gpucost-2026-10.csv"'
    table = pq.read_table(io.BytesIO(clients.fin.get(f"{REPORT}?format=parquet").content))
    assert table.num_rows == len(rows)


def test_the_same_ledger_gives_the_same_bytes(clients: Clients) -> None:
    for format_ in ReportFormat:
        first, second = (clients.fin.get(f"{REPORT}?format={format_}").content for _ in range(2))
        assert first == second


def test_allocations_by_dimension_and_step(clients: Clients) -> None:
    found = clients.fin.get(f"/v1/allocations?{WINDOW}&group_by=team&step=6h&bucket=held").json()
    research = [row for row in found["rows"] if row["group"]["team"] == "research"]
    assert [row["held"]["gpu_hours"] for row in research] == ["20.750000000", "12.000000000"]
    assert found["total"]["cost"] == "231.875000000"
    assert found["ledger"]["windows"] == 24
    assert found["ledger"]["settled"] is True
    assert found["ledger"]["observed_ms"] == 23 * HOUR_MS


def test_filters_take_several_values(clients: Clients) -> None:
    found = clients.fin.get(f"/v1/allocations?{WINDOW}&group_by=job&job=train,tune").json()
    assert [row["group"]["job"] for row in found["rows"]] == ["train", "tune"]
    assert found["filters"] == {"job": ["train", "tune"]}


def test_pages_are_parts_of_one_whole(clients: Clients) -> None:
    base = f"/v1/allocations?{WINDOW}&group_by=job,bucket"
    whole = clients.fin.get(base).json()
    pages = [
        clients.fin.get(f"{base}&limit=2&page={n}").json() for n in range(1, whole["row_count"] // 2 + 2)
    ]
    assert [row for page in pages for row in page["rows"]] == whole["rows"]
    assert all(page["total"] == whole["total"] and page["pages"] == len(pages) for page in pages)


def test_nobodys_time_can_be_asked_for(clients: Clients) -> None:
    found = clients.fin.get(f"/v1/allocations?{WINDOW}&team=__unallocated__").json()
    assert [row["group"]["team"] for row in found["rows"]] == ["__unallocated__"]
    assert found["total"]["nano"] > 0


def test_a_job_with_its_cost_per_step(clients: Clients) -> None:
    job = clients.ada.get("/v1/jobs/job-train?progress=steps").json()
    assert (job["job"], job["held"]["cost"]) == ("train", "80.000000000")
    assert job["progress"][0]["name"] == "steps"
    [steps] = job["progress"]
    assert (steps["per_unit_nano"], steps["coverage"]) == (20_000_000, 0.125), "the hour in which it counted"
    assert sum(line["amount"]["nano"] for line in job["lines"]) == job["held"]["nano"]
    assert job["ledger"]["digest"]


def test_a_statement_has_the_unit_costs_of_its_own_jobs(clients: Clients) -> None:
    address = "/v1/months/2026-10/statement?team={}&format=json"
    [unit] = clients.root.get(address.format("research")).json()["units"]
    job = clients.ada.get("/v1/jobs/job-train").json()
    assert (unit["job_uid"], unit["cost"]) == ("job-train", job["progress"][0]), "as the job says it"
    assert clients.root.get(address.format("vision")).json()["units"] == []
    page = clients.root.get("/v1/months/2026-10/statement?team=research&format=html").text
    assert "Unit cost" in page
    assert "0.020000000" in page
    book = clients.root.get("/v1/months/2026-10/statement?team=research&format=xlsx").content
    with ZipFile(BytesIO(book)) as sheets:
        names = re.findall(r'<sheet name="([^"]+)"', sheets.read("xl/workbook.xml").decode())
        cells = sheets.read(f"xl/worksheets/sheet{names.index('Unit costs') + 1}.xml").decode()
        texts = re.findall(r"<t[^>]*>([^<]*)</t>", sheets.read("xl/sharedStrings.xml").decode())
    assert {"0.02", "20000000", "500", "0.125"} <= set(re.findall(r"<v>([^<]+)</v>", cells))
    assert {"job-train", "steps"} <= set(texts)


def samples(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values = tuple(sample.labels[name] for name in sorted(sample.labels))
            assert values not in found.setdefault(sample.name, {}), "a series twice"
            found[sample.name][values] = sample.value
    return found


def test_metrics_have_the_costs_of_the_month(clients: Clients) -> None:
    found = samples(clients.prom.get("/metrics").text)
    teams = found["gpucost_team_cost_usd"]
    assert teams["c", "research"] == 81.875
    assert sum(teams.values()) == 16 * 24 * 2.5
    assert found["gpucost_job_cost_usd"]["c", "Job", "train", "job-train", "research", "research"] == 80.0
    # Four GPUs at 2.50 in the hour in which 500 steps were counted.
    unit = "c", "train", "job-train", "research", "research", "steps"
    assert found["gpucost_job_unit_cost_usd"] == {unit: 0.02}
    assert found["gpucost_ledger_lag_seconds"]["c",] == 3600.0
    assert found["gpucost_ledger_up"][()] == 1.0


def test_metrics_know_openmetrics(clients: Clients) -> None:
    response = clients.prom.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")


def test_jobs_beyond_the_limit_are_one_series_and_nothing_is_lost(ledger: Ledger) -> None:
    settings = ApiSettings(auth="off", metrics_jobs=1)
    app = create_app(ledger, settings, now=Clock())
    text = Clients(app).anybody.get("/metrics", headers={"Host": "localhost"}).text
    jobs = samples(text)["gpucost_job_cost_usd"]
    assert jobs == {
        ("c", "Job", "detect", "job-detect", "vision", "vision"): 150.0,
        ("c", "", "", "", "", "research"): 81.875,
    }


def test_metrics_say_how_the_loop_stands(ledger: Ledger) -> None:
    status = LoopStatus()
    status.window_ingested("c", DAY.end_ms)
    failure = WindowFailure("c", hours(23, 24), "PartialResponse", "one shard")
    status.cluster_read("c", pending=1, lost=2, failures=(failure,))
    status.source_failed(WindowFailure("c", hours(23, 24), "SourceUnreachable", "refused"), 3)
    status.failed(LedgerUnavailable("x"))
    clients = Clients(create_app(ledger, ApiSettings(auth="off"), now=Clock(), status=status))
    found = samples(clients.anybody.get("/metrics", headers={"Host": "localhost"}).text)
    assert found["gpucost_source_up"]["c",] == 0.0
    assert found["gpucost_windows_pending"]["c",] == 1, "three are due, two of them lost"
    assert found["gpucost_windows_lost"]["c",] == 2
    assert found["gpucost_windows_ingested_total"]["c",] == 1
    assert found["gpucost_source_errors_total"] == {
        ("c", "PartialResponse"): 1,
        ("c", "SourceUnreachable"): 1,
    }
    assert found["gpucost_errors_total"]["LedgerUnavailable",] == 1
    assert found["gpucost_source_last_success_timestamp_seconds"]["c",] == DAY.end_ms / 1000
    ready = clients.anybody.get("/readyz", headers={"Host": "localhost"}).json()
    assert ready["clusters"][0]["open_because"] == [f"{hours(23, 24)}: SourceUnreachable: refused"]


def test_a_scrape_survives_a_ledger_that_is_down(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object, **__: object) -> None:
        raise LedgerUnavailable("gone")

    monkeypatch.setattr(Ledger, "clusters", down)
    response = clients.prom.get("/metrics")
    found = samples(response.text)
    assert response.status_code == 200
    assert found["gpucost_ledger_up"][()] == 0.0
    assert "gpucost_team_cost_usd" not in found
    assert found["gpucost_build_info"]


def test_a_scrape_does_not_sum_an_unchanged_ledger_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    real = Ledger.aggregate

    def counted(self: Ledger, *args: object, **more: object) -> object:
        calls.append(args)
        return real(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "aggregate", counted)
    clients = Clients(create_app(ledger, ApiSettings(auth="off"), now=Clock()))
    clients.anybody.get("/metrics", headers={"Host": "localhost"})
    first = len(calls)
    # The month, the last window, the last day; of the end: before, idle, who runs, what is committed. Once an
    # hour of today has ended that too.
    assert first == 7
    for _ in range(2):
        clients.anybody.get("/metrics", headers={"Host": "localhost"})
    assert len(calls) == first


def test_readyz_says_how_far_behind_the_ledger_is(clients: Clients) -> None:
    assert clients.prom.get("/readyz").json() == {
        "status": "ready",
        "currency": "USD",
        "clusters": [
            {
                "cluster": "c",
                "lag_seconds": 3600.0,
                "source_up": None,
                "pending_windows": None,
                "lost_windows": None,
                "open_because": [],
            }
        ],
    }


def test_a_ledger_ahead_of_the_clock_is_not_behind_it(ledger: Ledger) -> None:
    clients = Clients(create_app(ledger, ApiSettings(auth="off"), now=Clock(DAY.end_ms - 1)))
    local = {"Host": "localhost"}
    assert clients.anybody.get("/readyz", headers=local).json()["clusters"][0]["lag_seconds"] == 0
    assert samples(clients.anybody.get("/metrics", headers=local).text)["gpucost_ledger_lag_seconds"] == {
        ("c",): 0
    }


def test_a_window_that_the_ledger_has_nothing_of_is_not_settled(ledger: Ledger) -> None:
    reporting = ReportService(ledger, "test", {})
    assert reporting.stand(EVERYTHING, DAY).settled
    assert not reporting.stand(EVERYTHING, Month(2026, 9).window).settled


@pytest.mark.parametrize("url", ["/", "/healthz", "/readyz", "/metrics", REPORT, f"/v1/allocations?{WINDOW}"])
def test_head_is_get_without_the_body(url: str, clients: Clients) -> None:
    same = {"X-Request-Id": "one-for-both"}
    head, get = clients.root.head(url, headers=same), clients.root.get(url, headers=same)
    assert (head.status_code, head.content) == (200, b"")
    # /metrics counts requests: the second answer may be longer.
    varies = {"content-length"} if url == "/metrics" else set()
    told, again = (
        {name: each.headers[name] for name in each.headers if name not in varies} for each in (head, get)
    )
    assert told == again
    assert clients.anybody.head(REPORT).status_code == 401


def test_the_metrics_are_those_that_are_declared(clients: Clients) -> None:
    text = clients.prom.get("/metrics").text
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert names == {metric.name for metric in SERVICE_METRICS}


def test_dollars_are_in_the_name_and_other_currencies_in_a_label(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ledger, "currency", "EUR")
    clients = Clients(create_app(ledger, ApiSettings(auth="off"), now=Clock()))
    found = samples(clients.anybody.get("/metrics", headers={"Host": "localhost"}).text)
    assert "gpucost_team_cost_usd" not in found
    assert found["gpucost_team_cost"]["EUR", "c", "research"] == 81.875
    assert len(found["gpucost_job_cost"]) == 3
