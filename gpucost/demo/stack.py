"""The demo's stack: exporters, Prometheus with rules, Alertmanager and a chat room, each on loopback.

gpucost itself is not started here: ``DemoStack.settings_text`` are the settings that ``gpucost serve`` needs
to read from this Prometheus and to post into this room; Alertmanager posts to ``service_url``.

Programs are found, started, waited for, and always ended again. Pages of known instants become one
OpenMetrics text with times for promtool.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar

import httpx2

from gpucost.contract.metric_spec import EOF, escape
from gpucost.demo.chat import ROOM, ChatRoom, ChatServer
from gpucost.demo.exporters import (
    COLLECTOR,
    COLLECTOR_JOB,
    GPU_JOB,
    SERVERS_JOB,
    SERVICE_JOB,
    ScrapeTarget,
    SimulatedExporters,
)
from gpucost.demo.incident import IdleIncident
from gpucost.domain.errors import GpuCostError, InputError
from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS, Window
from gpucost.simulator.cluster import PRICES_NAME, TEAMS_NAME, demo_prices_text, demo_teams_text

# Debian's package of each program.
_PACKAGES = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
}
PROGRAMS = tuple(_PACKAGES)
_READY_S, _END_S, _PAUSE_S = 60.0, 20.0, 0.05
_TAIL = 2_000


class NotStarted(GpuCostError):
    """A program that ended at once, or did not get ready; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class ChildProgram:
    """``ready`` is the URL that answers 200 once it is."""

    name: str
    arguments: Sequence[str]
    ready: str
    log: Path


def found(name: str) -> str:
    """The path of a program. Raises InputError, naming Debian's package, where there is none."""
    path = shutil.which(name)
    if path is None:
        package = _PACKAGES.get(name, name)
        raise InputError("program", name, f"an installed one (Debian: apt-get install {package})")
    return path


@contextmanager
def running(program: ChildProgram) -> Iterator[None]:
    """Start a program, wait until it is ready, and end it. Raises InputError and NotStarted.

    A group of its own: Ctrl-C comes to us, and we end it in order.
    """
    command = [found(program.name), *program.arguments]
    with (
        program.log.open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True) as process,
    ):
        try:
            _wait(program, process)
            yield
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(program: ChildProgram, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NotStarted(f"{program.name} ended at once: {_tail(program.log)}")
        try:
            if ask(program.ready, 1.0).status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(_PAUSE_S)
    raise NotStarted(f"{program.name} was not ready after {_READY_S:.0f} s: {_tail(program.log)}")


def ask(url: str, timeout_s: float) -> httpx2.Response:
    """A GET of a server on this machine, over plain HTTP. Raises httpx2.TransportError."""
    unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the usual one takes time to make
    return httpx2.get(url, timeout=timeout_s, trust_env=False, verify=unused)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-_TAIL:].strip() or "its log is empty"


def create_blocks(text: Iterator[str], data: Path) -> None:
    """Blocks of one OpenMetrics text in Prometheus' folder ``data``. Raises InputError and NotStarted."""
    data.mkdir(parents=True, exist_ok=True)
    source = data.parent / f"{data.name}.openmetrics"
    with source.open("w", encoding="utf-8") as file:
        file.writelines(text)
    arguments = ["tsdb", "create-blocks-from", "openmetrics", "--quiet", str(source), str(data)]
    done = subprocess.run([found("promtool"), *arguments], capture_output=True, text=True, check=False)
    source.unlink()
    if done.returncode:
        raise NotStarted(f"promtool refused the samples: {(done.stderr or done.stdout)[-_TAIL:]}")


_EMPTY = re.compile(r'(?<=[{,])[a-zA-Z_][a-zA-Z0-9_]*="",?')
_UP = "up"


