"""``gpucost demo --full``: the stack with a ``gpucost serve`` on it.

The simulated cluster stands around any instant, so that live scrapes go on where its history ends. A ledger
of its past is made first, so that costs, findings and waste do not begin with the demo.

``DemoCheck`` tests the whole stack: an idle job becomes a finding, an alert and a message, and all three end.
It asks where people would: gpucost's API, Alertmanager's, and the chat room.
"""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from html import unescape
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pandas as pd
import requests

from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.demo.chat import ChatPost
from gpucost.demo.exporters import SimulatedExporters
from gpucost.demo.grafana import grafana_program, installed_grafana
from gpucost.demo.incident import JOB, NAMESPACE, TEAM, IdleIncident
from gpucost.demo.stack import (
    LEDGER,
    PROGRAMS,
    ChildProgram,
    DemoStack,
    LoopbackPorts,
    ScrapeHistory,
    WatchedStep,
    ask,
    found,
    running,
    stack,
    unwatched,
)
from gpucost.domain.errors import ErrorRemark, GpuCostError, InputError
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window
from gpucost.ledger.ledger import Ledger
from gpucost.pricing.price_book import PriceBook
from gpucost.reports.digest.week_model import IsoWeek
from gpucost.service.detection.loop import DetectorStatus
from gpucost.service.ingest.pipeline import OnWindow
from gpucost.service.ingest.status import LoopStatus
from gpucost.service.settings.detectors import DetectorsSettings
from gpucost.service.settings.model import AttributionSettings, IngestSettings
from gpucost.service.wiring.detection import build_assessing, build_detecting
from gpucost.service.wiring.pipeline import build_pipeline, build_rules
from gpucost.simulator.cluster import (
    DEMO_SEED,
    PRICES_NAME,
    TEAMS_NAME,
    SimulatedCluster,
    demo_prices_text,
    demo_teams_text,
)
from gpucost.simulator.state import cluster_state
from gpucost.telemetry.recorded_source import RecordedSource, record

# A finding seen only once is not certain yet.
_LOOKS_BEFORE_MS = (10 * MINUTE_MS, 5 * MINUTE_MS, 0)
# Rules read a day of history.
_MORE_MS = DAY_MS


@dataclass(frozen=True)
class DemoHistoryLedger:
    """A ledger filled up to an instant, and the status of the loops that filled it."""

    ledger: Ledger
    book: PriceBook
    teams: TeamRules
    status: LoopStatus
    detectors: DetectorStatus


@contextmanager
def past_of(
    cluster: SimulatedCluster,
    folder: Path,
    url: str,
    window: Window,
    detectors: DetectorsSettings,
    looks_before_ms: Sequence[int] = _LOOKS_BEFORE_MS,
    on_window: OnWindow | None = None,
) -> Iterator[DemoHistoryLedger]:
    """Record the cluster in ``folder``, bring ``window`` into the ledger at ``url``, and look for findings as
    of its end. The clock stands at the end of the window."""
    recording = folder / "recording"
    record(recording, _cut(cluster.frames, Window(window.start_ms - _MORE_MS, window.end_ms)))
    book = PriceBook.parse(demo_prices_text(), PRICES_NAME)
    teams = TeamRules.parse(demo_teams_text(), TEAMS_NAME)
    rules = build_rules(AttributionSettings(), book, teams)
    now = _clock(window.end_ms)
    # No more windows are written: the status of the loop stays as it is.
    status, detect_status = LoopStatus(lambda: 0.0), DetectorStatus()
    with Ledger.open(url, now=now) as ledger:
        pipeline = build_pipeline(IngestSettings(), RecordedSource(recording), ledger, rules, now)
        status.started(HOUR_MS)
        pending = pipeline.pending(cluster.name, window)

        def ingested(name: str, each: Window) -> None:
            status.window_ingested(name, window.end_ms)
            if on_window is not None:
                on_window(name, each)

        outcome = pipeline.ingest(cluster.name, pending, on_window=ingested)
        status.cluster_read(
            cluster.name, pending=len(pending) - outcome.ingested, lost=0, failures=outcome.failures
        )
        status.turned(window.end_ms)
        detecting = build_detecting(detectors, pipeline)
        for before_ms in sorted(looks_before_ms, reverse=True):
            at_ms, begun = window.end_ms - before_ms, time.monotonic()
            overview = ClusterOverview(cluster_state(cluster, at_ms), rules.catalog)
            found = detecting.once(cluster.name, at_ms, overview)
            if found is not None:
                detect_status.looked(cluster.name, found, time.monotonic() - begun)
        assessing = build_assessing(detectors, pipeline, detecting)
        assessing.assess(cluster.name, assessing.pending(cluster.name, window))
        yield DemoHistoryLedger(ledger, book, teams, status, detect_status)


