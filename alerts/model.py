"""What a rule is, and the links that follow from its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from alerts.thresholds import Threshold

RUNBOOKS = "RUNBOOKS"
DASHBOARDS = "DASHBOARDS"


class Severity(StrEnum):
    """critical: now, whatever the hour. warning: today. info: when there is time."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Recording:
    """``record`` is ``level:metric:operations``; the level names its labels."""

    record: str
    expr: str

    def rule(self) -> dict[str, object]:
        return {"record": self.record, "expr": self.expr}


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard, with the labels of the alert that its variables take: ``{"cluster": "cluster"}``."""

    uid: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def url(self) -> str:
        """As a template of Prometheus, which quotes the values."""
        pairs = "&".join(
            f"var-{name}={{{{ $labels.{label} | urlquery }}}}" for name, label in self.variables.items()
        )
        return f"{DASHBOARDS}/d/{self.uid}" + (f"?{pairs}" if pairs else "")


CLUSTER = {"cluster": "cluster"}
FLEET = Board("gpucost-fleet", CLUSTER)
TEAM = Board("gpucost-team", {**CLUSTER, "team": "team"})
TEAM_EVERYWHERE = Board("gpucost-team", {"team": "team"})
QUEUES = Board("gpucost-queues", CLUSTER)
QUEUE = Board("gpucost-queues", {**CLUSTER, "queue": "cluster_queue"})
NODE = Board("gpucost-nodes", {**CLUSTER, "node": "node"})
SELF = Board("gpucost-self")
SELF_OF_CLUSTER = Board("gpucost-self", CLUSTER)


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. ``summary`` is the same sentence whatever its labels; ``description`` is a template with
    labels and value. ``severity`` and ``labels`` may be templates where series differ. ``board`` is where to
    look, or a template of its address. ``thresholds`` are those its expression uses.
    """

    name: str
    expr: str
    severity: str
    summary: str
    description: str
    board: Board | str
    lasts: Threshold | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    thresholds: tuple[Threshold, ...] = ()

    @property
    def runbook_url(self) -> str:
        return f"{RUNBOOKS}/{self.name}.md"

    @property
    def dashboard_url(self) -> str:
        return self.board.url() if isinstance(self.board, Board) else f"{DASHBOARDS}/{self.board}"

    def rule(self) -> dict[str, object]:
        rule: dict[str, object] = {"alert": self.name, "expr": self.expr}
        if self.lasts is not None:
            rule["for"] = self.lasts.duration
        annotations = {
            "summary": self.summary,
            "description": self.description,
            "runbook_url": self.runbook_url,
            "dashboard_url": self.dashboard_url,
        }
        return {**rule, "labels": {"severity": str(self.severity), **self.labels}, "annotations": annotations}


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules that Prometheus evaluates one after the other, so that one may use what one above recorded."""

    name: str
    rules: tuple[Alert | Recording, ...]

    @property
    def alerts(self) -> tuple[Alert, ...]:
        return tuple(rule for rule in self.rules if isinstance(rule, Alert))


@dataclass(frozen=True, slots=True)
class Firing:
    """One alert that is expected: its labels without alertname, its description in full, and the dashboard's
    address behind ``DASHBOARDS/d/``."""

    labels: Mapping[str, str]
    description: str
    dashboard: str


@dataclass(frozen=True, slots=True)
class Case:
    """Series (in promtool's notation, beginning at 0), and when ``alert`` is silent and firing.

    Times are seconds. ``silent`` is just below what makes it fire, ``firing`` is there; both are empty for a
    case that shows something else. ``resolved``: silent again.
    """

    alert: str
    about: str
    series: Mapping[str, str]
    silent: tuple[int, ...] = ()
    firing: Mapping[int, tuple[Firing, ...]] = field(default_factory=dict)
    resolved: tuple[int, ...] = ()
    interval: int = 60

    @property
    def is_pair(self) -> bool:
        return bool(self.silent and self.firing)
