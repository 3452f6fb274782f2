"""A name of another team's and a name that does not exist: the same answer, and the same work to give it.

Times are not measured here: what takes time is counted. Statements, rows that they return, and how often the
database goes round in its loops, which counts rows that it reads and drops.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx2 import Response
from sqlalchemy import event

from gpucost.access.authenticator import Authenticator, FixedKeys
from gpucost.access.keys import KeyRecord, format_key, hash_secret
from gpucost.access.principal import AccessRole, AuthenticationMethod
from gpucost.access.sessions import SessionRecord
from gpucost.advisor.model.answers import AdviceSubject
from gpucost.api.app import create_app
from gpucost.cluster.objects.jobs import Namespace
from gpucost.domain.buckets import Bucket
from gpucost.domain.rates import Rate
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.api_keys import LedgerKeys
from gpucost.ledger.usage.query import DIMENSIONS
from tests.api.advisor_worlds import StillCluster, advising, ever_current, job, state
from tests.api.conftest import SETTINGS, Clients
from tests.api.findings import finding, life, save
from tests.cluster import builders
from tests.ledger.builders import hour, ingest, line
from tests.service.worlds import Clock
from tests.support.ledgers import new_ledger

DAY = "2026-10-01T00:00:00Z/2026-10-01T06:00:00Z"
HOURS, PODS = 6, 40
OWN, OTHER = "research", "zqvision"
LABELS = ("namespace", "job", "queue", "cluster_queue", "workload", "flavor", "project", "user")
UNITS = ("node", "model", "profile", "instance_type", "capacity_type", "region", "zone", "pool", "resource")
HARDWARE = {*UNITS, "rate_id"}
"""Of the cluster, and of no team: that there is such a node may be seen by the work, but not who is on it."""
PUBLIC = {"cluster", "bucket", "basis", "job_kind"}
"""Dimensions whose values say nothing of a team."""


def foreign(name: str) -> str:
    """What the other team has under a dimension."""
    return OTHER if name == "team" else f"zq-{name}"


def absent(value: str) -> str:
    """A name that does not exist, as long and of the same letters."""
    return value.replace("zq", "zx")


def world_ledger(folder: Path, clock: Clock) -> Ledger:
    ledger = Ledger.open(new_ledger(folder / "ledger.db"), now=clock)
    rates = {
        name: Rate(name, 10**9, "USD", 10**9, "model", "list", "2026-09-01") for name in ("own", "zq-rate_id")
    }
    theirs = {name: foreign(name) for name in (*LABELS, *UNITS, "rate_id")}
    for at in range(HOURS):
        window = hour(at)
        rows = [
            line(window, cluster="c", team=OWN, namespace="ml", job="mine", job_uid="job-mine", rate_id="own")
        ]
        for pod in range(PODS):
            name = "zq-pod" if pod == 0 else f"zq-pod-{pod}"
            uid = "zq-pod_uid" if pod == 0 else f"zq-uid-{pod}"
            row = line(window, cluster="c", team=OTHER, pod=name, pod_uid=uid, job_uid="zq-job_uid", **theirs)
            rows.append(row)
        ingest(ledger, window, *rows, cluster="c", rates=rates)
    for name, team in (("mine", OWN), ("zq-job", OTHER)):
        for each in save(ledger, life(finding(name, team, 10))):
            assert each.id == (1 if team == OWN else 2)
    for key_id, team in (("own-key", OWN), ("zq-key", OTHER)):
        record = KeyRecord(key_id, hash_secret(key_id), AccessRole.VIEWER, frozenset({team}))
        ledger.add_key(replace(record, created_ms=clock(), created_by="root"))
    by, until = AuthenticationMethod.KEY, clock() + HOUR_MS
    session = SessionRecord("zq-session", "zq", by, "zq-key", "zq", (), clock(), until, "zq")
    assert ledger.begin_session(session)
    return ledger


def crowded() -> StillCluster:
    """``zq-space`` has very much in it, and there is no ``zx-space``."""
    labels = {"team": OTHER}
    found = state()
    jobs = [
        builders.job("zq-job", namespace="zq-space", labels=labels),
        *(builders.job(f"zq-job-{at}", namespace="zq-space", labels=labels) for at in range(300)),
        *(builders.job("zq-job", namespace=f"zq-{at}", labels=labels, uid=f"uid-{at}") for at in range(300)),
    ]
    spaces = [Namespace(builders.meta("zq-space", "", labels=labels))]
    return StillCluster(
        replace(
            found,
            jobs={**found.jobs, **{each.meta.uid: each for each in jobs}},
            namespaces={**found.namespaces, **{each.meta.uid: each for each in spaces}},
        )
    )


class Work(NamedTuple):
    """What the database had to do."""

    statements: list[str]
    rows: int
    loops: int


class World(NamedTuple):
    app: FastAPI
    clients: Clients
    ledger: Ledger
    counted: Counter

    def work(self, ask: Any) -> tuple[Response, Work]:
        self.counted.clear()
        answer: Response = ask()
        return answer, self.counted.work()


class Counter:
    """Counts what the database of a ledger does."""

    def __init__(self, ledger: Ledger) -> None:
        self._statements: list[str] = []
        self._rows = self._loops = 0
        engine = ledger._database._engine
        event.listen(engine, "before_cursor_execute", self._execute)
        event.listen(engine, "checkout", self._checkout)

    def clear(self) -> None:
        self._statements, self._rows, self._loops = [], 0, 0

    def work(self) -> Work:
        return Work(list(self._statements), self._rows, self._loops)

    def _execute(self, _: Any, __: Any, statement: str, *___: Any) -> None:
        # When a key was used is noted in another thread, whenever that comes to it.
        if "UPDATE api_key SET last_used_ms" not in statement:
            self._statements.append(statement)

    def _checkout(self, connection: Any, *_: Any) -> None:
        connection.row_factory = self._row
        connection.set_progress_handler(self._loop, 1)

    def _row(self, _: Any, row: tuple[Any, ...]) -> tuple[Any, ...]:
        self._rows += 1
        return row

    def _loop(self) -> int:
        self._loops += 1
        return 0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    clock = Clock()
    with world_ledger(tmp_path_factory.mktemp("foreign"), clock) as ledger:
        settings = SETTINGS.model_copy(update={"rate": 0, "refused_rate": 0})
        app = create_app(ledger, settings, now=clock, advising=ever_current(advising(watched=crowded())))
        clients = Clients(app)
        for each in (clients.ada, clients.vera, clients.fin):
            assert each.get("/v1/me").status_code == 200
        yield World(app, clients, ledger, Counter(ledger))


@dataclass(frozen=True)
class Question:
    """A request that names something of the other team."""

    method: str
    url: str
    query: dict[str, str] = field(default_factory=dict)
    body: Any = None

    def ask(self, client: TestClient, method: str = "", **headers: str) -> Response:
        sent = {} if self.body is None else {"json": self.body}
        return client.request(method or self.method, self.url, params=self.query, headers=headers, **sent)

    def of_nobody(self, other: str = "zx") -> Question:
        def exchanged(found: Any) -> Any:
            if isinstance(found, dict):
                return {key: exchanged(value) for key, value in found.items()}
            return found.replace("zq", other) if isinstance(found, str) else found

        url = exchanged(self.url).replace("findings/2", "findings/8")
        return Question(self.method, url, exchanged(self.query), exchanged(self.body))


QUERIES: dict[str, dict[str, str]] = {
    "/v1/reports/{month}": {},
    "/v1/allocations": {"window": DAY, "group_by": "job"},
    "/v1/waste": {"window": DAY},
    "/v1/findings": {},
    "/v1/jobs": {"job": "mine"},
    "/v1/jobs/{uid}": {},
    "/v1/months/{month}/statement": {},
    "/v1/months/{month}/charges": {},
    "/v1/months/{month}/forecast": {},
    "/v1/focus/{month}": {},
    "/v1/focus/{month}/metadata": {},
    "/v1/digest": {"week": "2026-W40"},
    "/v1/queues": {},
    "/v1/nodes": {},
    "/v1/state": {},
    "/v1/teams": {},
    "/v1/budgets": {"month": "2026-10"},
    "/v1/budgets/status": {},
    "/v1/incidents": {},
    "/v1/savings": {"month": "2026-10"},
    "/v1/changes": {"window": "2026-10-01T03:00:00Z/2026-10-01T06:00:00Z"},
}
NAMED = {
    ("/v1/jobs/{uid}", "uid"): "/v1/jobs/zq-job_uid",
    ("/v1/jobs/{uid}/receipt", "uid"): "/v1/jobs/zq-job_uid/receipt",
    ("/v1/months/{month}/replays/{name}", "name"): "/v1/months/2026-10/replays/zq-lent",
    ("/v1/findings/{id}", "id"): "/v1/findings/2",
    ("/v1/findings/{id}/acknowledge", "id"): "/v1/findings/2/acknowledge",
    ("/v1/findings/{id}/mute", "id"): "/v1/findings/2/mute",
    ("/v1/findings/{id}/unmute", "id"): "/v1/findings/2/unmute",
    ("/v1/keys/{id}/revoke", "id"): "/v1/keys/zq-key/revoke",
    ("/v1/sessions/{id}/revoke", "id"): "/v1/sessions/zq-session/revoke",
    ("/v1/explain/{kind}/{namespace}/{name}", "kind"): "",
    ("/v1/explain/{kind}/{namespace}/{name}", "namespace"): "/v1/explain/Job/zq-space/mine",
    ("/v1/explain/{kind}/{namespace}/{name}", "name"): "/v1/explain/Job/zq-space/zq-job",
    **{
        (f"/v1/{route}", "month"): ""
        for route in (
            *("reports/{month}", "months/{month}", "months/{month}/close", "months/{month}/chargeback"),
            *("months/{month}/statement", "months/{month}/statements", "months/{month}/charges"),
            *("months/{month}/forecast", "focus/{month}", "focus/{month}/metadata"),
            *("focus/{month}/nodes", "focus/{month}/differences"),
            "months/{month}/replays",
            "months/{month}/replays/{name}",
        )
    },
}
"""Path parameters, and an address with a name of the other team; none where no team names such a thing."""
BODIES = {"acknowledge": {"note": "x"}, "mute": {"until": "2026-10-20", "reason": "x"}}
NO_NAME = {
    "window",
    "charged",
    "group_by",
    "step",
    "idle",
    "limit",
    "page",
    "format",
    "top",
    "since",
    "after",
    "before",
    "at",
    "by",
} | {
    *("state", "pattern", "severity", "week", "mine", "month"),
    *("version", "dataset", "grain", "corrections", "unpriced"),
    *PUBLIC,
}
"""Query parameters that name nothing of a team."""


def questions(app: FastAPI) -> Iterator[Question]:
    """Of every route: each parameter that may name what is another team's. A new one fails here."""
    for route, item in app.openapi()["paths"].items():
        for method, operation in item.items():
            for each in operation.get("parameters", ()):
                name = each["name"]
                if each["in"] == "path":
                    url = NAMED[route, name]
                    if url:
                        body = BODIES.get(url.rpartition("/")[2], {}) if method == "post" else None
                        yield Question(method.upper(), url, body=body)
                elif name not in NO_NAME:
                    assert name in (*DIMENSIONS, "progress", "name"), (
                        f"{name}: does it name what is a team's?"
                    )
                    url = route.replace("{uid}", "job-mine").replace("{month}", "2026-10")
                    yield Question("GET", url, {**QUERIES[route], name: foreign(name)})
    manifest = job("x", namespace="zq-space")
    yield Question("POST", "/v1/advisor/advice", body={"manifest": manifest, "suggestions": False})