def _cut(frames: ClusterFrames, window: Window) -> ClusterFrames:
    """The rows that overlap ``window``, whole; observed time is cut to it."""
    cut: dict[str, Any] = {}
    for each in fields(frames):
        frame = getattr(frames, each.name)
        if isinstance(frame, pd.DataFrame):
            keep = (frame["start_ms"] < window.end_ms) & (frame["end_ms"] > window.start_ms)
            cut[each.name] = frame[keep].reset_index(drop=True)
    spans = cut["observed"]
    cut["observed"] = spans.assign(
        start_ms=spans["start_ms"].clip(lower=window.start_ms),
        end_ms=spans["end_ms"].clip(upper=window.end_ms),
    )
    return ClusterFrames(**cut, problems=frames.problems)


def _clock(at_ms: int) -> Callable[[], int]:
    return lambda: at_ms


# How far into its span the demo stands: the data just before it has an example of everything.
_INTO_MS = 29 * DAY_MS + 11 * HOUR_MS
_LENGTH_MS = 38 * DAY_MS


def span_around(at_ms: int) -> Window:
    """The span that a cluster is simulated for; it ends more than a week after ``at_ms``."""
    start_ms = at_ms // HOUR_MS * HOUR_MS - _INTO_MS
    return Window(start_ms, start_ms + _LENGTH_MS)


def cluster_around(at_ms: int, seed: int = DEMO_SEED) -> SimulatedCluster:
    """The demo's cluster with some trouble around ``at_ms``; the same arguments give the same cluster."""
    return SimulatedCluster(seed, span_around(at_ms), unrest_ms=at_ms)


CONFIG = "config.yaml"
RULES = "gpucost.rules.yaml"
_KNOWN_MS = HOUR_MS
_SERVE = "from gpucost.cli import main; main()"


@dataclass(frozen=True)
class FullDemo:
    """The running demo: ``service`` is the address of gpucost's API, ``grafana`` None where none is
    installed."""

    stack: DemoStack
    service: str
    incident: IdleIncident
    grafana: str | None = None

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """Addresses to open, and what each of them shows."""
        return (
            ("gpucost: pages", f"{self.service}/"),
            ("gpucost: findings", f"{self.service}/findings"),
            ("gpucost: metrics", f"{self.service}/metrics"),
            ("Prometheus", f"{self.stack.prometheus}/graph"),
            ("Prometheus: alerts", f"{self.stack.prometheus}/alerts"),
            ("Alertmanager", f"{self.stack.alertmanager}/#/alerts"),
            ("chat room", self.stack.chat.address),
            *((("Grafana: dashboards", self.grafana),) if self.grafana else ()),
        )


def own_rules() -> tuple[Path, ...]:
    """gpucost's own rules: beside this file where gpucost was installed, else in the checkout. Raises
    InputError where they are in neither place."""
    here = Path(__file__).parent
    places = (here / RULES, here.parents[1] / "alerts" / RULES)
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise InputError("--rules", ErrorRemark("none is given"), f"a file of rules, such as alerts/{RULES}")
    return (found,)


