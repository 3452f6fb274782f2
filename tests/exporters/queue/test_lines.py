"""A line is read back as it was given, in every text format."""

from __future__ import annotations

import hashlib
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic
from prometheus_client.samples import Sample

from gpucost.contract.metric_spec import MetricSpec
from gpucost.contract.metrics import NODE_INFO, POD_GPU_REQUEST, STATE_UP
from gpucost.contract.queue_metrics import GANG_HELD_UNITS, WORKLOAD_EVICTIONS
from gpucost.domain.errors import InputError
from gpucost_exporter_base.exposition import MetricFamily, clean, render
from gpucost_queue_collector.page import (
    labels,
    line,
    open_labels,
    sample,
)

NODE = ("node-1", "H100", "p5", "spot", "eu-1", "eu-1a", "train", "aws:///eu-1a/i-1")
VALUES = st.lists(st.text(st.characters()), min_size=4, max_size=4)


def safe(value: str) -> str:
    """What is read of a value: as it is, or cleaned and with a digest of what it was."""
    if value == clean(value) and "\ufffd" not in value:
        return value
    digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{clean(value)[:1007]}\ufffd{digest}"


def read(spec: MetricSpec, text: bytes) -> list[list[Sample]]:
    """The samples that each of the three formats' parsers finds."""
    found = []
    for accept in ("", "text/plain; version=1.0.0", "application/openmetrics-text; version=1.0.0"):
        end = render((), accept)[0]
        body = render([MetricFamily(spec, ())], accept)[0].removesuffix(end) + text + end
        parse = parse_openmetrics if end else parse_classic
        (metric,) = parse(body.decode())
        found.append(metric.samples)
    return found


@pytest.mark.parametrize(
    ("spec", "values", "number", "expected"),
    [
        (STATE_UP, (), 1, b"gpucost_state_up 1.0\n"),
        (
            GANG_HELD_UNITS,
            ("team", "ring", "u-1", "job", ""),
            2.5,
            b'gpucost_gang_held_units{namespace="team",gang="ring",gang_uid="u-1",gang_kind="job",resource=""}'
            b" 2.5\n",
        ),
        (
            WORKLOAD_EVICTIONS,
            ("team", "w", 'a"b\\c\nd', "Preempted"),
            3,
            b'gpucost_workload_evictions_total{namespace="team",workload="w",workload_uid="a\\"b\\\\c\\nd",'
            b'reason="Preempted"} 3.0\n',
        ),
    ],
)
def test_text_of_a_line(spec: MetricSpec, values: tuple[str, ...], number: float, expected: bytes) -> None:
    assert line(spec, values, number) == expected


@pytest.mark.fault(8)
@given(VALUES)
@example(['"', "\\", "\n", ""])
@example(["a" * 1_000_000, "\ud800" * 2000, '"' * 1024, "\\" * 1_000_000])
@example(["\x00", "\r\x85\x7f", "ä\u2028🦆", '\\n"}'])
@example([",", '",b="', "{a} 1", " # {"])
def test_any_label_values_are_read_back(values: list[str]) -> None:
    expected = dict(zip(WORKLOAD_EVICTIONS.labels, map(safe, values), strict=True))
    for samples in read(WORKLOAD_EVICTIONS, line(WORKLOAD_EVICTIONS, values, 7)):
        assert [(found.name, found.labels, found.value) for found in samples] == [
            (WORKLOAD_EVICTIONS.name, expected, 7.0)
        ]


ODD = st.text(st.sampled_from("a\x01\x02\ufffd\ud800é…"), max_size=4)
LONG = st.builds(lambda size, end: "x" * size + end, st.integers(1000, 1030), ODD)


@pytest.mark.fault(8)
@given(st.sets(ODD | LONG, min_size=2))
def test_different_values_are_never_read_as_one(values: set[str]) -> None:
    written = [labels(("a",), (value,)) for value in values]
    # And what was read once, given again as a value of its own, is none of the others either.
    again = [labels(("a",), (safe(value),)) for value in values if safe(value) not in values]
    assert len({*written, *again}) == len(written) + len(again)
    assert max(map(len, written)) <= 1024 + len('{a=""}')


@given(st.floats())
@example(1_754_000_000.123)
@example(8.0)
@example(-0.0)
@example(math.inf)
@example(-math.inf)
@example(1e300)
@example(5e-324)
def test_numbers_are_read_back_exactly(number: float) -> None:
    for (found,) in read(STATE_UP, sample(STATE_UP, "", number)):
        assert repr(float(found.value)) == repr(number)


def test_numbers_without_end_are_written_as_in_go() -> None:
    texts = [sample(STATE_UP, "", number) for number in (math.inf, -math.inf, math.nan)]
    assert [text.split()[1] for text in texts] == [b"+Inf", b"-Inf", b"NaN"]


def test_further_labels_of_an_open_metric() -> None:
    written = open_labels(NODE_INFO, NODE, {"label_tier": "a", "label_rack": '"'})
    for (found,) in read(NODE_INFO, sample(NODE_INFO, written, 1)):
        assert found.labels == dict(zip(NODE_INFO.labels, NODE, strict=True)) | {
            "label_tier": "a",
            "label_rack": '"',
        }
    assert open_labels(NODE_INFO, NODE, {}) == labels(NODE_INFO.labels, NODE)


@pytest.mark.parametrize("further", [{"rack": "a"}, {"label_Ö": "a"}, {"label_": "a", "node": "b"}])
def test_labels_that_the_metric_does_not_allow_are_refused(further: dict[str, str]) -> None:
    with pytest.raises(InputError, match="gpucost_node_info"):
        open_labels(NODE_INFO, NODE, further)


def test_closed_metrics_take_no_further_labels() -> None:
    with pytest.raises(InputError, match="label_a"):
        open_labels(STATE_UP, (), {"label_a": "x"})


@pytest.mark.parametrize("values", [(), ("a", "b", "c", "d"), ("a", "b", "c", "d", "e", "f")])
def test_wrong_number_of_label_values_is_refused(values: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="labels"):
        line(POD_GPU_REQUEST, values, 1)
