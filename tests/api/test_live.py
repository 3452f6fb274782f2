"""Queues and nodes now: what is there, what it costs an hour, and that a team sees nothing of another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from gpucost.api.app import create_app
from gpucost.cluster.objects.state import ClusterState
from gpucost.domain.time import HOUR_MS, iso
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.predictions import WaitPrediction
from gpucost.reports.base.document import parse_json, read_document
from gpucost.reports.live.nodes_now import NodesNow
from gpucost.reports.live.queues_now import QueuesNow
from gpucost.reports.live.state_document import as_data, read_state, state_json
from tests.advisor import worlds
from tests.advisor.test_advise import H100
from tests.advisor.worlds import GPU, NOW
from tests.api import test_advisor_tenants as tenants
from tests.api.conftest import SETTINGS, Clients
from tests.cluster import builders
from tests.service.worlds import Clock
from tests.support.ledgers import new_ledger

ROUTES = ("/v1/queues", "/v1/nodes", "/v1/state")
NANO = 10**9


def clients_of(ledger: Ledger, state: ClusterState) -> Clients:
    return Clients(create_app(ledger, SETTINGS, now=Clock(), advising=tenants.advising_of(state)))


def get(client: TestClient, url: str) -> Any:
    response = client.get(url)
    assert response.status_code == 200, response.text
    return response.json()


def lending() -> ClusterState:
    """``ml`` of research borrows 8 GPUs, which only ``zq`` of the other team can have lent; one job of each
    waits. A node of four has a hole, one is cordoned, and one advertises fewer GPUs than it has."""
    mine: dict[str, Any] = {"gpus": 8, "pods": 3, "holding": True}
    whole = worlds.node("n3", product=H100, boards=8)
    return worlds.state(
        worlds.queue("ml", 16, cohort="all"),
        worlds.queue("zq", 16, cohort="all"),
        builders.namespace("ml", tenants.RESEARCH, uid="namespace/ml"),
        builders.namespace("zq", tenants.VISION, uid="namespace/zq"),
        *(worlds.node(f"n{at}", product=H100, boards=8) for at in range(3)),
        replace(whole, is_cordoned=True),
        *tenants.kueue_job("mine", "ml", tenants.RESEARCH, created=3_000, on="n0", **mine),
        *tenants.kueue_job("next", "ml", tenants.RESEARCH, gpus=8, pods=1, created=2_000),
        builders.pod(
            "zq-0", 4, namespace="zq", uid="zq-0", labels=tenants.VISION, node="n2", bound_ms=NOW - HOUR_MS
        ),
    )


def test_queues_say_who_lends_what_to_whom_and_what_it_costs(ledger: Ledger) -> None:
    found = get(clients_of(ledger, lending()).fin, "/v1/queues")
    queues = {each["name"]: each for each in found["queues"]}
    assert [each["name"] for each in found["queues"]] == ["all", "ml", "zq"]
    (mine,), (theirs,) = queues["ml"]["quotas"], queues["zq"]["quotas"]
    assert (mine["nominal"], mine["reserved"], mine["borrowed"]) == (16, 24, 8)
    assert (theirs["lent_at_least"], theirs["lent_at_most"], theirs["lendable"]) == (8, 8, 8)
    (loan,) = found["loans"]
    assert (loan["borrower"], loan["borrowed"]) == ("ml", 8)
    assert loan["lenders"] == [{"name": "zq", "is_queue": True, "unused": 16}]
    # Three pods of eight GPUs at 2.50.
    assert queues["ml"]["per_hour_nano"] == 60 * NANO
    assert queues["zq"]["per_hour_nano"] is None
    assert (found["currency"], found["at"], found["teams_in_scope"]) == ("USD", iso(NOW), None)
    (waits,) = found["waiting"]
    assert (waits["job"], waits["team"], waits["gpus"]) == ("next", "research", {GPU: 8})
    assert (waits["layer"], waits["per_hour_nano"], waits["start"]) == ("quota", 20 * NANO, None)


def test_a_wait_that_was_predicted_stands_at_the_job(tmp_path: Any) -> None:
    state = lending()
    uid = state.workload_by_name["ml", "job-next-a1b2c"].meta.uid
    with Ledger.open(new_ledger(tmp_path / "ledger.db"), now=Clock()) as own:
        waits = WaitPrediction(uid, "ml", "job-next-a1b2c", "ml", "research", NOW, HOUR_MS, None, 9 * HOUR_MS)
        own.foretell("c", [waits])
        client = Clients(create_app(own, SETTINGS, now=Clock(), advising=tenants.advising_of(state))).ada
        (job,) = get(client, "/v1/queues")["waiting"]
    assert job["start"] == {"asked_at": iso(NOW), "p50": iso(NOW + HOUR_MS), "p90": None}


def test_ones_own_jobs_wait_and_run_as_the_cluster_says(ledger: Ledger) -> None:
    """What waits is found by the user of its labels; what runs by the pods of now, not by the ledger."""
    mine = tenants.RESEARCH | {"user": "ada"}
    state = worlds.state(
        worlds.queue("ml", 0),
        builders.namespace("ml", tenants.RESEARCH, uid="namespace/ml"),
        worlds.node("n0", product=H100, boards=8),
        *tenants.kueue_job("next", "ml", mine, gpus=8, pods=1, created=2_000),
        *tenants.kueue_job("other", "ml", tenants.RESEARCH, gpus=8, pods=1, created=1_000),
    )
    clients = clients_of(ledger, state)
    found = get(clients.ada, "/v1/jobs?mine=true")
    assert [(job["job"], job["user"], job["layer"]) for job in found["waiting"]] == [("next", "ada", "quota")]
    assert found["watched"] == "c"
    every = get(clients.fin, "/v1/jobs")
    assert [job["job"] for job in every["waiting"]] == ["next", "other"]
    assert {job["state"] for job in every["jobs"]} == {"done"}, "no pod of theirs is there now"
    assert [job["job"] for job in get(clients.fin, "/v1/jobs?job=ml/other")["waiting"]] == ["other"]
    assert get(clients.vera, "/v1/jobs")["waiting"] == []


def test_nodes_say_who_is_where_what_is_free_and_what_is_closed(ledger: Ledger) -> None:
    found = get(clients_of(ledger, lending()).fin, "/v1/nodes")
    nodes = {each["name"]: each for each in found["nodes"]}
    assert [[pod["pod"], pod["team"]] for pod in nodes["n2"]["pods"]] == [["zq-0", "zqvision"]]
    (gpus,) = nodes["n2"]["gpus"]
    assert (gpus["count"], gpus["held"], gpus["free"], gpus["unavailable"]) == (8, 4, 4, 0)
    assert (nodes["n2"]["has_hole"], nodes["n1"]["has_hole"]) == (True, False)
    assert (nodes["n2"]["gpu_hour_nano"], nodes["n2"]["held_per_hour_nano"]) == (2.5 * NANO, 10 * NANO)
    assert nodes["n1"]["free_per_hour_nano"] == 20 * NANO
    (closed,) = nodes["n3"]["gpus"]
    assert (nodes["n3"]["closed"], closed["free"], closed["unavailable"]) == ("cordoned", 0, 8)
    for node in found["nodes"]:
        assert all(
            each["held"] + each["free"] + each["unavailable"] == each["count"] for each in node["gpus"]
        )


def test_one_queue_and_one_node(ledger: Ledger) -> None:
    clients = clients_of(ledger, lending())
    assert [each["name"] for each in get(clients.fin, "/v1/queues?queue=zq")["queues"]] == ["zq"]
    assert [each["name"] for each in get(clients.fin, "/v1/nodes?node=n2")["nodes"]] == ["n2"]
    refused = clients.fin.get("/v1/nodes?node=n9").json()["error"]
    assert (refused["field"], refused["allowed"]) == ("node", "n0, n1, n2, n3")
    for taken, free in (
        ("/v1/queues?queue=zq", "/v1/queues?queue=zx"),
        ("/v1/nodes?node=n2", "/v1/nodes?node=n9"),
    ):
        answers = [clients.ada.get(url) for url in (taken, free)]
        names = [url.rpartition("=")[2] for url in (taken, free)]
        assert [each.status_code for each in answers] == [422, 422]
        one, other = (
            each.text.replace(f'"{n}"', "?").replace(f"'{n}'", "?")
            for each, n in zip(answers, names, strict=True)
        )
        assert one == other


@pytest.mark.fault(47)
@pytest.mark.parametrize("seed", tenants.SEEDS)
def test_a_team_sees_the_same_as_if_there_were_no_others(seed: int, ledger: Ledger) -> None:
    """No name, no number, no count: but for the messages of schedulers, which are told without names."""
    state = tenants.cluster(seed)
    whole, alone = clients_of(ledger, state), clients_of(ledger, without_others(state))
    for url in ROUTES:
        assert tenants.SECRET in whole.fin.get(url).text, "there is something to tell"
        seen = whole.ada.get(url)
        assert tenants.SECRET not in seen.text, url
        assert untold(seen.json()) == untold(get(alone.ada, url)), url
        assert "mine" in seen.text or url == "/v1/nodes"


def without_others(state: ClusterState) -> ClusterState:
    """Without what is of the other team, and its namespace."""

    def is_ours(each: Any) -> bool:
        return tenants.SECRET not in f"{each.meta.name} {each.meta.namespace}"

    kept = {
        field.name: {uid: each for uid, each in found.items() if not hasattr(each, "meta") or is_ours(each)}
        for field in fields(state)
        if isinstance(found := getattr(state, field.name), Mapping) and field.name != "collections"
    }
    return replace(state, **kept)


def untold(found: Any) -> Any:
    """Without what schedulers say of a wait: they say it of the whole queue."""
    if isinstance(found, dict):
        return {
            name: untold(each) for name, each in found.items() if name not in ("message", "reason", "layer")
        }
    return [untold(each) for each in found] if isinstance(found, list) else found


def test_what_the_api_answers_is_read_back(ledger: Ledger) -> None:
    clients = clients_of(ledger, lending())
    for client in (clients.fin, clients.ada):
        queues = parse_json(client.get("/v1/queues").text)
        assert read_document(QueuesNow, queues).at == iso(NOW)
        assert read_document(NodesNow, parse_json(client.get("/v1/nodes").text)).nodes
        text = client.get("/v1/state").text
        assert state_json(read_state(parse_json(text))) == text
        assert as_data(read_state(parse_json(text))) == json.loads(text)


def test_a_cluster_that_is_not_watched_is_not_known(ledger: Ledger) -> None:
    watching, blind = clients_of(ledger, lending()), Clients(create_app(ledger, SETTINGS, now=Clock()))
    for url in ROUTES:
        assert blind.fin.get(url).json()["error"]["code"] == "no_state"
        refused = watching.fin.get(f"{url}?cluster=elsewhere")
        assert (refused.status_code, refused.json()["error"]["allowed"]) == (422, "c")
        assert watching.fin.get(f"{url}?cluster=c").status_code == 200