@contextmanager
def full(
    folder: Path,
    rule_files: tuple[Path, ...],
    seed: int | None = None,
    history: ScrapeHistory | None = None,
    watch: WatchedStep = unwatched,
) -> Iterator[FullDemo]:
    """Start all of it in ``folder``, and end it in order. Without a ``history``, three hours of it are in
    Prometheus and the week before in the ledger. ``watch`` is told each step that takes long, and how far it
    is. Raises InputError and NotStarted, as ``stack``.
    """
    for name in PROGRAMS:  # before any file is made
        found(name)
    now_ms = time.time_ns() // 1_000_000
    cluster = cluster_around(now_ms, DEMO_SEED if seed is None else seed)
    incident = IdleIncident.on(cluster.seed, cluster.window.start_ms, cluster.window.end_ms)
    prometheus, alertmanager, service, dashboards = _free_ports(4)
    url = f"http://127.0.0.1:{service}"
    if history is None:
        _remember(cluster, folder, now_ms, watch)
    with ExitStack() as opened:
        started = opened.enter_context(
            stack(
                SimulatedExporters(cluster, incident),
                folder,
                url,
                LoopbackPorts(prometheus, alertmanager),
                history or ScrapeHistory(),
                rule_files,
                watch,
            )
        )
        config = folder / CONFIG
        config.write_text(started.settings_text(service), encoding="utf-8")
        arguments = ["-c", _SERVE, "--config", str(config), "serve"]
        watch("starting gpucost", 1)
        program = ChildProgram(sys.executable, arguments, f"{url}/healthz", folder / "gpucost.log")
        opened.enter_context(running(program))
        grafana = installed_grafana()
        if grafana is None:
            yield FullDemo(started, url, incident)
            return
        watch("starting Grafana", 1)
        opened.enter_context(running(grafana_program(grafana, folder, dashboards, started.prometheus)))
        yield FullDemo(started, url, incident, f"http://127.0.0.1:{dashboards}/")


def _remember(cluster: SimulatedCluster, folder: Path, now_ms: int, watch: WatchedStep) -> None:
    """The ledger from the Monday before the last one to the begin of Prometheus' history, so that there is a
    whole week in it."""
    end_ms = (now_ms - _KNOWN_MS) // HOUR_MS * HOUR_MS
    window = Window(IsoWeek.of(end_ms).previous().window.start_ms, end_ms)
    advance = watch("the ledger's past", len([*window.split(HOUR_MS)]))
    url = f"sqlite:///{folder / LEDGER}"
    with past_of(cluster, folder, url, window, DetectorsSettings(), on_window=advance):
        pass


