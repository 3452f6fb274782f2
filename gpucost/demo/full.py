"""``gpucost demo --full``: the stack with a ``gpucost serve`` on it."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpucost.demo.clock import cluster_around
from gpucost.demo.exporters import Exporters
from gpucost.demo.incident import Incident
from gpucost.demo.ledger import past_of
from gpucost.demo.processes import PROGRAMS, Program, found, running
from gpucost.demo.stack import LEDGER, History, Ports, Stack, stack
from gpucost.domain.errors import InputError, Remark
from gpucost.domain.time import HOUR_MS, Window
from gpucost.reports.week import Week
from gpucost.service.settings_detectors import DetectorsSettings
from gpucost.simulator.cluster import SimulatedCluster
from gpucost.simulator.demo import DEMO_SEED

CONFIG = "config.yaml"
RULES = "gpucost.rules.yaml"
_KNOWN_MS = HOUR_MS
_SERVE = "from gpucost.cli import main; main()"


@dataclass(frozen=True)
class Full:
    """What runs: ``service`` is the address of gpucost's API."""

    stack: Stack
    service: str
    incident: Incident

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """Where to look, with what is there."""
        return (
            ("gpucost: findings", f"{self.service}/v1/findings"),
            ("gpucost: metrics", f"{self.service}/metrics"),
            ("Prometheus", f"{self.stack.prometheus}/graph"),
            ("Prometheus: alerts", f"{self.stack.prometheus}/alerts"),
            ("Alertmanager", f"{self.stack.alertmanager}/#/alerts"),
            ("chat room", self.stack.chat.address),
        )


def own_rules() -> tuple[Path, ...]:
    """gpucost's own rules: beside this file where gpucost was installed, else in the checkout. Raises
    InputError where they are in neither place."""
    here = Path(__file__).parent
    places = (here / RULES, here.parents[1] / "alerts" / RULES)
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise InputError("--rules", Remark("none is given"), f"a file of rules, such as alerts/{RULES}")
    return (found,)


@contextmanager
def full(
    folder: Path, rule_files: tuple[Path, ...], seed: int | None = None, history: History | None = None
) -> Iterator[Full]:
    """Start all of it in ``folder``, and end it in order. Without a ``history``, three hours of it are in
    Prometheus and the week before in the ledger. Raises InputError and NotStarted, as ``stack``.
    """
    for name in PROGRAMS:  # before anything is made
        found(name)
    now_ms = time.time_ns() // 1_000_000
    cluster = cluster_around(now_ms, DEMO_SEED if seed is None else seed)
    incident = Incident.on(cluster.seed, cluster.window.start_ms, cluster.window.end_ms)
    prometheus, alertmanager, service = _free_ports(3)
    url = f"http://127.0.0.1:{service}"
    if history is None:
        _remember(cluster, folder, now_ms)
    with ExitStack() as opened:
        started = opened.enter_context(
            stack(
                Exporters(cluster, incident),
                folder,
                url,
                Ports(prometheus, alertmanager),
                history or History(),
                rule_files,
            )
        )
        config = folder / CONFIG
        config.write_text(started.settings_text(service), encoding="utf-8")
        arguments = ["-c", _SERVE, "--config", str(config), "serve"]
        program = Program(sys.executable, arguments, f"{url}/healthz", folder / "gpucost.log")
        opened.enter_context(running(program))
        yield Full(started, url, incident)


def _remember(cluster: SimulatedCluster, folder: Path, now_ms: int) -> None:
    """The ledger from the Monday before the last one to where Prometheus begins to know, so that there is a
    whole week in it."""
    end_ms = (now_ms - _KNOWN_MS) // HOUR_MS * HOUR_MS
    window = Window(Week.of(end_ms).previous().window.start_ms, end_ms)
    with past_of(cluster, folder, f"sqlite:///{folder / LEDGER}", window, DetectorsSettings()):
        pass


def _free_ports(count: int) -> list[int]:
    """Ports that are free now; held together while they are chosen, so that they differ."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]
