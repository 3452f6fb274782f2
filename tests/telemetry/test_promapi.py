"""The wire: every fault has an error of its own, and is retried only where that can help."""

from __future__ import annotations

import gzip
import json
import os
import traceback
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpucost.contract.metric_spec import (
    EOF,
    header,
    series_name,
)
from gpucost.contract.metrics import STATE_UP
from gpucost.domain.errors import (
    InputError,
    PartialResponse,
    QueryRejected,
    SourceError,
    SourceTimeout,
    SourceUnreachable,
)
from gpucost.domain.time import SECOND_MS, Window
from gpucost.telemetry.prometheus.api_client import ClientSettings, PrometheusClient
from gpucost.telemetry.prometheus.promql import (
    by,
    equals,
    over_time,
    select,
)
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus_source import PrometheusSource
from tests.support.history import T0
from tests.support.http import Reply, ScriptedServer, scripted_server
from tests.support.metric_samples import sample_line
from tests.support.ports import free_port
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

UP = select("up")
EMPTY: dict[str, object] = {"status": "success", "data": {"resultType": "vector", "result": []}}
WINDOW = Window(T0, T0 + 900 * SECOND_MS)


class Waits(list[float]):
    """Collects what the client would have slept."""


@contextmanager
def client_of(
    server: ScriptedServer | str, waits: Waits | None = None, jitter: float = 0.5, **settings: object
) -> Iterator[PrometheusClient]:
    url = server if isinstance(server, str) else server.url
    limits = ClientSettings(**{"read_timeout_s": 5.0, **settings})
    sleep = (Waits() if waits is None else waits).append
    with PrometheusClient(url, settings=limits, sleep=sleep, jitter=lambda: jitter) as client:
        yield client


def error_body(kind: str, text: str) -> dict[str, object]:
    return {"status": "error", "errorType": kind, "error": text}


def answered(kind: str, entry: object) -> dict[str, object]:
    return {"status": "success", "data": {"resultType": kind, "result": [entry]}}


MISSHAPEN = [
    answered("vector", {"metric": {}, "value": [1, None]}),
    answered("vector", {"metric": {}, "value": [1, "one"]}),
    answered("vector", {"metric": {}, "value": ["1", "1"]}),
    answered("vector", {"metric": {}, "value": [10**400, "1"]}),
    answered("vector", {"metric": {}, "value": [float("inf"), "1"]}),
    answered("vector", {"metric": {}, "value": [float("nan"), "1"]}),
    answered("vector", {"metric": {}, "values": [[1, "1"]]}),
    answered("vector", {"metric": {"pod": 7}, "value": [1, "1"]}),
    answered("vector", {"value": [1, "1"]}),
    answered("matrix", {"metric": {}, "values": [[1]]}),
    answered("matrix", {"metric": {}}),
    {"status": "success", "data": [{"pod": None}]},
    {**EMPTY, "warnings": "store x is down"},
    {**EMPTY, "status": "error", "errorType": "internal", "error": "200 or not"},
    answered("vector", {"metric": {"pod": "\ud800"}, "value": [1, "1"]}),
]
HEADS = {"Content-Encoding": "gzip"}
REFUSALS = [
    (Reply(400, error_body("bad_data", "1:3: parse error")), QueryRejected, "parse error"),
    (Reply(422, error_body("execution", "too many samples")), QueryRejected, "too many samples"),
    (Reply(401, "who are you"), QueryRejected, "401"),
    (Reply(404, "<html>not here</html>", "text/html"), QueryRejected, "404.*is prometheus.url right"),
    (Reply(404, error_body("not_found", "no such tenant")), QueryRejected, "404: .*no such tenant"),
    (Reply(302, "", headers={"Location": "http://169.254.169.254/"}), QueryRejected, "redirect"),
]
RETRIED = [
    (Reply(503, "<html>maintenance</html>", "text/html"), SourceUnreachable, "503"),
    (Reply(502), SourceUnreachable, "502"),
    (Reply(504), SourceUnreachable, "504"),
    (Reply(429), SourceUnreachable, "429"),
    (Reply(503, error_body("timeout", "query timed out")), SourceTimeout, "timed out"),
    (Reply(200, "<html>please log in</html>", "text/html"), SourceUnreachable, "please log in"),
    (Reply(200, {"status": "success"}), SourceUnreachable, "does not speak"),
    (Reply(200, '{"status":"success","data":'), SourceUnreachable, "does not speak"),
    (Reply(200, "[" * 100_000), SourceUnreachable, "does not speak"),
    (Reply(200, {"status": "success", "data": {"result": ["x"]}}), SourceUnreachable, "does not speak"),
    (Reply(hang_up=True), SourceUnreachable, "cannot be reached"),
    (
        Reply(200, gzip.compress(json.dumps(EMPTY).encode())[:-12], headers=HEADS),
        SourceUnreachable,
        "does not speak",
    ),
    (Reply(200, b"no gzip", headers=HEADS), SourceUnreachable, "cannot be reached"),
    *((Reply(200, body), SourceUnreachable, "does not speak") for body in MISSHAPEN),
]


