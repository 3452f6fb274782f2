"""A month by samples is the month by queries, to the last bit, from whatever server; and who sends none."""

from __future__ import annotations

import http.client
import http.server
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import google_crc32c
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract.frames import FRAMES
from gpucost.domain.errors import InputError, SourceUnreachable
from gpucost.domain.time import DAY_MS, HOUR_MS, Window
from gpucost.service.settings.model import PrometheusSettings
from gpucost.service.wiring import prometheus_connection as wiring
from gpucost.telemetry.prometheus.api_client import ClientSettings, PrometheusClient, _ChunkedBody
from gpucost.telemetry.prometheus.promql import PromQL, SeriesSelector, by, equals, over_time, select
from gpucost.telemetry.prometheus.remote_read import RemoteReader, _BrokenStream, _StreamedSeries
from gpucost.telemetry.prometheus.sample_chunks import PADDING, RangeStatistics, SampleRanges
from gpucost.telemetry.prometheus.sample_expressions import NotEvaluated
from gpucost.telemetry.prometheus.series_labels import LabelCatalog
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.kube_reader import UpstreamSettings
from gpucost.telemetry.upstream.upstream_source import UpstreamSource
from tests.support.existing.script import scripted
from tests.support.existing.variants import (
    REPLICA_LABEL,
    Member,
    Variant,
    month,
    variants,
    write_second,
)
from tests.support.prometheus import needs_prometheus, running_prometheus
from tests.support.recorded import SERVERS, recorded_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

SCRAPE_MS = 60_000
EXTERNAL = {"prometheus": "monitoring/k8s", "prometheus_replica": "prometheus-k8s-0", "region": "eu"}


def same(found: ClusterFrames, expected: ClusterFrames) -> None:
    for spec in FRAMES:
        pd.testing.assert_frame_equal(
            getattr(found, spec.name), getattr(expected, spec.name), check_exact=True, obj=spec.name
        )
    assert found.problems == expected.problems


def source(
    url: str, *, by_samples: bool, settings: PrometheusSourceSettings | None = None, least_nodes: int = 0
) -> tuple[UpstreamSource, PrometheusClient]:
    client = PrometheusClient(url)
    if by_samples:
        client.samples = RemoteReader(client, least_nodes=least_nodes)
    return (
        UpstreamSource(
            client,
            settings or PrometheusSourceSettings(),
            UpstreamSettings(),
            now=lambda: 1_800_000_000_000,
        ),
        client,
    )


def both(
    url: str, cluster: str, window: Window, settings: PrometheusSourceSettings | None = None
) -> tuple[PrometheusClient, PrometheusClient]:
    """Read in both ways and compared; the clients that asked queries and read samples."""
    by_queries, one = source(url, by_samples=False, settings=settings)
    by_samples, other = source(url, by_samples=True, settings=settings)
    expected = by_queries.read(cluster, window)
    assert len(expected.allocations)
    same(by_samples.read(cluster, window), expected)
    assert other.samples is not None
    assert other.samples.is_there
    assert other.samples.samples > 0
    assert " samples of prometheus " in by_samples.name
    assert " samples of " not in by_queries.name
    return one, other


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Variant, Path]:
    (found,) = (each for each in variants(SCRAPE_MS) if each.name == "restarted")
    folder = tmp_path_factory.mktemp("restarted") / "blocks"
    write_second([found], folder)
    return found, folder


def test_a_cluster_is_the_same_by_samples(restarted: tuple[Variant, Path]) -> None:
    variant, folder = restarted
    with running_prometheus(folder) as url:
        queries, samples = both(url, variant.name, variant.inner)
        assert samples.stats.queries < 1.3 * queries.stats.queries
        part = Window(variant.inner.start_ms + 7 * 60_000 + 1, variant.inner.end_ms - 11_111)
        both(url, variant.name, part)


