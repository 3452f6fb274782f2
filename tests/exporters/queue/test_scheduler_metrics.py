"""Kueue's and Volcano's own metrics, read from a real server."""

from __future__ import annotations

import math
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.errors import InputError
from gpucost_queue_collector import scheduler_metrics as module
from gpucost_queue_collector.scheduler_metrics import (
    NotMetrics,
    SchedulerEndpoint,
    SchedulerFacts,
    SchedulerKind,
    SchedulerMetrics,
    WaitHistogram,
    read_metrics,
    write_scheduler,
)
from tests.support.http import Reply, ScriptedServer, scripted_server
from tests.support.wait_histograms import quantile

KUEUE, VOLCANO = SchedulerKind.KUEUE, SchedulerKind.VOLCANO
WAIT = "kueue_admission_wait_time_seconds"
PLAIN = "text/plain; version=0.0.4"


def histogram(labels: str, *cumulative: int, total: float) -> str:
    """Buckets 1, 2.5 and infinite."""
    lines = [
        f'{WAIT}_bucket{{{labels},le="{bound}"}} {count}'
        for bound, count in zip(("1", "2.5", "+Inf"), cumulative, strict=True)
    ]
    return "\n".join(
        [*lines, f"{WAIT}_sum{{{labels}}} {total}", f"{WAIT}_count{{{labels}}} {cumulative[-1]}", ""]
    )


BUILD = 'kueue_build_info{build_date="x",git_version="v0.19.2",replica_role="leader"} 1\n'
TEXT = (
    "# HELP kueue_build_info Kueue build information.\n# TYPE kueue_build_info gauge\n"
    + BUILD
    + f"# TYPE {WAIT} histogram\n"
    + histogram('cluster_queue="a",priority_class="",replica_role="leader"', 1, 2, 4, total=20.5)
    + histogram('cluster_queue="a",priority_class="high",replica_role="leader"', 3, 3, 3, total=1.5)
    + histogram('cluster_queue="a",priority_class="",replica_role="follower"', 9, 9, 9, total=9.0)
    + histogram('cluster_queue="b",priority_class="",replica_role="follower"', 0, 1, 1, total=2.0)
    + 'go_goroutines 5\nkueue_pending_workloads{cluster_queue="a"} broken value\n'
)
A = WaitHistogram(((1.0, 4.0), (2.5, 5.0), (math.inf, 7.0)), 22.0, 7.0)
B = WaitHistogram(((1.0, 0.0), (2.5, 1.0), (math.inf, 1.0)), 2.0, 1.0)


def text(body: str | bytes = TEXT, **more: object) -> Reply:
    return Reply(body=body, content_type=PLAIN, **more)  # type: ignore[arg-type]


@pytest.mark.fault(10)
@pytest.mark.parametrize(
    "line",
    [
        'kueue_build_info{git_version="' + '\\"' * 400_000 + '"} 1',
        "kueue_build_info{" + ",".join(f'a{n}="x"' for n in range(50_000)) + "} 1",
        f'{WAIT}_sum{{cluster_queue="' + "a" * 800_000 + '"} 1',
    ],
)
def test_lines_longer_than_any_of_kueues_cost_nothing(line: str) -> None:
    began = time.thread_time()
    facts = read_metrics(KUEUE, f"{line}\n{TEXT}")
    assert time.thread_time() - began < 10
    assert (facts.version, facts.waits) == ("v0.19.2", {"a": A, "b": B})


def test_a_version_is_cut_and_too_many_lines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_metrics(KUEUE, f'kueue_build_info{{git_version="{"v" * 1000}"}} 1\n').version == "v" * 64
    monkeypatch.setattr(module, "MAX_LINES", len(TEXT.splitlines()) - 5)  # three headers, two of others
    assert read_metrics(KUEUE, TEXT).up
    with pytest.raises(NotMetrics):
        read_metrics(KUEUE, f"{TEXT}{WAIT}_sum 5\n")


@contextmanager
def served(
    *replies: Reply, scheduler: SchedulerKind = KUEUE, **more: object
) -> Iterator[tuple[SchedulerMetrics, ScriptedServer]]:
    with scripted_server(*replies) as server:
        endpoint = SchedulerEndpoint(scheduler, f"{server.url}/metrics", **more)  # type: ignore[arg-type]
        yield SchedulerMetrics(endpoint), server


def test_waits_are_summed_over_classes_and_not_over_roles() -> None:
    facts = read_metrics(KUEUE, TEXT)
    assert facts == SchedulerFacts(KUEUE, "v0.19.2", True, "", {"a": A, "b": B})


def test_an_older_kueue_has_no_roles_and_volcano_no_version() -> None:
    older = histogram('cluster_queue="a"', 1, 2, 4, total=20.5)
    assert read_metrics(KUEUE, older).waits["a"].count == 4
    volcano = read_metrics(VOLCANO, 'volcano_queue_share{queue_name="q"} 0.5\n')
    assert (volcano.up, volcano.version, volcano.waits) == (True, "", {})


