"""README's way from the values to the first report: what the chart renders runs, and says what README says.

The cluster is a simulated one: its hours are in a real Prometheus, its objects in an API server of our own.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpucost.contract.gpu_metrics import GPU_EXPORTER_METRICS
from gpucost.contract.metric_spec import EOF
from gpucost.domain.time import MINUTE_MS, SECOND_MS, Window, parse_instant
from gpucost.simulator.cluster import DEMO_SEED, SimulatedCluster
from tests.exporters.queue import world
from tests.kube.pki import make_pki
from tests.support.cluster.server import ClusterServer
from tests.support.helm_chart import ROOT, Object, Values, merged, needs_helm, objects, one, rendered_settings
from tests.support.pages import blocks, section, values_in
from tests.support.pod import Pod, needs_mounts
from tests.support.ports import free_port
from tests.support.programs import Program
from tests.support.prometheus import create_blocks, needs_prometheus, prometheus_command
from tests.support.replayed_week import few_nodes
from tests.support.service_process import PROGRAM
from tests.support.simulated_metrics.exposition import exposition
from tests.support.tls_front import tls_front

pytestmark = [needs_helm, needs_mounts, pytest.mark.fault(70), pytest.mark.slow]

PATH = section(ROOT / "README.md", "In a cluster: from values to the first report")
COMMANDS = [line.partition("  #")[0].strip() for each in blocks(PATH) for line in each.splitlines()]
BEGAN_MS = parse_instant("2026-10-12T03:00:00Z")
NOW_MS = parse_instant("2026-10-12T06:16:00Z")
"""Three hours have ended since, and settled."""
SCRAPE_MS = 5 * MINUTE_MS
NAMESPACE = "gpucost"  # of the release, which has that name too


def command(pattern: str) -> str:
    """README's one line like that."""
    [found] = [line for line in COMMANDS if re.search(pattern, line)]
    return found


