"""What a viewer of one team is answered does not depend on what others did: no name, number or header.

Two ledgers have the same time of team vision, and another team that did other things under another name.
Every route that reads, pages included, answers vision's viewer the same from both, byte for byte, but for
digests of windows, which name the state of the whole ledger and say nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from fastapi.testclient import TestClient

from gpucost.access.keys import format_key
from gpucost.api.app import create_app
from gpucost.ledger import Ledger
from tests.api.advisor_worlds import advising
from tests.api.conftest import SECRETS, SETTINGS
from tests.api.test_principals import READERS, ROUTES
from tests.service.worlds import DAY, Clock, MemorySource, frames, pipeline
from tests.support.frames import build, node, pod, units
from tests.support.ledgers import new_ledger

READS = sorted(path for path, route in ROUTES.items() if path[0] == "GET" and route.roles >= READERS)
OWN = {
    "/v1/jobs/job-train": "/v1/jobs/job-detect",
    "job=nobody": "job=detect",
    "team=research": "team=vision",
    "job-train": "job-detect",
    "q=train": "q=e",
}
"""What the sweep asks of another team, asked of the viewer's own."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_HEADERS = ("content-type", "cache-control", "content-security-policy", "content-disposition", "location")


class TwoWorlds(NamedTuple):
    first: TestClient
    second: TestClient


def world(folder: Path, found: MemorySource) -> tuple[Ledger, TestClient]:
    clock = Clock()
    ledger = Ledger.open(new_ledger(folder / "ledger.db"), now=clock)
    lines = pipeline(ledger, found, clock)
    assert lines.ingest("c", lines.pending("c", DAY)).ingested == 24
    still = advising()
    still.monotonic = lambda: still._checked_s
    settings = SETTINGS.model_copy(update={"rate": 0})
    client = TestClient(
        create_app(ledger, settings, now=clock, advising=still), raise_server_exceptions=False
    )
    client.headers["Authorization"] = f"Bearer {format_key('vera', SECRETS['vera'])}"
    return ledger, client


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoWorlds]:
    detect = pod("detect", (0, 20), count=3, namespace="vision", queue="batch", cluster_queue="cq")
    others = [
        pod(f"secret-{n}", (n / 2, n / 2 + 7.5), count=1, namespace="speech", user="eve", queue="hidden")
        for n in range(4)
    ]
    other = build(
        pods=[detect, *others],
        nodes=[node("n1"), node("n2")],
        capacity=[units(name="n1"), units(name="n2")],
        observed=[(0, 10), (11, 24)],
    )
    first, one = world(tmp_path_factory.mktemp("first"), MemorySource(frames()))
    second, two = world(tmp_path_factory.mktemp("second"), MemorySource(replace(other)))
    with first, second:
        yield TwoWorlds(one, two)


@pytest.mark.fault(47)
@pytest.mark.parametrize("html", [False, True], ids=["program", "browser"])
@pytest.mark.parametrize("route", READS, ids=" ".join)
def test_what_others_did_changes_nothing(route: tuple[str, str], html: bool, worlds: TwoWorlds) -> None:
    url = ROUTES[route].url
    asked = {url}
    for foreign, own in OWN.items():
        asked.add(url.replace(foreign, own))
    for each in sorted(asked):
        answers = [
            client.get(each, headers={"Accept": "text/html"} if html else {}, follow_redirects=False)
            for client in worlds
        ]
        one, two = answers
        assert one.status_code == two.status_code, each
        for header in _HEADERS:
            assert one.headers.get(header) == two.headers.get(header), each
        assert _DIGEST.sub("D", one.text) == _DIGEST.sub("D", two.text), each
        assert not re.search(r"secret-\d|speech|research", _without_own_words(one.text, each)), each


def test_who_sees_every_team_sees_the_difference(worlds: TwoWorlds) -> None:
    root = {"Authorization": f"Bearer {format_key('root', SECRETS['root'])}"}
    for url in ("/v1/reports/2026-10", "/month/2026-10"):
        one, two = (_DIGEST.sub("D", client.get(url, headers=root).text) for client in worlds)
        assert one != two
        assert "speech" in two


def _without_own_words(text: str, url: str) -> str:
    """An answer without what was asked for, which an error says back."""
    for word in ("research", "train"):
        if word in url:
            text = text.replace(word, "")
    return text
