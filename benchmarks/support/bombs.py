"""Six parsing bombs at once beside 50 readers: does the API answer probes, and all other clients, in time?

Each of six viewers, with a key of its own, sends one manifest after another that is made to be expensive, and
comes again as soon as the answer allows it. 50 readers, with keys of their own, ask what people ask. One
client asks for /healthz fifty times a second, as a kubelet does: over a connection of its own each time.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from gpucost.access.keys import format_key, hash_secret
from gpucost.api.server.errors import ADVICE_PATH, LARGEST_MANIFEST
from tests.cli.state_worlds import cluster
from tests.kube.pki import write_kubeconfig
from tests.support.cluster.server import ClusterServer

BOMBERS, READERS = 6, 50
LIMIT_MS = 200.0
PROBE = "/healthz"
_SECRET = "fedcba9876543210" * 4
_EVERY_S = 0.02
_TEAM = "language"


def bombs() -> Sequence[tuple[str, bytes]]:
    """Media types and bodies: values, lists, directives, levels, aliases, what is allowed at its largest, and
    the 479 kB of values that stopped everything for seconds."""
    values = b"- 1\n" * (LARGEST_MANIFEST // 4)
    lists = b"a: [" + b"{}," * ((LARGEST_MANIFEST - 8) // 3) + b"1]"
    tags = b"".join(b"%%TAG !%d! x\n" % number for number in range(LARGEST_MANIFEST // 16)) + b"---\na: 1\n"
    levels = b"a: " + b"[" * (LARGEST_MANIFEST - 3)
    aliases = b"a: &a [x]\nb: [" + b"*a, " * (LARGEST_MANIFEST // 8) + b"]"
    yaml = [values, lists, tags, levels, aliases, values * 4, json.dumps(_largest()).encode()]
    found = [("application/yaml", each) for each in yaml]
    sent = [{"manifest": {"a": [{}] * 40_000}}, {"manifest": _largest()}]
    return found + [("application/json", json.dumps(each, separators=(",", ":")).encode()) for each in sent]


def _largest() -> dict[str, Any]:
    """A job that is read to its end, and then advised: 3,000 variables in one container."""
    resources = {"limits": {"nvidia.com/gpu": 8}}
    variables = [{"name": f"V{number}", "value": "x"} for number in range(3_000)]
    containers = [{"name": "main", "image": "train", "resources": resources, "env": variables}]
    labels = {"kueue.x-k8s.io/queue-name": "gpus"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "bomb", "namespace": "nlp", "labels": labels},
        "spec": {
            "parallelism": 64,
            "completions": 64,
            "suspend": True,
            "template": {"spec": {"restartPolicy": "Never", "containers": containers}},
        },
    }


def keys(name: str, number: int) -> dict[str, str]:
    return {f"{name}-{at}": format_key(f"{name}-{at}", _SECRET) for at in range(number)}


@contextmanager
def watched(folder: Path) -> Iterator[dict[str, Any]]:
    """Settings of a service that advises: an API server to watch, and the keys of all clients here."""
    common = {"sha256": hash_secret(_SECRET)}
    given = [{"id": name, **common, "role": "viewer", "teams": [_TEAM]} for name in keys("bomber", BOMBERS)]
    given += [{"id": name, **common, "role": "finance"} for name in keys("reader", READERS)]
    with ClusterServer() as server:
        for found in cluster():
            server.put(found)
        write_kubeconfig(folder / "kubeconfig", {"server": server.url})
        state = {"state": "kubeconfig", "kubeconfig": str(folder / "kubeconfig"), "enabled": False}
        yield {"detectors": state, "prometheus": {"cluster": "c"}, "api": {"keys": given}}


@dataclass
class Crowd:
    """Threads that ask until they are stopped, and the answers they got."""

    address: str
    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    probed: list[float] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def asking(self, *, with_bombs: bool) -> Iterator[None]:
        work = [threading.Thread(target=self._probe)]
        if with_bombs:
            bombers = keys("bomber", BOMBERS).values()
            work += [threading.Thread(target=self._bomb, args=(key,)) for key in bombers]
        for each in work:
            each.start()
        try:
            yield
        finally:
            self._stop.set()
            for each in work:
                each.join()

    def _ask(self, who: str, method: str, path: str, **more: Any) -> Mapping[str, str]:
        """Counts the status, 0 for a connection that ended; the headers."""
        connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=60)
        counts = self.statuses.setdefault(who, Counter())
        try:
            connection.request(method, path, **more)
            answer = connection.getresponse()
            answer.read()
            counts[answer.status] += 1
            return answer.headers
        except OSError:
            counts[0] += 1
            return {}
        finally:
            connection.close()

    def _probe(self) -> None:
        while not self._stop.wait(_EVERY_S):
            began = time.perf_counter()
            self._ask("probe", "GET", PROBE)
            self.probed.append(time.perf_counter() - began)

    def _bomb(self, key: str) -> None:
        for media_type, body in cycle(bombs()):
            headers = {"Authorization": f"Bearer {key}", "Content-Type": media_type}
            answered = self._ask("bombs", "POST", ADVICE_PATH, body=body, headers=headers)
            if self._stop.wait(float(answered.get("Retry-After", 0))):
                return

    def figures(self) -> dict[str, Any]:
        told = {
            who: {str(code): n for code, n in sorted(found.items())} for who, found in self.statuses.items()
        }
        return {
            "probes": len(self.probed),
            "p50_ms": float(np.percentile(self.probed, 50)) * 1000,
            "p99_ms": float(np.percentile(self.probed, 99)) * 1000,
            "p90_ms": float(np.percentile(self.probed, 90)) * 1000,
            "longest_ms": max(self.probed) * 1000,
            "statuses": told,
        }

    @property
    def failed_probes(self) -> int:
        return sum(n for status, n in self.statuses["probe"].items() if status != 200)