def test_what_volcano_says_of_kueue_is_not_taken() -> None:
    """Both schedulers' waits would be the same series."""
    assert read_metrics(VOLCANO, f"volcano_x 1\n{TEXT}") == SchedulerFacts(VOLCANO, "", True, "")


def test_only_queues_that_exist_are_shown() -> None:
    facts = read_metrics(KUEUE, TEXT)
    assert facts.within({"b": 1, "c": 2}) == SchedulerFacts(KUEUE, "v0.19.2", True, "", {"b": B})


def test_names_that_no_label_can_hold_stay_apart() -> None:
    odd = "".join(histogram(f'cluster_queue="q{mark}"', 1, 2, 4, total=20.5) for mark in ("\x01", "\x02"))
    waits = write_scheduler(read_metrics(KUEUE, odd))[2].splitlines()
    assert len({wait.split(b" ")[0] for wait in waits}) == len(waits) == 2


@pytest.mark.parametrize(
    "line",
    [
        f'{WAIT}_count{{cluster_queue="c"}} 5',
        f'{WAIT}_bucket{{cluster_queue="c",le="1"}} 5',
        f'{WAIT}_count{{cluster_queue="c"}} NaN',
        f'{WAIT}_sum{{cluster_queue=""}} 5',
        f"{WAIT}_sum 5",
    ],
)
def test_half_a_histogram_is_none(line: str) -> None:
    assert read_metrics(KUEUE, f"{BUILD}{line}\n").waits == {}


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<html><body>log in</body></html>",
        "go_goroutines 5\n",
        f"{BUILD}{WAIT}_sum{{a=\n",
        "volcano_x 1\n",
    ],
)
def test_what_is_not_kueues_text_is_not_believed(body: str) -> None:
    with pytest.raises(NotMetrics):
        read_metrics(KUEUE, body)


@given(
    st.lists(st.sampled_from([*TEXT.splitlines(), "{", f'{WAIT}_bucket{{le="x"}} 1', "# TYPE", "kueue_x"]))
)
def test_no_text_is_a_fault(lines: list[str]) -> None:
    try:
        facts = read_metrics(KUEUE, "\n".join(lines))
    except NotMetrics:
        return
    for wait in facts.waits.values():
        bounds = [bound for bound, _ in wait.buckets]
        assert bounds == sorted(bounds)
        assert bounds[-1] == math.inf


@pytest.mark.parametrize(
    ("q", "seconds"),
    # 4 of 7 within 1 s, one more within 2.5 s, two beyond: the last finite bound.
    [(0.0, 0.0), (2 / 7, 0.5), (4 / 7, 1.0), (4.5 / 7, 1.75), (5 / 7, 2.5), (6 / 7, 2.5), (1.0, 2.5)],
)
def test_quantiles_are_those_of_prometheus(q: float, seconds: float) -> None:
    assert quantile(A, q) == pytest.approx(seconds)


def test_nobody_waited_is_not_a_wait_of_zero() -> None:
    assert quantile(WaitHistogram(((1.0, 0.0), (math.inf, 0.0)), 0.0, 0.0), 0.5) is None
    assert quantile(WaitHistogram((), 0.0, 0.0), 0.5) is None


def test_series_before_after_and_when_it_is_down() -> None:
    def rendered(facts: SchedulerFacts) -> set[str]:
        return set(b"".join(write_scheduler(facts)).decode().splitlines())

    up = 'gpucost_scheduler_metrics_up{scheduler="kueue"}'
    known = {
        'gpucost_scheduler_info{scheduler="kueue",version="v0.19.2"} 1.0',
        'gpucost_cluster_queue_admission_waits_total{cluster_queue="a"} 7.0',
        'gpucost_cluster_queue_admission_waits_total{cluster_queue="b"} 1.0',
        'gpucost_cluster_queue_admission_wait_seconds_total{cluster_queue="a"} 22.0',
        'gpucost_cluster_queue_admission_wait_seconds_total{cluster_queue="b"} 2.0',
    }
    with served(text(), text(status=500)) as (metrics, _):
        assert rendered(metrics.facts) == {f"{up} 0.0"}
        metrics.poll()
        assert rendered(metrics.facts) == {f"{up} 1.0", *known}
        metrics.poll()
        assert rendered(metrics.facts) == {f"{up} 0.0", *known}


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (text(status=401), "refused"),
        (text(status=403), "refused"),
        (text(status=302, headers={"Location": "/elsewhere"}), "http_status"),
        (text("<html>log in</html>"), "not_metrics"),
        (text(b"\xff\xfe"), "not_metrics"),
        (text(f"{BUILD}{WAIT}_sum{{"), "not_metrics"),
        (Reply(hang_up=True), "unreachable"),
        (text(delay_s=0.5), "timeout"),
        (text("#" * 1000, drip_s=0.05), "timeout"),
        (text(TEXT + "#" * 5000), "too_large"),
        (Reply(body=TEXT[:200], headers={"Content-Length": "5000"}), "bad_answer"),
    ],
)
def test_a_failed_round_has_a_word_and_keeps_what_was_known(
    reply: Reply, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 5000)
    with served(text(), reply, text(), timeout_s=60) as (metrics, _):
        metrics.poll()
        patient = metrics._endpoint
        if problem == "timeout":
            metrics._endpoint = replace(patient, timeout_s=0.3)
        metrics.poll()
        metrics._endpoint = patient
        facts = metrics.facts
        assert (facts.up, facts.problem, facts.version) == (False, problem, "v0.19.2")
        assert facts.waits == {"a": A, "b": B}
        metrics.poll()
        assert (metrics.facts.up, metrics.facts.problem) == (True, "")


