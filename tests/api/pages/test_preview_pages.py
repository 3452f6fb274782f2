"""What teams would pay by other rules: the figures of the API, for its roles, out of a form."""

from __future__ import annotations

import re
from html import unescape

import pytest
from httpx2 import Response

from gpucost.api.server.browser import FORM_TYPE
from gpucost.reports.base import display
from tests.api.conftest import Clients

URL = "/month/2026-10/preview"
PLAIN = "version: 1\nname: by use\n"
SHARED = """version: 1
name: <b>shared</b>
policies:
  - {valid_from: 2026-01-01, idle_of_nobody: by_use}
"""
PAGE = {"Accept": "text/html"}


def texts(page: Response) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.text)).split())


def test_the_figures_are_those_of_the_api(clients: Clients) -> None:
    page = clients.fin.post(URL, data={"first": PLAIN, "second": SHARED}, headers=PAGE)
    assert page.status_code == 200, page.text
    policies = [{"name": "first", "text": PLAIN}, {"name": "second", "text": SHARED}]
    found = clients.fin.post("/v1/months/2026-10/chargeback", json={"policies": policies}).json()
    said = texts(page)
    for team in (*found["teams"], found["kept"]):
        name = "kept by the platform" if team is found["kept"] else team["team"]
        amounts = " ".join(display.money(each["nano"]) for each in team["totals"])
        assert f"{name} {amounts} {display.signed_money(team['difference_nano'])}" in said
        for line in team["lines"]:
            assert display.signed_money(line["difference_nano"]) in said
    assert len(found["teams"]) == 2
    assert said.count("= difference 0 nano-USD") == 2
    for policy in found["policies"]:
        assert policy["digest"] in said
    assert "<b>shared" not in page.text
    assert "idle_of_nobody: by_use" in page.text, "the form keeps what was pasted"


def test_one_policy_and_cost_centres(clients: Clients) -> None:
    page = clients.root.post(URL, data={"first": "", "second": SHARED, "by": "cost-centre"}, headers=PAGE)
    assert page.status_code == 200
    assert "no cost centre" in texts(page)
    assert "Difference" not in page.text


def test_the_form_has_the_policy_in_force(clients: Clients) -> None:
    page = clients.fin.get(URL)
    assert "name: by use, idle kept by the platform" in page.text


@pytest.mark.parametrize(
    ("said", "status", "allowed"),
    [
        ({"first": "", "second": " "}, 422, "a charge policy as YAML"),
        ({"first": "version: 2\nname: x\n"}, 422, "first:1"),
        ({"first": PLAIN, "by": "person"}, 422, "cost-centre"),
        ({"first": PLAIN, "third": PLAIN}, 400, "first, second, by"),
        ({"first": "version: 1\nname: a\nquotas_file: /etc/passwd\n"}, 422, "files beside the policy"),
    ],
)
def test_what_is_not_in_order_is_refused(
    said: dict[str, str], status: int, allowed: str, clients: Clients
) -> None:
    refused = clients.fin.post(URL, data=said, headers=PAGE)
    assert refused.status_code == status
    assert allowed in texts(refused)


def test_only_who_may_ask_the_api(clients: Clients) -> None:
    for client in (clients.ada, clients.vera):
        assert client.get(URL, headers=PAGE).status_code == 403
        assert client.post(URL, data={"first": PLAIN}, headers=PAGE).status_code == 403
    foreign = clients.fin.post(URL, data={"first": PLAIN}, headers={"Sec-Fetch-Site": "cross-site"})
    assert foreign.status_code == 403
    large = clients.fin.post(URL, content="first=" + "x" * 70_000, headers={"Content-Type": FORM_TYPE})
    assert large.status_code == 413