class MetricBackfill:
    """Add pages in order of time, then take ``text``: a family stands in it once, as the format requires.

    ``with_up``: with the series ``up`` that a scrape leaves, 1.
    """

    def __init__(self, *, with_up: bool = True) -> None:
        self._with_up = with_up
        self._headers: dict[str, str] = {}
        self._lines: dict[str, list[str]] = {}
        self._series: dict[str, dict[str, str]] = {}

    def add(self, page: str, target_labels: Mapping[str, str], at_ms: int) -> None:
        """One scrape; labels without a value are left out, as Prometheus does."""
        prefix = ",".join(f'{name}="{escape(value)}"' for name, value in target_labels.items())
        time = f" {at_ms // 1000}.{at_ms % 1000:03d}\n"
        series = self._series.setdefault(prefix, {})
        family, header, lines = "", list[str](), list[str]()
        for line in page.splitlines():
            if line.startswith("#"):
                if line == EOF.rstrip():
                    break
                name = line.split(" ", 3)[2]
                if name != family:
                    family, header = name, []
                    lines = self._lines.setdefault(name, [])
                header.append(line)
                if name not in self._headers or len(header) > 1:
                    self._headers.setdefault(name, "")
                    if line not in self._headers[name]:
                        self._headers[name] += f"{line}\n"
                continue
            labelled, _, value = line.rpartition(" ")
            named = series.get(labelled)
            if named is None:
                named = series[labelled] = _named(labelled, prefix)
            lines.append(f"{named} {value}{time}")
        if self._with_up:
            self._up(prefix, time)

    def text(self) -> Iterator[str]:
        """All of it, with the closing EOF."""
        for name, lines in self._lines.items():
            if lines:
                yield self._headers[name]
                yield from lines
        yield EOF

    def _up(self, prefix: str, time: str) -> None:
        self._headers.setdefault(_UP, f"# TYPE {_UP} gauge\n")
        self._lines.setdefault(_UP, []).append(f"{_UP}{{{prefix}}} 1{time}")


def _named(labelled: str, prefix: str) -> str:
    """The series with the labels of its target, without those that are empty."""
    name, brace, rest = labelled.partition("{")
    own = _EMPTY.sub("", brace + rest)[1:-1].rstrip(",") if brace else ""
    return f"{name}{{{prefix}{',' if own else ''}{own}}}"


SCRAPE_S = 5
DATA = "prometheus"
LEDGER = "ledger.db"
_INCIDENT_STEP_MS = 15 * SECOND_MS
_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, slots=True)
class ScrapeHistory:
    """How much was scraped before the demo begins, and how often, in ms."""

    length_ms: int = 3 * HOUR_MS
    step_ms: int = MINUTE_MS


SHORT = ScrapeHistory(30 * MINUTE_MS, 30 * SECOND_MS)
"""Enough for the detectors, and made in seconds."""


@dataclass(frozen=True)
class DemoStack:
    """Addresses of what runs, and the folder with its files and logs."""

    folder: Path
    prometheus: str
    alertmanager: str
    chat: ChatServer
    exporters: PageServer
    history: ScrapeHistory

    def begin(self, incident: IdleIncident) -> None:
        """The incident's job appears, with its history so far. Prometheus checks for new blocks once a
        minute. Raises NotStarted where it does not load them."""
        now_ms = time.time_ns() // 1_000_000
        since_ms = incident.begin(now_ms)
        create_blocks(self.exporters.history(since_ms, now_ms), self.folder / DATA)

    def settings_text(self, port: int) -> str:
        """Settings of ``gpucost serve`` on this stack, on ``port`` of loopback. JSON is YAML too."""
        folder, gap = self.folder, f"{self.history.step_ms * 3 // 2 // SECOND_MS}s"
        return json.dumps(
            {
                "ledger": {"url": f"sqlite:///{folder / LEDGER}"},
                "prometheus": {
                    "url": self.prometheus, "cluster": "demo", "activity_step": "1m",
                    "max_gap": gap, "lateness": gap,
                },
                "pricing": {"book": str(folder / PRICES_NAME)},
                "teams": {"rules": str(folder / TEAMS_NAME)},
                # A window is settled only when no idle job can appear in it any more (incident.BEFORE_MS).
                "ingest": {"window": "5m", "batch": "1h", "lateness": "15m", "poll": "10s", "backfill": "3h"},
                "detectors": {
                    "interval": "10s",
                    "idle_allocation": {
                        "start_grace": "1s", "longest_start": "1s", "batch_from_start": "5m",
                        "batch_stop_from_start": "5m",
                    },
                },
                "api": {"auth": "off", "port": port},
                "notify": {
                    "base_url": f"http://127.0.0.1:{port}",
                    "channels": [
                        {
                            "name": "gpu-costs", "service": "slack", "url": self.chat.url,
                            "token": self.chat.room.token, "room": ROOM, "sees_all": True,
                            "allow_http": True, "allow_private": True,
                        }
                    ],
                    "routes": [{"channels": ["gpu-costs"]}],
                    "cool_down": "1m", "update_every": "10s",
                },
            },
            indent=2,
        )  # fmt: skip


