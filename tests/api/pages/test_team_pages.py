"""The page of a team says what the API and the ledger say, and to nobody else."""

from __future__ import annotations

import pytest

from gpucost.api.pages.team_pages import JOBS_A_PAGE, JobChoice, listed
from gpucost.domain.errors import InputError
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import Month
from gpucost.ledger.ledger import Ledger
from gpucost.reports.base import display
from gpucost.reports.base.page_addresses import month_page, team_page
from gpucost.reports.base.values import CostAmount, GpuUtilisation
from gpucost.reports.month.model import JobCostRow
from tests.api.conftest import Clients
from tests.api.pages.page_reader import HTML, foot, links, plain, rows, section, text

RESEARCH = team_page("research", "2026-10")
NO_USE = GpuUtilisation(None, None, None, None, None)


def page_of(clients: Clients, address: str = RESEARCH, key: str = "root") -> str:
    return plain(getattr(clients, key).get(address, headers=HTML))


def test_what_it_pays_is_what_the_statement_the_month_and_the_ledger_say(
    clients: Clients, ledger: Ledger
) -> None:
    page = page_of(clients)
    said = clients.root.get("/v1/months/2026-10/statement?team=research").json()
    shown = display.money(said["total_nano"])
    assert foot(section(page, "s-charges"))[-1] == shown
    assert f"{shown} {said['currency']}" in text(page)
    month = plain(clients.root.get(month_page("2026-10"), headers=HTML))
    assert [row[1] for row in rows(section(month, "teams")) if row[0] == "research"] == [shown]
    lines = ledger.aggregate(EVERYTHING, Month.parse("2026-10").window, ("team", "bucket"))
    held = lines[(lines["team"] == "research") & (lines["bucket"] == "held")]
    assert said["total_nano"] == int(held["nano"].sum())


def test_jobs_are_those_of_the_report_and_lead_to_their_pages(clients: Clients) -> None:
    page = page_of(clients)
    report = clients.root.get("/v1/reports/2026-10?team=research").json()
    wanted = [[job["job"], display.money(job["held"]["nano"])] for job in report["top_jobs"]]
    assert [[row[0], row[4]] for row in rows(section(page, "jobs"))] == wanted
    for job in report["top_jobs"]:
        assert f"/job?job={job['job_uid']}" in links(page)


def test_people_and_queues_are_those_of_allocations(clients: Clients) -> None:
    page = page_of(clients)
    asked = "/v1/allocations?window=2026-10&group_by=user&team=research"
    people = clients.root.get(asked).json()["rows"]
    assert [[row[0], row[3]] for row in rows(section(page, "people"))] == [
        [each["group"]["user"], display.money(each["held"]["nano"])] for each in people
    ]
    assert asked in links(page)
    assert rows(section(page, "queues"))


def test_jobs_are_ordered_and_filtered_by_address(clients: Clients) -> None:
    named = page_of(clients, team_page("research", "2026-10", name="TUN"))
    assert [row[0] for row in rows(section(named, "jobs"))] == ["tune"]
    ordered = page_of(clients, team_page("research", "2026-10", sort="newest"))
    assert [row[0] for row in rows(section(ordered, "jobs"))] == ["tune", "train"]
    none = page_of(clients, team_page("research", "2026-10", name="nothing"))
    assert "No job like that" in text(section(none, "jobs"))


@pytest.mark.parametrize(
    ("query", "field"),
    [("&sort=x", "sort"), ("&page=2", "page"), ("&page=0", "page"), ("&other=1", "other"), ("", "team")],
)
def test_what_is_wrong_is_named(query: str, field: str, clients: Clients) -> None:
    address = f"{RESEARCH}{query}" if query else "/month/2026-10/team"
    got = clients.root.get(address)
    assert got.status_code in (400, 422)
    assert got.json()["error"]["field"] == field


def test_a_foreign_team_is_like_one_that_nobody_has(clients: Clients) -> None:
    foreign = clients.vera.get(RESEARCH, headers=HTML)
    unknown = clients.vera.get(team_page("nobody", "2026-10"), headers=HTML)
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.text.replace("research", "nobody") == unknown.text


def test_a_team_reads_nothing_of_others(clients: Clients) -> None:
    page = page_of(clients, team_page("vision", "2026-10"), "vera")
    for name in ("research", "train", "tune", "bob", "llm"):
        assert name not in page
    assert page == page_of(clients, team_page("vision", "2026-10"), "vera")


def test_a_team_that_is_not_there_is_refused_with_those_that_are(clients: Clients) -> None:
    got = clients.root.get(team_page("resaerch", "2026-10"))
    assert got.status_code == 404
    assert "research (did you mean this?)" in got.json()["error"]["allowed"]


def job(number: int, name: str = "job", kind: str = "Job") -> JobCostRow:
    held = CostAmount(number, number)
    return JobCostRow("c", "space", kind, f"{name}-{number}", f"uid-{number}", ("t",), held, NO_USE, None)


def test_ten_thousand_jobs_are_shown_page_by_page() -> None:
    jobs = [job(number) for number in range(10_000)]
    first, last = listed(jobs, JobChoice()), listed(jobs, JobChoice(page=10_000 // JOBS_A_PAGE))
    assert [each.held.nano for each in first.jobs[:2]] == [9_999, 9_998]
    assert last.jobs[-1].held.nano == 0
    assert (first.found, first.every, first.pages) == (10_000, 10_000, 10_000 // JOBS_A_PAGE)
    with pytest.raises(InputError):
        listed(jobs, JobChoice(page=first.pages + 1))


def test_a_filter_counts_what_it_finds() -> None:
    jobs = [job(1, "a"), job(2, "B"), job(3, "b", "Pod")]
    assert [each.job for each in listed(jobs, JobChoice(name="b-")).jobs] == ["b-3", "B-2"]
    found = listed(jobs, JobChoice(kind="Pod"))
    assert ([each.job for each in found.jobs], found.every, found.kinds) == (["b-3"], 3, ("Job", "Pod"))


def test_tables_of_what_changed_are_headed_by_the_words_of_the_field(clients: Clients) -> None:
    page = plain(clients.fin.get("/month/2026-10/change", headers=HTML))
    for key, head in (("model", "GPU model"), ("job_kind", "Kind of job")):
        assert f'<th scope="col" class="text">{head}</th>' in section(page, f"by-{key}")
