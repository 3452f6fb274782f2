"""The queries of the page, asked of a real Prometheus that scrapes two collectors: each thing counts once."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpucost.domain.time import iso
from gpucost_queue_collector.settings import PAGE
from tests.exporters.queue import world
from tests.exporters.queue.replicas import asked, replicas, scraping, until, value
from tests.support.cluster.server import ClusterServer
from tests.support.objects import condition, kueue
from tests.support.prometheus import PROMTOOL, needs_prometheus, running_prometheus

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
QUERIES = [
    query.strip("\n")
    for block in re.findall(r"^```promql\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    for query in block.split("\n\n")
]
[RECORDS] = [
    block
    for block in re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    if "record:" in block
]
HOUR_MS = 3_600_000
SHORT = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor h100"
QUOTA = {"h100": {world.GPU: ("4", "8", None)}}

pytestmark = [needs_prometheus, pytest.mark.prometheus]


def held(began_ms: int) -> list[dict[str, Any]]:
    """gpu-1 is full of half a gang; gpu-2 has lost two of eight; on gpu-3 two pods run, and one has ended."""
    lacking = world.node("gpu-2")
    lacking["status"]["allocatable"][world.GPU] = "6"
    blue = world.pod("eval-0", 2, labels={"team": "blue"})
    ended_ms = began_ms + HOUR_MS // 2
    done = world.ended(world.bound(world.pod("done", 2), "gpu-3", began_ms), iso(began_ms), iso(ended_ms))
    return [
        world.node("gpu-1"),
        lacking,
        world.node("gpu-3"),
        world.bound(world.pod("train-0", 3), "gpu-3", began_ms),
        world.bound(blue, "gpu-3", began_ms),
        done,
        *world.volcano_gang(began_ms),
    ]


def queued(began_ms: int) -> list[dict[str, Any]]:
    """``greedy`` borrows two GPUs of its cohort; ``short`` waits in it for eight more."""
    use = {"h100": {world.GPU: ("6", "2")}}
    return [
        *world.queues(),
        kueue.cluster_queue("greedy", cohort="all", quotas=QUOTA, reserved=use, used=use),
        kueue.local_queue("more", "greedy", "team-a"),
        kueue.workload(
            "big",
            "team-a",
            queue="more",
            cluster_queue="greedy",
            pod_sets=[kueue.pod_set(requests={world.GPU: "6"})],
            assignments=[kueue.assignment(flavors={world.GPU: "h100"}, usage={world.GPU: "6"})],
            conditions=[condition(type_) for type_ in ("QuotaReserved", "Admitted")],
        ),
        kueue.workload(
            "short",
            "team-a",
            queue="more",
            created=began_ms,
            pod_sets=[kueue.pod_set(requests={world.GPU: "8"})],
            conditions=[condition("QuotaReserved", False, "Pending", SHORT)],
        ),
    ]


@pytest.fixture(scope="module")
def began_ms() -> int:
    return int(time.time()) * 1000 - HOUR_MS


@pytest.fixture(scope="module")
def url(began_ms: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ExitStack() as parts:
        server = parts.enter_context(ClusterServer())
        for each in (*held(began_ms), *queued(began_ms)):
            server.put(each)
        both = parts.enter_context(replicas(server, 2))
        data = tmp_path_factory.mktemp("queries") / "data"
        found = parts.enter_context(running_prometheus(data, scrape_configs=scraping(*both)))
        until(found, "count(gpucost_state_up == 1)", 2)
        yield found


def one(*words: str) -> str:
    """The query of the page that has all these words."""
    [found] = [query for query in QUERIES if all(word in query for word in words)]
    return found


def rows(url: str, query: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Values by these labels; there is one row for each."""
    found = asked(url, query)
    values = {
        tuple(row["metric"].get(label, "") for label in labels): float(row["value"][1]) for row in found
    }
    assert len(values) == len(found), found
    return values


