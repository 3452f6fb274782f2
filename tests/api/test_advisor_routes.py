"""Advice and explanations over the API: who may ask for what, what is named to whom, when there is none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest
import yaml
from fastapi.testclient import TestClient

from gpucost.advisor.model.answers import SchedulingDecision
from gpucost.advisor.model.redaction import OTHERS
from gpucost.advisor.wait.run_times import NO_HISTORY, RunTimes
from gpucost.api.app import create_app
from gpucost.api.server.errors import MOST_MANIFEST_VALUES
from gpucost.attribution.teams import TeamRules
from gpucost.kube.manifests.reader import SourceDocument, documents
from gpucost.ledger.ledger import Ledger
from gpucost.service.advisor.advisor_service import LONGEST_AGE_S, AdvisorService, NoState
from tests.api.advisor_worlds import FOREIGN, OWN, SmallEngine, StillCluster, advising, job, state
from tests.api.conftest import SETTINGS, Clients
from tests.cluster import builders
from tests.service.worlds import Clock

URL = "/v1/advisor/advice"
YAML = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: ml}
spec: {template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: 8}}}]}}}
"""


class World:
    def __init__(self, ledger: Ledger, found: AdvisorService | None) -> None:
        self.advising = found
        self.clients = Clients(create_app(ledger, SETTINGS, now=Clock(), advising=found))


@pytest.fixture
def engine() -> SmallEngine:
    return SmallEngine()


@pytest.fixture
def world(ledger: Ledger, engine: SmallEngine) -> World:
    return World(ledger, advising(engine))


@pytest.fixture
def clients(world: World) -> Clients:
    return world.clients


def ask(client: TestClient, manifest: Any = None, **keys: Any) -> httpx2.Response:
    sent = {"manifest": job(namespace="ml") if manifest is None else manifest, **keys}
    return client.post(URL, json=sent)


