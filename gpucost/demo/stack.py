"""The demo's stack: exporters, Prometheus with rules, Alertmanager and a chat room, each on loopback.

gpucost itself is not started here: ``Stack.settings_text`` are the settings that ``gpucost serve`` needs to
read from this Prometheus and to post into this room; Alertmanager posts to ``service_url``.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar

from gpucost.demo.backfill import Backfill
from gpucost.demo.chat import ROOM, ChatServer, Room
from gpucost.demo.exporters import (
    COLLECTOR,
    COLLECTOR_JOB,
    GPU_JOB,
    SERVERS_JOB,
    SERVICE_JOB,
    Exporters,
    Target,
)
from gpucost.demo.incident import Incident
from gpucost.demo.processes import Program, create_blocks, running
from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS
from gpucost.simulator.demo import PRICES_NAME, TEAMS_NAME, demo_prices_text, demo_teams_text

SCRAPE_S = 5
DATA = "prometheus"
LEDGER = "ledger.db"
_INCIDENT_STEP_MS = 15 * SECOND_MS
_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, slots=True)
class History:
    """How much was scraped before the demo begins, and how often, in ms."""

    length_ms: int = 3 * HOUR_MS
    step_ms: int = MINUTE_MS


SHORT = History(30 * MINUTE_MS, 30 * SECOND_MS)
"""Enough for the detectors, and made in seconds."""


@dataclass(frozen=True)
class Stack:
    """Addresses of what runs, and the folder with its files and logs."""

    folder: Path
    prometheus: str
    alertmanager: str
    chat: ChatServer
    exporters: PageServer
    history: History

    def begin(self, incident: Incident) -> None:
        """The incident's job appears, with the minutes that it is old already. Prometheus looks for new
        blocks once a minute. Raises NotStarted where it does not take them."""
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
                # A window is settled only when no idle job can appear in it any more (Incident.BEFORE_MS).
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


@contextmanager
def stack(
    exporters: Exporters,
    folder: Path,
    service_url: str,
    ports: Ports,
    history: History,
    rule_files: Sequence[Path] = (),
) -> Iterator[Stack]:
    """Start all of it, and end it in order. Raises InputError, naming the Debian package, for a program that
    is not there, and NotStarted for one that does not get ready."""
    _write(folder / PRICES_NAME, demo_prices_text())
    _write(folder / TEAMS_NAME, demo_teams_text())
    now_ms = time.time_ns() // 1_000_000
    data = folder / DATA
    create_blocks(_samples(exporters, history, now_ms), data)
    with ExitStack() as opened:
        pages = opened.enter_context(_serving(PageServer(exporters)))
        chat = opened.enter_context(_serving(ChatServer(Room(secrets.token_urlsafe(16)))))
        hosts = [f"127.0.0.1:{port}" for port in (ports.prometheus, ports.alertmanager)]
        _write(folder / "alertmanager.yml", _alertmanager_config(service_url))
        _write(folder / "prometheus.yml", _prometheus_config(pages, service_url, hosts[1], rule_files))
        opened.enter_context(running(_alertmanager(folder, hosts[1])))
        opened.enter_context(running(_prometheus(folder, data, hosts[0])))
        yield Stack(folder, f"http://{hosts[0]}", f"http://{hosts[1]}", chat, pages, history)


@dataclass(frozen=True, slots=True)
class Ports:
    """Free loopback ports."""

    prometheus: int
    alertmanager: int


class PageServer(ThreadingHTTPServer):
    """All exporters on one port: ``/JOB/INSTANCE/metrics`` is the page of a target as of now."""

    daemon_threads = True

    def __init__(self, exporters: Exporters) -> None:
        super().__init__(("127.0.0.1", 0), _PageHandler)
        self._exporters = exporters
        self._lock = threading.Lock()
        self._at_ms = 0
        self._pages: dict[str, tuple[Target, str]] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def targets(self) -> tuple[Target, ...]:
        return tuple(target for target, _ in self._current().values())

    def page(self, path: str) -> str | None:
        found_page = self._current().get(path)
        return None if found_page is None else found_page[1]

    def history(self, from_ms: int, to_ms: int) -> Iterator[str]:
        """OpenMetrics text of the incident's job in ``[from_ms, to_ms)``."""
        with self._lock:
            pages = dict(self._exporters.pages(to_ms))
            backfill = Backfill(with_up=False)
            for at_ms in range(from_ms, to_ms, _INCIDENT_STEP_MS):
                for target, page in self._exporters.incident_pages(pages[COLLECTOR], at_ms):
                    backfill.add(page, target.labels(self._exporters.cluster.name), at_ms)
            return backfill.text()

    def _current(self) -> dict[str, tuple[Target, str]]:
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
        with contextlib.suppress(ConnectionError):  # who asked may have gone
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: Prometheus says what it could not read."""


def path_of(target: Target) -> str:
    """Where a target's page is."""
    return f"/{target.job}/{target.instance}/metrics"


def _samples(exporters: Exporters, history: History, now_ms: int) -> Iterator[str]:
    backfill = Backfill()
    last_ms = now_ms - SCRAPE_S * 1000
    for at_ms in range(last_ms - history.length_ms, last_ms + 1, history.step_ms):
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


def _prometheus(folder: Path, data: Path, host: str) -> Program:
    arguments = [
        f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={data}",
        f"--web.listen-address={host}", "--log.level=warn",
    ]  # fmt: skip
    return Program("prometheus", arguments, f"http://{host}/-/ready", folder / "prometheus.log")


def _alertmanager(folder: Path, host: str) -> Program:
    arguments = [
        f"--config.file={folder / 'alertmanager.yml'}", f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={host}", "--cluster.listen-address=", "--log.level=warn",
    ]  # fmt: skip
    return Program(
        "prometheus-alertmanager", arguments, f"http://{host}/-/ready", folder / "alertmanager.log"
    )


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
