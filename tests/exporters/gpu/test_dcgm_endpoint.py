"""The thread that reads dcgm-exporter, against a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpucost.domain.errors import InputError
from gpucost_gpu_exporter.dcgm import endpoint as module
from gpucost_gpu_exporter.dcgm.endpoint import DcgmEndpoint
from gpucost_gpu_exporter.dcgm.scrapes import DcgmProblem
from gpucost_gpu_exporter.model.holdings import DeviceKey
from gpucost_gpu_exporter.model.readings import GpuSignal
from tests.support.http import Reply, ScriptedServer, scripted_server

FIXTURES = Path(__file__).parent / "dcgm"
BOARD = DeviceKey("GPU-0a000000-0000-4000-8000-000000000001")
TEXT = (FIXTURES / "classic.prom").read_text()
CORRUPT = (FIXTURES / "corrupt.prom").read_text()
SECOND = 10**9
START = 1_767_225_600 * SECOND
PLAIN = "text/plain; charset=utf-8"


class Clock:
    def __init__(self) -> None:
        self.now_ns = START

    def __call__(self) -> int:
        return self.now_ns


def text(body: str | bytes = TEXT, **more: object) -> Reply:
    return Reply(body=body, content_type=PLAIN, **more)  # type: ignore[arg-type]


@contextmanager
def served(
    *replies: Reply, timeout_s: float = 60.0, interval_s: float = 10.0
) -> Iterator[tuple[DcgmEndpoint, Clock, ScriptedServer]]:
    clock = Clock()
    with scripted_server(*replies) as server:
        url = f"{server.url}/metrics?x=1"
        yield DcgmEndpoint(url, clock=clock, timeout_s=timeout_s, interval_s=interval_s), clock, server


def test_a_round_brings_values() -> None:
    with served(text()) as (endpoint, _, server):
        assert (endpoint.snapshot().up, endpoint.snapshot().since_ns) == (False, START)
        endpoint.poll()
        found = endpoint.snapshot()
        assert (found.up, found.failures, found.dropped) == (True, {}, {})
        assert found.known.ratio(BOARD, GpuSignal.SM, START) == 0.5
        assert [(asked.method, asked.path) for asked in server.asked] == [("GET", "/metrics?x=1")]


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        (text(""), "empty"),
        (text("# HELP x y\n"), "empty"),
        (text("other_metric 5\n"), "no_values"),
        (text("sorry", status=500), "http_status"),
        (text(TEXT, status=503), "http_status"),
        (text(status=302, headers={"Location": "/elsewhere"}), "http_status"),
        (Reply(hang_up=True), "unreachable"),
        (text(TEXT, delay_s=0.4), "timeout"),
        (text("#" * 1000, drip_s=0.05), "timeout"),
        (text(TEXT + "#" * 4 * 2**20), "too_large"),
    ],
    ids=["empty", "comments", "foreign", "500", "503", "redirect", "hang-up", "slow", "dripping", "large"],
)
def test_a_failed_round_is_counted_and_the_last_values_grow_old(reply: Reply, failure: str) -> None:
    with served(text(), reply, timeout_s=60.0) as (endpoint, clock, server):
        endpoint.poll()
        if failure == "timeout":
            endpoint._timeout_s = 0.3
        clock.now_ns = START + 10 * SECOND
        endpoint.poll()
        found = endpoint.snapshot()
        assert (found.up, found.since_ns, found.failures) == (False, START + 10 * SECOND, {failure: 1})
        assert found.known.ratio(BOARD, GpuSignal.BUSY, START + 60 * SECOND) == 0.91
        assert found.known.problem(BOARD, GpuSignal.BUSY, START + 61 * SECOND) is DcgmProblem.STALE
        assert len(server.asked) == 2


def test_a_body_shorter_than_it_was_said_to_be_is_not_believed() -> None:
    with served(Reply(body=TEXT[:200], headers={"Content-Length": "5000"})) as (endpoint, _, _server):
        endpoint.poll()
        assert endpoint.snapshot().known.values == {}
        assert not endpoint.snapshot().up


def test_nobody_listening_is_unreachable() -> None:
    with served(text()) as (endpoint, _, server):
        pass
    endpoint.poll()
    assert endpoint.snapshot().failures == {"unreachable": 1}
    assert server.asked == []


def test_it_is_up_again_since_the_first_good_round() -> None:
    with served(text(""), text(), text()) as (endpoint, clock, _):
        for _ in range(3):
            endpoint.poll()
            clock.now_ns += 10 * SECOND
        found = endpoint.snapshot()
        assert (found.up, found.since_ns, found.failures) == (True, START + 10 * SECOND, {"empty": 1})


def test_a_round_that_never_ends_shows_as_down_once_the_values_are_too_old() -> None:
    with served(text()) as (endpoint, clock, _):
        endpoint.poll()
        clock.now_ns = START + 61 * SECOND
        found = endpoint.snapshot()
        assert (found.up, found.since_ns) == (False, START + 60 * SECOND)


@pytest.mark.trap(10)
@pytest.mark.fault(3)
def test_dropped_lines_add_up_over_rounds() -> None:
    with served(text(CORRUPT)) as (endpoint, _, _server):
        endpoint.poll()
        endpoint.poll()
        assert endpoint.snapshot().dropped["blank"] == 8
        assert endpoint.snapshot().up


def test_the_unit_learnt_in_one_round_holds_in_the_next() -> None:
    rows = [f'DCGM_FI_DEV_GPU_UTIL_RATIO{{UUID="{BOARD.gpu_uuid}"}} {value}\n' for value in ("57", "1")]
    with served(*(text(row) for row in rows)) as (endpoint, _, _server):
        endpoint.poll()
        endpoint.poll()
        assert endpoint.snapshot().known.ratio(BOARD, GpuSignal.BUSY, START) == 0.01


def test_bytes_that_are_no_text_do_no_harm() -> None:
    with served(text(b"\xff\xfe{} 1\n" + TEXT.encode())) as (endpoint, _, _server):
        endpoint.poll()
        assert endpoint.snapshot().up


def test_the_thread_polls_until_it_is_closed_and_a_snapshot_never_waits() -> None:
    held = threading.Event()
    with served(text(), text(held=held), timeout_s=60.0, interval_s=0.01) as (endpoint, clock, server):
        endpoint.start()
        deadline = time.monotonic() + 60
        while len(server.asked) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        clock.now_ns = START + 10 * SECOND
        in_between = endpoint.snapshot()
        held.set()
        endpoint.close()
        assert (in_between.up, in_between.known.at_ns) == (True, START)
        assert endpoint.snapshot().known.at_ns == START + 10 * SECOND
        assert not any(thread.name == "dcgm-endpoint" for thread in threading.enumerate())


def test_a_fault_of_our_own_is_counted_and_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(module, "parse", broken)
    with served(text()) as (endpoint, _, _server):
        endpoint.poll()
        assert endpoint.snapshot().failures == {"internal": 1}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:9400",
        "file:///etc/passwd",
        "http://",
        "http://h:99999/",
        "http://u:p@h/",
        "http://h/a b\r\n",
    ],
)
def test_an_address_that_will_not_do_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="dcgm url"):
        DcgmEndpoint(url, clock=Clock())


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_times_must_be_above_0(seconds: float) -> None:
    with pytest.raises(InputError, match="dcgm timeout_s"):
        DcgmEndpoint("http://127.0.0.1:9400/metrics", clock=Clock(), timeout_s=seconds)
