"""Rendering: what Prometheus reads is what was given, once, whatever a source or a label does."""

from __future__ import annotations

import gzip
import logging
import math
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from gpucost.contract.metric_spec import MetricSpec, MetricType
from gpucost.domain.errors import InputError
from gpucost_exporter_base.endpoint import encode
from gpucost_exporter_base.endpoint import parse as parse_request
from gpucost_exporter_base.exposition import (
    DUPLICATES,
    LABEL_VALUE_LIMIT,
    SOURCE_ERRORS,
    SOURCE_UP,
    MetricExposition,
    MetricFamily,
    clean,
    render,
)
from tests.support.prometheus import PROMTOOL, needs_prometheus

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
BUSY = MetricSpec(
    "gpucost_gpu_busy_seconds_total", MetricType.COUNTER, "seconds", ("uuid", "holder"), 'Help: "a\\b".'
)
MEMORY = MetricSpec("gpucost_gpu_memory_bytes", MetricType.GAUGE, "bytes", ("uuid",), "Bytes in use.")
PLAIN = MetricSpec("gpucost_gpu_boards", MetricType.GAUGE, "", (), "Boards.")

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@dataclass
class Fixed:
    """A source that gives the families it was made with, and counts how often it is asked."""

    name: str
    given: Callable[[], Iterable[MetricFamily]]
    version: object = None
    calls: int = field(default=0)

    def families(self) -> Iterable[MetricFamily]:
        self.calls += 1
        return self.given()


def read(body: bytes, content_type: str) -> list[Metric]:
    parse = parse_openmetrics if content_type.startswith("application/openmetrics-text") else parse_classic
    return list(parse(body.decode()))


def series(body: bytes, content_type: str) -> Series:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for metric in read(body, content_type)
        for sample in metric.samples
    }


def source_series(spec: MetricSpec, name: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return spec.name, (("source", name),)


@pytest.fixture(params=["", OPENMETRICS, "text/plain; version=1.0.0"], ids=["classic", "openmetrics", "text"])
def accept(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_samples_are_read_back(accept: str) -> None:
    families = [
        MetricFamily(BUSY, [(("GPU-1", ""), 1.5), (("GPU-1", "pod"), 1234567.25)]),
        MetricFamily(MEMORY, [(("GPU-1",), 8e10)]),
        MetricFamily(PLAIN, [((), 8)]),
    ]
    assert series(*render(families, accept)) == {
        (BUSY.name, (("holder", ""), ("uuid", "GPU-1"))): 1.5,
        (BUSY.name, (("holder", "pod"), ("uuid", "GPU-1"))): 1234567.25,
        (MEMORY.name, (("uuid", "GPU-1"),)): 8e10,
        (PLAIN.name, ()): 8.0,
    }


def test_openmetrics_carries_type_and_unit() -> None:
    (metric,) = read(*render([MetricFamily(BUSY, [(("GPU-1", ""), 1.5)])], OPENMETRICS))
    assert (metric.name, metric.type, metric.unit) == ("gpucost_gpu_busy_seconds", "counter", "seconds")
    assert metric.documentation == BUSY.help


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", "text/plain; version=0.0.4"),
        ("*/*", "text/plain; version=0.0.4"),
        ("text/html,application/xhtml+xml", "text/plain; version=0.0.4"),
        (PROMETHEUS_3, "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text", "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text;version=2.0.0", "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text;version=1.0.0;escaping=dots", "application/openmetrics-text"),
        ("application/openmetrics-text;version=1.0.0;escaping=values", "application/openmetrics-text"),
        ("application/openmetrics-text;version=x", "text/plain; version=0.0.4"),
        ("text/plain;version=1.0.0;escaping=allow-utf-8", "text/plain; version=1.0.0"),
    ],
)
def test_format_follows_the_accept_header(accept: str, expected: str) -> None:
    body, content_type = render([MetricFamily(PLAIN, [((), 1)])], accept)
    assert content_type.startswith(expected)
    assert series(body, content_type) == {(PLAIN.name, ()): 1.0}


@pytest.mark.fault(8)
@given(st.lists(st.tuples(st.text(st.characters()), st.text(st.characters())), max_size=5))
@example([('"', "\\"), ("\n", '\\n"}'), ("\x00", "\ud800"), ("}", " # {"), ("ä\u2028🦆", "\r\x85\x7f")])
@example([("a" * 1_000_000, "\ud800" * 1_000_000), ("\\" * 1_000_000, '"' * 1_000_000)])
@example([(",", '",b="'), ("{a}", " "), ("\t", "  x "), ("=", "# EOF"), ("# EOF\n", "")])
def test_any_label_value_is_read_back(labels: list[tuple[str, str]]) -> None:
    family = MetricFamily(BUSY, [(pair, float(number)) for number, pair in enumerate(labels)])
    expected: Series = {}
    for number, (uuid, holder) in enumerate(labels):
        key = BUSY.name, (("holder", clean(holder)), ("uuid", clean(uuid)))
        expected.setdefault(key, float(number))
    for accept in ("", OPENMETRICS):
        assert series(*render([family], accept)) == expected


