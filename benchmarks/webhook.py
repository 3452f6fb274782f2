"""How long the admission webhook takes: 50 reviews a second over loopback TLS, while the state changes.

    python benchmarks/webhook.py [--size 1] [--rate 50] [--seconds 20] [--stub-ms 10]

The cluster is that of ``benchmarks/advisor.py``: with ``--size 1`` 1,000 ClusterQueues in 100 trees, 30,000
workloads and 5,000 nodes, as one finds it.

The advisor and its background thread run here, as in ``gpucost serve``, and the listener in its process;
who asks runs in one of its own, sends at fixed times whatever is still open, and counts from then. It does
as an API server does: HTTP/1.1, a connection that is idle if there is one, else a new one with its
handshake, and 25 are kept (and there from the start).

Half of the reviews are of jobs with GPUs in a Kueue queue, of several kinds and shapes. The state counts as
changed at every look, which is the worst that can happen: it is worked out again and again beside the
reviews. ``still_*`` are without that. ``burst_*`` is ten times the rate for a quarter of the time; what is
not advised then is counted by reason. With ``--stub`` an advice is ``--stub-ms`` of work instead of the
rules of the schedulers, to see what the rest takes.

A burst takes about two cores: where ``load_before`` says that others have them, its times are those of a wait
for a core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.support.advised_cluster import FLAVORS, GPU, cluster, settled
from gpucost.advisor.advise import advise
from gpucost.advisor.model.answers import (
    Advice,
    AdviceSubject,
    SchedulingDecision,
    SchedulingLayer,
)
from gpucost.advisor.model.settings import AdvisorSettings
from gpucost.advisor.request.context import AdvisorContext
from gpucost.api.webhook.adviser import AdmissionAdviser
from gpucost.api.webhook.supervisor import WebhookProcess
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.objects.jobs import JobManifest
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.kube.manifests import manifest_of, reread
from gpucost.service.advisor.advisor_service import AdviseFunction, AdvisorEngine, AdvisorService
from gpucost.settings.tls import TlsFiles

LIMITS = {"p99_ms": 200, "burst_p99_ms": 200, "still_not_advised": 0.05, "not_advised": 0.2}
TOKEN = "token-of-the-benchmark"
SEED = 20261121
# client-go keeps so many idle connections to a host and opens as many as it needs (kubernetes,
# staging/src/k8s.io/client-go/transport/cache.go, v1.34); to webhooks it speaks HTTP/1.1
# (staging/src/k8s.io/apiserver/pkg/util/webhook/client.go).
MOST_IDLE = 25
# The listener prints what it counted once a second.
_REPORTED_S = 1.5


def main() -> None:
    args = _arguments()
    if args.client:
        _client(args)
        return
    figures: dict[str, Any] = {"size": args.size, "load_before": os.getloadavg()[0]}
    engine = _engine(args)
    if args.stub:
        figures["stub_ms"] = args.stub_ms
    watched = Busy(_state(args.size))
    queues = len(watched.state.cluster_queues)
    advising = AdvisorService(
        watched, engine, TeamRules.default(), settings=AdvisorSettings(), has_webhook=True
    )
    begun = time.perf_counter()
    advising.refresh()
    figures["prepare_s"] = time.perf_counter() - begun
    with _served(advising) as port:
        for name in ("still", "busy", "burst"):
            if name == "busy":
                watched.is_busy = True
                advising.start()
            rate = args.rate * (10 if name == "burst" else 1)
            before = advising.status.reviews()
            found = _asked(port, queues, rate, args.seconds / 4 if name == "burst" else args.seconds)
            time.sleep(_REPORTED_S)
            reasons = Counter(advising.status.reviews())
            reasons.subtract(before)
            figures |= {f"{name}_{key}": value for key, value in found.items()}
            figures |= {f"{name}_reviews_{key}": value for key, value in sorted((+reasons).items())}
        advising.close()
    figures["prepared"] = watched.taken
    figures["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    ratios = {
        "p99_ms": figures["busy_p99_ms"],
        "burst_p99_ms": figures["burst_p99_ms"],
        "still_not_advised": 1 - figures["still_advised"],
        "not_advised": 1 - figures["busy_advised"],
    }
    for key, value in figures.items():
        print(f"{key:<30} {value:.3f}")
    print(
        json.dumps(
            {
                "name": "webhook",
                "figures": {name: round(value, 3) for name, value in figures.items()},
                "ratios": {name: round(value, 4) for name, value in ratios.items()},
                "limits": LIMITS,
                "holds": all(ratios[name] <= limit for name, limit in LIMITS.items()),
            }
        )
    )


@dataclass
class Busy:
    """A watched cluster; while ``is_busy`` it is another one at every look."""

    state: ClusterState
    is_busy: bool = False
    taken: int = 0
    cluster: str = "c"
    is_current: bool = True

    @property
    def version(self) -> int:
        return self.taken if self.is_busy else 0

    def overview(self, cluster: str) -> ClusterOverview:
        del cluster
        self.taken += 1
        # Another object, so that nothing of the one before is remembered.
        return ClusterOverview(replace(self.state))


@contextmanager
def _served(advising: AdvisorService) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.TemporaryDirectory() as folder:
        tls = _certificate(Path(folder))
        webhook = WebhookProcess(listener, AdmissionAdviser(advising), advising.status, TOKEN, 150, 32, tls)
        webhook.start()
        yield webhook.port
        webhook.close()


def _certificate(folder: Path) -> TlsFiles:
    files = TlsFiles(folder / "tls.crt", folder / "tls.key")
    openssl = shutil.which("openssl")
    assert openssl is not None, "openssl makes the certificate"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=w"]
    paths = ["-keyout", str(files.key), "-out", str(files.certificate)]
    subprocess.run([openssl, "req", *kind, *paths], check=True, capture_output=True)
    return files


def _engine(args: argparse.Namespace) -> AdvisorEngine:
    def no_explanation(kind: str, namespace: str, name: str, known: AdvisorContext) -> None:
        del kind, namespace, name, known

    return AdvisorEngine(_stub(args.stub_ms) if args.stub else advise, no_explanation, manifest_of, reread)


def _stub(stub_ms: float) -> AdviseFunction:
    def stub(manifest: JobManifest, known: AdvisorContext, with_suggestions: bool = True) -> Advice:
        del known, with_suggestions
        until = time.thread_time() + stub_ms / 1000
        while time.thread_time() < until:
            pass
        subject = AdviceSubject("Job", manifest.namespace, manifest.name)
        return Advice(
            subject, SchedulingDecision.WAITS, SchedulingLayer.QUOTA, "Stub", "waits", (), "kueue", "stub"
        )

    return stub


def _asked(port: int, queues: int, rate: float, seconds: float) -> dict[str, float]:
    """What the client measured."""
    command = [sys.executable, __file__, "--client", "--port", str(port), "--queues", str(queues)]
    command += ["--rate", str(rate), "--seconds", str(seconds)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(found.stdout))


def _client(args: argparse.Namespace) -> None:
    begun, worked = time.perf_counter(), time.process_time()
    answers, opened = asyncio.run(_ask(args))
    busy = (time.process_time() - worked) / (time.perf_counter() - begun)
    took = [each.took_s * 1000 for each in answers]
    cuts = quantiles(took, n=100)
    of_gpus = [each.warnings for each in answers if each.has_gpus]
    print(
        json.dumps(
            {
                "p50_ms": cuts[49],
                "p99_ms": cuts[98],
                "most_ms": max(took),
                "connections": opened,
                "client_cpu": busy,
                "advised": sum(map(bool, of_gpus)) / len(of_gpus),
                "with_wait": sum("waits about" in " ".join(each) for each in of_gpus) / len(of_gpus),
                "with_suggestion": sum(len(each) > 1 for each in of_gpus) / len(of_gpus),
            }
        )
    )


@dataclass(frozen=True)
class Answered:
    """One review."""

    took_s: float
    has_gpus: bool
    warnings: list[str]


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Connections:
    """As Go's http.Transport has them: who finds none idle gets the first that is free or new."""

    def __init__(self, port: int) -> None:
        self._port, self.opened = port, 0
        self._idle: list[Streams] = []
        self._wanted: deque[asyncio.Future[Streams]] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE

    async def warm(self) -> None:
        """As after some time of use."""
        for _ in range(MOST_IDLE):
            await self._open()

    async def get(self) -> Streams:
        if self._idle:
            return self._idle.pop()
        wanted: asyncio.Future[Streams] = asyncio.get_running_loop().create_future()
        self._wanted.append(wanted)
        opening = asyncio.create_task(self._open())
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        return await wanted

    def put(self, streams: Streams) -> None:
        if self._wanted:
            self._wanted.popleft().set_result(streams)
        elif len(self._idle) < MOST_IDLE:
            self._idle.append(streams)
        else:
            streams[1].close()

    async def _open(self) -> None:
        self.opened += 1
        self.put(await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls))