def told(answer: Response) -> tuple[int, str, dict[str, str]]:
    headers = {name: value for name, value in answer.headers.items() if name not in ("x-request-id", "date")}
    return answer.status_code, absent(answer.text).replace('"2"', '"8"'), headers


def alike(first: Response, second: Response) -> None:
    assert told(first) == told(second)


@pytest.mark.fault(47)
def test_the_other_team_has_all_of_it(world: World) -> None:
    """What is asked for below is there."""
    fin = world.clients.fin
    for name in (name for name in DIMENSIONS if name not in PUBLIC):
        found = fin.get("/v1/allocations", params={"window": DAY, name: foreign(name), "group_by": "team"})
        assert [row["group"]["team"] for row in found.json()["rows"]] == [OTHER], name
    assert len(fin.get("/v1/jobs?job=zq-job").json()["jobs"]) == 1
    for url in ("/v1/jobs/zq-job_uid", "/v1/findings/2", "/v1/explain/Job/zq-space/zq-job"):
        assert fin.get(url).status_code == 200, url
    assert "zq-key" in world.clients.root.get("/v1/keys").text
    assert "zq-session" in world.clients.root.get("/v1/sessions").text


@pytest.mark.fault(47)
def test_a_name_of_others_is_a_name_of_nobody(world: World) -> None:
    """Body, headers, statements, rows, and how often the database goes round, but for the one row that a
    finding is. Finance has asked for all of it before: nothing of that is found again."""
    tried, routes = 0, set()
    for question in questions(world.app):
        if question.method == "GET":
            question.ask(world.clients.fin)
        client = world.clients.ada
        if question.url not in routes:
            question.of_nobody("zy").ask(client)  # what is read once, and kept for all who ask
            routes.add(question.url)
        answer, work = world.work(partial(question.ask, client))
        none, least = world.work(partial(question.of_nobody().ask, client))
        alike(answer, none)
        assert work.statements == least.statements, question
        assert work.rows == least.rows, question
        if HARDWARE.isdisjoint(question.query):
            assert abs(work.loops - least.loops) <= 10, (question, work.loops, least.loops)
        tried += 1
    assert tried > 30


