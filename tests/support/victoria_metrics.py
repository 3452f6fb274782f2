"""A real VictoriaMetrics on a free loopback port, with the samples of a Prometheus."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpucost.domain.time import Window
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.promql import named_like, select
from tests.support.ports import free_port

VICTORIA = shutil.which("victoria-metrics")
needs_victoria = pytest.mark.skipif(
    VICTORIA is None, reason="victoria-metrics is not installed (Debian: apt-get install victoria-metrics)"
)
PREFIXES = ("kube_", "DCGM_", "up")
_STARTS_S = 30.0


@contextmanager
def running_victoria(folder: Path) -> Iterator[str]:
    """Its URL, once it answers; data lies in ``folder``."""
    address = f"127.0.0.1:{free_port()}"
    arguments = [VICTORIA or "", f"-storageDataPath={folder}", f"-httpListenAddr={address}"]
    arguments += ["-retentionPeriod=100y", "-loggerLevel=ERROR", "-search.latencyOffset=0s"]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(f"http://{address}")
            yield f"http://{address}"
        finally:
            process.terminate()


def _wait(url: str) -> None:
    until = time.monotonic() + _STARTS_S
    while True:
        try:
            urllib.request.urlopen(f"{url}/health").close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


def copy_samples(source: str, target: str, window: Window) -> int:
    """Every sample of PREFIXES from a Prometheus; their number."""
    copied = 0
    with PrometheusClient(source) as client:
        for prefix in PREFIXES:
            like = select(prefix) if prefix == "up" else named_like(prefix)
            names = client.label_values("__name__", like, window.start_ms, window.end_ms).result
            for name in (str(each["label"]) for each in names):
                found = client.raw(select(name), window.start_ms, window.end_ms).result
                lines = []
                for series in found:
                    values = [float(value) for _, value in series["values"]]
                    times = [round(at * 1000) for at, _ in series["values"]]
                    lines.append({"metric": series["metric"], "values": values, "timestamps": times})
                    copied += len(values)
                body = "\n".join(map(json.dumps, lines)).encode()
                urllib.request.urlopen(urllib.request.Request(f"{target}/api/v1/import", data=body)).close()
    urllib.request.urlopen(f"{target}/internal/force_flush").close()
    return copied
