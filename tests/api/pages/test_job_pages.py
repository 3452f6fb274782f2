"""The page of a job says what its report says, down to one interval; a name leads to a choice."""

from __future__ import annotations

import pytest

from gpucost.api.pages.job_pages import interval_anchor
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS, Window
from gpucost.ledger.ledger import Ledger
from gpucost.reports.base import display
from gpucost.reports.base.page_addresses import job_page, month_page, team_page
from gpucost.reports.base.values import CostAmount
from gpucost.reports.job.job_report import TraceLine
from tests.api.conftest import Clients
from tests.api.pages.page_reader import HTML, anchors, foot, links, plain, rows, section, text


def page_of(clients: Clients, job: str = "uid-train", key: str = "root") -> str:
    return plain(getattr(clients, key).get(job_page(job), headers=HTML))


def uid_of(clients: Clients, name: str) -> str:
    [found] = clients.root.get(f"/v1/jobs?job={name}").json()["jobs"]
    return str(found["job_uid"])


def test_intervals_add_up_to_the_job_as_the_api_and_the_ledger_have_it(
    clients: Clients, ledger: Ledger
) -> None:
    uid = uid_of(clients, "train")
    page, said = page_of(clients, uid), clients.root.get(f"/v1/jobs/{uid}").json()
    shown = rows(section(page, "intervals"))
    assert [row[-1] for row in shown] == [display.money(line["amount"]["nano"]) for line in said["lines"]]
    assert foot(section(page, "intervals"))[-1] == display.money(said["held"]["nano"])
    window = ledger.job_window(EVERYTHING, uid)
    assert window is not None
    lines = ledger.aggregate(EVERYTHING, window, (), filters={"job_uid": [uid]})
    assert said["held"]["nano"] == int(lines["nano"].sum())
    for row, line in zip(shown, said["lines"], strict=True):
        assert row[3].startswith(line["formula"])


def test_from_the_month_to_one_interval_and_back(clients: Clients) -> None:
    month = plain(clients.root.get(month_page("2026-10"), headers=HTML))
    [job] = [href for href in links(section(month, "jobs")) if href == job_page(uid_of(clients, "train"))]
    page = plain(clients.root.get(job, headers=HTML))
    [interval] = [href for href in links(section(page, "intervals")) if href.startswith("#interval-")]
    assert interval[1:] in anchors(page)
    assert {month_page("2026-10"), team_page("research", "2026-10")} <= set(links(page))


def test_rows_behind_the_figures_answer(clients: Clients) -> None:
    page = page_of(clients, uid_of(clients, "train"))
    behind = {href for href in links(page) if href.startswith("/v1/")}
    assert len(behind) >= 5
    for href in behind:
        assert clients.root.get(href).status_code == 200, href


def test_the_table_of_use_is_that_of_allocations(clients: Clients) -> None:
    uid = uid_of(clients, "train")
    page = page_of(clients, uid)
    asked = next(href for href in links(section(page, "use")) if "step=" in href and "csv" not in href)
    said = clients.root.get(asked).json()["rows"]
    busy = [display.hours(row["utilisation"]["busy"]["active_board_ms"], 2) for row in said]
    assert [row[1] for row in rows(section(page, "use"))] == busy
    assert asked.count("step=1h") == 1


def test_prices_have_their_source_and_progress_its_cost(clients: Clients) -> None:
    uid = uid_of(clients, "train")
    page, said = page_of(clients, uid), clients.root.get(f"/v1/jobs/{uid}").json()
    [price] = rows(section(page, "prices"))
    assert price[1] == display.price(said["rates"][0]["price_nano"])
    assert display.money(said["progress"][0]["per_unit_nano"], 9) in text(section(page, "receipt"))


def test_a_name_finds_it_and_so_does_its_namespace(clients: Clients) -> None:
    by_uid = page_of(clients, uid_of(clients, "tune"))
    assert page_of(clients, "tune") == page_of(clients, "research/tune")
    assert section(by_uid, "intervals") == section(page_of(clients, "tune"), "intervals")


@pytest.mark.parametrize("job", ["nothing", "vision/train", "research/", "uid-tune-not"])
def test_no_job_of_a_name_is_said(job: str, clients: Clients) -> None:
    got = clients.root.get(job_page(job))
    assert got.status_code == 404
    assert got.json()["error"]["field"] == "job"


def test_a_foreign_job_is_like_one_that_nobody_has(clients: Clients) -> None:
    for job in (uid_of(clients, "train"), "train", "research/train"):
        foreign = clients.vera.get(job_page(job), headers=HTML)
        unknown = clients.vera.get(job_page("x" * len(job)), headers=HTML)
        assert foreign.status_code == unknown.status_code == 404
        assert foreign.text.replace(job, "x" * len(job)) == unknown.text


def test_other_names_of_parameters_are_refused(clients: Clients) -> None:
    for query, field in (
        ("&page=9", "page"),
        ("&cluster=x", "cluster"),
        ("&uid=x", "uid"),
        ("&progress=x", "progress"),
    ):
        got = clients.root.get(job_page("train") + query)
        assert got.status_code in (400, 422)
        assert got.json()["error"]["field"] == field


def line(start_ms: int, end_ms: int, pod: str = "pod") -> TraceLine:
    amount = CostAmount(1, 1)
    return TraceLine(
        Window(start_ms, end_ms), "c", "n", pod, "nvidia.com/gpu", "H100", "", "t", "rate", 1, amount, "1"
    )


def test_the_anchor_of_an_interval_stays_while_it_goes_on() -> None:
    assert interval_anchor(line(0, HOUR_MS)) == interval_anchor(line(0, 2 * HOUR_MS))
    assert interval_anchor(line(0, HOUR_MS)) != interval_anchor(line(0, HOUR_MS, "other"))
    assert interval_anchor(line(0, 3 * HOUR_MS)) != interval_anchor(line(HOUR_MS, 3 * HOUR_MS))


@pytest.mark.parametrize("job", ["trian", "research/trian", "trains"])
def test_who_wrote_a_name_wrong_is_told_which_was_meant(job: str, clients: Clients) -> None:
    got = clients.root.get(job_page(job), headers=HTML)
    assert got.status_code == 404
    assert "train (did you mean this?)" in text(got.text)
    assert "did you mean" not in clients.vera.get(job_page(job), headers=HTML).text
