"""Cases for promtool, by the file they are in: for every alert a pair, silent just below and firing.

One module per topic, called as the module of its rules in ``alerts.rules``; ``helpers`` writes series and
pairs. What must not live here: numbers, which come from ``alerts.rules.thresholds``. Begin with ``queues``.
"""

from __future__ import annotations

from alerts.cases import cost, exporters, findings, queues, service
from alerts.rules.model import AlertCase

FILES: dict[str, tuple[str, tuple[AlertCase, ...]]] = {
    "findings": ("1m", findings.CASES),
    "queues": ("1m", queues.CASES),
    "exporters": ("1m", (*exporters.COLLECTOR, *exporters.GPUS)),
    "service": ("1m", (*cost.HELD, *service.SERVICE, *service.LEDGER, *service.NOTIFY)),
    "days": ("1h", (*cost.CASES, *service.DAYS)),
}
"""Name of the file: how often rules are evaluated, and its cases."""
