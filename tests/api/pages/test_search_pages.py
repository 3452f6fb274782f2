"""Search finds names by a part of them, and nothing that the reader may not see."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from gpucost.reports.base.page_addresses import job_page, search_page, team_page
from tests.api.conftest import Clients
from tests.api.pages.page_reader import HTML, links, plain, rows, section, text


def found(clients: Clients, asked: str, key: str = "root") -> str:
    return plain(getattr(clients, key).get(search_page(asked, "2026-10"), headers=HTML))


@pytest.mark.parametrize("url", ["/nonesuch", "/month/2026-10/nonesuch"])
def test_an_address_without_a_page_leads_to_the_search(url: str, clients: Clients) -> None:
    page = clients.fin.get(url, headers=HTML)
    assert page.status_code == 404
    assert "nothing is at this address" in page.text
    assert "GET /" not in page.text, "what is told to programs"
    assert "/search" in links(page.text)


def test_a_page_for_others_names_the_role_and_no_header(clients: Clients) -> None:
    page = clients.vera.get("/month/2026-10/preview", headers=HTML)
    assert page.status_code == 403
    assert "the role viewer may not" in page.text
    assert "Authorization" not in page.text


def test_jobs_by_a_part_of_their_name_lead_to_their_pages(clients: Clients) -> None:
    page = found(clients, "TRAI")
    [row] = rows(section(page, "jobs"))
    assert (row[0], row[2]) == ("train", "research")
    assert job_page("research/train") in links(page)
    assert team_page("research", "2026-10") in links(page)
    assert clients.root.get(job_page("research/train")).status_code == 200


@pytest.mark.parametrize(
    ("asked", "kind", "name"),
    [
        ("search", "teams", "research"),
        ("ad", "people", "ada"),
        ("atc", "queues", "batch"),
        ("n1", "nodes", "n1"),
    ],
)
def test_other_names(asked: str, kind: str, name: str, clients: Clients) -> None:
    assert name in text(section(found(clients, asked), kind))


def test_by_namespace_and_by_uid(clients: Clients) -> None:
    assert "tune" in section(found(clients, "rch/tun"), "jobs")
    [job] = clients.root.get("/v1/jobs?job=tune").json()["jobs"]
    assert "tune" in section(found(clients, job["job_uid"]), "jobs")


def test_a_reader_of_a_team_finds_what_is_its_own(clients: Clients) -> None:
    for asked in ("tra", "tune", "resear", "bob", "research/train", "uid-train", "n2"):
        mine, nobodys = found(clients, asked, "vera"), found(clients, "q" * len(asked), "vera")
        assert mine.replace(asked, "q" * len(asked)) == nobodys, asked
    assert "detect" in section(found(clients, "tect", "vera"), "jobs")
    assert "n1" in text(section(found(clients, "n1", "vera"), "nodes"))


def test_nothing_found_says_what_can_be_searched(clients: Clients) -> None:
    page = found(clients, "no such thing")
    assert "Searched: jobs" in text(page)
    assert "at least 2 characters" in text(plain(clients.root.get("/search", headers=HTML)))


@pytest.mark.parametrize("asked", ["x", "  y ", "z" * 254, "z" * 5_000, "a\0b"])
def test_what_is_no_part_of_a_name_is_refused(asked: str, clients: Clients) -> None:
    got = clients.root.get(f"/search?q={quote(asked)}")
    assert got.status_code == 422
    assert got.json()["error"]["field"] == "q"


@pytest.mark.parametrize("asked", ["%", "__", "%%", "_rain", "t%n", "' OR 1=1 --", "<script>", "\u202eniart"])
def test_what_was_asked_is_text(asked: str, clients: Clients) -> None:
    page = found(clients, asked) if len(asked) > 1 else found(clients, asked * 2)
    assert "<script>" not in page
    assert "\u202e" not in page.replace(f'value="{asked}"', "")
    assert 'id="jobs"' not in page