@pytest.mark.fault(8)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=LABEL_VALUE_LIMIT))
@example('tab\t, newline\n, quote ", backslash \\')
def test_harmless_label_values_are_untouched(value: str) -> None:
    assert clean(value) == value


@pytest.mark.fault(8)
def test_label_values_are_cut_and_cleaned() -> None:
    assert clean("x" * 1_000_000) == "x" * (LABEL_VALUE_LIMIT - 1) + "…"
    assert clean("a\x00b\ud800c\x9f") == "a\ufffdb\ufffdc\ufffd"
    body, _ = render([MetricFamily(MEMORY, [(("x" * 1_000_000,), 1)])], "")
    assert len(body) < 2 * LABEL_VALUE_LIMIT


@pytest.mark.fault(5)
def test_equal_label_sets_come_out_once_and_the_first_wins(accept: str) -> None:
    families = [
        MetricFamily(MEMORY, [(("GPU-1",), 1), (("GPU-1",), 2), (("GPU-2\x00",), 3), (("GPU-2\x01",), 4)]),
        MetricFamily(MEMORY, [(("GPU-1",), 5), (("GPU-3",), 6)]),
    ]
    body, content_type = render(families, accept)
    assert [(sample.labels["uuid"], sample.value) for sample in read(body, content_type)[0].samples] == [
        ("GPU-1", 1),
        ("GPU-2\ufffd", 3),
        ("GPU-3", 6),
    ]
    assert body.count(b"# TYPE gpucost_gpu_memory_bytes ") == 1


@pytest.mark.parametrize("labels", [(), ("GPU-1", "more")])
def test_wrong_number_of_label_values_is_refused(labels: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=r"gpucost_gpu_memory_bytes\.labels"):
        render([MetricFamily(MEMORY, [(labels, 1)])], "")


def test_two_declarations_of_one_name_are_refused() -> None:
    other = MetricSpec(MEMORY.name, MetricType.GAUGE, "bytes", ("holder",), "Something else.")
    with pytest.raises(InputError, match="one declaration"):
        render([MetricFamily(MEMORY, []), MetricFamily(other, [])], "")


@pytest.mark.fault(4)
def test_a_raising_source_is_left_out_whole(accept: str, caplog: pytest.LogCaptureFixture) -> None:
    well = Fixed("well", lambda: [MetricFamily(PLAIN, [((), 8)])])
    state = {"ill": True}

    def halting() -> Iterator[MetricFamily]:
        yield MetricFamily(MEMORY, [(("GPU-1",), 1)])
        if state["ill"]:
            raise OSError("the driver went away")
        yield MetricFamily(BUSY, [(("GPU-1", ""), 2)])

    exposition = MetricExposition([Fixed("ill", halting), well])
    for failures in (1, 2):
        found = series(*exposition.render(accept))
        assert found == {
            (PLAIN.name, ()): 8.0,
            source_series(SOURCE_UP, "ill"): 0.0,
            source_series(SOURCE_UP, "well"): 1.0,
            source_series(SOURCE_ERRORS, "ill"): failures,
            source_series(SOURCE_ERRORS, "well"): 0.0,
            source_series(DUPLICATES, "ill"): 0.0,
            source_series(DUPLICATES, "well"): 0.0,
        }
    assert [record.levelno for record in caplog.records] == [logging.ERROR]

    state["ill"] = False
    found = series(*exposition.render(accept))
    assert found[source_series(SOURCE_UP, "ill")] == 1.0
    assert found[source_series(SOURCE_ERRORS, "ill")] == 2.0
    assert (BUSY.name, (("holder", ""), ("uuid", "GPU-1"))) in found


@pytest.mark.fault(4)
@pytest.mark.parametrize(
    "family",
    [
        MetricFamily(MEMORY, [(("GPU-1",), 1), ((), 2)]),
        MetricFamily(MEMORY, [(("GPU-1",), None)]),  # type: ignore[list-item]
        MetricFamily(MEMORY, [((7,), 1)]),  # type: ignore[list-item]
        MetricFamily(MetricSpec(PLAIN.name, PLAIN.type, "", (), "Another declaration."), [((), 1)]),
        MetricFamily(MetricSpec(SOURCE_UP.name, PLAIN.type, "", (), "A reserved name."), [((), 1)]),
    ],
    ids=["labels", "no number", "no text", "declared otherwise", "reserved"],
)
def test_a_source_of_nonsense_fails_alone(family: MetricFamily) -> None:
    well = Fixed("well", lambda: [MetricFamily(PLAIN, [((), 8)])])
    found = series(*MetricExposition([well, Fixed("ill", lambda: [family])]).render(OPENMETRICS))
    assert found[source_series(SOURCE_UP, "ill")] == 0.0
    assert found[PLAIN.name, ()] == 8.0
    assert not any(name == MEMORY.name for name, _ in found)


