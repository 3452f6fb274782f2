"""Every object of a collection once, whatever the server does in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpucost.kube.connect.connection import connect_url
from gpucost.kube.connect.transport import TransportError
from gpucost.kube.parse.collections import ApiCollection, collections
from gpucost.kube.watch.api_calls import ApiServerRefusal, CollectionList, CollectionLister
from tests.support.cluster.installed import KUEUE
from tests.support.cluster.model import Kind
from tests.support.cluster.server import ClusterServer
from tests.support.kube import pod
from tests.support.objects import kueue

COLLECTIONS = {each.name: each for each in collections()}
PODS = COLLECTIONS["pods"]
COHORTS = COLLECTIONS[f"cohorts.{KUEUE}"]


@pytest.fixture
def server() -> Iterator[ClusterServer]:
    with ClusterServer(page_size=2) as running:
        for index in range(5):
            running.put({"apiVersion": "v1", **pod(f"p{index}")})
        yield running


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def listed(server: ClusterServer, waits: list[float]) -> Iterator[Any]:
    transport = connect_url(server.url)
    lister = CollectionLister(transport, waits.append)

    def call(collection: ApiCollection) -> CollectionList[tuple[str, str]]:
        return lister.all(collection, lambda version, item: (version, item["metadata"]["name"]))

    yield call
    transport.close()


NAMES = tuple(("v1", f"p{index}") for index in range(5))


def test_all_pages(server: ClusterServer, listed: Any) -> None:
    assert listed(PODS) == CollectionList("v1", NAMES)
    assert server.requests()["/api/v1/pods"] == 3


@pytest.mark.fault(12)
def test_a_list_that_expires_half_way_is_begun_again(server: ClusterServer, listed: Any) -> None:
    server.break_list("expired_page", "pods")
    assert listed(PODS) == CollectionList("v1", NAMES)
    server.break_list("expired_page", "pods", times=None)
    with pytest.raises(ApiServerRefusal) as caught:
        listed(PODS)
    assert caught.value.status == 410


def test_a_busy_server_is_asked_again_when_it_says(
    server: ClusterServer, listed: Any, waits: list[float]
) -> None:
    server.break_list("429", "pods", retry_after_s=7)
    assert listed(PODS) == CollectionList("v1", NAMES)
    server.break_list("500", "pods", times=2)
    assert listed(PODS) == CollectionList("v1", NAMES)
    assert waits == [7.0, 1.0, 1.0]
    server.break_list("500", "pods", times=3)
    with pytest.raises(ApiServerRefusal, match="http_500"):
        listed(PODS)


def test_what_is_forbidden_is_not_asked_for_twice(
    server: ClusterServer, listed: Any, waits: list[float]
) -> None:
    server.break_list("403", "pods", times=None)
    with pytest.raises(ApiServerRefusal, match="http_403"):
        listed(PODS)
    assert (server.requests()["/api/v1/pods"], waits) == (1, [])


def test_the_best_version_that_is_served(server: ClusterServer, listed: Any) -> None:
    server.put(kueue.cohort("all"))
    assert listed(COHORTS) == CollectionList("v1beta2", (("v1beta2", "all"),))


def test_an_old_version_alone_and_none_at_all(waits: list[float]) -> None:
    with ClusterServer([(Kind(KUEUE, "cohorts", "Cohort", False), "v1beta1")]) as server:
        server.put({**kueue.cohort("old"), "apiVersion": f"{KUEUE}/v1beta1"})
        transport = connect_url(server.url)
        lister = CollectionLister(transport, waits.append)
        assert lister.all(COHORTS, lambda version, _: version) == CollectionList("v1beta1", ("v1beta1",))
        # The group is there, the kind is not; then not even the group.
        assert lister.all(COLLECTIONS[f"workloads.{KUEUE}"], lambda version, _: version) == CollectionList(
            "", ()
        )
        assert lister.all(COLLECTIONS["rayjobs.ray.io"], lambda version, _: version) == CollectionList("", ())
        assert f"/apis/{KUEUE}/v1beta2/cohorts" not in server.requests()
        transport.close()


def test_a_server_that_hides_what_it_serves(server: ClusterServer, listed: Any) -> None:
    server.script(lambda mock: mock["get", f"/apis/{KUEUE}"] << 403)
    assert listed(COHORTS).version == "v1beta2"


def test_nobody_there(waits: list[float]) -> None:
    transport = connect_url("http://127.0.0.1:9")
    with pytest.raises(TransportError) as caught:
        CollectionLister(transport, waits.append).all(PODS, lambda version, _: version)
    assert caught.value.reason == "unreachable"
    transport.close()
