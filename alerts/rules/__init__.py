"""All rules, one module per topic; ``model`` and ``thresholds`` are what they are made of.

Modules are in the order in which a group may use what another recorded. What must not live here: a number in
an expression that has no name in ``thresholds``. Begin at model.
"""

from __future__ import annotations

from alerts.rules import cost, exporters, findings, queues, recording, service
from alerts.rules.model import AlertRule, RuleGroup

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
ALERTS: dict[str, AlertRule] = {alert.name: alert for group in GROUPS for alert in group.alerts}