def test_a_round_that_does_not_end_is_told() -> None:
    now_s = 100.0
    with scripted_server(text()) as server:
        endpoint = SchedulerEndpoint(KUEUE, f"{server.url}/metrics", interval_s=60, timeout_s=10)
        metrics = SchedulerMetrics(endpoint, lambda: now_s)
        metrics.poll()
        now_s += 3 * 60 + 10
        assert metrics.facts.up
        now_s += 0.1
        assert metrics.facts == SchedulerFacts(KUEUE, "v0.19.2", False, "overdue", {"a": A, "b": B})
        metrics.poll()
        assert metrics.facts.up


def test_a_fault_of_our_own_is_not_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(module, "read_metrics", broken)
    with served(text()) as (metrics, _):
        metrics.poll()
        assert metrics.facts.problem == "internal"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself; its key stands beside it."""
    file = tmp_path_factory.mktemp("tls") / "server.crt"
    subprocess.run(
        [
            *[
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "2",
            ],
            *("-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", file.with_suffix(".key"), "-out", file),
        ],
        check=True,
        capture_output=True,
    )
    return file


def test_over_tls_the_certificate_is_checked_and_the_token_read_each_time(
    certificate: Path, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with scripted_server(text()) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        url = f"https://127.0.0.1:{server.server_port}/metrics"
        metrics = SchedulerMetrics(SchedulerEndpoint(KUEUE, url, token, certificate))
        metrics.poll()
        token.write_text("second\n")
        metrics.poll()
        assert metrics.facts.up
        token.write_text("two\nlines")
        metrics.poll()
        assert metrics.facts.problem == "token"
        token.write_text("third")
        strict = SchedulerMetrics(SchedulerEndpoint(KUEUE, url, token))
        strict.poll()
        assert strict.facts.problem == "tls"
        insecure = SchedulerMetrics(SchedulerEndpoint(KUEUE, url, token, insecure=True))
        insecure.poll()
        assert insecure.facts.up
        sent = [asked.headers["Authorization"] for asked in server.asked]
    assert sent == ["Bearer first", "Bearer second", "Bearer third"]


def test_the_thread_polls_until_it_is_closed() -> None:
    with served(text(), interval_s=0.01) as (metrics, server):
        metrics.start()
        deadline = time.monotonic() + 60
        while len(server.asked) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        metrics.close()
        assert len(server.asked) >= 3
        assert metrics.facts.up
        assert not any(thread.name == "kueue-metrics" for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("url", "more", "field"),
    [
        ("ftp://h/metrics", {}, "kueue metrics url"),
        ("http://u:p@h/metrics", {}, "kueue metrics url"),
        ("http://10.0.0.1/metrics", {"token_file": Path("/t")}, "kueue metrics url"),
        ("https://h/metrics", {"interval_s": 0}, "kueue metrics interval"),
        ("https://h/metrics", {"timeout_s": math.nan}, "kueue metrics timeout"),
    ],
)
def test_settings_that_will_not_do_are_refused(url: str, more: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as caught:
        SchedulerMetrics(SchedulerEndpoint(KUEUE, url, **more))  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_large_page_is_read_fast() -> None:
    labels = 'cluster_queue="q{}",priority_class="p{}",replica_role="leader"'
    page = BUILD + "".join(
        histogram(labels.format(queue, level), 1, 2, 3, total=4.5)
        for queue in range(500)
        for level in range(5)
    )
    page += "".join(f'kueue_other{{cluster_queue="q{n}"}} 1\n' for n in range(200_000))
    began = time.thread_time()
    facts = read_metrics(KUEUE, page)
    assert time.thread_time() - began < 30
    assert (len(facts.waits), facts.waits["q7"].count) == (500, 15)
