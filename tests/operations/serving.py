"""``gpucost serve`` on a recording of one day: as a process of its own, or inside of the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2

from gpucost.api.runtime import ConfigReloader, ServiceParts, ServiceRuntime
from gpucost.api.server.listener import AppSwitch
from gpucost.api.server.operations_status import OperationsStatus
from gpucost.domain.time import MINUTE_MS, Window, iso
from gpucost.ledger.ledger import Ledger
from gpucost.notify.message import NotificationMessage
from gpucost.notify.notices import Conversation, DeliveryAct, NoticeDelivery, NoticeKind
from gpucost.service.settings.loader import load_settings
from gpucost.service.wiring.configuration import ServiceConfiguration
from gpucost.service.wiring.source import open_source
from gpucost.telemetry.interval_source import IntervalSource
from gpucost.telemetry.recorded_source import record
from tests.service.worlds import DAY, NOW_MS, frames
from tests.support.chat_server import ChatServer
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
# The clock shows the hour after the recording. It is set before gpucost is imported, which may keep it.
_AHEAD_NS = NOW_MS * 1_000_000 - time.time_ns()
_CODE = f"""
import time
real = time.time_ns
time.time_ns = lambda: real() + {_AHEAD_NS}
from gpucost.cli import main
main()
"""
PROGRAM = (sys.executable, "-c", _CODE)
WAIT_S = 120.0
LOOK_S = 0.05
WINDOWS = 12 * 12
SLICES = {
    "ingest": {"window": "5m", "batch": "1h", "start": iso(DAY.end_ms - WINDOWS * 5 * MINUTE_MS)},
    "detectors": {"enabled": False},
}
"""Half a day in so many windows that there is time to interrupt it."""


def clock() -> int:
    """The same, for what runs inside of the test."""
    return (time.time_ns() + _AHEAD_NS) // 1_000_000


class Served:
    """One process, its settings file and its log."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder, self.port = folder, free_port()
        self.config, self.errors = folder / "gpucost.yaml", folder / "stderr"
        self.url = f"http://127.0.0.1:{self.port}"
        self.ledger_url = f"sqlite:///{folder / 'ledger.db'}"
        if not (folder / "recording").exists():
            record(folder / "recording", frames())
        self.settings: dict[str, Any] = {
            "ledger": {"url": self.ledger_url},
            "log": {"requests": False},
            "source": {"kind": "recorded", "path": str(folder / "recording")},
            **settings,
        }
        self.settings["api"] = {"port": self.port, "auth": "off", **self.settings.get("api", {})}
        self.write(self.settings)
        # One client: each new one reads every authority of the system.
        self._client = httpx2.Client(base_url=self.url, timeout=30, trust_env=False)

    def write(self, settings: Mapping[str, Any]) -> None:
        """In one step, as a mounted ConfigMap changes."""
        new = self.config.with_suffix(".new")
        new.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML too
        new.replace(self.config)

    def start(self, environment: Mapping[str, str] | None = None, cwd: Path = ROOT) -> None:
        variables = {"PYTHONPATH": str(ROOT), **os.environ, **(environment or {})}
        with self.errors.open("ab") as errors:
            command = [*PROGRAM, "--config", str(self.config), "serve"]
            self.process = subprocess.Popen(command, cwd=cwd, env=variables, stderr=errors)
        self.until(lambda: self.status("/healthz") == 200 or self.process.poll() is not None)

    @property
    def log(self) -> str:
        return self.errors.read_text(encoding="utf-8")

    def get(self, path: str, **headers: str) -> httpx2.Response:
        return self._client.get(path, headers=headers)

    def status(self, path: str) -> int:
        try:
            return self.get(path).status_code
        except httpx2.HTTPError:
            return 0

    def metric(self, name: str) -> str:
        """The value of a series without labels, or the label of the only one."""
        lines = [line for line in self.get("/metrics").text.splitlines() if line.startswith(name)]
        return lines[0].removeprefix(name).strip() if lines else ""

    def until(self, found: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not found():
            assert time.monotonic() < deadline, self.log
            time.sleep(LOOK_S)

    def close(self) -> None:
        self._client.close()
        with suppress(ProcessLookupError, AttributeError):
            self.process.kill()
            self.process.wait()


@contextmanager
def served(folder: Path, settings: Mapping[str, Any], **options: Any) -> Iterator[Served]:
    found = Served(folder, settings)
    found.start(**options)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def reloading(found: Served) -> Iterator[tuple[ConfigReloader, Ledger]]:
    """What ``gpucost serve`` runs, without its listener, and not started yet: who tests reloads by hand."""
    status = OperationsStatus()
    with Ledger.open(found.ledger_url, now=clock) as ledger:

        def build(found: ServiceConfiguration) -> ServiceRuntime:
            def source(stopped: threading.Event) -> IntervalSource:
                return open_source(found.settings, found.book, clock, stopped=stopped)

            parts = ServiceParts(
                found.settings,
                found.book,
                found.teams,
                ledger,
                source,
                clock,
                operations=status,
                policy=found.policy,
            )
            return ServiceRuntime.of(parts)

        def read() -> ServiceConfiguration:
            return ServiceConfiguration.read(lambda: load_settings(found.config))

        first = read()
        running = build(first)
        front = AppSwitch(running.app)
        made = ConfigReloader(
            read, build, lambda *_: None, first, running, front, status, clock, found.config
        )
        try:
            yield made, ledger
        finally:
            made.close()


def finish(found: Served) -> list[tuple[Window, int, str]]:
    """Run inside of the test until all is written; its windows, as ``windows`` has them."""
    with reloading(found) as (made, ledger):
        made.running.start()
        found.until(lambda: len(ledger.windows(DAY)) == WINDOWS)
    return windows(found)


def windows(found: Served) -> list[tuple[Window, int, str]]:
    """Each window with its version and digest, of a ledger that is sound."""
    with Ledger.open(found.ledger_url, now=lambda: NOW_MS, create=False) as ledger:
        assert ledger.verify() == ()
        return [(info.window, info.version, info.digest) for info in ledger.windows(DAY)]


def telling(**chats: ChatServer) -> dict[str, object]:
    """Settings with a channel to each."""
    room = {"service": "slack", "sees_all": True, "allow_http": True, "allow_private": True}
    channels = [{"name": name, "url": chat.slack_webhook, **room} for name, chat in chats.items()]
    # A team that has no findings: only what a test posts is sent.
    routes = [{"channels": list(chats), "kinds": ["finding"], "teams": ["nobody"]}]
    return {"notify": {"channels": channels, "routes": routes}}


def post(ledger: Ledger, channel: str, key: str = "key") -> None:
    """One message into the outbox."""
    at_ms = clock()
    talk = Conversation(channel, key, "group", NoticeKind.FINDING, "red", "1", at_ms)
    ledger.tell(
        [talk],
        [NoticeDelivery(channel, key, DeliveryAct.OPEN, NotificationMessage("words", ""), at_ms, at_ms)],
    )


def descriptors() -> int:
    """How many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))
