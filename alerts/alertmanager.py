"""An Alertmanager configuration to begin with: groups, inhibition, routes by team, gpucost as a receiver."""

from __future__ import annotations

import yaml

from alerts.model import Severity
from alerts.rules import exporters, findings, queues, service

EXAMPLE_TEAMS = ("vision", "language")
MOST_ALERTS = 200
"""Alerts in one webhook: more than a person reads; Alertmanager says how many it left out."""

_HEAD = """\
# An example, written by `python -m alerts`: addresses, teams and receivers are yours to change.
#
# Every alert goes to gpucost, once: it tells each team's channels by its own settings, one message per group,
# and one for a finding and its alert. What is critical for a team goes to the team's pager besides.
# The file of the credentials holds a key of gpucost's (gpucost key add alertmanager --role alerts), no more.
"""

_BY_SERVICE = [
    alert.name for alert in (*findings.GROUP.alerts, *service.LEDGER.alerts, *service.NOTIFY.alerts)
]
_BY_SERVICE += [
    "GpuCostLoopStalled",
    "GpuCostDetectorsSilent",
    "GpuCostDetectorFailing",
    "GpuCostFindingsCutOff",
    "GpuCostTeamsCutOff",
]
_BUDGET = ("GpuCostBudgetPaceHigh", "GpuCostBudgetProjectedToExceed", "GpuCostTeamCostRise")
_BY_COLLECTOR = [alert.name for alert in queues.GROUP.alerts]
_BY_COLLECTOR += [each.name for each in exporters.COLLECTOR.alerts if each.name != "GpuCostCollectorStale"]
_BY_COLLECTOR += ["GpuCostGpuExporterMissing"]


def _any_of(names: list[str] | tuple[str, ...]) -> str:
    return f'alertname=~"{"|".join(names)}"'


def _inhibit(source: str, target: str, *equal: str) -> dict[str, object]:
    rule: dict[str, object] = {"source_matchers": [source], "target_matchers": [target]}
    return {**rule, "equal": list(equal)} if equal else rule


def _gpucost() -> dict[str, object]:
    return {
        "url": "http://gpucost:8080/v1/alerts/alertmanager",
        "send_resolved": True,
        "max_alerts": MOST_ALERTS,
        "http_config": {
            "authorization": {"type": "Bearer", "credentials_file": "/etc/alertmanager/gpucost-key"},
            "follow_redirects": False,
        },
    }


def config() -> dict[str, object]:
    """As Alertmanager reads it. Labels that an alert does not have are equal to each other."""
    same = ("alertname", "cluster", "team", "finding", "channel", "cluster_queue", "node")
    pagers = [
        {
            "receiver": f"pager-{team}",
            "matchers": [f'team="{team}"', f'severity="{Severity.CRITICAL}"'],
            "continue": True,
        }
        for team in EXAMPLE_TEAMS
    ]
    return {
        "global": {"resolve_timeout": "5m"},
        "route": {
            "receiver": "gpucost",
            "group_by": ["alertname", "team"],
            # Long enough for all findings of one look to come together, short enough to be one evaluation.
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "12h",
            "routes": [
                {
                    "receiver": "dead-mans-switch",
                    "matchers": ['alertname="GpuCostWatchdog"'],
                    "group_wait": "0s",
                    "group_interval": "1m",
                    "repeat_interval": "1m",
                },
                *pagers,
                {
                    "receiver": "gpucost",
                    "matchers": [f'severity="{Severity.CRITICAL}"'],
                    "group_wait": "10s",
                    "repeat_interval": "4h",
                },
                {
                    "receiver": "gpucost",
                    "matchers": [f'severity="{Severity.INFO}"'],
                    "group_wait": "5m",
                    "repeat_interval": "3d",
                },
                # After a route that goes on, the one at the top is asked no more.
                {"receiver": "gpucost"},
            ],
        },
        "inhibit_rules": [
            _inhibit(
                f'severity="{Severity.CRITICAL}"', f'severity=~"{Severity.WARNING}|{Severity.INFO}"', *same
            ),
            _inhibit(f'severity="{Severity.WARNING}"', f'severity="{Severity.INFO}"', *same),
            # What gpucost says of others is as old as gpucost is silent.
            _inhibit(
                'alertname="GpuCostServiceDown"', _any_of([*_BY_SERVICE, *_BUDGET, "GpuCostBudgetExceeded"])
            ),
            _inhibit(
                'alertname="GpuCostLedgerDown"',
                _any_of([*_BY_SERVICE[: len(findings.GROUP.alerts)], "GpuCostLedgerLag"]),
            ),
            _inhibit('alertname="GpuCostSourceDown"', 'alertname="GpuCostLedgerLag"', "cluster"),
            _inhibit('alertname="GpuCostCollectorStale"', _any_of(_BY_COLLECTOR), "cluster"),
            _inhibit(
                'alertname="GpuCostGpuExportersGone"',
                'alertname=~"GpuCostGpuExporterMissing|GpuCostUseCoverageLow"',
                "cluster",
            ),
            _inhibit('alertname="GpuCostBudgetExceeded"', _any_of(_BUDGET[:2]), "team"),
            _inhibit('alertname="GpuCostBudgetProjectedToExceed"', _any_of(_BUDGET[:1]), "team"),
        ],
        "receivers": [
            {"name": "gpucost", "webhook_configs": [_gpucost()]},
            *(
                {
                    "name": f"pager-{team}",
                    "webhook_configs": [{"url": f"https://pager.example.com/{team}", "send_resolved": True}],
                }
                for team in EXAMPLE_TEAMS
            ),
            {
                "name": "dead-mans-switch",
                "webhook_configs": [
                    {"url": "https://dead-mans-switch.example.com/gpucost", "send_resolved": False}
                ],
            },
        ],
    }


def text() -> str:
    return _HEAD + yaml.safe_dump(config(), sort_keys=False, width=110)