def test_labels_that_the_server_adds_are_taken_off(restarted: tuple[Variant, Path]) -> None:
    variant, folder = restarted
    with running_prometheus(folder, external_labels=EXTERNAL) as url:
        both(url, variant.name, variant.inner)
    with running_prometheus(folder, external_labels={"cluster": variant.name}) as url:
        both(url, variant.name, variant.inner)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> tuple[Window, Path]:
    """A server of the clusters a and b, and of one whose series have no label of a cluster."""
    first, second, third = (
        Variant(scripted((24, 36), name=name), SCRAPE_MS, lean=True) for name in ("a", "b", "default")
    )
    folder = tmp_path_factory.mktemp("hub") / "blocks"
    write_second([first, second, replace(third, members=(Member({"cluster": ""}),))], folder)
    return first.inner, folder


@pytest.mark.parametrize("added", [{"cluster": "a", "region": "eu"}, {"cluster": "z"}], ids=str)
@pytest.mark.parametrize("order", [("a", "b", "default"), ("default", "a", "b")], ids=str)
def test_a_label_that_the_server_adds_to_some_series_is_the_own_of_others(
    hub: tuple[Window, Path], added: dict[str, str], order: tuple[str, ...]
) -> None:
    window, folder = hub
    with running_prometheus(folder, external_labels=added) as url:
        plain, _ = source(url, by_samples=False)
        sampled, client = source(url, by_samples=True)
        assert sorted(plain.clusters()) == sorted(order)
        for name in order:
            expected = plain.read(name, window)
            assert len(expected.allocations)
            assert len(expected.signals)
            same(sampled.read(name, window), expected)
        assert client.samples is not None
        assert client.samples.is_there
        assert client.samples.samples > 0


def test_small_clusters_are_queried(restarted: tuple[Variant, Path]) -> None:
    variant, folder = restarted
    with running_prometheus(folder) as url:
        found, client = source(url, by_samples=True, least_nodes=6)
        found.read(variant.name, variant.inner)
        assert client.samples is not None
        assert client.samples.samples == 0
        assert " samples of " not in found.name


@pytest.mark.parametrize("server", ["p1", pytest.param("p2", marks=pytest.mark.slow)])
def test_real_servers_are_the_same_by_samples(server: str, tmp_path: Path) -> None:
    assert server in SERVERS
    with recorded_prometheus(server, tmp_path) as url:
        settings = PrometheusSourceSettings(fallback_cluster="recorded")
        plain, _ = source(url, by_samples=False, settings=settings)
        sampled, _ = source(url, by_samples=True, settings=settings)
        (cluster,) = plain.clusters()
        covered = plain.covered(cluster)
        assert covered is not None
        both(url, cluster, covered, settings)
        same(sampled.history(cluster, covered), plain.history(cluster, covered))


@pytest.mark.slow
def test_every_way_to_scrape_a_month_is_the_same_by_samples(tmp_path: Path) -> None:
    for variant in (*variants(SCRAPE_MS), month(4 * SCRAPE_MS)):
        write_second([variant], tmp_path / variant.name)
        settings = PrometheusSourceSettings(replica_labels=(REPLICA_LABEL,))
        with running_prometheus(tmp_path / variant.name) as url:
            for day in [*variant.inner.split(DAY_MS)][:6]:
                both(url, variant.name, day, settings)


@pytest.mark.slow
def test_days_that_are_read_together_are_read_once_and_are_what_each_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[SampleRanges] = []
    send = RemoteReader._read

    def noting(self: RemoteReader, selector: SeriesSelector, ranges: SampleRanges) -> Any:
        reads.append(ranges)
        return send(self, selector, ranges)

    monkeypatch.setattr(RemoteReader, "_read", noting)
    variant = month(4 * SCRAPE_MS)
    write_second([variant], tmp_path / variant.name)
    with running_prometheus(tmp_path / variant.name) as url:
        days = [*variant.inner.split(DAY_MS)][1:5]
        # What GPUs did is read in hours, day by day.
        settings = PrometheusSourceSettings(reads_use=False)
        for day in days:
            both(url, variant.name, day, settings)
        one_by_one = len(reads)
        reads.clear()
        both(url, variant.name, Window(days[0].start_ms, days[-1].end_ms), settings)
        assert max(each.number for each in reads) > 1
        assert len(reads) < 0.6 * one_by_one
        # And so it is where a frontend moves instants to whole steps (Thanos: align-range-with-step).
        ask, moved = PrometheusClient.query_range, list[int]()

        def aligned(self: PrometheusClient, text: PromQL, start_ms: int, end_ms: int, step_ms: int) -> Any:
            by_ms = start_ms % step_ms
            moved.append(by_ms)
            return ask(self, text, start_ms - by_ms, end_ms - by_ms, step_ms)

        monkeypatch.setattr(PrometheusClient, "query_range", aligned)
        both(url, variant.name, Window(days[0].start_ms, days[-1].end_ms), settings)
        assert any(moved)


