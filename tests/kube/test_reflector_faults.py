"""Refusals, silence, storms that must not be, and the thread."""

from __future__ import annotations

import socket
import threading
import tracemalloc

import pytest

from gpucost.kube.connect.http_transport import HttpTransport
from gpucost.kube.connect.transport import KubeResponse, TransportError
from gpucost.kube.watch.object_store import ObjectChange
from gpucost.kube.watch.reflector import Reflector, ReflectorSettings
from tests.kube.worlds import SECOND, Clock, wait_for, world
from tests.support.kube import Answer, bookmark, event, kube_server, listed, pod, refused, watched

QUICK = ReflectorSettings(inactivity_s=1.0)


@pytest.mark.fault(14)
@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_a_watch_refused_for_ten_minutes_is_asked_for_ever_less_often(status: int) -> None:
    with world(listed(pod("a"))) as scene:
        reflector = scene.reflector()
        reflector.step()
        heard, begun = reflector.last_success_ns, scene.clock.now_ns
        scene.server.script = [refused(status)] * 1000
        while scene.clock.now_ns < begun + 600 * SECOND:
            scene.clock.now_ns += round(reflector.step() * SECOND)
        calls = len(scene.server.asked) - 1
        assert 35 <= calls <= 50  # with the mean jitter: 0.5 + 1 + 2 + 4 + 8 s, then every 15 s
        assert (reflector.up, reflector.synced, reflector.last_success_ns) == (False, True, heard)
        assert set(reflector.snapshot()) == {"uid-a"}
        assert reflector.errors == {f"http_{status}": calls}
        scene.server.script = [watched(bookmark("140"))]
        reflector.step()
        assert reflector.up
    assert scene.server.asked[-1].params["resourceVersion"] == "100"
    assert scene.history == [("added", "uid-a")]


@pytest.mark.fault(14)
def test_the_jitter_is_full_and_the_ceiling_is_forgotten_after_a_good_watch() -> None:
    good = watched(bookmark("130"))
    with world(listed(), *[refused(500)] * 7, good, refused(500)) as scene:
        reflector = scene.reflector()
        reflector.step()
        scene.jitter = 0.999999
        pauses = [round(reflector.step(), 3) for _ in range(7)]
        assert pauses == [1, 2, 4, 8, 16, 30, 30]
        scene.jitter = 0.0
        assert reflector.step() == 0
        scene.jitter = 0.5
        assert reflector.step() == 0.5


def test_a_server_that_is_not_there_is_one_error_and_one_pause() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    reflector = Reflector(
        HttpTransport(f"http://127.0.0.1:{port}"), "/api/v1/pods", trim=dict, jitter=lambda: 0.5
    )
    assert [reflector.step(), reflector.step()] == [0.5, 1.0]
    assert reflector.errors == {"unreachable": 2}
    assert (reflector.up, reflector.synced, reflector.last_success_ns) == (False, False, None)


@pytest.mark.fault(15)
def test_a_silent_watch_is_left_and_taken_up_where_it_was() -> None:
    with world(
        listed(pod("a")),
        watched(event("MODIFIED", pod("a", version=101)), ending="silence"),
        watched(event("MODIFIED", pod("a", version=102))),
    ) as scene:
        reflector = scene.reflector(settings=QUICK)
        reflector.step()
        reflector.step()
        # It answered; whether it is still there, the next watch says.
        assert (reflector.up, reflector.problem, reflector.errors) == (True, "", {"silent": 1})
        reflector.step()
        assert reflector.snapshot()["uid-a"]["metadata"]["resourceVersion"] == "102"
    assert scene.server.asked[-1].params["resourceVersion"] == "101"


@pytest.mark.fault(17)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_kept_exactly(status: int) -> None:
    with world(listed(), *[refused(status, retry_after="7")] * 3, watched()) as scene:
        reflector = scene.reflector()
        reflector.step()
        scene.jitter = 0.123
        assert [reflector.step() for _ in range(3)] == [7, 7, 7]
        assert reflector.errors == {f"http_{status}": 3}


@pytest.mark.fault(17)
def test_the_thread_waits_out_a_retry_after_and_asks_once() -> None:
    with kube_server(listed(), refused(429, retry_after="1"), watched(ending="silence")) as server:
        reflector = Reflector(HttpTransport(server.url), "/api/v1/pods", trim=dict)
        reflector.start()
        wait_for(lambda: len(server.asked) == 3)
        reflector.close()
        assert len(server.asked) == 3
        assert server.asked[2].at_s - server.asked[1].at_s >= 0.99


