"""Both exporters as they are run, scraped by a real Prometheus: by TLS with the token, in no other way."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.builders import SECOND, T0
from tests.exporters.queue import world
from tests.exporters.queue.test_command import running
from tests.kube.pki import make_pki
from tests.support.cluster.server import ClusterServer
from tests.support.gpu_command import command_node
from tests.support.nvml.build import build_double
from tests.support.nvml.driver import FakeBoard, FakeDriver
from tests.support.prometheus import needs_prometheus, running_prometheus

TOKEN = "the-token-that-prometheus-sends-here"
BOARD = "GPU-0a000000-0000-4000-8000-000000000001"
REFUSED = "server returned HTTP status 401 Unauthorized"
NOT_YET = ("connection refused", "deadline exceeded", "Client.Timeout")
Targets = dict[str, dict[str, Any]]


def jobs(name: str, port: int, tls: dict[str, object], token: Path, wrong: Path) -> list[dict[str, object]]:
    """One as it should be, and those that get nothing."""

    def job(how: str, **more: object) -> dict[str, object]:
        targets = [{"targets": [f"127.0.0.1:{port}"]}]
        return {"job_name": f"{name}: {how}", "scrape_interval": "2s", "static_configs": targets, **more}

    def sends(file: Path) -> dict[str, object]:
        return {"authorization": {"credentials_file": str(file)}}

    secure = {"scheme": "https", "tls_config": tls}
    return [
        job("right", honor_labels=True, **secure, **sends(token)),
        job("no token", **secure),
        job("wrong token", **secure, **sends(wrong)),
        job("plain", **sends(token)),
        job("unknown authority", scheme="https", **sends(token)),
    ]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Targets]:
    """What Prometheus says of each job, once it has asked them all and has our series."""
    folder = tmp_path_factory.mktemp("scraped")
    pki = make_pki(folder)
    token, wrong = folder / "token", folder / "wrong"
    token.write_text(f"{TOKEN}\n", encoding="utf-8")
    wrong.write_text(f"{TOKEN[:-1]}X\n", encoding="utf-8")
    driver = FakeDriver(folder / "nvml.state", [FakeBoard(BOARD, "NVIDIA H100 80GB HBM3")])
    library = build_double(tmp_path_factory.getbasetemp())
    by_files = {"tls_cert_file": pki.server.with_suffix(".crt"), "tls_key_file": pki.server}
    with command_node(folder, library, driver) as node, ClusterServer() as server:
        server.put(world.node("gpu-1"))
        server.put(world.bound(world.pod("train-0"), "gpu-1", T0 + 10 * SECOND))
        driver.write()
        node.kubelet.allocatable = {"nvidia.com/gpu": [BOARD]}
        node.kubelet.hold("team", "train", BOARD)
        node.set(scrape_token_files=str(token), tls_self_signed="true")
        collects = running(folder, kubernetes_url=server.url, scrape_token_files=token, **by_files)
        with collects as collector, node.run() as exporter:
            known: dict[str, object] = {"ca_file": str(pki.ca), "server_name": "api.test"}
            configs = jobs("collector", collector.port, known, token, wrong)
            configs += jobs("exporter", exporter.port, {"insecure_skip_verify": True}, token, wrong)
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
    with urllib.request.urlopen(f"{url}/api/v1/{what}", timeout=20) as answer:
        return json.load(answer)["data"]


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
