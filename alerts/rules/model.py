"""What rules, alerts and their cases consist of.

Also the links that follow from names, and PromQL that several rules share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from alerts.rules import thresholds as t
from alerts.rules.thresholds import AlertThreshold

RUNBOOKS = "RUNBOOKS"
DASHBOARDS = "DASHBOARDS"


class AlertSeverity(StrEnum):
    """critical: now, whatever the hour. warning: today. info: when there is time."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class RecordingRule:
    """``record`` is ``level:metric:operations``; the level names its labels."""

    record: str
    expr: str

    def rule(self) -> dict[str, object]:
        return {"record": self.record, "expr": self.expr}


@dataclass(frozen=True, slots=True)
class DashboardLink:
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
TEAM = DashboardLink("gpucost-team", {**CLUSTER, "team": "team"})
QUEUES = DashboardLink("gpucost-queues", CLUSTER)
QUEUE = DashboardLink("gpucost-queues", {**CLUSTER, "queue": "cluster_queue"})
NODE = DashboardLink("gpucost-nodes", {**CLUSTER, "node": "node"})
SELF = DashboardLink("gpucost-self")
SELF_OF_CLUSTER = DashboardLink("gpucost-self", CLUSTER)


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One alert. ``summary`` is the same sentence whatever its labels; ``description`` is a template with
    labels and value. ``severity`` and ``labels`` may be templates where series differ. ``board`` is the
    dashboard to open, or a template of its address. ``thresholds`` are those its expression uses.
    """

    name: str
    expr: str
    severity: str
    summary: str
    description: str
    board: DashboardLink | str
    lasts: AlertThreshold | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    thresholds: tuple[AlertThreshold, ...] = ()

    @property
    def runbook_url(self) -> str:
        return f"{RUNBOOKS}/{self.name}.md"

    @property
    def dashboard_url(self) -> str:
        return self.board.url() if isinstance(self.board, DashboardLink) else f"{DASHBOARDS}/{self.board}"

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
    rules: tuple[AlertRule | RecordingRule, ...]

    @property
    def alerts(self) -> tuple[AlertRule, ...]:
        return tuple(rule for rule in self.rules if isinstance(rule, AlertRule))


@dataclass(frozen=True, slots=True)
class ExpectedAlert:
    """One alert that is expected: its labels without alertname, its description in full, and the dashboard's
    address behind ``DASHBOARDS/d/``."""

    labels: Mapping[str, str]
    description: str
    dashboard: str


@dataclass(frozen=True, slots=True)
class AlertCase:
    """Series (in promtool's notation, beginning at 0), and when ``alert`` is silent and firing.

    Times are seconds. ``silent`` is just below what makes it fire, ``firing`` just above; both are empty for
    a case that shows something else. ``resolved``: silent again.
    """

    alert: str
    about: str
    series: Mapping[str, str]
    silent: tuple[int, ...] = ()
    firing: Mapping[int, tuple[ExpectedAlert, ...]] = field(default_factory=dict)
    resolved: tuple[int, ...] = ()
    interval: int = 60


def labelled(expr: str, label: str, source: str) -> str:
    """``expr`` with ``label`` set to the value of the label ``source``."""
    return f'label_replace({expr}, "{label}", "$1", "{source}", "(.*)")'


def of_service(selector: str, *labels: str) -> str:
    """A gauge of the service, once, whatever other labels its target has: ``cluster`` and ``team`` by the
    names that alerts have, and ``labels`` kept."""
    # First by the service's own labels: its target may have had another ``cluster`` in the range looked at.
    expr, by = f"max by ({', '.join(labels)}) ({selector})", list(labels)
    for label, source in (("team", "owner_team"), ("cluster", "gpu_cluster")):
        if source in by:
            expr = labelled(expr, label, source)
            by[by.index(source)] = label
    return expr if by == list(labels) else f"max by ({', '.join(by)}) ({expr})"


def money(metric: str, *labels: str) -> str:
    """A gauge in money, in the ledger's currency, which the label ``currency`` names."""
    either = f'label_replace({metric}_usd, "currency", "USD", "", "") or {metric}'
    return of_service(f"({either})", *labels, "currency")


def last_known(now: str, record: str) -> str:
    """The expression of the recording rule ``record``: ``now``, or while the service or its ledger cannot be
    read, its value at the evaluation before; for an hour at most."""
    recent = f"max(max_over_time(gpucost_ledger_up[{t.HELD_WHILE_AWAY.duration}])) == 1"
    return f"{now} or ({record} unless on () max(gpucost_ledger_up) == 1) and on () {recent}"


def grown_within(metric: str, above: object, within: str, *labels: str) -> str:
    """``metric`` where it is more than ``above``, and more than ``within`` ago, or was not there then."""
    now, then = of_service(metric, *labels), of_service(f"{metric} offset {within}", *labels)
    on = ", ".join({"gpu_cluster": "cluster", "owner_team": "team"}.get(label, label) for label in labels)
    return f"{now} > {above} unless on ({on}) {now} <= {then}"