# --- servers of other kinds, and answers that break off -----------------------------------------------


class _Answers(http.server.BaseHTTPRequestHandler):
    """Answers every remote read with what is set, and counts; knows no series."""

    status: ClassVar[int] = 404
    kind: ClassVar[str] = "text/plain"
    body: ClassVar[bytes] = b"404 page not found"
    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.asked.append(self.path)
        self.rfile.read(int(self.headers["Content-Length"]))
        is_read = self.path.endswith("/read")
        body = self.body if is_read else b'{"status":"success","data":[]}'
        self.send_response(self.status if is_read else 200)
        self.send_header("Content-Type", self.kind if is_read else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def answering(status: int, kind: str, body: bytes) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    handler = type("Set", (_Answers,), {"status": status, "kind": kind, "body": body, "asked": asked})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()


def read(url: str) -> tuple[RemoteReader, object]:
    client = PrometheusClient(url, settings=ClientSettings(attempts=2), sleep=lambda _: None)
    reader = RemoteReader(client)
    selector = select("up", (equals("job", "kube-state-metrics"),))
    form = by("max", (), over_time("last_over_time", selector, HOUR_MS)).form
    return reader, reader.grid(form, 1_790_812_800_000, 1, 1)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, "text/plain"),
        (405, "text/plain"),
        (400, "application/json"),
        (501, "text/plain"),
        (200, "application/x-protobuf"),  # Prometheus below 2.13: samples, not chunks
        (200, "text/html"),
        (302, "text/html"),
    ],
)
def test_who_sends_no_chunks_is_not_asked_again(status: int, kind: str) -> None:
    with answering(status, kind, b"no") as (url, asked):
        reader, found = read(url)
        assert found is None
        assert not reader.is_there
        assert asked == ["/api/v1/read"]


def framed(message: bytes) -> bytes:
    """As a server sends it; a message of less than 128 bytes."""
    checksum: int = google_crc32c.value(message)
    return bytes([len(message)]) + checksum.to_bytes(4, "big") + message


_STREAMED = "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse"


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (503, b"", "answered 503"),
        (429, b"", "answered 429"),
        (200, b"\x05\x00\x00\x00\x00hello", "checksum"),
        (200, b"\x05\x00\x00\x00", "not whole"),
        (200, b"query processing would load too many samples", "checksum|not whole|too long"),
        (200, b"\xff\xff\xff\xff\x7f" + bytes(64), "too long"),
        (200, framed(b"no message"), "no message of series"),
        (200, framed(b"\x0a\x05\x0a\x7f..."), "no message of series"),
        (200, framed(b"\x0a\x08\x12\x00\x0a\x00\x12\x00\x0a\x00"), "no message of series"),
    ],
)
def test_an_answer_that_breaks_off_is_asked_again_and_said(status: int, body: bytes, said: str) -> None:
    with answering(status, _STREAMED, body) as (url, asked):
        with pytest.raises(SourceUnreachable, match=said):
            read(url)
        assert len(asked) == 2


def test_fields_that_nobody_knows_are_no_series() -> None:
    unknown = b"\x12\x02ab\x18\x07\x25abcd\x29abcdefgh"
    with answering(200, _STREAMED, framed(unknown)) as (url, _):
        reader, found = read(url)
        assert reader.is_there
        assert found is not None
        assert not len(found.table)