async def _ask(args: argparse.Namespace) -> tuple[list[Answered], int]:
    connections = Connections(args.port)
    await connections.warm()
    dice = random.Random(SEED)
    count = round(args.rate * args.seconds)
    bodies = [_review(dice, number, args.queues) for number in range(count)]
    answers: list[Answered] = []

    async def one(due: float, number: int, sent: bytes) -> None:
        reader, writer = streams = await connections.get()
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        found = json.loads(await reader.readexactly(length))["response"]
        assert found["allowed"] is True
        answers.append(Answered(time.perf_counter() - due, _has_gpus(number), found.get("warnings", [])))
        connections.put(streams)

    began, tasks = time.perf_counter() + 0.1, []
    for number, sent in enumerate(bodies):
        due = began + number / args.rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(due, number, sent)))
    await asyncio.gather(*tasks)
    return answers, connections.opened


def _has_gpus(number: int) -> bool:
    return number % 2 == 1


def _review(dice: random.Random, number: int, queues: int) -> bytes:
    """A request, every other one with GPUs."""
    name = f"q{dice.randrange(queues)}"
    gpus = dice.choice((1, 2, 4, 8)) if _has_gpus(number) else 0
    document = _manifest(dice, f"job-{number}", name, gpus)
    request = {"uid": str(number), "namespace": name, "operation": "CREATE", "object": document}
    sent = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    body = json.dumps(sent).encode()
    head = f"POST /v1/admission/{TOKEN}?timeout=2s HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _manifest(dice: random.Random, name: str, namespace: str, gpus: int) -> dict[str, Any]:
    """A Job, PyTorchJob, MPIJob, JobSet, RayJob or Pod of 1 to 64 pods, as people write them."""
    pods = dice.choice((1, 1, 1, 2, 4, 8, 64))
    template = {"spec": _pod_spec(dice, gpus)}
    small = {"spec": _pod_spec(dice, 0)}
    job = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "suspend": True}
    worker = {"replicas": pods, "restartPolicy": "Never", "template": template}
    head = {"rayStartParams": {}, "template": small}
    ray_workers = {"groupName": "w", "replicas": pods, "minReplicas": pods, "maxReplicas": pods}
    kinds: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("batch/v1", "Job", {**job, "template": template}),
        (
            *("kubeflow.org/v1", "PyTorchJob"),
            {"pytorchReplicaSpecs": {"Master": {**worker, "replicas": 1}, "Worker": worker}},
        ),
        (
            *("kubeflow.org/v2beta1", "MPIJob"),
            {"mpiReplicaSpecs": {"Launcher": {"replicas": 1, "template": small}, "Worker": worker}},
        ),
        (
            *("jobset.x-k8s.io/v1alpha2", "JobSet"),
            {
                "replicatedJobs": [
                    {"name": "w", "replicas": 1, "template": {"spec": {**job, "template": template}}}
                ]
            },
        ),
        (
            *("ray.io/v1", "RayJob"),
            {
                "entrypoint": "python train.py",
                "shutdownAfterJobFinishes": True,
                "rayClusterSpec": {
                    "headGroupSpec": head,
                    "workerGroupSpecs": [{**ray_workers, "rayStartParams": {}, "template": template}],
                },
            },
        ),
        ("v1", "Pod", template["spec"]),
    )
    api_version, kind, spec = dice.choice(kinds)
    metadata = {"name": name, "namespace": namespace, "labels": {"kueue.x-k8s.io/queue-name": "main"}}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def _pod_spec(dice: random.Random, gpus: int) -> dict[str, Any]:
    """Any two are rarely alike: what is asked beside GPUs differs from job to job."""
    cpu, memory = dice.choice((2, 4, 7, 8, 12)), dice.choice((8, 16, 24, 48, 64))
    resources = {"cpu": str(cpu), "memory": f"{memory}Gi"} | ({GPU: str(gpus)} if gpus else {})
    container = {
        "name": "main",
        "image": "registry.example.com/train:1",
        "command": ["python", "train.py"],
        "env": [{"name": f"OPTION_{at}", "value": "x" * 40} for at in range(dice.randrange(40))],
        "resources": {"requests": resources, "limits": resources},
    }
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    if dice.random() < 0.2:
        spec["nodeSelector"] = {"pool": dice.choice(FLAVORS)}
    if dice.random() < 0.5:
        spec["tolerations"] = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
    return spec


def _state(size: float) -> ClusterState:
    """Kueue counts GPUs only, and nodes have memory too."""
    state = settled(cluster(size))
    kueue = replace(state.schedulers.kueue, excluded_prefixes=("cpu", "memory"))
    nodes = {
        uid: replace(node, allocatable={**node.allocatable, "memory": 1 << 40})
        for uid, node in state.nodes.items()
    }
    return replace(state, nodes=nodes, schedulers=replace(state.schedulers, kueue=kueue))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    options = (("size", 1.0), ("rate", 50.0), ("seconds", 20.0), ("stub-ms", 10.0))
    for option, usual in options:
        parser.add_argument(f"--{option}", type=float, default=usual)
    parser.add_argument(
        "--stub", action="store_true", help="work of --stub-ms instead of the schedulers' rules"
    )
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--queues", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