@pytest.mark.fault(47)
def test_what_is_counted_tells_them_apart_for_who_may_see_both(world: World) -> None:
    """That the test above can fail."""
    question = Question("GET", "/v1/jobs/zq-job_uid", {"cluster": "c"})
    answer, work = world.work(lambda: question.of_nobody("zw").ask(world.clients.root))
    more, most = world.work(lambda: question.ask(world.clients.root))
    assert (answer.status_code, more.status_code) == (404, 200)
    assert most.loops > work.loops + HOURS * PODS
    assert most.rows > work.rows


@pytest.mark.fault(47)
def test_no_other_way_of_asking_tells_more(world: World) -> None:
    """HEAD, OPTIONS, conditions and ranges; the digest and the dates are those of what finance was given."""
    ada, fin = world.clients.ada, world.clients.fin
    for question in questions(world.app):
        if question.method != "GET":
            continue
        known = question.ask(fin).headers
        conditions = {
            "If-None-Match": f'"{known.get("gpucost-ledger", "x")}", *',
            "If-Modified-Since": "Thu, 01 Jan 2037 00:00:00 GMT",
            "Range": "bytes=0-9",
        }
        plain, other = question.ask(ada), question.of_nobody()
        assert {"etag", "last-modified", "age", "vary"}.isdisjoint(known), "nothing that a cache goes by"
        assert plain.headers["cache-control"] == "no-store"
        for name, value in conditions.items():
            alike(question.ask(ada, **{name: value}), plain)
        head = question.ask(ada, "HEAD")
        assert told(head)[::2] == told(plain)[::2]
        for method in ("OPTIONS", "PUT", "TRACE"):
            alike(question.ask(ada, method), other.ask(ada, method))


