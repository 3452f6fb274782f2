"""Both exporters as the chart runs them, scraped by a real Prometheus as its monitors say, and in other ways:
by TLS with the token they give their series, in no other way.
"""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucost.kube.certificates.certificate_pair import make_pair
from tests.cluster.builders import SECOND, T0
from tests.exporters.queue import world
from tests.exporters.queue.test_command import running
from tests.support.cluster.server import ClusterServer
from tests.support.gpu_command import command_node
from tests.support.helm_chart import Values, needs_helm, objects, one
from tests.support.nvml.build import build_double
from tests.support.nvml.driver import FakeBoard, FakeDriver
from tests.support.prometheus import needs_prometheus, running_prometheus

TOKEN = "the-token-that-prometheus-sends-here"
BOARD = "GPU-0a000000-0000-4000-8000-000000000001"
REFUSED = "server returned HTTP status 401 Unauthorized"
NOT_YET = ("connection refused", "deadline exceeded", "Client.Timeout")
DAY_MS = 86_400_000
MOUNTED = "/etc/gpucost/scrapes"
HOST = "gpu-gpucost-queue-collector.cost.svc"
Targets = dict[str, dict[str, Any]]


class Exporter:
    """What the chart makes of ``tls``, with ``folder`` in place of what it mounts."""

    def __init__(
        self, folder: Path, component: str, kinds: tuple[str, str], prefix: str, tls: Values
    ) -> None:
        monitors = {"serviceMonitors": {"enabled": True}}
        found = objects({"monitoring": monitors, "scrapes": {"tls": tls}})
        workload, monitor = (one(found, kind, component)["spec"] for kind in kinds)
        [container] = workload["template"]["spec"]["containers"]
        self.settings = {
            key: each["value"].replace(MOUNTED, str(folder))
            for each in container["env"]
            if (key := each["name"].removeprefix(prefix).lower()).startswith(("scrape_", "tls_"))
        }
        [endpoint] = monitor.get("endpoints") or monitor["podMetricsEndpoints"]
        self.scheme, given = endpoint["scheme"], endpoint["tlsConfig"]
        self.token = folder / "token" / endpoint["authorization"]["credentials"]["key"]
        self.tls: dict[str, object] = {"insecure_skip_verify": given.get("insecureSkipVerify", False)}
        if "ca" in given:
            ca = folder / "tls" / given["ca"]["secret"]["key"]
            self.tls |= {"server_name": given["serverName"], "ca_file": str(ca)}

    def jobs(self, name: str, port: int, wrong: Path) -> list[dict[str, object]]:
        """One as its monitor says, and those that get nothing."""

        def job(how: str, **more: object) -> dict[str, object]:
            targets = [{"targets": [f"127.0.0.1:{port}"]}]
            return {"job_name": f"{name}: {how}", "scrape_interval": "2s", "static_configs": targets, **more}

        def sends(file: Path) -> dict[str, object]:
            return {"authorization": {"credentials_file": str(file)}}

        secure = {"scheme": self.scheme, "tls_config": self.tls}
        return [
            job("right", honor_labels=True, **secure, **sends(self.token)),
            job("no token", **secure),
            job("wrong token", **secure, **sends(wrong)),
            job("plain", **sends(self.token)),
            job("unknown authority", scheme="https", **sends(self.token)),
        ]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Targets]:
    """What Prometheus says of each job, once it has asked them all and has our series."""
    folder = tmp_path_factory.mktemp("scraped")
    wrong = folder / "wrong"
    wrong.write_text(f"{TOKEN[:-1]}X\n", encoding="utf-8")
    pair = make_pair([HOST], time.time_ns() // 1_000_000, DAY_MS)
    secrets = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": pair.authority}
    for file, text in {
        "token/token": TOKEN,
        **{f"tls/{name}": each for name, each in secrets.items()},
    }.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    by_secret = {"certificates": "existingSecret", "existingSecret": "mine"}
    collects = Exporter(
        folder, "queue-collector", ("Deployment", "ServiceMonitor"), "GPUCOST_QUEUE_COLLECTOR_", by_secret
    )
    measures = Exporter(folder, "gpu-exporter", ("DaemonSet", "PodMonitor"), "GPUCOST_GPU_EXPORTER_", {})
    driver = FakeDriver(folder / "nvml.state", [FakeBoard(BOARD, "NVIDIA H100 80GB HBM3")])
    library = build_double(tmp_path_factory.getbasetemp())
    with command_node(folder, library, driver) as node, ClusterServer() as server:
        server.put(world.node("gpu-1"))
        server.put(world.bound(world.pod("train-0"), "gpu-1", T0 + 10 * SECOND))
        driver.write()
        node.kubelet.allocatable = {"nvidia.com/gpu": [BOARD]}
        node.kubelet.hold("team", "train", BOARD)
        node.set(**measures.settings)
        with (
            running(folder, kubernetes_url=server.url, **collects.settings) as collector,
            node.run() as exporter,
        ):
            configs = collects.jobs("collector", collector.port, wrong)
            configs += measures.jobs("exporter", exporter.port, wrong)
            with running_prometheus(folder / "data", scrape_configs=configs) as url:
                yield answered(url, len(configs))


def answered(url: str, count: int) -> Targets:
    """Once the programs listen, and have answered all in time: a slow machine is not what is asked about."""
    deadline = time.monotonic() + 120
    while True:
        found = {each["scrapePool"]: each for each in asked(url, "targets?state=active")["activeTargets"]}
        done = [
            job.endswith("right") == has_series(url, job) and not any(map(each["lastError"].count, NOT_YET))
            for job, each in found.items()
            if each["health"] != "unknown"
        ]
        if len(done) == count and all(done):
            return found
        assert time.monotonic() < deadline, {name: each["lastError"] for name, each in found.items()}
        time.sleep(0.3)


def has_series(url: str, job: str) -> bool:
    query = urllib.parse.quote(f'{{__name__=~"gpucost_.+",job="{job}"}}')
    return bool(asked(url, f"query?query={query}")["result"])


def asked(url: str, what: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/v1/{what}", timeout=60) as answer:
        return json.load(answer)["data"]


@needs_helm
@needs_prometheus
@pytest.mark.prometheus
@pytest.mark.parametrize("name", ["collector", "exporter"])
def test_prometheus_gets_series_by_tls_with_the_token_alone(targets: Targets, name: str) -> None:
    found = {job.partition(": ")[2]: each for job, each in targets.items() if job.startswith(name)}
    assert {how: each["health"] for how, each in found.items()} == {
        "right": "up",
        "no token": "down",
        "wrong token": "down",
        "plain": "down",
        "unknown authority": "down",
    }
    assert found["right"]["lastError"] == ""
    assert REFUSED in found["no token"]["lastError"]
    assert REFUSED in found["wrong token"]["lastError"]
    assert "401" not in found["plain"]["lastError"], "not even asked for the token"
    assert "certificate" in found["unknown authority"]["lastError"]