@pytest.mark.fault(5)
def test_duplicates_between_sources_are_counted_by_the_later_one() -> None:
    first = Fixed("first", lambda: [MetricFamily(MEMORY, [(("GPU-1",), 1)])])
    second = Fixed("second", lambda: [MetricFamily(MEMORY, [(("GPU-1",), 2), (("GPU-2",), 3)])])
    found = series(*MetricExposition([first, second]).render(""))
    assert found[MEMORY.name, (("uuid", "GPU-1"),)] == 1.0
    assert found[MEMORY.name, (("uuid", "GPU-2"),)] == 3.0
    assert found[source_series(DUPLICATES, "first")] == 0.0
    assert found[source_series(DUPLICATES, "second")] == 1.0


def test_two_sources_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="source"):
        MetricExposition([Fixed("same", list), Fixed("same", list)])


def test_a_snapshot_is_rendered_once_for_each_format() -> None:
    source = Fixed("only", lambda: [MetricFamily(PLAIN, [((), source.calls)])], version=1)
    exposition = MetricExposition([source])
    body, _ = exposition.render("")
    assert exposition.render("*/*")[0] is body
    assert source.calls == 1
    assert exposition.render(PROMETHEUS_3)[0] is exposition.render(OPENMETRICS)[0]
    assert source.calls == 2

    source.version = 2
    assert series(*exposition.render(""))[PLAIN.name, ()] == 3.0
    assert exposition.render(OPENMETRICS)[0] is not body
    assert source.calls == 4


def test_a_snapshot_is_compressed_once_for_each_format() -> None:
    exposition = MetricExposition(
        [Fixed("only", lambda: [MetricFamily(MEMORY, [((str(n),), n) for n in range(99)])], 1)]
    )

    def zipped(accept: str) -> Sequence[bytes]:
        head = f"GET /metrics HTTP/1.1\r\nAccept-Encoding: gzip\r\nAccept: {accept}\r\n\r\n"
        request = parse_request(head.encode())
        return encode(request, exposition.answer(request))[1]

    first = zipped("")
    assert gzip.decompress(b"".join(first)) == exposition.render("")[0]
    assert zipped("") is first
    assert gzip.decompress(b"".join(zipped(OPENMETRICS))) == exposition.render(OPENMETRICS)[0]


def test_without_a_version_nothing_is_kept() -> None:
    sources = [Fixed("known", list, version=1), Fixed("unknown", list)]
    exposition = MetricExposition(sources)
    exposition.render("")
    exposition.render("")
    assert [source.calls for source in sources] == [2, 2]


@pytest.mark.fault(4)
def test_a_failure_is_not_kept() -> None:
    def ill() -> list[MetricFamily]:
        raise RuntimeError

    source = Fixed("ill", ill, version=1)
    exposition = MetricExposition([source])
    exposition.render("")
    source.given = lambda: [MetricFamily(PLAIN, [((), 8)])]
    found = series(*exposition.render(""))
    assert found[PLAIN.name, ()] == 8.0
    assert found[source_series(SOURCE_UP, "ill")] == 1.0


@pytest.mark.fault(4)
def test_a_source_whose_version_raises_is_reported() -> None:
    class Broken:
        name = "broken"

        @property
        def version(self) -> object:
            raise OSError

        def families(self) -> Iterable[MetricFamily]:
            raise OSError

    found = series(*MetricExposition([Broken()]).render(""))
    assert found[source_series(SOURCE_UP, "broken")] == 0.0


def test_numbers_without_end_are_written_as_prometheus_does(accept: str) -> None:
    samples = [(("a",), math.inf), (("b",), -math.inf), (("c",), math.nan), (("d",), 1e300), (("e",), 5e-324)]
    found = series(*render([MetricFamily(MEMORY, samples)], accept))
    assert found[MEMORY.name, (("uuid", "a"),)] == math.inf
    assert found[MEMORY.name, (("uuid", "b"),)] == -math.inf
    assert math.isnan(found[MEMORY.name, (("uuid", "c"),)])
    assert found[MEMORY.name, (("uuid", "d"),)] == 1e300
    assert found[MEMORY.name, (("uuid", "e"),)] == 5e-324


@needs_prometheus
@pytest.mark.prometheus
@pytest.mark.fault(8)
def test_promtool_accepts_the_text() -> None:
    torture = ['"', "\\", "\n", "\x00", "\ud800", "🦆", "\t", "{}", "", "x" * 10_000, "# EOF"]
    families = [
        MetricFamily(BUSY, [((value, value), 1.0) for value in torture]),
        MetricFamily(MEMORY, [(("GPU-1",), 8e10)]),
    ]
    body, _ = MetricExposition([Fixed("only", lambda: families)]).render("")
    arguments = [PROMTOOL or "promtool", "check", "metrics"]
    done = subprocess.run(arguments, input=body, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
