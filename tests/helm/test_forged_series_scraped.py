"""A tenant's target beside the chart's own, scraped by a real Prometheus as the chart's monitors say.

The tenant does all that its rights allow: its Service is called like ours, so that its job is, and it writes
a whole collector's page, about a pod of its own and about another team's.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpucost.attribution.teams import TeamRules
from gpucost.contract.metrics import (
    NODE_BOARDS,
    NODE_GPU_ALLOCATABLE,
    NODE_GPU_CAPACITY,
    NODE_INFO,
    NODE_START,
    POD_GPU_REQUEST,
    POD_GPU_START,
    POD_OWNER_INFO,
    STATE_UP,
)
from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import HOUR_MS, Window
from gpucost.ledger.ledger import Ledger
from gpucost.service import metrics as m
from gpucost.service.ingest.batch_reader import attribute_windows
from gpucost.service.ingest.loop import IngestLoop
from gpucost.service.ingest.status import LoopStatus
from gpucost.service.settings.loader import load_settings
from gpucost.service.settings.model import Settings
from gpucost.service.wiring.inputs import load_book
from gpucost.service.wiring.pipeline import build_pipeline, rules_of
from gpucost.service.wiring.source import TrialLook, open_source
from gpucost.service.wiring.source_checks import build_strangers
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.promql import PromQL
from tests.support.helm_chart import ROOT, Object, Values, needs_helm, objects, one, rendered_settings
from tests.support.http import Reply, ScriptedServer, scripted_server
from tests.support.prometheus import needs_prometheus, running_prometheus

VALUES: Values = {"cluster": {"name": "prod"}, "monitoring": {"serviceMonitors": {"enabled": True}}}
TENANT = "tenant-a"
GPU = "nvidia.com/gpu"
FORGED = 8
NAMES: dict[str, tuple[Values, str]] = {
    "plain": (VALUES, "gpu"),
    "full-name": ({**VALUES, "fullnameOverride": "cost-of-gpus"}, "gpu"),
    "own-name": (VALUES, "gpucost"),
    "long-name": (VALUES, "a" * 53),
    "dotted-name": (VALUES, "1.a"),
}


def job_of(monitor: Object, service: str) -> str:
    """What prometheus-operator calls the job of a monitor without ``jobLabel``: the Service, or of a
    PodMonitor its own namespace and name (prometheus-operator, pkg/prometheus/promcfg.go)."""
    assert "jobLabel" not in monitor["spec"]
    place = monitor["metadata"]
    return service if monitor["kind"] == "ServiceMonitor" else f"{place['namespace']}/{place['name']}"


def monitored(found: Sequence[Object]) -> Iterator[tuple[Object, str]]:
    """The monitors of the exporters, each with its job."""
    for kind, component in (("ServiceMonitor", "queue-collector"), ("PodMonitor", "gpu-exporter")):
        monitor = one(found, kind, component)
        service = one(found, "Service", component) if kind == "ServiceMonitor" else monitor
        yield monitor, job_of(monitor, service["metadata"]["name"])


@needs_helm
@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_chart_names_the_jobs_of_its_own_monitors(name: str) -> None:
    values, release = NAMES[name]
    found = objects(values, release, "cost")
    prometheus = rendered_settings(found)["prometheus"]
    assert sorted(prometheus["gpucost_jobs"]) == sorted(job for _, job in monitored(found))
    assert prometheus["gpucost_namespace"] == "cost"


@needs_helm
def test_where_others_scrape_the_namespace_alone_is_known() -> None:
    prometheus = rendered_settings(objects({"cluster": {"name": "prod"}}))["prometheus"]
    assert "gpucost_jobs" not in prometheus
    assert prometheus["gpucost_namespace"] == "cost"
    alone = {"queueCollector": {"enabled": False}, "gpuExporter": {"enabled": False}}
    assert "gpucost_namespace" not in rendered_settings(objects({**VALUES, **alone}))["prometheus"]


def line(name: str, value: float, **labels: str) -> str:
    return (
        f"{name}{{{','.join(f'{label}={value!r}' for label, value in labels.items())}}} {value!r}\n".replace(
            "'", '"'
        )
    )


def page(started_s: float, **units: int) -> str:
    """What a queue collector shows of a node of eight GPUs and of these pods, each of its own team."""
    node = {"node": "n"}
    text = line(STATE_UP.name, 1.0) + line(NODE_INFO.name, 1.0, **node, product="NVIDIA-H100-80GB-HBM3")
    text += line(NODE_START.name, started_s, **node) + line(NODE_BOARDS.name, 8.0, **node)
    for spec in (NODE_GPU_CAPACITY, NODE_GPU_ALLOCATABLE):
        text += line(spec.name, 8.0, **node, resource=GPU)
    for uid, number in units.items():
        pod = {"namespace": f"ns-{uid}", "pod": f"pod-{uid}", "pod_uid": uid, **node}
        text += line(POD_GPU_REQUEST.name, float(number), **pod, resource=GPU)
        text += line(POD_GPU_START.name, started_s, **pod, resource=GPU)
        text += line(POD_OWNER_INFO.name, 1.0, **pod, owner_team=f"team-{uid}")
    return text


def scrape(monitor: Object, job: str, namespace: str, server: ScriptedServer) -> dict[str, Any]:
    """What prometheus-operator makes of a monitor, for one target."""
    [endpoint] = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
    rules = [
        {re.sub("([A-Z])", r"_\1", name).lower(): value for name, value in rule.items()}
        for rule in endpoint["relabelings"]
    ]
    labels = {"namespace": namespace, "pod": "p-0", "service": job.rpartition("/")[2], "endpoint": "metrics"}
    return {
        "job_name": f"{monitor['kind']}/{namespace}",
        "honor_labels": endpoint["honorLabels"],
        "scrape_interval": "1s",
        "static_configs": [{"targets": [server.url.removeprefix("http://")], "labels": labels}],
        "relabel_configs": [{"target_label": "job", "replacement": job}, *rules],
    }


def wait_for(client: PrometheusClient, query: str, least: float) -> None:
    for _ in range(600):
        found = client.query(PromQL(query), round(time.time() * 1000)).result
        if found and float(found[0]["value"][1]) >= least:
            return
        time.sleep(0.2)
    raise AssertionError(f"{query} never came to {least}")


def service_settings(found: Sequence[Object], url: str, folder: Path) -> Settings:
    """The chart's own, for another Prometheus and a ledger in ``folder``."""
    config = rendered_settings(found)
    config["prometheus"] |= {"url": url}
    config |= {"ledger": {"url": f"sqlite:///{folder}/gpucost.db"}, "detectors": {"state": "none"}}
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return load_settings(file)