def test_without_care_each_gpu_counts_twice(url: str) -> None:
    assert value(url, "sum(gpucost_pod_gpu_request)") == 2 * (3 + 2 + 2 + 8)


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_gives_something(url: str, query: str) -> None:
    ended = query.replace("train-0", "done") if "end_timestamp" in query else query
    assert asked(url, ended), query


def test_gpus_by_team(url: str) -> None:
    found = rows(url, one("sum by (owner_team)"), "owner_team")
    assert found == {("",): 3 + 8, ("blue",): 2}


def test_free_gpus(url: str) -> None:
    found = rows(url, one("gpucost_node_schedulable"), "node")
    assert found == {("gpu-1",): 0, ("gpu-2",): 6, ("gpu-3",): 3}


def test_waiting_gpus_by_queue_and_reason(url: str) -> None:
    found = rows(url, one("gpucost_cluster_queue_pending_units"), "cluster_queue", "reason")
    assert found == {("cq", "Pending"): 8, ("greedy", "Pending"): 8}
    found = rows(url, one("sum by (cluster_queue, layer, reason)"), "cluster_queue", "layer", "reason")
    assert found[("greedy", "quota", "WaitingForQuota")] == 8
    assert {queue for queue, *_ in found} == {"cq", "greedy"}


def test_waits(url: str, began_ms: int) -> None:
    oldest = rows(url, one("oldest_pending"), "cluster_queue")
    assert oldest[("greedy",)] == pytest.approx(time.time() - began_ms / 1000, abs=60)
    longest = rows(url, one("topk"), "workload", "layer", "reason")
    assert longest[("short", "quota", "WaitingForQuota")] == pytest.approx(oldest[("greedy",)], abs=60)


def test_borrowed_and_lendable(url: str) -> None:
    found = rows(url, one("cluster_queue_borrowed"), "cohort", "flavor", "resource")
    assert found == {("all", "h100", world.GPU): 2}
    assert set(rows(url, one("gpucost_cohort_lendable"), "cohort", "flavor")) >= {("all", "h100")}


def test_partial_gangs(url: str, began_ms: int) -> None:
    assert rows(url, one("gang_held_units"), "gang", "gang_kind") == {("gang", "pod_group"): 8}
    [(_, seconds)] = rows(url, one("time() - max by (namespace, gang"), "gang").items()
    assert seconds == pytest.approx(time.time() - began_ms / 1000, abs=60)


def test_begin_and_end_of_a_pod(url: str, began_ms: int) -> None:
    begin = one("last_over_time(gpucost_pod_gpu_start")
    end = one("last_over_time(gpucost_pod_gpu_end")
    assert rows(url, begin, "pod_uid", "node") == {("train-0-uid", "gpu-3"): began_ms / 1000}
    assert rows(url, end, "pod_uid") == {}
    ended = rows(url, end.replace("train-0", "done"), "pod_uid")
    assert ended == {("done-uid",): (began_ms + HOUR_MS // 2) / 1000}


def test_nodes_that_lack_gpus(url: str) -> None:
    assert rows(url, one("gpucost_node_gpu_expected"), "node", "resource") == {("gpu-2", world.GPU): 2}


def test_evictions_of_a_day(url: str) -> None:
    assert rows(url, one("evictions_total"), "reason") == {("Preempted",): 2}


def test_recorded_series_are_one_for_each_thing(url: str, tmp_path: Path) -> None:
    rules = tmp_path / "records.yaml"
    rules.write_text(RECORDS)
    arguments = [PROMTOOL or "promtool", "check", "rules", str(rules)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    by_name = {each["record"]: each["expr"] for each in yaml.safe_load(RECORDS)["groups"][0]["rules"]}
    assert value(url, f"sum({by_name['gpucost:pod_gpu_held:max']})") == 3 + 2 + 8
    owners = rows(url, by_name["gpucost:pod_owner_info:max"], "pod")
    assert owners.keys() == {("train-0",), ("eval-0",), ("done",), ("gang-0",)}