@pytest.mark.fault(47)
@pytest.mark.parametrize(
    "variant",
    [
        *(
            "RESEARCH",
            "Research",
            "research ",
            " research",
            "research%20",
            "re\u0073\u0323earch",
            "research\u200b",
        ),
        *(
            "ｒｅｓｅａｒｃｈ",
            "research\u0000",
            "research,zqvision",
            "zqvision,research",
            "%72esearch",
            "research/..",
        ),
    ],
)
def test_a_name_that_looks_like_ones_own_is_another(variant: str, world: World) -> None:
    """And it is refused, also where one names oneself beside it. The names of these clients are not in
    use."""
    ada = world.clients.ada
    found = ada.get("/v1/allocations", params={"window": DAY, "team": variant})
    assert (found.status_code, found.json()["error"]["field"]) == (422, "team")
    if "\0" not in variant:
        assert found.json()["error"]["allowed"].endswith(OWN)
    both = ada.get(f"/v1/allocations?window={DAY}&team={OWN}&team={OTHER}")
    assert (both.status_code, both.json()["error"]["code"]) == (400, "repeated_parameter")


@pytest.mark.fault(47)
def test_a_team_that_is_called_nearly_the_same_is_another(tmp_path: Path) -> None:
    """Teams whose names differ in case, in blanks, or in how a letter is composed."""
    names = ("caf\u00e9", "cafe\u0301", "CAF\u00c9", "caf\u00e9 ", "caf\u00e9%2F", "caf\u00e9/x")
    clock = Clock()
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=clock) as ledger:
        rows = [
            line(hour(0), cluster="c", team=name, job=f"job-{at}", job_uid=f"uid-{at}", pod_uid=f"pod-{at}")
            for at, name in enumerate(names)
        ]
        ingest(ledger, hour(0), *rows, cluster="c")
        for at, name in enumerate(names):
            record = KeyRecord(f"k-{at}", hash_secret("s"), AccessRole.VIEWER, frozenset({name}))
            ledger.add_key(replace(record, created_ms=clock(), created_by="root"))
        app = create_app(ledger, SETTINGS.model_copy(update={"rate": 0}), now=clock)
        for at, name in enumerate(names):
            client = TestClient(app, headers={"Authorization": f"Bearer {format_key(f'k-{at}', 's')}"})
            found = client.get("/v1/allocations", params={"window": "2026-10", "group_by": "team,job"}).json()
            assert [row["group"] for row in found["rows"]] == [{"team": name, "job": f"job-{at}"}]
            seen = [
                other for other in range(len(names)) if client.get(f"/v1/jobs/uid-{other}").status_code == 200
            ]
            assert seen == [at]


