"""The files that Prometheus, Alertmanager and promtool read, as text; ``write`` puts them in their place.

``example_text`` is an Alertmanager configuration to begin with: groups, inhibition, routes by team, gpucost
as a receiver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from alerts.cases import FILES
from alerts.rules import ALERTS, GROUPS, exporters, findings, queues, service
from alerts.rules.model import (
    DASHBOARDS,
    RUNBOOKS,
    AlertCase,
    AlertRule,
    AlertSeverity,
    ExpectedAlert,
    RuleGroup,
)

EXAMPLE_TEAMS = ("vision", "language")
MOST_ALERTS = 200
"""The most alerts in one webhook, more than a person reads; Alertmanager says how many it left out."""

_EXAMPLE_HEAD = """\
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
_MONEY = ("GpuCostBudgetExceeded", "GpuCostBudgetProjectedToExceed", "GpuCostTeamCostRise")
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


def example_config() -> dict[str, object]:
    """The configuration as Alertmanager reads it. Two alerts that both lack a label count as equal in it."""
    same = ("alertname", "cluster", "team", "finding", "channel", "cluster_queue", "node")
    pagers = [
        {
            "receiver": f"pager-{team}",
            "matchers": [f'team="{team}"', f'severity="{AlertSeverity.CRITICAL}"'],
            "continue": True,
        }
        for team in EXAMPLE_TEAMS
    ]
    return {
        "global": {"resolve_timeout": "5m"},
        "route": {
            "receiver": "gpucost",
            "group_by": ["alertname", "team"],
            # Long enough to group all findings of one evaluation, short enough to be of one evaluation.
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
                    "matchers": [f'severity="{AlertSeverity.CRITICAL}"'],
                    "group_wait": "10s",
                    "repeat_interval": "4h",
                },
                {
                    "receiver": "gpucost",
                    "matchers": [f'severity="{AlertSeverity.INFO}"'],
                    "group_wait": "5m",
                    "repeat_interval": "3d",
                },
                # After a route with ``continue``, the receiver of the top route is not used any more.
                {"receiver": "gpucost"},
            ],
        },
        "inhibit_rules": [
            _inhibit(
                f'severity="{AlertSeverity.CRITICAL}"',
                f'severity=~"{AlertSeverity.WARNING}|{AlertSeverity.INFO}"',
                *same,
            ),
            _inhibit(f'severity="{AlertSeverity.WARNING}"', f'severity="{AlertSeverity.INFO}"', *same),
            # What gpucost exports about others is out of date while gpucost is down.
            _inhibit('alertname="GpuCostServiceDown"', _any_of([*_BY_SERVICE, *_MONEY])),
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
            _inhibit(
                'alertname="GpuCostBudgetExceeded"',
                'alertname="GpuCostBudgetProjectedToExceed"',
                *("budget", "period"),
            ),
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


def example_text() -> str:
    return _EXAMPLE_HEAD + yaml.safe_dump(example_config(), sort_keys=False, width=110)


HERE = Path(__file__).parent
RULES = "gpucost.rules.yaml"
_HEAD = "# Written by `python -m alerts`; change it there.\n"
_TABLE = re.compile(r"<!-- rule -->\n.*?<!-- /rule -->\n", re.DOTALL)


class _Dumper(yaml.SafeDumper):
    """Without aliases, which save little and are hard to read."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


def _yaml(data: object) -> str:
    return _HEAD + yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def based(text: str, runbooks: str, dashboards: str) -> str:
    """``text`` with addresses in the place of both placeholders."""
    for placeholder, base in ((RUNBOOKS, runbooks), (DASHBOARDS, dashboards)):
        text = text.replace(f"{placeholder}/", f"{base.rstrip('/')}/")
    return text


def rules_text(groups: Sequence[RuleGroup] = GROUPS) -> str:
    return _yaml(
        {"groups": [{"name": each.name, "rules": [rule.rule() for rule in each.rules]} for each in groups]}
    )


def tests_text(cases: Sequence[AlertCase], evaluation: str) -> str:
    """The text for ``promtool test rules``; the rules are in the parent folder."""
    return _yaml(
        {
            "rule_files": [f"../{RULES}"],
            "evaluation_interval": evaluation,
            "group_eval_order": [group.name for group in GROUPS],
            "tests": [_test(together) for together in _packed(cases)],
        }
    )


def _packed(cases: Sequence[AlertCase]) -> list[list[AlertCase]]:
    """Cases that have no metric in common, side by side: promtool evaluates every rule in every test, so a
    quarter of the tests takes a quarter of the time."""
    packs: list[tuple[set[str], list[AlertCase]]] = []
    for case in cases:
        names = {case.alert, *(series.partition("{")[0] for series in case.series)}
        for taken, pack in packs:
            if pack[0].interval == case.interval and not taken & names:
                taken |= names
                pack.append(case)
                break
        else:
            packs.append((names, [case]))
    return [pack for _, pack in packs]


def _test(cases: Sequence[AlertCase]) -> dict[str, object]:
    series = [item for case in cases for item in case.series.items()]
    return {
        "name": "\n".join(f"{case.alert}: {case.about}" for case in cases),
        "interval": f"{cases[0].interval}s",
        "input_series": [{"series": name, "values": values} for name, values in series],
        "alert_rule_test": [asked for case in cases for asked in _asked(case)],
    }


def _asked(case: AlertCase) -> list[dict[str, object]]:
    alert = ALERTS[case.alert]
    asked = [*((at, ()) for at in (*case.silent, *case.resolved)), *case.firing.items()]
    return [
        {
            "eval_time": f"{at}s",
            "alertname": case.alert,
            "exp_alerts": [_expected(alert, firing) for firing in firings],
        }
        for at, firings in sorted(asked, key=lambda pair: pair[0])
    ]


def _expected(alert: AlertRule, firing: ExpectedAlert) -> dict[str, Mapping[str, str]]:
    return {
        "exp_labels": firing.labels,
        "exp_annotations": {
            "summary": alert.summary,
            "description": firing.description,
            "runbook_url": alert.runbook_url,
            "dashboard_url": f"{DASHBOARDS}/d/{firing.dashboard}",
        },
    }


def head(alert: AlertRule) -> str:
    """The generated part of a runbook: it cannot differ from the rule."""
    severity = "as the finding's" if "{{" in alert.severity else str(alert.severity)
    lines = [f"| severity | {severity} |", "|---|---|"]
    if alert.lasts is None:
        lines.append("| fires | at the first evaluation that sees it |")
    else:
        lines.append(f"| fires after | {alert.lasts.shown} ({alert.lasts.why}) |")
    lines += [f"| {each.meaning} | **{each.shown}** ({each.why}) |" for each in alert.thresholds]
    expr = alert.expr
    return "\n".join(("<!-- rule -->", *lines, "", "```promql", expr, "```", "<!-- /rule -->", ""))


def runbook(alert: AlertRule, text: str) -> str:
    """``text`` of the page with its generated part brought up to date. Raises ValueError where it has
    none."""
    if not _TABLE.search(text):
        raise ValueError(f"the runbook of {alert.name} has no part between <!-- rule --> and <!-- /rule -->")
    return _TABLE.sub(lambda _: head(alert), text, count=1)


def files(runbooks: str = RUNBOOKS, dashboards: str = DASHBOARDS) -> dict[Path, str]:
    """All generated files, by their path in this folder. Raises FileNotFoundError for a missing runbook."""
    found = {Path(RULES): rules_text(), Path("alertmanager.example.yaml"): example_text()}
    for name, (evaluation, cases) in FILES.items():
        found[Path("tests") / f"{name}.yaml"] = tests_text(cases, evaluation)
    found = {path: based(text, runbooks, dashboards) for path, text in found.items()}
    for alert in ALERTS.values():
        page = Path("runbooks") / f"{alert.name}.md"
        found[page] = runbook(alert, (HERE / page).read_text())
    return found


def write(runbooks: str = RUNBOOKS, dashboards: str = DASHBOARDS) -> list[Path]:
    """Write the files that are out of date; returns which."""
    written = []
    for name, text in files(runbooks, dashboards).items():
        path = HERE / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            written.append(path)
    return written