@given(st.binary(max_size=120))
@settings(max_examples=200, deadline=None)
def test_whatever_a_frame_holds_is_read_or_refused(message: bytes) -> None:
    whole = framed(message)
    statistics = _StreamedSeries(RangeStatistics(SampleRanges(0, 1, 1, 1)), LabelCatalog(lambda _: ((), ())))
    with suppress(_BrokenStream, NotEvaluated):  # any other error would be one
        assert statistics.add(whole + bytes(PADDING), len(whole)) == len(whole)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.data())
@settings(max_examples=100, deadline=None)
def test_a_body_in_chunks_is_the_same_however_it_comes(chunks: list[bytes], data: st.DataObject) -> None:
    sent = b"".join(b"%x;note=1\r\n%b\r\n" % (len(each), each) for each in chunks) + b"0\r\nT: 1\r\n\r\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=12)))
    body = _ChunkedBody()
    found = [body.taken(sent[a:b]) for a, b in pairwise([0, *cuts, len(sent)]) if a < b]
    assert b"".join(found) == b"".join(chunks)
    assert body.is_whole


@pytest.mark.parametrize("sent", [b"-5\r\nhello\r\n", b"\r\n", b"5\r\nhelloxx3\r\n", b"9" * (1 << 17)])
def test_a_body_in_no_chunks_is_refused(sent: bytes) -> None:
    with pytest.raises(http.client.IncompleteRead):
        _ChunkedBody().taken(sent)


def test_an_empty_answer_is_no_series() -> None:
    with answering(200, _STREAMED, b"") as (url, _):
        reader, found = read(url)
        assert reader.is_there
        assert found is not None


@pytest.mark.parametrize(("kept_s", "requests"), [(math.inf, 1), (60.0, 2)])
def test_a_service_reads_an_hour_again_and_sees_what_came_late(kept_s: float, requests: int) -> None:
    """An hour is read when it ends, and once more when late data is in."""
    now_s = [0.0]
    form = by("max", (), over_time("last_over_time", select("up"), HOUR_MS)).form
    with answering(200, _STREAMED, b"") as (url, asked):
        client = PrometheusClient(url)
        reader = RemoteReader(client, least_nodes=0, kept_s=kept_s, seconds=lambda: now_s[0])
        for now_s[0] in (0.0, 60.0, 61.0, 62.0):
            assert reader.grid(form, 1_790_812_800_000, 1, 1) is not None
        assert asked.count("/api/v1/read") == requests
        kept = wiring.build_client(PrometheusSettings(), stopped=threading.Event()).samples
        assert kept is not None
        assert kept._kept_s == 60.0


def test_whether_a_server_sends_samples_is_looked_at_again() -> None:
    now_s = [0.0]
    form = by("max", (), over_time("last_over_time", select("up"), HOUR_MS)).form
    with answering(403, "text/plain", b"no") as (url, asked):
        reader = RemoteReader(PrometheusClient(url), kept_s=60.0, seconds=lambda: now_s[0])
        for now_s[0] in (0.0, 60.0, 61.0, 62.0):
            assert reader.grid(form, 1_790_812_800_000, 1, 1) is None
        assert asked.count("/api/v1/read") == 2


# --- settings -----------------------------------------------------------------------------------------


def test_samples_are_read_where_the_extra_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wiring.build_client(PrometheusSettings()).samples is not None
    assert wiring.build_client(PrometheusSettings(samples="never")).samples is None
    always = wiring.build_client(PrometheusSettings(samples="always")).samples
    assert always is not None
    assert always.least_nodes == 0
    monkeypatch.setattr(wiring, "is_installed", lambda: False)
    assert wiring.build_client(PrometheusSettings()).samples is None
    with pytest.raises(InputError, match=r"prometheus.samples.*gpucost\[fast\]"):
        wiring.build_client(PrometheusSettings(samples="always"))