@pytest.mark.fault(17)
@pytest.mark.parametrize("value", ["0", "-3", "soon", "", "Mon, 05 Jan 2026 07:00:00 GMT"])
def test_a_retry_after_that_allows_a_storm_is_not_taken(value: str) -> None:
    with world(refused(429, retry_after=value)) as scene:
        assert scene.reflector().step() == 0.5


@pytest.mark.fault(17)
@pytest.mark.parametrize("value", ["3600", "99999999"])
def test_a_retry_after_of_hours_is_cut(value: str) -> None:
    with world(refused(429, retry_after=value)) as scene:
        assert scene.reflector().step() == 120


def test_a_watch_that_ends_at_once_is_a_failure() -> None:
    with world(listed(), *[watched()] * 3) as scene:
        reflector = scene.reflector()
        assert scene.run(reflector) == [0, 0.5, 1, 2]
        assert reflector.errors == {"short_watch": 3}


def test_a_watch_that_brings_one_event_at_a_time_is_not_a_storm() -> None:
    answers = [watched(event("ADDED", pod(f"p{number}", version=101 + number))) for number in range(4)]
    with world(listed(), *answers) as scene:
        reflector = scene.reflector()
        assert scene.run(reflector) == [0, 0.5, 0.5, 0.5, 0.5]
        assert not reflector.errors


def test_an_owner_that_raises_does_not_stop_the_stream() -> None:
    def raises(change: ObjectChange) -> None:
        raise RuntimeError(change.kind)

    with kube_server(listed(pod("a")), watched(event("ADDED", pod("b", version=101)))) as server:
        reflector = Reflector(HttpTransport(server.url), "/api/v1/pods", trim=dict, on_change=raises)
        reflector.step()
        reflector.step()
        assert set(reflector.snapshot()) == {"uid-a", "uid-b"}
        assert reflector.errors == {"callback": 2}


def test_a_mistake_of_ours_does_not_end_the_thread() -> None:
    class Broken:
        calls = 0

        def get(self, *_: object) -> KubeResponse:
            self.calls += 1
            if self.calls == 1:
                raise ZeroDivisionError
            raise TransportError("unreachable", "no")

    broken = Broken()
    reflector = Reflector(broken, "/api/v1/pods", trim=dict, jitter=lambda: 0.001)
    reflector.start()
    wait_for(lambda: broken.calls > 2)
    reflector.close()
    assert reflector.errors["internal"] == 1


def test_closing_ends_a_watch_that_waits() -> None:
    with kube_server(listed(pod("a")), watched(bookmark("101"), ending="silence")) as server:
        before = threading.active_count()
        reflector = Reflector(HttpTransport(server.url), "/api/v1/pods", trim=dict)
        reflector.start()
        wait_for(lambda: reflector.synced and server.waiting.is_set())
        reflector.close(60)
        reflector.close()
        assert not any(thread.name.startswith("reflector") for thread in threading.enumerate())
        assert threading.active_count() <= before + 3
        assert set(reflector.snapshot()) == {"uid-a"}
        assert not reflector.errors


def test_ten_thousand_pods_of_four_kilobytes_cost_what_is_kept_of_them() -> None:
    """A page at a time is whole in memory; of the rest only what ``trim`` leaves."""
    ballast = {"annotations": {"text": "x" * 4000}}
    pages = [
        listed(
            *(pod(f"p{page}-{number}", metadata=ballast) for number in range(500)),
            token="" if page == 19 else str(page),
        )
        for page in range(20)
    ]

    def trim(found: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        return {"metadata": {"name": found["metadata"]["name"]}}

    with kube_server(*pages) as server:
        reflector = Reflector(HttpTransport(server.url), "/api/v1/pods", trim=trim, clock=Clock())
        tracemalloc.start()
        try:
            reflector.step()
            kept, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(reflector.snapshot()) == 10_000
    assert kept < 12e6
    assert peak < 40e6


def test_an_unfinished_answer_leaves_no_half_page() -> None:
    half = Answer(chunks=(b'{"metadata": {"resourceVersion": "1"}, "items": []',), ending="cut")
    with world(half, listed(pod("a"))) as scene:
        reflector = scene.reflector()
        reflector.step()
        assert (reflector.synced, reflector.errors) == (False, {"cut": 1})
        reflector.step()
        assert reflector.synced
