"""Two processes ask the same queries in the same words: servers keep answers by a query's text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucost.domain.time import MINUTE_MS
from tests.support.existing.script import scripted
from tests.support.existing.variants import MIXED_RELEASES, Variant, write_second
from tests.support.existing.world import at
from tests.support.prometheus import needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

VARIANT = Variant(scripted((26, 30), name="words"), 2 * MINUTE_MS, MIXED_RELEASES, lean=True)
READ = """
import json, sys
from gpucost.domain.time import Window
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.kube_reader import UpstreamSettings
from gpucost.telemetry.upstream.upstream_source import UpstreamSource

class Recorded(PrometheusClient):
    def _send(self, path, form):
        asked.append([path, dict(form or {})])
        return super()._send(path, form)

asked = []
url, cluster, start, end, now = sys.argv[1:]
with Recorded(url) as client:
    source = UpstreamSource(client, PrometheusSourceSettings(), UpstreamSettings(), now=lambda: int(now))
    source.history(cluster, Window(int(start), int(end)))
print(json.dumps(sorted(asked, key=repr)))
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("words")
    write_second([VARIANT], folder / "blocks")
    with running_prometheus(folder / "blocks") as found:
        yield found


def asked(url: str, seed: int, folder: Path) -> list[object]:
    window = [str(VARIANT.inner.start_ms), str(VARIANT.inner.end_ms), str(at(24 * 40))]
    command = [sys.executable, "-c", READ, url, VARIANT.name, *window]
    environ = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, check=True)
    found: list[object] = json.loads(done.stdout)
    return found


def test_the_text_of_a_query_is_the_same_in_every_process(url: str, tmp_path: Path) -> None:
    first, second = (asked(url, seed, tmp_path) for seed in (1, 2))
    assert len(first) > 50
    assert first == second