WatchedStep = Callable[[str, int], Callable[[str, Window], None]]
"""Told a step and how many parts it has; what it returns is told each part: of which cluster, and when."""


def unwatched(step: str, parts: int) -> Callable[[str, Window], None]:
    """Nobody is told."""
    del step, parts
    return lambda _cluster, _window: None


@contextmanager
def stack(
    exporters: SimulatedExporters,
    folder: Path,
    service_url: str,
    ports: LoopbackPorts,
    history: ScrapeHistory,
    rule_files: Sequence[Path] = (),
    watch: WatchedStep = unwatched,
) -> Iterator[DemoStack]:
    """Start all of it, and end it in order. Raises InputError, naming the Debian package, for a program that
    is not there, and NotStarted for one that does not get ready."""
    _write(folder / PRICES_NAME, demo_prices_text())
    _write(folder / TEAMS_NAME, demo_teams_text())
    now_ms = time.time_ns() // 1_000_000
    data = folder / DATA
    create_blocks(_samples(exporters, history, now_ms, watch), data)
    with ExitStack() as opened:
        pages = opened.enter_context(_serving(PageServer(exporters)))
        chat = opened.enter_context(_serving(ChatServer(ChatRoom(secrets.token_urlsafe(16)))))
        hosts = [f"127.0.0.1:{port}" for port in (ports.prometheus, ports.alertmanager)]
        _write(folder / "alertmanager.yml", _alertmanager_config(service_url))
        _write(folder / "prometheus.yml", _prometheus_config(pages, service_url, hosts[1], rule_files))
        watch("starting Prometheus and Alertmanager", 1)
        opened.enter_context(running(_alertmanager(folder, hosts[1])))
        opened.enter_context(running(_prometheus(folder, data, hosts[0])))
        yield DemoStack(folder, f"http://{hosts[0]}", f"http://{hosts[1]}", chat, pages, history)


@dataclass(frozen=True, slots=True)
class LoopbackPorts:
    """Free loopback ports."""

    prometheus: int
    alertmanager: int


class PageServer(ThreadingHTTPServer):
    """All exporters on one port: ``/JOB/INSTANCE/metrics`` is the current page of a target."""

    daemon_threads = True

    def __init__(self, exporters: SimulatedExporters) -> None:
        super().__init__(("127.0.0.1", 0), _PageHandler)
        self._exporters = exporters
        self._lock = threading.Lock()
        self._at_ms = 0
        self._pages: dict[str, tuple[ScrapeTarget, str]] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def targets(self) -> tuple[ScrapeTarget, ...]:
        return tuple(target for target, _ in self._current().values())

    def page(self, path: str) -> str | None:
        found_page = self._current().get(path)
        return None if found_page is None else found_page[1]

    def history(self, from_ms: int, to_ms: int) -> Iterator[str]:
        """OpenMetrics text of the incident's job in ``[from_ms, to_ms)``."""
        with self._lock:
            pages = dict(self._exporters.pages(to_ms))
            backfill = MetricBackfill(with_up=False)
            for at_ms in range(from_ms, to_ms, _INCIDENT_STEP_MS):
                for target, page in self._exporters.incident_pages(pages[COLLECTOR], at_ms):
                    backfill.add(page, target.labels(self._exporters.cluster.name), at_ms)
            return backfill.text()

    def _current(self) -> dict[str, tuple[ScrapeTarget, str]]:
        """Made anew once a second at most: all targets are scraped within one interval."""
        with self._lock:
            now_ms = time.time_ns() // 1_000_000
            if now_ms - self._at_ms >= SCRAPE_S * 500:
                self._pages = {
                    path_of(target): (target, page) for target, page in self._exporters.pages(now_ms)
                }
                self._at_ms = now_ms
            return self._pages


