"""Advise and Explain in a browser: the answers of the API, and nothing that it would not say."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient

from gpucost.api.app import create_app
from gpucost.api.server.errors import LARGEST_MANIFEST
from gpucost.ledger.ledger import Ledger
from gpucost.reports.base.page_addresses import ADVISE, explanation_page
from gpucost.service.settings.api import ApiSettings
from tests.api.advisor_worlds import FOREIGN, advice, job
from tests.api.conftest import Clients
from tests.api.pages.page_reader import HTML, plain, section, text
from tests.service.worlds import Clock

MINE = explanation_page("Job", "ml", "mine")


def asked(client: TestClient, manifest: str, **headers: str) -> str:
    return plain(client.post(ADVISE, data={"manifest": manifest}, headers=HTML | headers))


@pytest.fixture
def bare(ledger: Ledger) -> TestClient:
    """Loopback without keys, and without a cluster to watch."""
    app = create_app(ledger, ApiSettings(auth="off"), now=Clock())
    return TestClient(app, base_url="http://127.0.0.1", headers=HTML)


def test_the_answer_is_that_of_the_api(clients: Clients) -> None:
    manifest = job(namespace="ml")
    page = asked(clients.root, json.dumps(manifest))
    said = clients.root.post("/v1/advisor/advice", json={"manifest": manifest}).json()
    shown = text(page)
    assert said["says"] in shown
    assert "Nothing was submitted" in shown
    for each in said["why"]:
        assert each in shown
    for each in said["suggestions"]:
        assert each["says"] in text(section(page, "suggestions"))
        assert f"<code>{each['change']['command']}" in page
    assert 'value=""' in page  # the token: no session here


def test_yaml_is_read_too_and_the_manifest_stays(clients: Clients) -> None:
    manifest = (
        "kind: Job\nmetadata: {name: t, namespace: ml}\nspec: {template: {spec: {containers: [{name: a}]}}}\n"
    )
    page = asked(clients.root, manifest)
    assert f"{manifest}</textarea>" in page
    assert advice(FOREIGN).queue in text(page)


def test_a_team_is_told_nothing_of_others(clients: Clients) -> None:
    page = asked(clients.ada, json.dumps(job(namespace="ml")))
    assert FOREIGN.name not in page
    assert f"{FOREIGN.namespace}/" not in page
    got = clients.vera.post(ADVISE, data={"manifest": json.dumps(job(namespace="ml"))}, headers=HTML)
    fresh = clients.vera.post(ADVISE, data={"manifest": json.dumps(job(namespace="xx"))}, headers=HTML)
    assert got.status_code == fresh.status_code == 404
    assert got.text.replace("&#34;ml&#34;", "&#34;xx&#34;") == fresh.text


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ("", "manifest"),
        ("kind: Pod", "kind"),
        ("a: &a [1]\nb: *a", "body"),
        ("kind: Job\n---\nkind: Job\n", "2 documents"),
        ("<script>alert(1)</script>", "body"),
        ("x" * (LARGEST_MANIFEST + 1), "larger than"),
    ],
)
def test_what_is_wrong_stands_above_the_manifest(manifest: str, words: str, clients: Clients) -> None:
    got = clients.root.post(ADVISE, data={"manifest": manifest}, headers=HTML)
    assert got.status_code in (413, 422)
    assert words in text(got.text)
    assert "<script>alert" not in got.text
    assert "</textarea>" in got.text
    plainly = clients.root.post(ADVISE, data={"manifest": manifest})
    assert plainly.status_code == got.status_code
    assert plainly.json()["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"}],
)
def test_a_page_of_another_site_cannot_ask(
    headers: dict[str, str], bare: TestClient, clients: Clients
) -> None:
    for client in (bare, clients.root):
        got = client.post(ADVISE, data={"manifest": json.dumps(job())}, headers=headers)
        assert got.status_code == 403


def test_only_a_form_with_its_fields_is_read(clients: Clients) -> None:
    assert clients.root.post(ADVISE, json={"manifest": "x"}).status_code == 415
    got = clients.root.post(ADVISE, data={"manifest": "x", "other": "y"})
    assert (got.status_code, got.json()["error"]["field"]) == (400, "other")
    huge = clients.root.post(ADVISE, data={"manifest": "x" * 5 * LARGEST_MANIFEST})
    assert huge.status_code == 413


def test_without_a_cluster_the_pages_say_which_setting(bare: TestClient) -> None:
    for address in (ADVISE, "/explain", MINE):
        page = plain(bare.get(address))
        assert "detectors.state" in page
        assert "<textarea" not in page
    got = bare.post(ADVISE, data={"manifest": "kind: Job"})
    assert got.status_code == 503
    assert "detectors.state" in got.text


def test_an_explanation_is_that_of_the_api(clients: Clients) -> None:
    page, said = (
        plain(clients.root.get(MINE, headers=HTML)),
        clients.root.get("/v1/explain/Job/ml/mine").json(),
    )
    assert said["says"] in text(page)
    assert [each["says"] in text(section(page, "layers")) for each in said["steps"]] == [True]
    assert said["actions"][0]["says"] in text(section(page, "actions"))
    assert "no part of a month" in text(page)
    if said["advice"] is not None:  # its first line has the verdict, and the heading has it not again
        assert '<h2 id="answer">If nothing is changed</h2>' in page


def test_a_foreign_job_is_like_one_that_nobody_has(clients: Clients) -> None:
    foreign = clients.vera.get(MINE, headers=HTML)
    unknown = clients.vera.get(MINE.replace("mine", "none"), headers=HTML)
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.text.replace("mine", "none") == unknown.text


def test_a_form_asks_which_job(clients: Clients) -> None:
    page = plain(clients.root.get("/explain", headers=HTML))
    assert 'name="namespace"' in page
    got = clients.root.get("/explain?name=x&kind=Job")
    assert (got.status_code, got.json()["error"]["field"]) == (422, "namespace")