@pytest.mark.fault(46)
def test_an_id_of_a_key_is_not_told_by_the_work_to_refuse_it(world: World) -> None:
    """Keys are read again for an id that does not exist, in case it was just made; for a wrong secret as
    well. Whatever time has gone by since they were read."""
    clock = Clock()
    settings = SETTINGS.model_copy(update={"rate": 0, "refused_rate": 0})
    kept = LedgerKeys(world.ledger, clock)
    keys = Authenticator([FixedKeys([key.record() for key in settings.keys]), kept], [], clock)
    client = TestClient(create_app(world.ledger, settings, now=clock, authenticator=keys))

    def refused(key_id: str, after_ms: int) -> Work:
        known = {"Authorization": f"Bearer {format_key('own-key', 'own-key')}"}
        assert client.get("/v1/me", headers=known).status_code == 200
        kept.settle()
        clock.now_ms += after_ms
        header = {"Authorization": f"Bearer {format_key(key_id, 'wrong')}"}
        answer, work = world.work(lambda: client.get("/v1/me", headers=header))
        assert answer.status_code == 401
        clock.now_ms += 60_000
        return work

    for after_ms in (0, 500, 1_500, 4_500, 10_000):
        of_nobody = refused("zx-key", after_ms)
        for there in ("zq-key", "own-key", "ada", "old"):
            assert refused(there, after_ms) == of_nobody, (there, after_ms)


@contextmanager
def calls() -> Iterator[list[int]]:
    """How many functions are called."""
    found = [0]

    def seen(_: FrameType, what: str, __: object) -> None:
        found[0] += what in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield found
    finally:
        sys.setprofile(before)


@pytest.mark.fault(47)
def test_what_others_run_is_not_told_by_the_work_to_look_for_it() -> None:
    """However much is in a namespace, and however many have a job of that name."""
    tenants, teams = advising(watched=crowded()).informed().tenants, frozenset({OWN})
    readers = tenants.of_teams(teams), tenants.of_namespace("ml")

    def asked(space: str, name: str) -> int:
        with calls() as found:
            assert not tenants.works_in(teams, space)
            assert not tenants.owns(teams, AdviceSubject("Job", space, name))
            assert not [each for each in readers for word in (space, name) if each.owns(word)]
        return found[0]

    assert asked("zq-space", "zq-job") <= asked("zx-space", "zx-job") + 60


def test_of_the_other_team_there_is_nothing_in_what_is_ones_own(world: World) -> None:
    """Counts, pages, cursors and digests: an answer about oneself is the same without the others."""
    ada = world.clients.ada
    for url in (f"/v1/allocations?window={DAY}&group_by=job&limit=1", "/v1/findings?limit=1", "/v1/keys"):
        text = ada.get(url).text
        assert "zq" not in text, url
    found = ada.get(f"/v1/allocations?window={DAY}&group_by=job&limit=1").json()
    assert (found["row_count"], found["pages"]) == (1, 1)
    assert ada.get("/v1/findings?limit=1").json()["next"] is None
    lines = world.ledger.aggregate(EVERYTHING, hour(0), ("team", "bucket"))
    assert set(lines["team"]) == {OWN, OTHER}
    assert set(lines["bucket"]) == {Bucket.HELD}
