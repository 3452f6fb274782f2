"""The page: always what its tables hold, whole, in every format, compressed or not, and not made twice."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from gpucost.contract.metric_spec import MetricSpec, MetricType
from gpucost.contract.metrics import METRICS, NODE_METRICS, POD_GPU_REQUEST, POD_METRICS, STATE_UP
from gpucost.contract.queue_metrics import QUEUE_METRICS, WORKLOAD_EVICTIONS, WORKLOAD_POSITION
from gpucost.domain.errors import InputError
from gpucost_exporter_base.endpoint import EndpointRequest, EndpointResponse, HttpEndpoint
from gpucost_exporter_base.exposition import MetricFamily, render
from gpucost_queue_collector.page import MetricsPage, SeriesTable, line
from tests.support.prometheus import PROMTOOL, needs_prometheus, running_prometheus

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
FORMATS = ("", OPENMETRICS, "text/plain; version=1.0.0")
WORKLOADS = (WORKLOAD_EVICTIONS, WORKLOAD_POSITION)

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def ask(page: MetricsPage, accept: str = "") -> EndpointResponse:
    return page.answer(EndpointRequest("GET", "/metrics", "", {"accept": accept}, True))


def zipped(answer: EndpointResponse) -> bytes:
    assert answer.zipped is not None
    return b"".join(answer.zipped())


def read(answer: EndpointResponse) -> list[Metric]:
    is_openmetrics = answer.content_type.startswith("application/openmetrics-text")
    parse = parse_openmetrics if is_openmetrics else parse_classic
    return list(parse(answer.body.decode()))


def series(metrics: Sequence[Metric]) -> Series:
    found = [sample for metric in metrics for sample in metric.samples]
    read_back = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in found}
    assert len(read_back) == len(found)
    return read_back


def workload(key: str, evictions: int, position: int | None) -> tuple[bytes, bytes]:
    """The lines of a workload: none of evictions for 0, two for more than 1."""
    reasons = ("Preempted", "PodsReadyTimeout")[:evictions]
    counts = [
        line(WORKLOAD_EVICTIONS, ("team", key, key, reason), evictions + number)
        for number, reason in enumerate(reasons)
    ]
    place = b"" if position is None else line(WORKLOAD_POSITION, ("team", key, key), position)
    return b"".join(counts), place


def expected(rows: dict[str, tuple[int, int | None]], accept: str) -> Series:
    """What prometheus_client gives for the same."""
    evictions = [
        (("team", key, key, reason), float(count + number))
        for key, (count, _) in rows.items()
        for number, reason in enumerate(("Preempted", "PodsReadyTimeout")[:count])
    ]
    places = [(("team", key, key), float(place)) for key, (_, place) in rows.items() if place is not None]
    families = [MetricFamily(WORKLOAD_EVICTIONS, evictions), MetricFamily(WORKLOAD_POSITION, places)]
    body, content_type = render(families, accept)
    return series(read(EndpointResponse(200, (body,), content_type)))


VALUES = st.tuples(st.integers(0, 3), st.none() | st.integers(1, 3))
STEPS = st.lists(st.dictionaries(st.sampled_from("abcdefg"), st.none() | VALUES, max_size=4), max_size=8)


@given(STEPS, st.integers(1, 3), st.sampled_from(FORMATS))
def test_the_page_is_what_the_tables_hold(
    steps: list[dict[str, tuple[int, int | None] | None]], rows_per_block: int, accept: str
) -> None:
    table = SeriesTable(WORKLOADS, rows_per_block)
    page = MetricsPage([table])
    rows: dict[str, tuple[int, int | None]] = {}
    for step in steps:
        with page.update():
            for key, values in step.items():
                if values is None:
                    rows.pop(key, None)
                    table.drop(key)
                else:
                    rows[key] = values
                    table.put(key, workload(key, *values))
        answer = ask(page, accept)
        assert series(read(answer)) == expected(rows, accept)
        assert gzip.decompress(zipped(answer)) == answer.body
        assert (set(table.keys()), len(table)) == (set(rows), len(rows))


def test_families_come_in_the_order_of_the_contract_with_their_headers() -> None:
    page = MetricsPage(
        [
            SeriesTable(NODE_METRICS),
            SeriesTable(QUEUE_METRICS),
            SeriesTable((*reversed(POD_METRICS), STATE_UP)),
        ]
    )
    wanted = [spec for spec in METRICS if spec in (STATE_UP, *POD_METRICS, *NODE_METRICS, *QUEUE_METRICS)]
    found = read(ask(page, OPENMETRICS))
    assert [(metric.name, metric.type, metric.unit, metric.documentation) for metric in found] == [
        (spec.family, spec.type.value, spec.unit, spec.help) for spec in wanted
    ]
    types = [line.split()[2] for line in ask(page).body.decode().splitlines() if line.startswith("# TYPE")]
    assert types == [spec.name for spec in wanted]


@pytest.mark.parametrize("accept", FORMATS)
def test_format_follows_the_accept_header(accept: str) -> None:
    answer = ask(MetricsPage([]), accept)
    assert (answer.body, answer.content_type) == render((), accept)
    assert gzip.decompress(zipped(answer) or gzip.compress(b"")) == answer.body


def test_what_did_not_change_is_the_very_same() -> None:
    table = SeriesTable(WORKLOADS)
    page = MetricsPage([table])
    with page.update():
        table.put("a", workload("a", 1, 2))
    before = ask(page)
    with page.update():
        table.put("a", workload("a", 1, 2))
        table.drop("unknown")
    after = ask(page)
    assert after.chunks is before.chunks
    assert after.zipped is not None
    assert before.zipped is not None
    assert after.zipped() is before.zipped()
    with page.update():
        table.put("a", workload("a", 1, 3))
    assert ask(page).body == before.body.replace(b" 2.0\n", b" 3.0\n")


def test_only_pieces_that_changed_are_compressed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[bytes] = []

    def counting(body: bytes) -> bytes:
        done.append(body)
        return gzip.compress(body, 1, mtime=0)

    monkeypatch.setattr("gpucost_queue_collector.page.compress", counting)
    table = SeriesTable(WORKLOADS, rows_per_block=2)
    page = MetricsPage([table])
    with page.update():
        for key in "abcde":
            table.put(key, workload(key, 1, 2))
    zipped(ask(page))
    assert len(done) == 2 + 2 * 3  # headers, and two metrics in three blocks
    done.clear()
    with page.update():
        table.put("c", workload("c", 1, 1))
    zipped(ask(page))
    assert done == [workload("c", 1, 1)[1] + workload("d", 1, 2)[1]]
    done.clear()
    with page.update():
        table.drop("e")
    zipped(ask(page))
    assert done == []


def test_freed_places_are_used_again() -> None:
    table = SeriesTable(WORKLOADS, rows_per_block=4)
    page = MetricsPage([table])
    for generation in range(50):
        with page.update():
            for number in range(8):
                table.drop(f"{generation - 1}-{number}")
                table.put(f"{generation}-{number}", workload(f"{generation}-{number}", 1, 1))
    publication = table.publish()
    assert publication is None
    with page.update():
        table.put("49-0", workload("49-0", 2, 2))
        publication = table.publish()
    assert publication is not None
    assert [len(pieces) for pieces in publication] == [2, 2]  # two blocks of four


def test_a_batch_that_fails_comes_with_the_next() -> None:
    table = SeriesTable(WORKLOADS)
    page = MetricsPage([table])
    before = ask(page).chunks

    def fail() -> None:
        with page.update():
            table.put("a", workload("a", 1, 1))
            raise OSError("half")

    with pytest.raises(OSError, match="half"):
        fail()
    assert ask(page).chunks is before
    with page.update():
        table.put("b", workload("b", 1, 1))
    assert {labels[1][1] for name, labels in series(read(ask(page))) if "position" in name} == {"a", "b"}


def test_wrong_tables_and_rows_are_refused() -> None:
    table = SeriesTable(WORKLOADS)
    with pytest.raises(InputError, match="texts"):
        table.put("a", (b"",))
    assert len(table) == 0
    with pytest.raises(InputError, match="one table only"):
        MetricsPage([table, SeriesTable([WORKLOAD_POSITION])])
    with pytest.raises(InputError, match="of the contract"):
        MetricsPage([SeriesTable([MetricSpec("gpucost_unheard_of", MetricType.GAUGE, "", (), "Nothing.")])])


@pytest.mark.fault(11)
def test_scrapes_during_updates_see_one_batch_each() -> None:
    tables = [SeriesTable([POD_GPU_REQUEST], 8), SeriesTable(WORKLOADS, 8)]
    page = MetricsPage(tables)
    stop = threading.Event()
    seen: list[set[bytes]] = []

    def put(generation: int) -> None:
        with page.update():
            for number in range(100):
                key = f"k{number}"
                labels = ("team", key, key, "node", "gpu")
                tables[0].put(key, [line(POD_GPU_REQUEST, labels, generation)])
                tables[1].put(key, (b"", line(WORKLOAD_POSITION, ("team", key, key), generation)))

    def update() -> None:
        generation = 1
        while not stop.is_set():
            generation += 1
            put(generation)

    def scrape(compressed: bool) -> None:
        for _ in range(60):
            answer = ask(page, FORMATS[compressed])
            body = gzip.decompress(zipped(answer)) if compressed else answer.body
            lines = [line for line in body.splitlines() if not line.startswith(b"#")]
            assert len(lines) == 200
            seen.append({line.rsplit(b" ", 1)[1] for line in lines})

    put(1)
    updating = threading.Thread(target=update)
    scraping = [threading.Thread(target=scrape, args=(number % 2 == 0,)) for number in range(4)]
    for thread in (updating, *scraping):
        thread.start()
    for thread in scraping:
        thread.join()
    stop.set()
    updating.join()
    assert len(seen) == 240
    assert all(len(values) == 1 for values in seen)
    assert len({value for values in seen for value in values}) > 1


@pytest.mark.fault(11)
def test_an_update_under_way_holds_up_no_scrape() -> None:
    table = SeriesTable(WORKLOADS)
    page = MetricsPage([table])
    with page.update():
        table.put("a", workload("a", 1, 1))
        found: list[bytes] = []
        scraping = threading.Thread(target=lambda: found.append(ask(page).body))
        scraping.start()
        scraping.join(timeout=20)
        assert found, "the scrape waits for the update"
    assert b"Preempted" not in found[0]
    assert b"Preempted" in ask(page).body


@pytest.mark.fault(9)
def test_many_series_keep_memory_flat_over_200_scrapes() -> None:
    # A page of 3 MB: one kept at each scrape would be 600 MB.
    table = SeriesTable(WORKLOADS)
    page = MetricsPage([table])

    def scrape(number: int) -> int:
        with page.update():
            for row in range(number % 10, 20_000, 10):
                table.put(str(row), (b"", line(WORKLOAD_POSITION, ("team", str(row), str(row)), number)))
        answer = ask(page, FORMATS[number % 2])
        zipped(answer)
        return len(answer.body)

    for number in range(40):
        scrape(number)
    before = resident_bytes()
    sizes = [scrape(number) for number in range(40, 240)]
    assert min(sizes) > 60 * 20_000
    assert resident_bytes() - before < 30_000_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.fixture
def many() -> MetricsPage:
    """2,000 workloads, some with two lines, in blocks of which one became empty; all families."""
    rest = tuple(spec for spec in QUEUE_METRICS if spec not in WORKLOADS)
    table = SeriesTable(WORKLOADS, rows_per_block=100)
    page = MetricsPage([table, SeriesTable(rest)])
    with page.update():
        for number in range(2100):
            table.put(str(number), workload(f'w"\\{number}', number % 3, number))
        for number in range(1000, 1100):
            table.drop(str(number))
    return page


@pytest.mark.skipif(shutil.which("gzip") is None, reason="the gzip command is not installed")
def test_the_gzip_command_reads_all_members(many: MetricsPage) -> None:
    answer = ask(many)
    done = subprocess.run(["gzip", "-dc"], input=zipped(answer), capture_output=True, check=True)
    assert done.stdout == answer.body
    assert zipped(answer).count(b"\x1f\x8b\x08") > 40


@needs_prometheus
@pytest.mark.prometheus
@pytest.mark.fault(8)
def test_promtool_accepts_the_text(many: MetricsPage) -> None:
    arguments = [PROMTOOL or "promtool", "check", "metrics"]
    done = subprocess.run(arguments, input=ask(many).body, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


@needs_prometheus
@pytest.mark.prometheus
def test_a_real_prometheus_reads_every_member(many: MetricsPage, tmp_path: Path) -> None:
    encodings: set[str] = set()

    def answer(request: EndpointRequest) -> EndpointResponse:
        encodings.add(request.headers.get("accept-encoding", ""))
        return many.answer(request)

    endpoint = HttpEndpoint("127.0.0.1", 0, {"/metrics": answer})
    target = f"127.0.0.1:{endpoint.start()}"
    job = {"job_name": "queue", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
    try:
        with running_prometheus(tmp_path / "data", scrape_configs=[job]) as url:
            deadline = time.monotonic() + 60
            while not value(url, "up") and time.monotonic() < deadline:
                time.sleep(0.1)
            assert value(url, "up") == 1
            assert value(url, "count(gpucost_workload_queue_position)") == 2000
            assert value(url, "sum(gpucost_workload_queue_position)") == sum(range(2100)) - sum(
                range(1000, 1100)
            )
            assert value(url, "scrape_samples_scraped") == len(series(read(ask(many))))
    finally:
        endpoint.close()
    assert encodings == {"gzip"}


def value(url: str, query: str) -> float:
    """The only value of an instant query; 0 without one."""
    with urllib.request.urlopen(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}") as answer:
        found = json.load(answer)["data"]["result"]
    return float(found[0]["value"][1]) if found else 0.0