@pytest.mark.fault(23)
@pytest.mark.parametrize(("reply", "error", "text"), REFUSALS)
def test_a_refusal_is_not_asked_again(reply: Reply, error: type[SourceError], text: str) -> None:
    waits = Waits()
    with scripted_server(reply) as server, client_of(server, waits) as client:
        with pytest.raises(error, match=text):
            client.query(UP, T0)
        assert len(server.asked) == 1
    assert waits == []


@pytest.mark.fault(23)
@pytest.mark.parametrize(("reply", "error", "text"), RETRIED)
def test_an_absence_is_asked_again_a_few_times(reply: Reply, error: type[SourceError], text: str) -> None:
    waits = Waits()
    with scripted_server(reply) as server, client_of(server, waits, attempts=3) as client:
        with pytest.raises(error, match=text) as caught:
            client.query(UP, T0)
        assert type(caught.value) is error
        assert len(server.asked) == 3
        assert client.stats.retries == 2
    assert waits == [0.25, 0.5]


@pytest.mark.fault(23)
def test_a_refused_connection_is_unreachable() -> None:
    with (
        client_of(f"http://127.0.0.1:{free_port()}", attempts=2) as client,
        pytest.raises(SourceUnreachable, match="cannot be reached"),
    ):
        client.query(UP, T0)


@pytest.mark.fault(23)
@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, EMPTY, delay_s=2),
        Reply(200, EMPTY, drip_s=0.05),
        Reply(200, EMPTY, headers={"X-Long": "x" * 100}, drip_s=0.05, drips_head=True),
    ],
    ids=["silent", "dripping", "dripping-head"],
)
def test_a_slow_answer_is_a_timeout(reply: Reply) -> None:
    with (
        scripted_server(reply) as server,
        client_of(server, attempts=1, read_timeout_s=0.3) as client,
        pytest.raises(SourceTimeout),
    ):
        client.query(UP, T0)


@pytest.mark.fault(23)
def test_it_goes_on_when_the_server_is_back() -> None:
    with scripted_server(Reply(503), Reply(hang_up=True), Reply(200, EMPTY)) as server:
        with client_of(server) as client:
            assert client.query(UP, T0).result == []
        assert len(server.asked) == 3


@pytest.mark.fault(23)
def test_waiting_is_capped_and_jittered() -> None:
    waits = Waits()
    with (
        scripted_server(Reply(503)) as server,
        client_of(server, waits, jitter=1.0, attempts=8, backoff_s=1.0, backoff_cap_s=10.0) as client,
        pytest.raises(SourceUnreachable),
    ):
        client.query(UP, T0)
    assert waits == [1, 2, 4, 8, 10, 10, 10]


@pytest.mark.fault(23)
def test_a_body_larger_than_the_cap_is_refused() -> None:
    with (
        scripted_server(Reply(200, b" " * 300_000)) as server,
        client_of(server, max_bytes=100_000) as client,
        pytest.raises(QueryRejected, match="100000 bytes"),
    ):
        client.query(UP, T0)


@pytest.mark.fault(23)
def test_a_small_body_that_unpacks_to_a_large_one_is_refused_as_it_unpacks() -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    with (
        scripted_server(Reply(200, bomb, headers=HEADS)) as server,
        client_of(server, max_bytes=1_000_000) as client,
    ):
        tracemalloc.start()
        try:
            with pytest.raises(QueryRejected, match="1000000 bytes"):
                client.query(UP, T0)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most < 20_000_000