@needs_helm
@needs_prometheus
@pytest.mark.prometheus
def test_a_tenants_page_moves_nothing_and_is_one_problem_and_one_alert(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = objects(VALUES)
    (monitor, job), _ = monitored(found)
    started_s = round(time.time()) - 3600.0
    honest, forged = page(started_s, victim=2), page(started_s, victim=FORGED, forged=FORGED)
    plain = Reply(body=honest, content_type="text/plain; version=0.0.4")
    with ExitStack() as stack:
        pages = [plain, plain, Reply(body=forged, content_type=plain.content_type)]
        ours, second, tenants = (stack.enter_context(scripted_server(each)) for each in pages)
        configs = [
            {**scrape(monitor, job, place, server), "job_name": f"scrape-{number}"}
            for number, (place, server) in enumerate(((("cost"), ours), ("cost", second), (TENANT, tenants)))
        ]
        url = stack.enter_context(running_prometheus(tmp_path / "data", scrape_configs=configs))
        client = stack.enter_context(PrometheusClient(url))
        wait_for(client, f"min(count_over_time({STATE_UP.name}[5m]))", 6)
        wait_for(client, f"count({STATE_UP.name})", 3)
        now_ms = round(time.time() * 1000)
        settings = service_settings(found, url, tmp_path)
        book = load_book(None)
        look = TrialLook(now_ms, Window(now_ms - HOUR_MS, now_ms))
        source = open_source(settings, book, lambda: now_ms, look=look)
        window = source.covered("prod")
        assert window is not None
        frames = source.read("prod", window)
        rules = rules_of(settings, book, TeamRules.default())
        lines = attribute_windows(frames, [window], rules).flat()
        held = lines[lines["bucket"] == "held"].groupby("team")["board_ms"].sum().to_dict()
        assert held == {"team-victim": 2 * window.length_ms}
        [problem] = [each for each in frames.problems if each.code is DataProblemCode.SERIES_REFUSED]
        assert problem.subject == job
        assert TENANT in problem.detail
        assert 0 < (problem.board_ms or 0) <= 2 * FORGED * (window.length_ms + 1000)

        status = LoopStatus()
        stopped = threading.Event()
        with Ledger.open(settings.ledger.database_url(), now=lambda: now_ms, create=True) as ledger:
            pipeline = build_pipeline(settings.ingest, source, ledger, rules, lambda: now_ms)
            strangers = build_strangers(settings, lambda: now_ms, stopped)
            IngestLoop(
                pipeline, settings.ingest, status,
                sleep=stopped.wait, stopped=stopped.is_set, rng=random.Random(1), strangers=strangers,
            ).turn()  # fmt: skip
        assert [each for each in caplog.messages if f"job {job} in namespace {TENANT}" in each]
        assert fired(tmp_path / "service", status) == [{"cluster": "prod"}]


def fired(folder: Path, status: LoopStatus) -> list[Mapping[str, str]]:
    """The alerts of the chart's own rule over what the service says of its source."""
    text = "".join(
        line(m.REFUSED.name, float(each.refused or 0), gpu_cluster=name)
        for name, each in status.clusters().items()
    )
    groups = yaml.safe_load((ROOT / "helm/gpucost/files/gpucost.rules.yaml").read_text("utf-8"))["groups"]
    [rule] = [
        each for group in groups for each in group["rules"] if each.get("alert") == "GpuCostSeriesRefused"
    ]
    with scripted_server(Reply(body=text, content_type="text/plain; version=0.0.4")) as server:
        target = [{"targets": [server.url.removeprefix("http://")]}]
        config = [{"job_name": "gpucost", "scrape_interval": "1s", "static_configs": target}]
        with (
            running_prometheus(folder / "data", scrape_configs=config) as url,
            PrometheusClient(url) as client,
        ):
            wait_for(client, f"count({m.REFUSED.name})", 1)
            answer = client.query(PromQL(rule["expr"]), round(time.time() * 1000))
    return [each["metric"] for each in answer.result]
