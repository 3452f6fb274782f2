"""Queues and nodes now: the figures of the API, of whom they may be told to, and never as if of a month."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response

from gpucost.api.app import create_app
from gpucost.api.pages import live_pages
from gpucost.cluster.objects.state import ClusterState
from gpucost.domain.time import HOUR_MS, MINUTE_MS, iso
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.predictions import WaitPrediction
from gpucost.reports.base import display
from tests.advisor import worlds
from tests.advisor.test_advise import H100
from tests.advisor.worlds import NOW
from tests.api import test_advisor_tenants as tenants
from tests.api.advisor_worlds import StillCluster, advising
from tests.api.conftest import SETTINGS, Clients
from tests.api.test_live import lending
from tests.cluster import builders
from tests.service.worlds import Clock
from tests.support.ledgers import new_ledger

PAGE = {"Accept": "text/html"}
LIVE = "no part of any month"


def clients_of(ledger: Ledger, state: ClusterState) -> Clients:
    return Clients(create_app(ledger, SETTINGS, now=Clock(), advising=tenants.advising_of(state)))


def texts(page: Response) -> str:
    assert page.status_code == 200, page.text
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.text)).split())


def boxes(page: Response, css: str) -> int:
    """How many GPUs are drawn in a colour."""
    return sum(
        drawn.count(f'<rect class="{css}"') for drawn in re.findall(r'class="slots".*?</svg>', page.text)
    )


def test_queues_say_who_lends_what_to_whom(ledger: Ledger) -> None:
    clients = clients_of(ledger, lending())
    page, found = clients.fin.get("/queues"), clients.fin.get("/v1/queues").json()
    said = texts(page)
    assert LIVE in said
    assert f"As of {found['at'].replace('T', ' ').removesuffix('Z')} UTC" in said
    assert "ml 8 h100 zq (16 unused) all" in said, "the loan"
    assert "ml queue h100 16 24 150% 8 – 0" in said
    assert "zq queue h100 16 0 0% – 8 8" in said, "what it lends"
    assert "When they will run is not predicted yet" in said
    (waits,) = found["waiting"]
    assert (waits["job"], waits["message"] in said) == ("next", True)
    assert 'href="/explain?kind=Job&amp;namespace=ml&amp;name=next"' in page.text
    money = next(each for each in found["queues"] if each["name"] == "ml")["per_hour_nano"]
    assert f'<a href="#queues">{display.money(money)}</a> <small>USD' in page.text
    assert f">{display.money(waits['per_hour_nano'])}<" in page.text


def test_one_queue(ledger: Ledger) -> None:
    clients = clients_of(ledger, lending())
    said = texts(clients.fin.get("/queues?queue=zq&cluster="))
    assert "Nobody in this queue" in said
    assert "ml 8 h100 zq (16 unused) all" in said, "what it lends"
    assert "ml queue h100" not in said
    other = texts(clients.fin.get("/queues?queue=zx", headers=PAGE))
    assert "Now there is no queue of the cluster called zx" in other
    assert "ml queue h100" in other, "all of them"


def test_a_predicted_start_stands_at_the_job(tmp_path: Path) -> None:
    state = lending()
    uid = state.workload_by_name["ml", "job-next-a1b2c"].meta.uid
    with Ledger.open(new_ledger(tmp_path / "ledger.db"), now=Clock()) as own:
        waits = WaitPrediction(
            uid, "ml", "job-next-a1b2c", "ml", "research", NOW, HOUR_MS, 30 * HOUR_MS, 40 * HOUR_MS
        )
        own.foretell("c", [waits])
        page = texts(clients_of(own, state).ada.get("/queues"))
    tomorrow = iso(NOW + 30 * HOUR_MS).replace("T", " ")[:16]
    assert f"{iso(NOW + HOUR_MS)[11:16]} to {tomorrow} 20.00" in page


def test_nodes_say_who_is_where_what_is_free_and_what_is_closed(ledger: Ledger) -> None:
    clients = clients_of(ledger, lending())
    page, found = clients.fin.get("/nodes"), clients.fin.get("/v1/nodes").json()
    said = texts(page)
    assert LIVE in said
    sums = {
        name: sum(each[name] for node in found["nodes"] for each in node["gpus"])
        for name in ("count", "held", "free", "unavailable")
    }
    [product] = {node["product"] for node in found["nodes"]}
    assert f"H100 {product} 4 {sums['count']} {sums['held']} {sums['free']} {sums['unavailable']}" in said
    assert said.index("n3 cordoned") < said.index("n2 hole") < said.index("n1 H100"), "the worst first"
    assert (boxes(page, "free"), boxes(page, "unavailable")) == (12, 8)
    held = sum(node["held_per_hour_nano"] or 0 for node in found["nodes"])
    free = sum(node["free_per_hour_nano"] or 0 for node in found["nodes"])
    assert f"Held, an hour {display.money(held)} USD" in said
    assert f"Free, an hour {display.money(free)} USD" in said
    assert "Nodes 1 to" not in said, "one page"
    assert "Figures of now are of the cluster's state, and in no month" in said
    assert "summed from the intervals" not in said
    one = texts(clients.fin.get("/nodes?node=n2"))
    assert "zq-0 pod zq-0 in zq 4 1 h 10.00 zqvision" in one
    assert "Now there is no node called n9" in texts(clients.fin.get("/nodes?node=n9", headers=PAGE))


def test_a_team_sees_its_own_and_nothing_of_others(ledger: Ledger) -> None:
    clients = clients_of(ledger, lending())
    for url in ("/queues", "/nodes", "/queues?queue=ml", "/nodes?node=n0"):
        page = clients.ada.get(url)
        assert tenants.SECRET not in texts(page), url
        assert "What is lent to whom" not in page.text
    own = texts(clients.ada.get("/queues"))
    assert "What others have of it is not shown: a queue may be full all the same." in own
    assert "Yours Part Waiting" in own, "no columns that are always empty"
    assert "Free, an hour" not in clients.ada.get("/nodes").text
    for taken, free in (("/queues?queue=zq", "/queues?queue=zx"), ("/nodes?node=n2", "/nodes?node=n9")):
        foreign, absent = (clients.ada.get(url, headers=PAGE) for url in (taken, free))
        assert foreign.status_code == absent.status_code == 200
        name, other = taken.rpartition("=")[2], free.rpartition("=")[2]
        assert foreign.text.replace(name, other) == absent.text


@pytest.mark.parametrize("url", ["/queues", "/nodes"])
def test_without_a_watched_cluster_the_setting_is_named(url: str, ledger: Ledger) -> None:
    clients = Clients(create_app(ledger, SETTINGS, now=Clock()))
    assert "detectors.state to in-cluster or kubeconfig" in texts(clients.vera.get(url))
    assert clients.vera.get(f"{url}?cluster=nowhere", headers=PAGE).status_code == 422
    gone = advising(watched=StillCluster(is_current=False))
    late = Clients(create_app(ledger, SETTINGS, now=Clock(), advising=gone)).fin.get(url, headers=PAGE)
    assert late.status_code == 503
    assert int(late.headers["retry-after"]) > 0
    assert "Load the page again" in late.text
    assert '<nav aria-label="Pages">' in late.text


@pytest.mark.parametrize(
    ("url", "command"), [("/advise", "advise -f job.yaml"), ("/explain", "explain job/NAME")]
)
def test_without_a_watched_cluster_a_terminal_can_ask(url: str, command: str, ledger: Ledger) -> None:
    said = texts(Clients(create_app(ledger, SETTINGS, now=Clock())).vera.get(url))
    assert "detectors.state to in-cluster or kubeconfig" in said
    assert f"gpucost {command}" in said
    assert "--kubeconfig FILE" in said


def test_hostile_names_are_text(ledger: Ledger) -> None:
    """Nothing validates what a dump or an API server says."""
    bad = "<i>\u202e" + "x" * 20_000
    found = lending()
    nodes = {
        uid: replace(node, meta=replace(node.meta, name=bad), pool=bad, product=bad, zone=bad)
        for uid, node in found.nodes.items()
    }
    queue: Any = worlds.queue(bad[:200], 4)
    pod = builders.pod("p", 1, namespace="ml", uid="p", labels={"team": bad}, node=bad, bound_ms=NOW)
    base = worlds.state(queue, pod, *nodes.values())
    clients = clients_of(ledger, base)
    for url in ("/queues", "/nodes"):
        page = clients.fin.get(url)
        assert page.status_code == 200
        assert "<i>" not in page.text
        assert "\u202e" not in re.sub(r' value="[^"]*"', "", page.text)
        assert "style=" not in page.text


def test_many_nodes_are_paged_each_once(ledger: Ledger) -> None:
    many = worlds.state(*(worlds.node(f"n{at:03}", product=H100, boards=8) for at in range(100)))
    client, seen = clients_of(ledger, many).fin, []
    url: str | None = "/nodes"
    while url:
        page = client.get(url)
        assert len(page.content) < 150_000
        seen += re.findall(r'<h3><a href="/nodes\?node=(n\d+)"', page.text)
        following = re.search(r'href="([^"]*)" rel="next"', page.text)
        url = unescape(following[1]) if following else None
    assert seen == sorted(each.meta.name for each in many.nodes.values())
    assert "There are 100 nodes, and none here" in texts(client.get("/nodes?page=9"))
    assert client.get("/nodes?page=0", headers=PAGE).status_code == 422


def test_nodes_without_a_price_are_told_where_they_are_left_out(ledger: Ledger) -> None:
    mixed = worlds.state(*(worlds.node(name, product=name, boards=8) for name in (H100, "NVIDIA-L4")))
    said = texts(clients_of(ledger, mixed).fin.get("/nodes"))
    assert "Free, an hour 20.00 USD 1 node without a price left out" in said
    assert "Held, an hour 0.00 USD at the prices of now" in said


def test_words_of_time() -> None:
    at = iso(NOW)
    assert live_pages.waited(at, iso(NOW - 30_000)) == "less than a minute"
    assert live_pages.waited(at, iso(NOW - HOUR_MS - 5 * MINUTE_MS - 999)) == "1 h 5 min"
    assert live_pages.waited(at, iso(NOW - 60 * HOUR_MS)) == "2.5 days"
    assert live_pages.moment(at, None) == display.MISSING
    assert live_pages.used_part(8, 0) is None
    assert live_pages.used_part(24, 16) == 3 / 2