@pytest.mark.fault(23)
def test_a_redirect_is_not_followed_to_itself_nor_elsewhere() -> None:
    with scripted_server(Reply(200, EMPTY)) as other:
        for status in (301, 302, 303, 307, 308):
            for target in (f"{other.url}/api/v1/query", "/api/v1/query"):
                reply = Reply(status, headers={"Location": target})
                with scripted_server(reply) as server, client_of(server) as client:
                    with pytest.raises(QueryRejected, match="redirect"):
                        client.query(UP, T0)
                    assert len(server.asked) == 1
        assert other.asked == []


@pytest.mark.fault(24)
def test_what_a_server_says_beside_its_answers_is_kept_up_to_a_number() -> None:
    replies = [Reply(200, {**EMPTY, "infos": [f"info {turn} {n}" for n in range(150)]}) for turn in range(3)]
    with scripted_server(*replies) as server, client_of(server) as client:
        for _ in replies:
            client.query(UP, T0)
        assert len(client.stats.infos) == 100


@pytest.mark.fault(24)
def test_warnings_and_infos_are_kept() -> None:
    body = {**EMPTY, "warnings": ["store x is down"], "infos": ["might not be a counter"]}
    with scripted_server(Reply(200, body)) as server, client_of(server) as client:
        answer = client.query(UP, T0)
        assert client.stats.infos == {"might not be a counter"}
    assert (answer.warnings, answer.infos) == (("store x is down",), ("might not be a counter",))


@pytest.mark.fault(24)
def test_a_partial_answer_closes_no_window() -> None:
    body = {**EMPTY, "warnings": ["store x is down"]}
    with scripted_server(Reply(200, body)) as server, client_of(server) as client:
        source = PrometheusSource(client, PrometheusSourceSettings(), now=lambda: T0)
        with pytest.raises(PartialResponse, match="store x is down") as caught:
            source.read("c", WINDOW)
        assert caught.value.warnings == ("store x is down",)
        with pytest.raises(PartialResponse, match="store x is down"):
            source.clusters()


@pytest.mark.fault(24)
def test_infos_alone_are_no_partial_answer() -> None:
    matrix = {"metric": {}, "values": [[at / 1000, "1"] for at in range(T0, T0 + 1_500_000, 60_000)]}
    beats = {
        "status": "success",
        "data": {"resultType": "matrix", "result": [matrix]},
        "infos": ["by the way"],
    }
    # Jobs, heartbeats and targets are asked for first: no other client is there.
    nobody = [Reply(200, EMPTY)] * 3
    with (
        scripted_server(*nobody, Reply(200, beats), Reply(200, EMPTY)) as server,
        client_of(server) as client,
    ):
        source = PrometheusSource(client, PrometheusSourceSettings(), now=lambda: T0)
        assert len(source.read("c", WINDOW).observed) == 1


@pytest.mark.fault(25)
def test_queries_travel_in_the_body() -> None:
    long = by("sum", [f"label_{number}" for number in range(2000)], UP)
    with scripted_server(Reply(200, EMPTY)) as server:
        with client_of(server) as client:
            client.query(long, T0 + 123)
        (asked,) = server.asked
    assert (asked.method, asked.path) == ("POST", "/api/v1/query")
    assert asked.form["query"] == long
    assert asked.form["time"] == f"{T0 // 1000}.123"
    assert asked.form["timeout"] == "5s"


@pytest.mark.fault(25)
def test_instants_and_ranges_are_posted_with_their_milliseconds() -> None:
    with scripted_server(Reply(200, EMPTY)) as server:
        with client_of(server) as client:
            assert client.query(UP, T0 + 250).result == []
            assert client.query_range(UP, T0 + 250, T0 + 250, 60_000).result == []
        assert [asked.path for asked in server.asked] == ["/api/v1/query", "/api/v1/query_range"]
        assert {asked.method for asked in server.asked} == {"POST"}
        assert server.asked[0].form["time"] == server.asked[1].form["start"] == f"{T0 // 1000}.250"