def error_of(response: httpx2.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()["error"]
    return found


def test_advice_is_a_document(clients: Clients) -> None:
    found = ask(clients.fin).json()
    assert found["schema"] == "gpucost/Advice/v1"
    assert found["subject"] == {"kind": "Job", "namespace": "ml", "name": "train", "uid": ""}
    assert (found["decision"], found["layer"]) == ("waits", "quota")
    first = found["suggestions"][0]
    assert (first["price_per_hour_nano"], first["price_per_hour"]) == (9_500_000_000, "9.500000000")
    assert found["price"] is None
    assert found["wait"] is None


def test_a_manifest_as_yaml(clients: Clients, engine: SmallEngine) -> None:
    for kind in ("application/yaml", "application/x-yaml; charset=utf-8", "Text/YAML"):
        found = clients.fin.post(URL, content=YAML, headers={"Content-Type": kind})
        assert found.json()["subject"]["name"] == "train"
    assert engine.asked == [("train", True)] * 3


def test_suggestions_can_be_left_out(clients: Clients, engine: SmallEngine) -> None:
    assert ask(clients.fin, suggestions=False).json()["suggestions"] == []
    assert engine.asked == [("train", False)]


@pytest.mark.parametrize(
    ("sent", "content_type", "status", "field"),
    [
        (b"{}", "application/json", 422, "manifest"),
        (b"[]", "application/json", 422, "body"),
        (b"{", "application/json", 422, "body"),
        (b'{"manifest": []}', "application/json", 422, "manifest"),
        (b'{"manifest": {}, "suggestions": "yes"}', "application/json", 422, "suggestions"),
        (b'{"manifest": {}, "more": 1}', "application/json", 400, "more"),
        (b'{"manifest": {}}', "application/json", 422, "kind"),
        (b'{"manifest": ' + b"[" * 60_000, "application/json", 422, "body"),
        (b"a: [", "application/yaml", 422, "body"),
        (b"[" * 60_000, "application/yaml", 422, "body"),
        (b"\xff", "application/yaml", 422, "body"),
        (b"", "application/yaml", 422, "body"),
        (b"- a", "application/yaml", 422, "body"),
        (YAML.encode() * 2, "application/yaml", 422, "metadata"),
        (f"{YAML}---\n{YAML}".encode(), "application/yaml", 422, "body"),
        (b"kind: CronTab\nmetadata: {}\n", "application/yaml", 422, "kind"),
        (YAML.encode(), "text/plain", 415, "Content-Type"),
        (b"x" * 3_200_000, "application/yaml", 413, "body"),
    ],
)
def test_nonsense_is_refused_by_field(
    sent: bytes, content_type: str, status: int, field: str, clients: Clients
) -> None:
    found = error_of(clients.fin.post(URL, content=sent, headers={"Content-Type": content_type}), status)
    assert field in (found["field"], "metadata"), found
    assert found["allowed"]


@pytest.mark.parametrize("content_type", ["application/json", "application/yaml"])
def test_a_large_manifest_is_answered(content_type: str, clients: Clients) -> None:
    large = job() | {"spec": {**job()["spec"], "comment": "x" * 100_000}}
    sent = json.dumps({"manifest": large} if content_type == "application/json" else large).encode()
    headers = {"Content-Type": content_type}
    assert clients.fin.post(URL, content=sent, headers=headers).json()["decision"] == "waits"
    by_parts = clients.fin.post(URL, content=iter([sent[:50_000], sent[50_000:]]), headers=headers)
    assert by_parts.json()["decision"] == "waits"


def test_what_is_too_large_by_parts_is_refused_too(clients: Clients) -> None:
    headers = {"Content-Type": "application/yaml"}
    found = error_of(clients.fin.post(URL, content=(b"x" * 100_000 for _ in range(40)), headers=headers), 413)
    assert (found["code"], found["allowed"]) == ("too_large", "at most 131072 bytes")


BOMBS = {
    "values": b"- 1\n" * 30_000,
    "a flow of values": b"a: [" + b"1," * 60_000 + b"1]",
    "lists and mappings": b"a: [" + b"{a: []}," * 16_000 + b"1]",
    "levels": b"a: " + b"[" * 100_000,
    "levels by lines": b"".join(b" " * level + b"a:\n" for level in range(400)),
    "aliases": b"a: &a [x]\nb: [" + b"*a, " * 30_000 + b"]",
    "directives": b"".join(b"%%TAG !%d! x\n" % number for number in range(9_000)) + b"---\na: 1",
    "documents": b"---\n" * 30_000,
    "JSON values": b'{"a":[' + b"{}," * 40_000 + b"1]}",
    "JSON levels": b'{"a":' + b"[" * 100_000,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_before_it_was_read(
    bomb: str, clients: Clients, engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser's steps measure how much of the YAML was read, which is what it costs."""
    steps, parse = 0, yaml.parse

    def counted(*given: Any) -> Iterator[Any]:
        nonlocal steps
        for each in parse(*given):
            steps += 1
            yield each

    monkeypatch.setattr(yaml, "parse", counted)
    answer = clients.fin.post(URL, content=BOMBS[bomb], headers={"Content-Type": "application/yaml"})
    assert error_of(answer, 422)["field"] == "body"
    assert steps <= 2 * MOST_MANIFEST_VALUES, "a list and a mapping have an end besides"
    if bomb in ("levels", "levels by lines", "aliases", "directives", "documents"):
        assert steps <= 1_000
    assert engine.asked == []
    sent = b'{"manifest": ' + BOMBS[bomb] + b"}"
    if bomb.startswith("JSON"):
        error_of(clients.fin.post(URL, content=sent, headers={"Content-Type": "application/json"}), 422)


def test_each_kib_of_a_manifest_counts_as_a_request(ledger: Ledger) -> None:
    settings = SETTINGS.model_copy(update={"rate": 1, "burst": 100})
    clients = Clients(create_app(ledger, settings, now=Clock(), advising=advising()))
    large = job() | {"spec": {**job()["spec"], "comment": "x" * 90_000}}
    assert ask(clients.fin, large).status_code == 200
    refused = ask(clients.fin, large)
    assert error_of(refused, 429)["code"] == "too_many_requests"
    assert 60 < int(refused.headers["retry-after"]) <= 90
    assert ask(clients.fin).status_code == 200, "a small one may go on"
    assert ask(clients.ada, large).status_code in (200, 404), "and so may others"


def test_unknown_parameters_are_refused(clients: Clients) -> None:
    assert error_of(clients.fin.post(f"{URL}?deep=1", json={"manifest": job()}), 400)["field"] == "deep"
    assert error_of(clients.fin.get("/v1/explain/Job/ml/mine?deep=1"), 400)["field"] == "deep"


def test_an_explanation_is_a_document(clients: Clients) -> None:
    found = clients.fin.get("/v1/explain/Job/ml/mine").json()
    assert found["schema"] == "gpucost/Explanation/v1"
    assert (found["layer"], found["steps"][0]["verdict"]) == ("quota", "holds it")
    assert found["advice"]["decision"] == "waits"
    assert error_of(clients.fin.get("/v1/explain/Job/ml/nobody"), 404)["field"] == "name"


@pytest.mark.fault(47)
def test_a_team_asks_where_it_works(clients: Clients) -> None:
    for namespace in ("ml", "shared", "fresh"):
        assert ask(clients.ada, job(namespace=namespace)).status_code == 200, namespace
    foreign = error_of(ask(clients.ada, job(namespace="cv")), 404)
    missing = error_of(ask(clients.ada, job(namespace="nowhere")), 404)
    assert foreign | {"value": ""} == missing | {"value": ""}, "it is not told which namespaces there are"
    assert foreign["field"] == "metadata.namespace"


@pytest.mark.fault(47)
def test_a_team_explains_its_own_jobs(clients: Clients) -> None:
    assert clients.ada.get("/v1/explain/Job/ml/mine").status_code == 200
    assert clients.ada.get("/v1/explain/Job/shared/ours").status_code == 200
    assert clients.vera.get("/v1/explain/Job/shared/theirs-too").status_code == 200
    for path in ("cv/their-secret-job", "shared/theirs-too", "ml/nobody"):
        assert error_of(clients.ada.get(f"/v1/explain/Job/{path}"), 404)["message"] == "no such job"


@pytest.mark.fault(47)
@pytest.mark.parametrize("path", ["advice", "explain"])
def test_a_team_is_not_told_what_others_run(path: str, clients: Clients) -> None:
    if path == "advice":
        whole, own = ask(clients.fin), ask(clients.ada)
    else:
        whole, own = (client.get("/v1/explain/Job/ml/mine") for client in (clients.fin, clients.ada))
    assert FOREIGN.name in whole.text
    assert FOREIGN.name not in own.text
    assert "cv" not in json.dumps(own.json()).replace("ml-queue", "")
    found = own.json() if path == "advice" else own.json()["advice"]
    names = [each["subject"]["name"] for each in found["victims"]]
    assert names == [OWN.name, OTHERS]
    assert [each["units"] for each in found["victims"]] == [{"nvidia.com/gpu": 8}] * 2
    assert [each["priority"] for each in found["victims"]] == [0, None], "nor how important it is to them"
    assert found["says"].endswith(f"8 of 64 GPUs left, behind {OTHERS}")
    assert [each["object"] for each in found["evidence"]] == ["clusterqueue/ml-queue"]
    assert [each["rule"] for each in found["suggestions"]] == ["smaller"]


def test_names_of_nobodys_work_are_kept(world: World) -> None:
    found = world.advising
    assert found is not None
    reader = found.informed().tenants.of_teams(frozenset({"research"}))
    shown = ("node-1", "ml", "shared", "mine", "mine-wl", "ours", "waits", "ml-queue", "unheard-of")
    assert not [word for word in shown if reader.hides(word)]
    assert all(map(reader.hides, ("cv", "their-secret", "their-secret-job", "theirs-too")))
    assert reader.shows(OWN)
    assert not reader.shows(FOREIGN)


def test_rules_of_teams_decide_not_labels(ledger: Ledger) -> None:
    rules = TeamRules.parse("version: 1\nrules:\n- {team: vision, namespace: ml}\n", "teams.yaml")
    found = AdvisorService(StillCluster(), SmallEngine().engine, rules)
    found.refresh()
    clients = World(ledger, found).clients
    assert ask(clients.vera).status_code == 200
    assert ask(clients.ada).status_code == 404


def test_without_a_watched_cluster_there_is_none(ledger: Ledger) -> None:
    clients = World(ledger, None).clients
    for response in (ask(clients.fin), clients.fin.get("/v1/explain/Job/ml/mine")):
        found = error_of(response, 503)
        assert found["code"] == "no_state"
        assert "detectors.state" in found["message"]


@pytest.mark.fault(58)
def test_without_a_current_state_there_is_none(ledger: Ledger) -> None:
    watched = StillCluster(is_current=False)
    found = advising(watched=watched)
    clients = World(ledger, found).clients
    first = ask(clients.fin)
    assert error_of(first, 503)["message"] == "the state of the cluster c has not been read yet"
    assert int(first.headers["retry-after"]) > 0
    watched.is_current = True
    found.refresh()
    assert ask(clients.fin).status_code == 200
    watched.is_current = False
    assert "older than 120 s" in error_of(ask(clients.fin), 503)["message"]


def test_a_state_that_nobody_looked_at_for_long_is_none() -> None:
    at_s = [0.0]
    found = AdvisorService(
        StillCluster(), SmallEngine().engine, TeamRules.default(), monotonic=lambda: at_s[0]
    )
    found.refresh()
    at_s[0] = LONGEST_AGE_S
    assert found.informed()
    at_s[0] += 1
    with pytest.raises(NoState):
        found.informed()
    found.refresh()
    assert found.informed()


def test_a_state_is_prepared_when_it_has_changed() -> None:
    watched = StillCluster()
    found = advising(watched=watched)
    first = found.informed()
    found.refresh()
    assert found.informed() is first
    watched.found = replace(state(), at_ms=builders.T0 + 1)
    watched.version = 2
    found.refresh()
    assert found.informed().known.overview.state.at_ms == builders.T0 + 1
    assert watched.taken == 2


@pytest.mark.fault(58)
def test_without_a_ledger_there_is_advice_without_history(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> RunTimes:
        raise OSError("no database")

    found = AdvisorService(StillCluster(), SmallEngine().engine, TeamRules.default(), run_times=fail)
    found.learn()
    found.refresh()
    assert found.informed().known.run_times is NO_HISTORY
    assert "run times cannot be read" in caplog.text


def test_the_threads_follow_and_end() -> None:
    watched, learnt = StillCluster(), threading.Event()

    def run_times() -> RunTimes:
        learnt.set()
        return NO_HISTORY

    found = AdvisorService(
        watched, SmallEngine().engine, TeamRules.default(), run_times=run_times, every_s=0.001
    )
    found.start()
    watched.version = 2
    assert learnt.wait(60)
    for _ in range(10_000):
        if watched.taken and found._version == (2, NO_HISTORY):  # the second state is the last
            break
        threading.Event().wait(0.001)
    found.close()
    assert found.informed()
    assert not any(thread.is_alive() for thread in found._threads)


def test_too_many_questions_are_sent_away(ledger: Ledger) -> None:
    found = advising()
    clients = World(ledger, found).clients
    with held(found, found.turns.most):
        refused = ask(clients.fin)
    assert error_of(refused, 503)["code"] == "advisor_busy"
    assert refused.headers["retry-after"] == "1"
    assert ask(clients.fin).status_code == 200


def test_no_manifest_is_read_before_it_is_its_turn(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """To read a large one takes as long as an answer: not where all requests are taken, and in a turn."""
    found, threads = advising(), list[str]()

    def read(content: bytes, place: str, most_values: int) -> list[SourceDocument]:
        threads.append(threading.current_thread().name)
        return documents(content, place, most_values)

    monkeypatch.setattr("gpucost.api.routes.advisor.documents", read)
    clients, headers = World(ledger, found).clients, {"Content-Type": "application/yaml"}
    with held(found, found.turns.most):
        # Not even that it is nonsense is known.
        refused = clients.fin.post(URL, content=b"a: [", headers=headers)
    assert (error_of(refused, 503)["code"], threads) == ("advisor_busy", [])
    assert clients.fin.post(URL, content=YAML.encode(), headers=headers).status_code == 200
    (thread,) = threads
    assert thread.startswith("AnyIO worker thread")


def test_one_key_asks_one_question_at_a_time(ledger: Ledger) -> None:
    found = advising()
    clients = World(ledger, found).clients
    with found.turns.one("fin") as is_first, found.turns.one("fin") as is_second:
        assert (is_first, is_second) == (True, False)
    assert not found.turns.is_asking("fin")
    found.turns._asking.add("fin")  # waits for its turn in another thread
    refused = ask(clients.fin)
    assert "of the key fin" in error_of(refused, 503)["message"]
    assert refused.headers["retry-after"] == "1"
    assert ask(clients.ada).status_code != 503, "others have their turns"


class held:
    """All places taken."""

    def __init__(self, found: AdvisorService, count: int) -> None:
        self._places, self._count = found.turns._places, count

    def __enter__(self) -> None:
        for _ in range(self._count):
            assert self._places.acquire(blocking=False)

    def __exit__(self, *_: object) -> None:
        self._places.release(self._count)


@pytest.fixture
def scraped(world: World) -> str:
    ask(world.clients.fin)
    world.clients.fin.get("/v1/explain/Job/ml/mine")
    assert world.advising is not None
    world.advising.status.reviewed("busy")
    world.advising.status.answered("webhook", SchedulingDecision.NOW, 0.03)
    return world.clients.prom.get("/metrics").text


def test_what_is_answered_is_counted(scraped: str) -> None:
    for line in (
        'gpucost_advisor_answers_total{decision="waits",face="advice"} 1.0',
        'gpucost_advisor_answers_total{decision="waits",face="explain"} 1.0',
        'gpucost_advisor_answers_total{decision="now",face="webhook"} 1.0',
        'gpucost_advisor_seconds_bucket{face="webhook",le="0.025"} 0.0',
        'gpucost_advisor_seconds_bucket{face="webhook",le="0.05"} 1.0',
        'gpucost_advisor_seconds_bucket{face="webhook",le="+Inf"} 1.0',
        'gpucost_advisor_seconds_sum{face="webhook"} 0.03',
        'gpucost_webhook_reviews_total{result="busy"} 1.0',
        'gpucost_webhook_reviews_total{result="advised"} 0.0',
    ):
        assert f"\n{line}\n" in scraped
