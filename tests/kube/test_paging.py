"""Pages of a list that are too large, too slow, or hold what cannot be read; for reflector and lister."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from gpucost.kube.connect.connection import connect_url
from gpucost.kube.connect.credentials import LEAN, AnswerLimits
from gpucost.kube.connect.http_transport import HttpTransport
from gpucost.kube.connect.httpx_transport import HttpxTransport
from gpucost.kube.connect.transport import TransportError
from gpucost.kube.parse.collections import collections
from gpucost.kube.watch.api_calls import CollectionLister
from gpucost.kube.watch.reflector import Reflector, ReflectorSettings
from tests.kube.test_salvage import DEEP, body, claim
from tests.kube.worlds import world
from tests.support.cluster.server import ClusterServer
from tests.support.kube import Answer, kube_server, listed, pod, refused, watched

PODS = next(each for each in collections() if each.name == "pods")
PATH = "/api/v1/pods"
SMALL = AnswerLimits(body_bytes=10_000)


def with_env(name: str, size: int) -> dict[str, Any]:
    """A pod with a variable of so many bytes."""
    containers = [{"name": "a", "env": [{"name": "A", "value": "x" * size}]}]
    return {"apiVersion": "v1", **pod(name, spec={"containers": containers})}


@contextmanager
def cluster(**sizes: int) -> Iterator[tuple[ClusterServer, HttpxTransport]]:
    """A server that knows pages, with pods of these sizes, in the order of their names."""
    with ClusterServer() as server:
        for name, size in sizes.items():
            server.put(with_env(name, size))
        with closing(connect_url(server.url, SMALL)) as transport:
            yield server, transport


def reflector(transport: HttpxTransport, **settings: Any) -> Reflector[Any]:
    return Reflector(transport, PATH, trim=dict, settings=ReflectorSettings(**settings))


@pytest.mark.fault(18)
def test_a_page_too_large_is_asked_for_in_halves() -> None:
    """Ten pods of 2.5 kB and more are 25 kB, and an answer may have ten."""
    with cluster(**{f"p{index}": 2500 for index in range(10)}) as (server, transport):
        read = reflector(transport)
        assert read.step() == 0
        assert set(read.snapshot()) == {f"uid-p{index}" for index in range(10)}
        assert (read.up, read.errors) == (True, {})
        # 500, 250, ... 15, 7, 3 are three pods and fit; then 6, 3 and again, and the last by itself.
        assert server.requests()[PATH] == 8 + 2 + 2 + 1


@pytest.mark.fault(18)
def test_one_object_too_large_is_left_out_and_those_after_it_are_read() -> None:
    sizes = {"a": 10, "b": 60_000, "c": 60_000, "d": 10, "e": 10}
    with cluster(**sizes) as (_, transport):
        read = reflector(transport, page_size=4)
        assert read.step() == 0
        assert set(read.snapshot()) == {"uid-a", "uid-d", "uid-e"}
        assert (read.up, read.synced, read.errors) == (True, True, {"too_large": 2})
        found = CollectionLister(transport).all(PODS, lambda _, item: item["metadata"]["name"])
        assert (found.items, found.unread) == (("a", "d", "e"), 2)


@pytest.mark.fault(18)
def test_the_last_object_may_be_the_one_that_is_too_large() -> None:
    with cluster(a=10, b=60_000) as (_, transport):
        read = reflector(transport)
        read.step()
        assert (set(read.snapshot()), read.errors) == ({"uid-a"}, {"too_large": 1})


def test_a_known_object_that_grew_too_large_has_not_vanished() -> None:
    with cluster(a=10, b=10) as (server, transport):
        read = reflector(transport, inactivity_s=0.1)
        read.step()
        server.put(with_env("b", 60_000))
        read._position = None
        read.step()
        assert set(read.snapshot()) == {"uid-a", "uid-b"}
        assert read.errors == {"too_large": 1}


@pytest.mark.fault(18)
def test_a_server_that_knows_no_pages_is_not_taken_to_be_empty() -> None:
    everything = listed(*(with_env(f"p{index}", 3000) for index in range(10)))
    with kube_server(listed(pod("a")), refused(410), *[everything] * 3) as server:
        transport = connect_url(server.url, SMALL)
        read = reflector(transport, page_size=4)
        for _ in range(3):
            read.step()
        assert set(read.snapshot()) == {"uid-a"}
        assert (read.up, read.problem) == (False, "too_large")
        server.script = [refused(403), *[everything] * 9]
        with pytest.raises(TransportError):
            CollectionLister(transport).all(PODS, lambda _, item: item)
        transport.close()
    assert [asked.params.get("limit") for asked in server.asked[2:5]] == ["4", "2", "1"]


@pytest.mark.fault(16)
def test_one_object_nested_too_deep_hides_no_other() -> None:
    good = json.dumps(pod("a"))
    first = body(good, claim("uid-b", DEEP), token="more", version="100")
    last = body(claim("other", DEEP), json.dumps(pod("c")))
    with world(
        listed(pod("b")),
        refused(410),
        Answer(chunks=(first,)),
        Answer(chunks=(last,)),
        watched(),
        refused(403),
        Answer(chunks=(first,)),
        Answer(chunks=(last,)),
    ) as scene:
        read = scene.reflector()
        for _ in range(4):
            read.step()
        assert set(read.snapshot()) == {"uid-a", "uid-b", "uid-c"}
        assert (read.synced, read.errors["bad_object"], read.errors["not_json"]) == (True, 2, 0)
        assert scene.server.asked[4].params["resourceVersion"] == "100"
        lister = CollectionLister(HttpTransport(scene.server.url))
        found = lister.all(PODS, lambda _, item: item["metadata"]["name"])
        assert (found.items, found.unread) == (("a", "c"), 2)


def test_an_object_too_deep_for_its_reader_is_bad_and_no_more() -> None:
    def depth(found: list[Any]) -> int:
        return 1 + max((depth(inner) for inner in found), default=0)

    def trim(found: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": found["metadata"], "depth": depth(found["spec"]["parameters"])}

    nested = "[" * 700 + "]" * 700
    text = body(claim("deep", nested), claim("flat", "[[]]"))
    with world(Answer(chunks=(text,))) as scene:
        read = scene.reflector(trim=trim)
        read.step()
        assert (set(read.snapshot()), read.errors) == ({"flat"}, {"bad_object": 1})
        scene.server.script = [refused(403), Answer(chunks=(text,))]
        found = CollectionLister(HttpTransport(scene.server.url)).all(
            PODS, lambda _, item: depth(item["spec"]["parameters"])
        )
        assert (found.items, found.unread) == ((2,), 1)


@pytest.mark.parametrize("settings", [{"page_s": 5.0}, {"list_s": 5.0}])
def test_a_list_that_takes_too_long_is_left(settings: dict[str, Any]) -> None:
    """Each page is read at once, and then the clock goes on."""
    with world(listed(pod("a"), token="more"), listed(pod("b"))) as scene:

        def slow(found: dict[str, Any]) -> dict[str, Any]:
            scene.clock.now_ns += 6 * 1_000_000_000
            return found

        read = scene.reflector(settings=ReflectorSettings(**settings), trim=slow)
        read.step()
        # What is done with a page does not count against it, but against the list.
        is_late = "list_s" in settings
        assert (read.synced, read.errors["overdue"]) == (not is_late, int(is_late))


def test_the_largest_object_there_can_be_fits_an_answer_and_a_line_of_the_collector() -> None:
    largest = 6 * 1_500_000
    assert largest < min(LEAN.body_bytes, AnswerLimits().body_bytes)
    assert largest < AnswerLimits().line_bytes