@needs_prometheus
@pytest.mark.prometheus
@pytest.mark.fault(25)
def test_ranges_in_pieces_give_what_one_range_gives(tmp_path: Path) -> None:
    data = tmp_path / "data"
    series = series_name(STATE_UP, {}, {"cluster": "c"})
    seconds = 14_400
    lines = [sample_line(series, float(at % 7), T0 + at * SECOND_MS) for at in range(seconds + 1)]
    create_blocks([header(STATE_UP), *lines, EOF], data)
    end = T0 + seconds * SECOND_MS
    selector = select(STATE_UP.name, [equals("cluster", "c")])
    summed = by("sum", (), over_time("sum_over_time", selector, SECOND_MS - 1))
    with running_prometheus(data) as url:
        with client_of(url, max_points=20_000) as whole, pytest.raises(QueryRejected, match="11,000"):
            whole.query_range(summed, T0, end, SECOND_MS)
        with client_of(url) as client:
            (ranged,) = client.query_range(summed, T0, end, SECOND_MS).result
            assert client.stats.queries == 2
            # 16.365 s as a float is 16.364 s for Prometheus.
            (odd,) = client.query_range(summed, T0, end, 16_365).result
            assert [round((at - T0 / 1000) * 1000) for at, _ in odd["values"][:4]] == [
                0,
                16_365,
                32_730,
                49_095,
            ]
            assert client.stats.queries == 3
            (raw,) = client.raw(selector, T0, end).result
        with client_of(url, max_raw_span_ms=1000 * SECOND_MS) as client:
            (pieces,) = client.raw(selector, T0, end).result
            assert client.stats.queries == 15
    assert [at for at, _ in ranged["values"]] == [T0 / 1000 + at for at in range(seconds + 1)]
    assert sum(float(value) for _, value in ranged["values"]) == sum(at % 7 for at in range(seconds + 1))
    assert raw["values"] == pieces["values"]
    assert len(raw["values"]) == seconds + 1


@pytest.mark.fault(56)
def test_credentials_are_sent_but_never_shown() -> None:
    with scripted_server(Reply(503)) as server:
        url = server.url.replace("http://", "http://user:hunter2@")
        with client_of(url, attempts=1) as client:
            with pytest.raises(SourceUnreachable) as caught:
                client.query(UP, T0)
            source = PrometheusSource(client, PrometheusSourceSettings(), now=lambda: T0)
            shown = f"{caught.value} {source.name} {client.url}"
        assert server.asked[0].headers["Authorization"].startswith("Basic ")
    assert "hunter2" not in shown
    assert "user" not in shown


@pytest.mark.fault(23)
def test_the_environment_chooses_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    with scripted_server(Reply(200, json.dumps(EMPTY))) as server, client_of(server) as client:
        assert client.query(UP, T0).result == []


@pytest.mark.parametrize("url", ["", "ftp://x", "prometheus:9090", "http://", "http://x/?q=1", "file:///etc"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=r"prometheus\.url"):
        PrometheusClient(url)


def test_limits_must_be_positive() -> None:
    with pytest.raises(InputError, match=r"prometheus\.attempts"):
        ClientSettings(attempts=0)


@pytest.mark.fault(23)
def test_another_kind_of_answer_is_an_error_of_the_source() -> None:
    vector = answered("vector", {"metric": {}, "value": [1, "1"]})
    with (
        scripted_server(Reply(200, vector)) as server,
        client_of(server) as client,
        pytest.raises(SourceUnreachable, match="something else"),
    ):
        client.query_range(UP, T0, T0, 1000)


def test_once_stopped_nothing_is_asked_again() -> None:
    with (
        scripted_server(Reply(503)) as server,
        PrometheusClient(server.url, sleep=Waits().append, stopped=lambda: True) as client,
    ):
        with pytest.raises(SourceUnreachable):
            client.query(UP, T0)
        assert len(server.asked) == 1


def test_no_cause_shows_the_header_that_holds_the_token() -> None:
    headers = {"Authorization": "Bearer a\nhunter2"}
    with (
        PrometheusClient(
            "http://127.0.0.1:1", settings=ClientSettings(attempts=1), headers=headers
        ) as client,
        pytest.raises(SourceError) as caught,
    ):
        client.query(UP, T0)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
