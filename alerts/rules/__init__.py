"""All rules, in the order in which a group may use what another recorded."""

from __future__ import annotations

from alerts.model import Alert, RuleGroup
from alerts.rules import cost, exporters, findings, queues, recording, service

GROUPS: tuple[RuleGroup, ...] = (
    recording.GROUP,
    findings.GROUP,
    queues.GROUP,
    cost.GROUP,
    exporters.COLLECTOR,
    exporters.GPUS,
    service.SERVICE,
    service.LEDGER,
    service.NOTIFY,
)
ALERTS: dict[str, Alert] = {alert.name: alert for group in GROUPS for alert in group.alerts}