T = TypeVar("T", PageServer, ChatServer)


@contextmanager
def _serving(server: T) -> Iterator[T]:
    thread = threading.Thread(target=server.serve_forever, name=type(server).__name__, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _PageHandler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        page = self.server.page(self.path)
        content = (page or "no such target\n").encode()
        self.send_response(404 if page is None else 200)
        self.send_header("Content-Type", "text/plain" if page is None else _TYPE)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client may have gone
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: Prometheus reports what it could not read."""


def path_of(target: ScrapeTarget) -> str:
    """The path of a target's page."""
    return f"/{target.job}/{target.instance}/metrics"


def _samples(
    exporters: SimulatedExporters, history: ScrapeHistory, now_ms: int, watch: WatchedStep
) -> Iterator[str]:
    backfill = MetricBackfill()
    last_ms = now_ms - SCRAPE_S * 1000
    instants = range(last_ms - history.length_ms, last_ms + 1, history.step_ms)
    advance = watch("Prometheus' past", len(instants))
    for at_ms in instants:
        advance(exporters.cluster.name, Window(at_ms, at_ms + history.step_ms))
        for target, page in exporters.pages(at_ms):
            backfill.add(page, target.labels(exporters.cluster.name), at_ms)
    return backfill.text()


def _prometheus_config(
    pages: PageServer, service_url: str, alertmanager: str, rule_files: Sequence[Path]
) -> str:
    host = pages.address.removeprefix("http://")
    scrapes: list[dict[str, object]] = []
    for job in (COLLECTOR_JOB, GPU_JOB, SERVERS_JOB):
        scrapes += [
            {
                "job_name": f"{job}/{target.instance}",
                "metrics_path": path_of(target),
                "honor_labels": job == SERVERS_JOB,
                "static_configs": [
                    {
                        "targets": [host],
                        "labels": {"cluster": "demo", "job": job, "instance": target.instance},
                    }
                ],
            }
            for target in pages.targets()
            if target.job == job
        ]
    service = service_url.removeprefix("http://")
    scrapes.append(
        {"job_name": SERVICE_JOB, "static_configs": [{"targets": [service], "labels": {"cluster": "demo"}}]}
    )
    interval = f"{SCRAPE_S}s"
    return json.dumps(
        {
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "rule_files": [str(file) for file in rule_files],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
            "scrape_configs": scrapes,
        },
        indent=2,
    )


def _alertmanager_config(service_url: str) -> str:
    hook = {"url": f"{service_url}/v1/alerts/alertmanager", "send_resolved": True, "max_alerts": 200}
    return json.dumps(
        {
            "route": {
                "receiver": "gpucost", "group_by": ["alertname", "cluster", "team", "finding"],
                "group_wait": "1s", "group_interval": "5s", "repeat_interval": "4h",
                "routes": [{"matchers": ["alertname = GpuCostWatchdog"], "receiver": "nobody"}],
            },
            "receivers": [{"name": "gpucost", "webhook_configs": [hook]}, {"name": "nobody"}],
        },
        indent=2,
    )  # fmt: skip


def _prometheus(folder: Path, data: Path, host: str) -> ChildProgram:
    arguments = [
        f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={data}",
        f"--web.listen-address={host}", "--log.level=warn",
    ]  # fmt: skip
    return ChildProgram("prometheus", arguments, f"http://{host}/-/ready", folder / "prometheus.log")


def _alertmanager(folder: Path, host: str) -> ChildProgram:
    arguments = [
        f"--config.file={folder / 'alertmanager.yml'}", f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={host}", "--cluster.listen-address=", "--log.level=warn",
    ]  # fmt: skip
    return ChildProgram(
        "prometheus-alertmanager", arguments, f"http://{host}/-/ready", folder / "alertmanager.log"
    )


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
