"""What a viewer of one team is answered does not depend on what others did: no name, number or header.

Two ledgers have the same time of team vision, and another team that did other things under another name.
Every route that reads, pages included, answers vision's viewer the same from both, byte for byte, but for
digests of windows, which name the state of the whole ledger and say nothing of it. So do the pages of now
where others wait and run, and those of a ledger with another cluster. What is of others is looked for with
the same statements as what is not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event
from sqlalchemy.engine import Engine

from gpucost.access.keys import format_key
from gpucost.api.app import create_app
from gpucost.detectors.findings import FindingSubject, SubjectKind
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.ledger.ledger import Ledger
from gpucost.reports.month.inputs import TeamAccount
from gpucost.service.detection.finding_records import record_of
from tests.api import test_advisor_tenants as tenants
from tests.api import test_clusters as several
from tests.api import test_live as now_live
from tests.api.advisor_worlds import advising, ever_current
from tests.api.conftest import SECRETS, SETTINGS, Clients
from tests.api.every_route import READERS, ROUTES
from tests.api.findings import finding, ledger_with_findings, life
from tests.ledger.clones import fill
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
    settings = SETTINGS.model_copy(update={"rate": 0})
    client = TestClient(
        create_app(ledger, settings, now=clock, advising=ever_current(advising())),
        raise_server_exceptions=False,
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


# --- now, and several clusters --------------------------------------------------------------------------

HTML = {"Accept": "text/html"}


def page(client: TestClient, url: str) -> tuple[int, str, str]:
    found = client.get(url, headers=HTML, follow_redirects=False)
    return found.status_code, found.headers.get("location", ""), _DIGEST.sub("D", found.text)


@pytest.mark.fault(47)
def test_pages_of_now_are_the_same_as_if_there_were_no_others(ledger: Ledger) -> None:
    state = tenants.cluster(1)
    whole, alone = (now_live.clients_of(ledger, each) for each in (state, now_live.without_others(state)))
    for url in ("/queues", "/queues?queue=ml", "/nodes", "/nodes?node=n1", "/job?job=mine", "/advise"):
        assert page(whole.ada, url) == page(alone.ada, url), url
        assert tenants.SECRET not in page(whole.ada, url)[2]
    for name in (*tenants.JOBS, tenants.SPACE):
        for url in (f"/queues?queue={name}", f"/nodes?node={name}", f"/search?q={name}", f"/job?job={name}"):
            assert page(whole.ada, url) == page(alone.ada, url), url
    assert tenants.SECRET in page(whole.fin, "/queues")[2]


OF_CLUSTERS = (
    *("/", "/months", "/month/2026-10", "/month/2026-10?cluster=alpha", "/month/2026-10?cluster=beta"),
    *(
        f"/month/2026-10/{part}?team={team}"
        for part in ("team", "change")
        for team in ("red", "blue", "spare")
    ),
    *(f"/job?job={name}" for name in ("job-0", "job-1", "j0", "red/j0", "job-0&cluster=alpha")),
    *(f"/search?q={text}" for text in ("red", "blue", "spare", "node", "alpha", "j0", "job-0")),
    *("/month/2026-10/data", "/findings", "/findings?cluster=alpha", "/queues", "/nodes?cluster=alpha"),
    *("/v1/teams", "/v1/teams?cluster=alpha", "/v1/budgets?month=2026-10", "/v1/prices", "/v1/months"),
    *("/v1/jobs", "/v1/jobs?limit=1&page=2", "/v1/jobs/job-1/receipt", "/v1/findings"),
    *("/v1/digest?week=2026-W40", f"/v1/allocations?window={several.SPAN}&group_by=team,job,node,cluster"),
)


def cluster_world(folder: Path, scope: Scope, who: str, teams: tuple[str, ...]) -> tuple[Ledger, TestClient]:
    """Both clusters as far as ``scope`` sees them, with rules for ``teams``."""
    folder.mkdir()
    ledger = Ledger.open(new_ledger(folder / "ledger.db"), now=lambda: several.NOW_MS)
    fill(ledger, scope, finds=False)
    subject = FindingSubject(SubjectKind.JOB, "beta", "train", "ml", "job-9")
    ledger.save_findings("beta", [record_of("beta", life(finding("own", "red", 9, subject=subject)), None)])
    if scope == EVERYTHING:
        foreign = replace(subject, cluster="alpha", name="foreign")
        found = life(finding("foreign", "blue", 9, subject=foreign))
        ledger.save_findings("alpha", [record_of("alpha", found, None)])
    app = create_app(
        ledger,
        several.SETTINGS.model_copy(update={"rate": 0}),
        now=lambda: several.NOW_MS,
        accounts={name: TeamAccount(f"cc-{name}", 10**9) for name in teams},
        quotas={name: Fraction(3) for name in teams},
    )
    headers = {"Authorization": f"Bearer {format_key(who, who)}"}
    return ledger, TestClient(app, headers=headers, raise_server_exceptions=False)


@pytest.mark.fault(47)
def test_who_sees_one_cluster_reads_the_same_as_if_there_were_no_other(tmp_path: Path) -> None:
    who, scope = "red-beta", Scope(frozenset({"red"}), frozenset({"beta"}))
    first, one = cluster_world(tmp_path / "1", EVERYTHING, who, ("red", "blue", "spare"))
    second, two = cluster_world(tmp_path / "2", scope, who, ("red",))
    with first, second:
        for url in OF_CLUSTERS:
            assert page(one, url) == page(two, url), url


# --- what it costs to look ------------------------------------------------------------------------------

FORM = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
LOOKED_FOR: tuple[tuple[str, str, str, Any], ...] = (
    *(("GET", f"/job?job={name}", "", None) for name in ("job-{}", "{}", "cv/{}", "job-{}&cluster=c")),
    *(("GET", f"/v1/jobs/job-{{}}{part}", "", None) for part in ("", "/receipt")),
    *(
        ("GET", f"{path}{{}}", "", None)
        for path in ("/v1/jobs?job=", "/search?q=", "/search?month=2026-10&q=")
    ),
    *(("GET", f"/month/2026-10/{part}?team={{}}", "team", None) for part in ("team", "change")),
    *(("GET", f"{path}team={{}}", "team", None) for path in ("/findings?", "/v1/budgets?month=2026-10&")),
    *(("GET", f"{path}{{}}", "id", None) for path in ("/finding/", "/v1/findings/")),
    *(
        ("POST", f"/finding/{{}}/{act}", "id", form)
        for act, form in (("acknowledge", "note=x"), ("mute", "for=2h&reason=x"), ("unmute", "reason=x"))
    ),
)
NAMES = {"": ("detect", "nobody"), "team": ("vision", "nobody"), "id": ("2", "99")}
"""Of another team, and of nobody."""


@contextmanager
def statements() -> Iterator[list[str]]:
    """The statements that databases are asked meanwhile."""
    seen: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.fault(47)
def test_what_is_of_others_is_looked_for_like_what_is_not_there(tmp_path: Path) -> None:
    """With the same statements, each time of an app that keeps no answers yet, and told in the same words."""
    clock = Clock()
    with ledger_with_findings(tmp_path, clock) as ledger:

        def asked(method: str, url: str, name: str, body: Any) -> tuple[int, list[str], str]:
            app = create_app(ledger, SETTINGS.model_copy(update={"rate": 0}), now=clock, advising=advising())
            with statements() as seen:
                found = Clients(app).ada.request(
                    method, url.format(name), content=body, headers=HTML | (FORM if body else {})
                )
            told = re.sub(rf"\b{name}\b(?! waits)", "?", found.text)
            return found.status_code, seen, told

        for method, url, kind, body in LOOKED_FOR:
            foreign, missing = (asked(method, url, name, body) for name in NAMES[kind])
            assert foreign == missing, url
            assert foreign[0] in (200, 404, 422)
        own = asked("GET", "/v1/jobs/job-{}", "train", None)
        assert own[0] == 200
        assert own[1] != asked("GET", "/v1/jobs/job-{}", "nobody", None)[1]
