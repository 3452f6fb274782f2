"""Names that people choose are text on pages of jobs and teams, however long, in whatever direction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from gpucost.api.app import create_app
from gpucost.ledger.ledger import Ledger
from gpucost.reports.base.page_addresses import job_page, search_page, team_page
from gpucost.service.settings.api import ApiSettings
from tests.api.pages.page_reader import HTML, plain, text
from tests.service.worlds import DAY, Clock, MemorySource, pipeline
from tests.support.frames import build, node, pod, units
from tests.support.ledgers import new_ledger

EVIL = "<img src=x onerror=alert(1)>\u202e'\"&{{7*7}}"
LONG = "n" * 900


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    clock = Clock()
    frames = build(
        pods=[
            pod(
                "evil",
                (1, 9),
                count=2,
                namespace=EVIL,
                user=EVIL,
                project=EVIL,
                queue=EVIL,
                cluster_queue=EVIL,
            ),
            pod("long", (2, 8), count=1, namespace=EVIL, user=LONG, queue=LONG),
        ],
        nodes=[node("n1")],
        capacity=[units(name="n1")],
        observed=[(0, 24)],
    )
    folder: Path = tmp_path_factory.mktemp("hostile")
    with Ledger.open(new_ledger(folder / "ledger.db"), now=clock) as ledger:
        lines = pipeline(ledger, MemorySource(frames), clock)
        lines.ingest("c", lines.pending("c", DAY))
        app = create_app(ledger, ApiSettings(auth="off"), now=clock)
        yield TestClient(app, base_url="http://127.0.0.1", headers=HTML)


@pytest.mark.parametrize(
    "address",
    [
        team_page(EVIL, "2026-10"),
        team_page(EVIL, "2026-10", name="evil"),
        job_page("evil"),
        job_page("long"),
        search_page("img", "2026-10"),
        search_page("nnnn", "2026-10"),
    ],
)
def test_names_are_text(client: TestClient, address: str) -> None:
    page = plain(client.get(address))
    assert "<img" not in page
    assert "\u202e" not in text(page)
    assert "{{7*7}}" in text(page) or "evil" not in address
    assert LONG not in text(page)
    assert len(page) < 150_000


@pytest.mark.parametrize(
    "address",
    [job_page(EVIL), job_page("x" * 505), team_page("y" * 250, "2026-10"), search_page(EVIL, "2026-10")],
)
def test_what_was_asked_for_is_text_in_errors_too(client: TestClient, address: str) -> None:
    got = client.get(address)
    assert got.status_code in (200, 404)
    assert "<img" not in got.text
    assert "style=" not in got.text
