"""A cluster out of VictoriaMetrics is that out of Prometheus: held time to the millisecond, and sums of use
but for the last bits, since it adds samples up without compensation. It sends no chunks, and is queried."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from gpucost.contract.frames import FRAMES, SIGNALS
from gpucost.domain.errors import PartialResponse
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.cluster_reader import whole
from gpucost.telemetry.prometheus.query_response import parse
from gpucost.telemetry.prometheus.remote_read import RemoteReader
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.kube_reader import UpstreamSettings
from gpucost.telemetry.upstream.upstream_source import UpstreamSource
from tests.support.existing.variants import variants, write_second
from tests.support.prometheus import needs_prometheus, running_prometheus
from tests.support.victoria_metrics import copy_samples, needs_victoria, running_victoria

LAST_BITS = 1e-12


def source(url: str) -> tuple[UpstreamSource, PrometheusClient]:
    client = PrometheusClient(url)
    client.samples = RemoteReader(client, least_nodes=0)
    settings = PrometheusSourceSettings()
    return UpstreamSource(client, settings, UpstreamSettings(), now=lambda: 1_800_000_000_000), client


@needs_prometheus
@needs_victoria
@pytest.mark.prometheus
@pytest.mark.slow
@pytest.mark.parametrize("name", ["restarted", "gap", "renamed"])
def test_a_cluster_is_the_same_out_of_victoria_metrics(name: str, tmp_path: Path) -> None:
    (variant,) = (each for each in variants(60_000) if each.name == name)
    write_second([variant], tmp_path / "blocks")
    with running_prometheus(tmp_path / "blocks") as url, running_victoria(tmp_path / "victoria") as other:
        assert copy_samples(url, other, variant.window) > 100_000
        expected = source(url)[0].read(variant.name, variant.inner)
        victoria, client = source(other)
        found = victoria.read(variant.name, variant.inner)
    assert client.samples is not None
    assert not client.samples.is_there
    assert " samples of " not in victoria.name
    for spec in FRAMES:
        is_exact = spec.name != SIGNALS.name
        keys = [column.name for column in spec.columns if is_exact or column.name in SIGNALS.column_names[:5]]
        one, two = (
            getattr(each, spec.name).sort_values(keys, ignore_index=True) for each in (found, expected)
        )
        pd.testing.assert_frame_equal(one, two, check_exact=is_exact, rtol=LAST_BITS, atol=0, obj=spec.name)
    assert [(each.code, each.subject) for each in found.problems] == [
        (each.code, each.subject) for each in expected.problems
    ]


@pytest.mark.parametrize(
    "data",
    [
        '{"resultType":"vector","result":[{"metric":{},"value":[1790812800,"1"]}]}',
        '{"resultType":"matrix","result":[]}',
        '[{"__name__":"up"}]',
    ],
)
def test_an_answer_without_some_of_the_storage_is_not_the_whole_truth(data: str) -> None:
    def answer(partial: str) -> None:
        body = f'{{"status":"success","isPartial":{partial},"data":{data}}}'
        whole(parse("http://victoria", 200, body.encode()), "cluster a")

    answer("false")
    with pytest.raises(PartialResponse, match=r"cluster a: .*partial \(isPartial\)"):
        answer("true")