def _free_ports(count: int) -> list[int]:
    """Ports that are free now; held together while they are chosen, so that they differ."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


ALERT = "GpuCostIdleAllocation"
LONGEST_S = 420.0
"""Prometheus checks for the imported idle hours once a minute; the rest takes seconds, on a machine that has
nothing else to do."""
_PAUSE_S = 0.5
_PAGE_S = 30.0
_RESOLVED = "Resolved"

T = TypeVar("T")


class NotShown(GpuCostError):
    """An expected result did not appear within LONGEST_S; the message says what there was instead."""


@dataclass
class DemoCheck:
    """One run on a stack that has just started. ``say`` is called with each step as it is seen."""

    full: FullDemo
    say: Callable[[str], object]
    sleep: Callable[[float], object] = time.sleep
    _begun_s: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Raises NotShown."""
        self._begin(f"job {NAMESPACE}/{JOB} of team {TEAM} holds GPUs and does nothing")
        self.full.stack.begin(self.full.incident)
        finding = self._wait("a finding", self._finding)
        number = str(finding["id"])
        self._tell(f"finding {number}: {finding['summary']}")
        alert = self._wait("an alert", lambda: self._alert(number))
        self._tell(f"alert {ALERT}: {alert['annotations']['description']}")
        said = self._wait("a message that names the alert too", lambda: self._message(ALERT))
        self._complete(said, finding)
        self._tell(f"message: {said.lines[0]}")
        self._begin("the job ends")
        self.full.incident.end(time.time_ns() // 1_000_000)
        self._wait("the finding's end", lambda: self._state(number) == "resolved" or None)
        self._tell(f"finding {number} is resolved")
        self._wait("the alert's end", lambda: True if self._alert(number) is None else None)
        self._tell(f"alert {ALERT} is resolved")
        over = self._wait("the message's end, and its answer", lambda: self._over(said))
        self._once(said)
        self._tell(f"message: {over.lines[0]}")

    def _finding(self) -> Mapping[str, Any] | None:
        found = self._get(f"{self.full.service}/v1/findings?pattern=idle_allocation&team={TEAM}")
        rows = (row for row in found["findings"] if row["subject"]["name"] == JOB)
        return next(rows, None)

    def _state(self, number: str) -> str:
        return str(self._get(f"{self.full.service}/v1/findings/{number}")["finding"]["state"])

    def _alert(self, number: str) -> Mapping[str, Any] | None:
        matchers = "&".join(
            f"filter={quote(each)}" for each in (f'alertname="{ALERT}"', f'finding="{number}"')
        )
        found = self._get(f"{self.full.stack.alertmanager}/api/v2/alerts?active=true&{matchers}")
        return next(iter(found), None)

    def _message(self, word: str) -> ChatPost | None:
        """The first message about the job, once it holds ``word``."""
        about = (each for each in self._conversation() if not each.thread)
        found = next(about, None)
        return found if found is not None and any(word in line for line in found.lines) else None

    def _over(self, opened: ChatPost) -> ChatPost | None:
        """The message, once it is marked as over and has its answer: the one comes just before the other."""
        is_answered = any(each.thread == opened.id for each in self._conversation())
        return self._message(_RESOLVED) if is_answered else None

    def _conversation(self) -> list[ChatPost]:
        said = self.full.stack.chat.room.said
        first = next((each for each in said if any(JOB in line for line in each.lines)), None)
        if first is None:
            return []
        return [each for each in said if first.id in (each.id, each.thread) or JOB in " ".join(each.lines)]

    def _complete(self, said: ChatPost, finding: Mapping[str, Any]) -> None:
        """Check that the message has the amount, the job, the team and the action, and that its link leads to
        the page with the rest."""
        text = "\n".join(said.lines)
        action = str(finding["action"]["text"])
        page = re.search(r"https?://[^\s|>]+/finding/\d+", text)
        wanted = {"the amount": "USD ", "the job": JOB, "the team": TEAM, "the action": action}
        missing = [what for what, word in wanted.items() if word not in text]
        if missing or page is None:
            raise NotShown(f"the message lacks {', '.join(missing) or 'a link to the page'}: {text}")
        shown = requests.get(page[0], headers={"Accept": "text/html"}, timeout=_PAGE_S)
        if shown.status_code != HTTPStatus.OK or JOB not in shown.text or action not in unescape(shown.text):
            raise NotShown(f"the page {page[0]} answers {shown.status_code} and does not show the finding")

    def _once(self, opened: ChatPost) -> None:
        """Check that it was one message, replaced, with one answer that says that it is over."""
        conversation = self._conversation()
        roots = [each for each in conversation if not each.thread]
        answers = [each for each in conversation if each.thread == opened.id]
        if len(roots) != 1 or len(answers) != 1:
            raise NotShown(f"{len(roots)} messages with {len(answers)} answers, where 1 with 1 was due")

    def _wait(self, what: str, look: Callable[[], T | None]) -> T:
        until_s = time.monotonic() + LONGEST_S
        while time.monotonic() < until_s:
            found = look()
            if found is not None:
                return found
            self.sleep(_PAUSE_S)
        raise NotShown(f"{what} was not seen within {LONGEST_S:.0f} s; logs: {self.full.stack.folder}")

    def _begin(self, what: str) -> None:
        self._begun_s = time.monotonic()
        self.say(f"         {what}")

    def _tell(self, what: str) -> None:
        self.say(f"{time.monotonic() - self._begun_s:6.1f} s {what}")

    @staticmethod
    def _get(url: str) -> Any:
        return ask(url, 30.0).raise_for_status().json()
