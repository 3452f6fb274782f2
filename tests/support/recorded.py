"""What real components said: Prometheus directories with the scripted truth, and objects of an API server.

The recordings lie in ``tests/data/recorded``, each folder with a README that says how it was made.
"""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.prometheus import running_prometheus

RECORDED = Path(__file__).parents[1] / "data" / "recorded"
STATE_METRICS = RECORDED / "kube-state-metrics-2.20"
KUEUE_CLUSTER = RECORDED / "kubernetes-1.36-kueue-0.19.2"
KUEUE_SCHEDULER = RECORDED / "kueue-0.19.2"
SERVERS = ("p1", "p2", "p3", "p4")
"""Labels off and OpenCost's series beside; the doctor's labels; two shards; two replicas."""


@contextmanager
def recorded_prometheus(server: str, scratch: Path) -> Iterator[str]:
    """The URL of a real Prometheus over a copy, in ``scratch``, of one recorded directory of ``SERVERS``."""
    with tarfile.open(STATE_METRICS / f"tsdb-{server}.tar.gz") as archive:
        archive.extractall(scratch, filter="data")
    with running_prometheus(scratch / server) as url:
        yield url


def recorded_json(name: str) -> Any:
    """A JSON file beside the directories: ``truth.json``, ``opencost-allocation-5m.json``, ``-1m``."""
    return json.loads((STATE_METRICS / name).read_text())


def recorded_objects() -> dict[str, Any]:
    """``{"objects": {resource: [object, ...]}, "raw": {path: answer}}`` of a real API server with Kueue."""
    with gzip.open(KUEUE_CLUSTER / "objects.json.gz", "rt") as file:
        found: dict[str, Any] = json.load(file)
    return found
