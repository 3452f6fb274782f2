"""The metric table: names by the conventions, its page up to date, and promtool content with it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gpucost.contract.frames import HOLDER_COLUMNS, NODES, SIGNALS
from gpucost.contract.gpu_metrics import POD_BUSY, POD_LABELS
from gpucost.contract.metric_spec import (
    MetricSpec,
    MetricType,
    series_name,
)
from gpucost.contract.metrics import (
    METRICS,
    NODE_INFO,
    NODE_INFO_LABELS,
    OWNER_LABELS,
    POD_GPU_START,
    POD_METRICS,
    POD_OWNER_INFO,
    PROVIDER_ID,
    SIGNAL_METRICS,
    STATE_UP,
    node_label_name,
)
from gpucost.domain.errors import InputError
from gpucost.service import metrics as metric_docs
from gpucost.service.metrics import SERVICE_METRICS
from gpucost.telemetry.evidence.signals import MEMORY_UNITS
from tests.support.metric_samples import ExpositionSample, metric, openmetrics, sample_line
from tests.support.prometheus import PROMTOOL, needs_prometheus

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
PLACE = dict(zip(POD_LABELS, ("ns", "pod", "uid", "node"), strict=True))
BUSY = {**dict.fromkeys(POD_BUSY.labels, ""), **PLACE}


class Exposition:
    """A collector that exports one series of every metric in the table, as the exporters do."""

    def collect(self) -> list[Metric]:
        families: list[Metric] = []
        for spec in METRICS:
            kind = CounterMetricFamily if spec.type is MetricType.COUNTER else GaugeMetricFamily
            family = kind(spec.name, spec.help, labels=spec.labels)
            family.add_metric([f"{label}-value" for label in spec.labels], 1.0)
            families.append(family)
        return families


def test_names_are_unique_and_found() -> None:
    assert len({spec.name for spec in METRICS}) == len(METRICS)
    assert all(metric(spec.name) is spec for spec in METRICS)
    with pytest.raises(InputError, match="gpucost_state_up"):
        metric("gpucost_nothing")


def test_every_pod_series_carries_the_identity() -> None:
    for spec in (*POD_METRICS, *SIGNAL_METRICS.values()):
        assert set(POD_LABELS) <= set(spec.labels)


def test_labels_cover_what_the_frames_need() -> None:
    assert list(OWNER_LABELS.values()) == [column.name for column in HOLDER_COLUMNS]
    assert set(POD_OWNER_INFO.labels) == {"node", *OWNER_LABELS}
    assert set(NODE_INFO_LABELS.values()) < set(NODES.column_names)
    measures = [*SIGNAL_METRICS, *MEMORY_UNITS]
    assert sorted(measures) == sorted(SIGNALS.column_names[-len(measures) :])


@pytest.mark.parametrize(
    ("name", "type_", "unit", "labels"),
    [
        ("pod_gpu", MetricType.GAUGE, "", ()),
        ("gpucost_Pod", MetricType.GAUGE, "", ()),
        ("gpucost_a:b", MetricType.GAUGE, "", ()),
        ("gpucost__a", MetricType.GAUGE, "", ()),
        ("gpucost_busy", MetricType.COUNTER, "", ()),
        ("gpucost_busy_total", MetricType.GAUGE, "", ()),
        ("gpucost_busy_seconds", MetricType.GAUGE, "", ()),
        ("gpucost_busy", MetricType.GAUGE, "seconds", ()),
        ("gpucost_busy_percent", MetricType.GAUGE, "percent", ()),
        ("gpucost_busy", MetricType.GAUGE, "", ("job",)),
        ("gpucost_busy", MetricType.GAUGE, "", ("cluster",)),
        ("gpucost_busy", MetricType.GAUGE, "", ("Node",)),
    ],
)
def test_a_spec_against_the_conventions_is_refused(
    name: str, type_: MetricType, unit: str, labels: tuple[str, ...]
) -> None:
    with pytest.raises(InputError):
        MetricSpec(name, type_, unit, labels, "help")


def test_the_page_is_up_to_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert PAGE.read_text(encoding="utf-8") == metric_docs.render_page()
    metric_docs.main([str(tmp_path / "page.md")])
    metric_docs.main([])
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == capsys.readouterr().out
    assert all(f"### {spec.name}\n" in metric_docs.render_page() for spec in (*METRICS, *SERVICE_METRICS))


@needs_prometheus
@pytest.mark.prometheus
def test_promtool_finds_nothing_to_say() -> None:
    registry = CollectorRegistry()
    registry.register(Exposition())
    text = generate_latest(registry)
    assert text.count(b"# HELP") == len(METRICS)
    done = subprocess.run([PROMTOOL or "", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_labels_must_be_the_metrics_own() -> None:
    with pytest.raises(InputError, match="missing label"):
        series_name(POD_BUSY, {"namespace": "ns"})
    with pytest.raises(InputError, match="unknown label"):
        series_name(POD_BUSY, {**BUSY, "gpu": "0"})
    info = {"node": "n", **dict.fromkeys((*NODE_INFO_LABELS, PROVIDER_ID), "")}
    tier = node_label_name("example.com/Tier")
    assert tier == "label_example_com_tier"
    assert series_name(NODE_INFO, {**info, tier: "gold"}) == f'gpucost_node_info{{{tier}="gold",node="n"}}'
    with pytest.raises(InputError, match="unknown label"):
        series_name(NODE_INFO, {**info, "label_Tier": "gold"})


def test_lines_have_millisecond_times_and_exact_values() -> None:
    assert sample_line("a{}", 1.5, 1_506_816_000_007) == "a{} 1.5 1506816000.007\n"
    assert sample_line("a{}", 2.0, 1_506_816_000_000) == "a{} 2.0 1506816000\n"
    assert sample_line("a{}", 1_506_816_000_123 / 1000) == "a{} 1506816000.123\n"


@pytest.mark.fault(8)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), min_size=1, max_size=40))
def test_label_values_survive_the_text(value: str) -> None:
    samples = [
        ExpositionSample(POD_BUSY, {**BUSY, "pod": value}, 2.5, 1_506_816_000_000),
        ExpositionSample(STATE_UP, {}, 1.0, 1_506_816_000_000),
        ExpositionSample(POD_GPU_START, {**PLACE, "resource": "r"}, 1_506_816_000.123, None),
    ]
    text = "".join(openmetrics(samples, {"cluster": "c"}))
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (busy,) = families["gpucost_pod_gpu_busy_seconds"].samples
    assert busy.labels == {**PLACE, "pod": value, "cluster": "c"}
    assert (busy.name, busy.value) == (POD_BUSY.name, 2.5)
    assert families["gpucost_pod_gpu_busy_seconds"].unit == "seconds"
    assert set(families) == {"gpucost_pod_gpu_busy_seconds", STATE_UP.name, POD_GPU_START.name}
