"""Connections that stay open and say nothing, and servers that say the same again and again."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest

from gpucost.kube.connect.connection import connect_url
from gpucost.kube.connect.http_transport import HttpTransport
from gpucost.kube.parse.collections import collections
from gpucost.kube.watch.cluster_watch import ClusterWatch, WatchClocks
from gpucost.kube.watch.reflector import Reflector, ReflectorSettings
from tests.kube.worlds import SECOND, wait_for, world
from tests.support.kube import Answer, bookmark, event, expired, listed, pod, watched

EMPTY = b'{"metadata": {"resourceVersion": "9"}, "items": []}'
_HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


@contextmanager
def dripping(piece: bytes, is_list: bool = False) -> Iterator[tuple[str, list[str]]]:
    """The address of a server that answers a watch (or a list) with ``piece`` every 20 ms for ever; and what
    it was asked: "list" or "watch"."""
    asked: list[str] = []
    stopping = threading.Event()

    def serve(accepted: socket.socket) -> None:
        with accepted, suppress(OSError):
            request = accepted.recv(65536)
            kind = "watch" if b"watch=true" in request else "list"
            asked.append(kind)
            accepted.sendall(_HEAD)
            if (kind == "list") is not is_list:
                accepted.sendall(EMPTY)
                return
            while not stopping.wait(0.02):
                accepted.sendall(piece)

    threads: list[threading.Thread] = []

    def accept() -> None:
        with suppress(OSError):
            while not stopping.is_set():
                threads.append(threading.Thread(target=serve, args=(listening.accept()[0],)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
        finally:
            stopping.set()
            listening.shutdown(socket.SHUT_RDWR)
            for thread in (accepting, *threads):
                thread.join(5)


@pytest.mark.fault(15)
@pytest.mark.parametrize("make", [HttpTransport, connect_url], ids=["lean", "httpx"])
@pytest.mark.parametrize("piece", [b"\n", b" ", b"{", b"{}\n"], ids=["blank", "space", "half", "unreadable"])
def test_bytes_that_say_nothing_are_silence(make: Callable[[str], Any], piece: bytes) -> None:
    with dripping(piece) as (url, _):
        settings = ReflectorSettings(inactivity_s=0.3)
        transport = make(url)
        reflector = Reflector(transport, "/api/v1/pods", trim=dict, settings=settings)
        reflector.step()
        began = time.monotonic()
        reflector.step()
        assert time.monotonic() - began > 0.2
        assert reflector.errors["silent"] == 1
        if not isinstance(transport, HttpTransport):
            transport.close()


@pytest.mark.fault(15)
def test_a_watch_that_the_server_never_ends_is_left() -> None:
    mark = json.dumps(bookmark("9")).encode() + b"\n"
    with dripping(mark) as (url, _):
        settings = ReflectorSettings(watch_timeout_s=0.2, overrun_s=0.2, short_watch_s=0.1)
        reflector = Reflector(HttpTransport(url), "/api/v1/pods", trim=dict, settings=settings)
        reflector.step()
        began = time.monotonic()
        reflector.step()
        assert time.monotonic() - began > 0.15
        assert (reflector.up, reflector.errors) == (True, {"overdue": 1})


@pytest.mark.fault(15)
def test_a_list_that_drips_is_left() -> None:
    with dripping(b" ", is_list=True) as (url, _):
        settings = ReflectorSettings(page_s=0.2)
        reflector = Reflector(HttpTransport(url), "/api/v1/pods", trim=dict, settings=settings)
        reflector.step()
        assert (reflector.synced, reflector.problem, reflector.errors) == (False, "overdue", {"overdue": 1})


@pytest.mark.fault(15)
def test_watches_that_bring_nothing_for_long_are_followed_by_a_list() -> None:
    now_s = itertools.count(0.0, 5.0)  # it goes on whenever it is read: at each piece, for one
    with dripping(b"\n") as (url, asked):
        settings = ReflectorSettings(inactivity_s=60.0, doubted_s=100.0, stalled_s=1000.0)
        reflector = Reflector(
            HttpTransport(url),
            "/api/v1/pods",
            trim=dict,
            settings=settings,
            monotonic=lambda: next(now_s),
            jitter=lambda: 0.0,
        )
        for _ in range(6):
            reflector.step()
        assert asked == ["list", "watch", "watch"] * 2
        assert not reflector.is_stalled


@pytest.mark.fault(15)
def test_what_nothing_was_heard_of_for_long_is_not_current() -> None:
    """The proxy answers every watch, and lets nothing through."""
    now_s = [0.0]
    with dripping(b"\n") as (url, _):
        chosen = [each for each in collections() if each.name == "pods"]
        settings = ReflectorSettings(inactivity_s=100_000.0)
        clocks = WatchClocks(monotonic_s=lambda: now_s[0])
        with closing(connect_url(url)) as transport:
            watch = ClusterWatch(transport, chosen, settings=settings, clocks=clocks)
            watch.start()
            try:
                assert watch.wait(60)
                for now_s[0], expected in ((0.0, True), (600.0, True), (601.0, False)):
                    assert watch.is_current(60.0) is expected
                assert watch.statuses()["pods"].problem == ""
            finally:
                watch.close()


@pytest.mark.fault(15)
def test_a_quiet_server_without_bookmarks_is_always_current() -> None:
    """It is silent, and answers; every second silence is followed by a list."""
    script: list[Answer] = []
    for _ in range(3):
        script += [listed(pod("a")), watched(ending="silence"), watched(ending="silence")]
    with world(*script) as scene:
        settings = ReflectorSettings(inactivity_s=0.5, doubted_s=0.8, stalled_s=2.0)

        made: list[Reflector[Any]] = []

        def silent_s() -> float:
            """What the silences took, and not what a slow machine took besides."""
            return 0.51 * made[0].errors["silent"] if made else 0.0

        reflector = Reflector(
            HttpTransport(scene.server.url),
            "/api/v1/pods",
            trim=dict,
            settings=settings,
            monotonic=silent_s,
            jitter=lambda: 0.0,
        )
        made.append(reflector)
        problems = []
        while scene.server.script:
            reflector.step()
            problems.append((reflector.up, reflector.problem, reflector.is_stalled))
        assert set(problems) == {(True, "", False)}
        assert [asked.is_watch for asked in scene.server.asked] == [False, True, True] * 3


def test_an_outage_is_not_followed_by_a_list() -> None:
    """All clients of a server that comes back would list at once."""
    with world(listed(pod("a"))) as scene:
        reflector = scene.reflector()
        reflector.step()
        scene.clock.now_ns += 3600 * SECOND
        scene.server.script = [watched(bookmark("110")), watched(bookmark("111"))]
        scene.run(reflector)
    assert [asked.is_watch for asked in scene.server.asked] == [False, True, True]


@pytest.mark.fault(12)
def test_a_server_that_sends_one_event_and_calls_it_too_old_is_not_stormed() -> None:
    script = [listed(pod("a")), watched(event("MODIFIED", pod("a", version=101)), expired())] * 8
    with world(*script) as scene:
        scene.jitter = 0.999
        pauses = scene.run(scene.reflector())[1::2]
    assert pauses == pytest.approx([0.999 * wait for wait in (1, 2, 4, 8, 16, 30, 30, 30)])


def test_a_watch_that_went_well_for_a_minute_and_is_then_too_old_is_no_storm() -> None:
    with world(*[listed(pod("a")), watched(bookmark("101"), expired())] * 3) as scene:
        reflector = scene.reflector(settings=ReflectorSettings(settled_s=0.0))
        assert scene.run(reflector)[1::2] == [0.5, 0.5, 0.5]


@pytest.mark.fault(16)
def test_events_that_cannot_be_read_bring_a_list_once_in_five_minutes() -> None:
    """The object in them is hidden for no longer, and the server is not listed in a circle."""
    with world(listed(pod("a"), version="100")) as scene:
        reflector = scene.reflector()
        reflector.step()
        begun = scene.clock.now_ns
        lists = []
        for number in range(60):
            now_s = (scene.clock.now_ns - begun) / SECOND
            bad = watched(b'{"type": "MODIFIED", "object": {"meta\n', bookmark(str(101 + number)))
            scene.server.script = [bad]
            if reflector._missed and reflector._may_mend():
                scene.server.script = [listed(pod("a"), pod("b"), version=str(101 + number))]
                lists.append(round(now_s / 60))
            reflector.step()
            scene.clock.now_ns += 15 * SECOND
        assert set(reflector.snapshot()) == {"uid-a", "uid-b"}
        assert lists == [0, 5, 10]
    assert sum(not asked.is_watch for asked in scene.server.asked) == 1 + len(lists)


def test_a_lost_event_ends_its_watch_when_a_list_is_due() -> None:
    """The rest of the watch may last for ten minutes."""
    lost = watched(b"{}\n", bookmark("110"), ending="silence")
    with world(listed(pod("a")), lost, listed(pod("b"))) as scene:
        reflector = scene.reflector(settings=ReflectorSettings(inactivity_s=60.0))
        scene.run(reflector)
        assert not reflector.errors["silent"]
        assert set(reflector.snapshot()) == {"uid-b"}
    assert scene.history == [("added", "uid-a"), ("vanished", "uid-a"), ("added", "uid-b")]


def test_the_thread_leaves_a_dripping_watch_when_it_is_closed() -> None:
    with dripping(b"\n") as (url, asked):
        reflector = Reflector(HttpTransport(url), "/api/v1/pods", trim=dict)
        reflector.start()
        wait_for(lambda: "watch" in asked)
        reflector.close(60)
        assert reflector._thread is not None
        assert not reflector._thread.is_alive()
        assert not reflector.errors