class Cluster:
    """The release of README's values, with its pods, and a laptop from which they are asked."""

    def __init__(self, folder: Path, more: Values, api_port: int, ca: str) -> None:
        [values] = values_in(PATH)
        self.objects = objects(merged(values, more), NAMESPACE, NAMESPACE)
        self.name = values["cluster"]["name"]
        self.folder, self.laptop = folder, folder / "laptop"
        self.laptop.mkdir()
        self._token = {"token": "a-token", "ca.crt": ca, "namespace": "gpucost"}
        self._given = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api_port)}
        ahead_ns = NOW_MS * 1_000_000 - time.time_ns()
        shown = shlex.join([sys.executable, "-c", PROGRAM, str(ahead_ns)])
        self._programs = {"gpucost": f'#!/bin/sh\nexec {shown} "$@"\n'}
        """Its clock shows the end of the hours that are in Prometheus."""
        self.pods: dict[str, Pod] = {}

    def pod(self, name: str) -> Pod:
        """By the name that kubectl has for who makes it, such as ``deploy/gpucost``."""
        if name not in self.pods:
            self.pods[name] = self._made(name)
        return self.pods[name]

    def _made(self, name: str) -> Pod:
        kind, _, of = name.partition("/")
        kinds = {"deploy": "Deployment", "ds": "DaemonSet"}
        workload = self.named(kinds[kind], of)
        template = workload["spec"]["template"]
        volumes = {
            each["name"]: self.named("ConfigMap", each["configMap"]["name"])["data"]
            for each in template["spec"]["volumes"]
            if "configMap" in each
        }
        return Pod(
            self.folder / of,
            template,
            volumes=volumes,
            token=self._token,
            programs=self._programs,
            fields={"spec.nodeName": "gpu-1", "status.hostIP": "127.0.0.1"},
            given=self._given,
        )

    def named(self, kind: str, name: str) -> Object:
        [found] = [each for each in self.objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
        return found

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """A line of README: what it says in a pod, or gpucost on the laptop; ``> FILE`` is a file there."""
        line, _, file = line.partition(" > ")
        where = re.fullmatch(r"kubectl -n gpucost exec (\S+)(?: -c (\S+))? -- (.+)", line)
        if where is not None:
            name, container, words = where.groups()
            done = self.pod(name).run(container or "", *shlex.split(words))
        else:
            program, *rest = shlex.split(line)
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            done = subprocess.run(
                [Path(sys.executable).with_name(program), *rest],
                env={"HOME": str(self.laptop), "PATH": path, "COLUMNS": "120"},
                cwd=self.laptop,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
        if file:
            (self.laptop / file).write_text(done.stdout, encoding="utf-8")
        return done


def scraped(text: Iterable[str], settings: Values) -> Iterator[str]:
    """What a Prometheus has of it that scrapes both exporters by the chart's monitors."""
    state, gpus = settings["gpucost_jobs"]
    exporter = {spec.name.removesuffix("_total") for spec in GPU_EXPORTER_METRICS}
    targets = {job: f'job="{job}",instance="{job}",namespace="{NAMESPACE}"' for job in (state, gpus)}
    for piece in text:
        if piece == EOF:
            break
        lines = []
        for line in piece.splitlines():
            name, brace, rest = line.partition("{")
            if brace and not line.startswith("#"):
                job = gpus if name.removesuffix("_total") in exporter else state
                rest = f",{rest}".replace(',namespace="', ',exported_namespace="')
                line = f"{name}{{{targets[job]}{rest}"
            lines.append(line)
        yield "\n".join(lines) + "\n"
    yield "# TYPE up gauge\n"
    for target in targets.values():
        for at_ms in range(BEGAN_MS, NOW_MS, SCRAPE_MS):
            yield f"up{{{target}}} 1 {at_ms // SECOND_MS}\n"
    yield EOF


def asked(url: str, key: str = "") -> int:
    """The status; 0 while no server answers."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


def until(is_so: Callable[[], bool], log: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, log.read_text("utf-8")[-3000:]
        time.sleep(0.2)


PORT, PROMETHEUS_PORT = free_port(), free_port()
SERVICE = f"http://127.0.0.1:{PORT}"
OURS: Values = {
    "prometheus": {"url": f"http://127.0.0.1:{PROMETHEUS_PORT}"},
    "networkPolicies": {"enabled": False},  # that address is in no namespace
    # One machine has the ports of all; and no test waits for a minute here.
    "service": {
        "extraEnv": [{"name": "GPUCOST_API__PORT", "value": str(PORT)}],
        "config": {
            "ingest": {"poll": "1s", "retry_min": "200ms", "retry_max": "1s"},
        },
    },
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    pki = make_pki(folder)
    with ExitStack() as stack:
        api = stack.enter_context(ClusterServer())
        api.put(world.node("gpu-1"))
        port = stack.enter_context(tls_front(int(api.url.rpartition(":")[2]), pki.tls()))
        yield Cluster(folder, OURS, port, pki.ca.read_text("utf-8"))


def probe(container: Object, name: str) -> str:
    """The address of a probe, at the port that stands for the container's here."""
    get = container[name]["httpGet"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert (ports[get["port"]], get["scheme"]) == (8080, "HTTP")
    return f"{SERVICE}{get['path']}"


@needs_prometheus
@pytest.mark.prometheus
def test_from_values_to_the_first_report(cluster: Cluster, tmp_path: Path) -> None:
    frames = few_nodes(SimulatedCluster(DEMO_SEED, name=cluster.name).frames)
    text = exposition(frames, SCRAPE_MS, Window(BEGAN_MS, NOW_MS))
    create_blocks(scraped(text, rendered_settings(cluster.objects)["prometheus"]), tmp_path / "data")
    serving = prometheus_command(tmp_path / "data", f"127.0.0.1:{PROMETHEUS_PORT}")
    ready = f"{OURS['prometheus']['url']}/-/ready"
    prometheus = Program("prometheus", serving, tmp_path / "log", lambda: asked(ready) == 200, tmp_path)
    pod, log = cluster.pod("deploy/gpucost"), tmp_path / "gpucost.log"
    upgraded = pod.run("upgrade")
    assert (upgraded.returncode, upgraded.stderr) == (0, "")
    [container] = pod.spec["containers"]
    alive, is_ready = probe(container, "livenessProbe"), probe(container, "readinessProbe")
    with Program("gpucost", pod.command("gpucost"), log, lambda: asked(alive) == 200, tmp_path) as service:
        assert asked(is_ready) == 200, "it is 1/1 before there is anything to report"
        key = log_in(cluster)
        early = report(cluster)
        assert (early.returncode, "the ledger is empty" in early.stderr) == (2, True), early.stderr
        until(lambda: f"{OURS['prometheus']['url']} cannot be reached" in log.read_text("utf-8"), log)
        with prometheus:
            until(lambda: asked(f"{SERVICE}/v1/reports/2026-10", key) == 200, log)
            check_report(cluster)
            service.stop()
    assert service.process is not None
    assert service.process.returncode == 0
    assert key not in log.read_text("utf-8")
    assert "Traceback" not in log.read_text("utf-8")


def log_in(cluster: Cluster) -> str:
    """Step 4; the key."""
    made = cluster.run(command("gpucost key add"))
    assert made.returncode == 0, made.stderr
    key = (cluster.laptop / "me.key").read_text("utf-8").strip()
    assert key not in made.stderr
    service = one(cluster.objects, "Service", "service")
    [port] = service["spec"]["ports"]
    assert f" svc/{service['metadata']['name']} 8080:{port['port']} " in command("port-forward")
    line = command("gpucost login")
    assert " http://localhost:8080 " in line
    done = cluster.run(line.replace(":8080", f":{PORT}"))
    assert done.returncode == 0, done.stderr
    told = "http://localhost:8080: me, admin in all clusters (key)"
    assert f"*You should see* `{told}`" in PATH
    assert done.stdout == f"{told.replace(':8080', f':{PORT}')}\n"
    assert [asked(f"{SERVICE}/v1/me", each) for each in ("", key)] == [401, 200]
    return key


def report(cluster: Cluster, more: str = "") -> subprocess.CompletedProcess[str]:
    """Step 5, for the month that there is."""
    line = command(rf"^gpucost report \d{{4}}-\d\d{more}$")
    return cluster.run(re.sub(r"\d{4}-\d\d", "2026-10", line))


def check_report(cluster: Cluster) -> None:
    """It has what README says that one sees."""
    table, page = report(cluster), report(cluster, " --format html --output report.html")
    assert (table.returncode, page.returncode) == (0, 0), table.stderr + page.stderr
    conserved = "difference 0 GPU-ms, 0 nano-USD"
    assert f"`{conserved}`" in PATH
    windows = f" {cluster.name}: 3 windows until 2026-10-12T06:00:00Z, observed "
    for words in (conserved, " Teams\n", " Costliest jobs\n", " unallocated ", windows):
        assert words in re.sub(" +\n", "\n", table.stdout), words
    assert conserved in (cluster.laptop / "report.html").read_text("utf-8")


def test_the_collector_reads_everything(cluster: Cluster) -> None:
    done = cluster.run(command("gpucost-queue-collector --check"))
    assert (done.returncode, done.stderr) == (0, "")
    *rows, total = done.stdout.splitlines()
    assert re.fullmatch(r"\d+ collections are read, \d+ are not installed", total)
    assert re.search(r"^nodes +v1 +1$", "\n".join(rows), re.MULTILINE)
    assert "`collections are read`" in PATH
    assert "`not installed`" in PATH


def test_the_exporter_says_what_it_misses(cluster: Cluster) -> None:
    """Here it misses the driver, and a kubelet that lets it in."""
    done = cluster.run(command("gpucost-gpu-exporter --once"))
    assert (done.returncode, done.stderr) == (0, "")
    told = "missing: who holds the GPUs"
    assert f"{told}: " in done.stdout
    assert "missing: the GPU driver: " in done.stdout
    for page in (PATH, (ROOT / "docs" / "install.md").read_text("utf-8")):
        assert f"`{told}`" in page
