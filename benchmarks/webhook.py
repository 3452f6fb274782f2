"""How long the admission webhook takes: 50 reviews a second over loopback TLS, while the state changes.

    python benchmarks/webhook.py [--queues 1000] [--pending 10000] [--admitted 20000] [--nodes 5000]
                                 [--rate 50] [--seconds 20] [--stub-ms 10]

The advisor and its background thread run here, as in ``gpucost serve``, and the listener in its process; who
asks runs in one of its own, sends at fixed times whatever is still open, and counts from then. Half of the
reviews are of jobs with GPUs in a Kueue queue. The state counts as changed at every look, which is the worst
that can happen: it is worked out again and again beside the reviews. ``still_*`` are without that.
``burst_*`` is ten times the rate for a quarter of the time. With ``--stub`` an advice is ``--stub-ms`` of
work instead of the rules of the schedulers, to see what the rest takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from statistics import quantiles
from typing import Any

from gpucost.advisor.advise import advise
from gpucost.advisor.answers import Advice, Decision, Layer, Subject
from gpucost.advisor.knowledge import Knowledge
from gpucost.api.webhook.adviser import Adviser
from gpucost.api.webhook.process import WebhookProcess
from gpucost.api.webhook.server import TlsFiles
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.jobs import Namespace
from gpucost.cluster.kueue import (
    Assignment,
    ClusterQueue,
    FlavorResource,
    LocalQueue,
    Preemption,
    Quota,
    ResourceFlavor,
    ResourceGroup,
    Workload,
)
from gpucost.cluster.manifest import JobManifest
from gpucost.cluster.nodes import Node
from gpucost.cluster.objects import Condition, Meta
from gpucost.cluster.overview import Overview
from gpucost.cluster.pods import Pod, PodPhase, PodSet, PodTemplate
from gpucost.cluster.state import ClusterState
from gpucost.kube.manifests import manifest_of, reread
from gpucost.service.advising import Advise, Advising, Engine

LIMITS = {"p99_ms": 200, "burst_p99_ms": 200}
TOKEN = "token-of-the-benchmark"
SEED = 20261121
AT_MS = 1_795_219_200_000
GPU, FLAVOR = "nvidia.com/gpu", "h100"
POD = {GPU: 1, "cpu": 8_000, "memory": 64 << 30}
"""What a pod of a workload asks for; quota and nodes have the same of each for a GPU, or more."""
CONNECTIONS = 16
COHORT_SIZE = 10


def main() -> None:
    args = _arguments()
    if args.client:
        _client(args)
        return
    figures: dict[str, Any] = {
        name: getattr(args, name) for name in ("queues", "pending", "admitted", "nodes")
    }
    engine = _engine(args)
    if args.stub:
        figures["stub_ms"] = args.stub_ms
    watched = Busy(_state(args))
    advising = Advising(watched, engine, TeamRules.default(), has_webhook=True)
    begun = time.perf_counter()
    advising.refresh()
    figures["prepare_s"] = time.perf_counter() - begun
    with _served(advising) as port:
        still = _asked(args, port, args.rate, args.seconds / 4)
        watched.is_busy = True
        advising.start()
        busy = _asked(args, port, args.rate, args.seconds)
        burst = _asked(args, port, args.rate * 10, args.seconds / 4)
        advising.close()
    figures |= {"still_p50_ms": still["p50_ms"], "still_p99_ms": still["p99_ms"], "most_ms": busy["most_ms"]}
    figures |= {"p50_ms": busy["p50_ms"], "burst_p50_ms": burst["p50_ms"], "prepared": watched.taken}
    figures |= {f"reviews_{result}": count for result, count in advising.status.reviews().items()}
    figures |= {"advised": busy["advised"], "burst_advised": burst["advised"]}
    figures["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    ratios = {"p99_ms": busy["p99_ms"], "burst_p99_ms": burst["p99_ms"]}
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

    def overview(self, cluster: str) -> Overview:
        del cluster
        self.taken += 1
        # Another object, so that nothing of the one before is remembered.
        return Overview(replace(self.state))


@contextmanager
def _served(advising: Advising) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.TemporaryDirectory() as folder:
        tls = _certificate(Path(folder))
        webhook = WebhookProcess(listener, Adviser(advising), advising.status, TOKEN, 150, 32, tls)
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


def _engine(args: argparse.Namespace) -> Engine:
    def no_explanation(kind: str, namespace: str, name: str, known: Knowledge) -> None:
        del kind, namespace, name, known

    return Engine(_stub(args.stub_ms) if args.stub else advise, no_explanation, manifest_of, reread)


def _stub(stub_ms: float) -> Advise:
    def stub(manifest: JobManifest, known: Knowledge, with_suggestions: bool = True) -> Advice:
        del known, with_suggestions
        until = time.thread_time() + stub_ms / 1000
        while time.thread_time() < until:
            pass
        subject = Subject("Job", manifest.namespace, manifest.name)
        return Advice(subject, Decision.WAITS, Layer.QUOTA, "Stub", "waits", (), "kueue", "stub")

    return stub


def _asked(args: argparse.Namespace, port: int, rate: float, seconds: float) -> dict[str, float]:
    """What the client measured."""
    command = [sys.executable, __file__, "--client", "--port", str(port), "--queues", str(args.queues)]
    command += ["--rate", str(rate), "--seconds", str(seconds)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(found.stdout))


def _client(args: argparse.Namespace) -> None:
    answers = asyncio.run(_ask(args))
    took = [seconds * 1000 for seconds, _ in answers]
    cuts = quantiles(took, n=100)
    print(
        json.dumps(
            {
                "p50_ms": cuts[49],
                "p99_ms": cuts[98],
                "most_ms": max(took),
                "advised": sum(has_advice for _, has_advice in answers) / len(answers),
            }
        )
    )


async def _ask(args: argparse.Namespace) -> list[tuple[float, bool]]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await asyncio.open_connection("127.0.0.1", args.port, ssl=context))
    dice = random.Random(SEED)
    count = round(args.rate * args.seconds)
    bodies = [_review(dice, number, args.queues) for number in range(count)]
    answers: list[tuple[float, bool]] = []

    async def one(due: float, sent: bytes) -> None:
        reader, writer = streams = await free.get()
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        found = json.loads(await reader.readexactly(length))
        assert found["response"]["allowed"] is True
        answers.append((time.perf_counter() - due, "warnings" in found["response"]))
        free.put_nowait(streams)

    began, tasks = time.perf_counter() + 0.1, []
    for number, sent in enumerate(bodies):
        due = began + number / args.rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(due, sent)))
    await asyncio.gather(*tasks)
    return answers


def _review(dice: random.Random, number: int, queues: int) -> bytes:
    """A request: a Job of 1 to 64 pods, every other one with GPUs."""
    resources = {"cpu": "8", "memory": "64Gi"} | ({GPU: str(dice.choice((1, 2, 4, 8)))} if number % 2 else {})
    pods = dice.choice((1, 1, 1, 2, 4, 8, 64))
    name = f"queue-{dice.randrange(queues)}"
    labels = {"kueue.x-k8s.io/queue-name": "main"}
    container = {"name": "main", "image": "train", "resources": {"requests": resources, "limits": resources}}
    document = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"job-{number}", "namespace": name, "labels": labels},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "suspend": True,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }
    request = {"uid": str(number), "namespace": name, "operation": "CREATE", "object": document}
    sent = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    body = json.dumps(sent).encode()
    head = f"POST /v1/admission/{TOKEN}?timeout=2s HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _state(args: argparse.Namespace) -> ClusterState:
    """Cohorts of ten queues; workloads of 1 to 8 pods of a GPU each, admitted while their queue has quota."""
    dice = random.Random(SEED)
    active = {"Active": Condition(True, "Ready", "", AT_MS)}
    gpus = 8 * args.nodes // args.queues
    quota = {FlavorResource(FLAVOR, name): Quota(gpus * amount) for name, amount in POD.items()}
    group = (ResourceGroup((*POD,), (FLAVOR,)),)
    policy = Preemption("LowerPriority", "LowerPriority")
    names = [f"queue-{number}" for number in range(args.queues)]
    queues = [
        ClusterQueue(
            _meta(name),
            f"cohort-{number // COHORT_SIZE}",
            groups=group,
            quotas=quota,
            preemption=policy,
            namespace_selector=(),
            weight=Fraction(1),
            conditions=active,
        )
        for number, name in enumerate(names)
    ]
    nodes = [_node(f"node-{number}") for number in range(args.nodes)]
    used: Counter[str] = Counter()
    workloads, pods, seat = [], [], 0
    for number in range(args.pending + args.admitted):
        queue, size = dice.choice(names), dice.choice((1, 1, 1, 2, 4, 8))
        is_held = number < args.admitted and used[queue] + size <= gpus
        used[queue] += size if is_held else 0
        workload = _workload(f"w-{number}", queue, size, dice.choice((0, 0, 0, 100)), is_held)
        workloads.append(workload)
        for index in range(size if is_held else 0):
            pods.append(_pod(f"w-{number}-{index}", queue, workload, f"node-{seat // 8 % args.nodes}"))
            seat += 1
    return ClusterState(
        AT_MS,
        pods=_by_uid(pods),
        nodes=_by_uid(nodes),
        namespaces=_by_uid(Namespace(_meta(name)) for name in names),
        cluster_queues=_by_uid(queues),
        local_queues=_by_uid(LocalQueue(_meta("main", name), name) for name in names),
        flavors=_by_uid([ResourceFlavor(_meta(FLAVOR))]),
        workloads=_by_uid(workloads),
    )


def _meta(name: str, namespace: str = "") -> Meta:
    return Meta(f"{namespace}/{name}", namespace, name, AT_MS - 3_600_000, {}, {})


def _node(name: str) -> Node:
    has = {GPU: 8, "cpu": 192_000, "memory": 2 << 40, "pods": 110}
    return Node(_meta(name), has, has, True, AT_MS - 3_600_000, False)


def _workload(name: str, queue: str, size: int, priority: int, is_held: bool) -> Workload:
    pods = PodSet("main", size, PodTemplate(POD))
    given = (_given(size),) if is_held else ()
    when = AT_MS - 1_800_000
    conditions = {each: Condition(True, each, "", when) for each in ("QuotaReserved", "Admitted")}
    return Workload(
        _meta(name, queue),
        (pods,),
        "main",
        priority,
        cluster_queue=queue if is_held else "",
        assignments=given,
        conditions=conditions if is_held else {},
    )


def _given(size: int) -> Assignment:
    return Assignment(
        "main", dict.fromkeys(POD, FLAVOR), {name: size * amount for name, amount in POD.items()}, size
    )


def _pod(name: str, namespace: str, workload: Workload, node: str) -> Pod:
    labels = {"kueue.x-k8s.io/workload": workload.meta.name}
    meta = replace(_meta(name, namespace), annotations=labels)
    return Pod(meta, PodPhase.RUNNING, PodTemplate(POD), node, AT_MS - 1_800_000)


def _by_uid(objects: Any) -> dict[str, Any]:
    return {each.meta.uid: each for each in objects}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    for name, default in (("queues", 1000), ("pending", 10_000), ("admitted", 20_000), ("nodes", 5000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for option, usual in (("rate", 50.0), ("seconds", 20.0), ("stub-ms", 10.0)):
        parser.add_argument(f"--{option}", type=float, default=usual)
    parser.add_argument(
        "--stub", action="store_true", help="work of --stub-ms instead of the schedulers' rules"
    )
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
