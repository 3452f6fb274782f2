"""The files that Prometheus, Alertmanager and promtool read, as text; ``write`` puts them in their place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from alerts import alertmanager
from alerts.cases import FILES
from alerts.model import DASHBOARDS, RUNBOOKS, Alert, Case, Firing, RuleGroup
from alerts.rules import ALERTS, GROUPS

HERE = Path(__file__).parent
RULES = "gpucost.rules.yaml"
_HEAD = "# Written by `python -m alerts`; change it there.\n"
_TABLE = re.compile(r"<!-- rule -->\n.*?<!-- /rule -->\n", re.DOTALL)


class _Dumper(yaml.SafeDumper):
    """Aliases save nothing that is worth looking up."""

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


def tests_text(cases: Sequence[Case], evaluation: str) -> str:
    """For ``promtool test rules``, beside the folder's parent's rules."""
    return _yaml(
        {
            "rule_files": [f"../{RULES}"],
            "evaluation_interval": evaluation,
            "group_eval_order": [group.name for group in GROUPS],
            "tests": [_test(together) for together in _packed(cases)],
        }
    )


def _packed(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases that have no metric in common, side by side: promtool evaluates every rule in every test, so a
    quarter of the tests takes a quarter of the time."""
    packs: list[tuple[set[str], list[Case]]] = []
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


def _test(cases: Sequence[Case]) -> dict[str, object]:
    series = [item for case in cases for item in case.series.items()]
    return {
        "name": "\n".join(f"{case.alert}: {case.about}" for case in cases),
        "interval": f"{cases[0].interval}s",
        "input_series": [{"series": name, "values": values} for name, values in series],
        "alert_rule_test": [asked for case in cases for asked in _asked(case)],
    }


def _asked(case: Case) -> list[dict[str, object]]:
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


def _expected(alert: Alert, firing: Firing) -> dict[str, Mapping[str, str]]:
    return {
        "exp_labels": firing.labels,
        "exp_annotations": {
            "summary": alert.summary,
            "description": firing.description,
            "runbook_url": alert.runbook_url,
            "dashboard_url": f"{DASHBOARDS}/d/{firing.dashboard}",
        },
    }


def head(alert: Alert) -> str:
    """What a runbook says of its rule: generated, so that it cannot say anything else."""
    severity = "as the finding's" if "{{" in alert.severity else str(alert.severity)
    lines = [f"| severity | {severity} |", "|---|---|"]
    if alert.lasts is None:
        lines.append("| fires | at the first evaluation that sees it |")
    else:
        lines.append(f"| fires after | {alert.lasts.shown} ({alert.lasts.why}) |")
    lines += [f"| {each.meaning} | **{each.shown}** ({each.why}) |" for each in alert.thresholds]
    expr = alert.expr
    return "\n".join(("<!-- rule -->", *lines, "", "```promql", expr, "```", "<!-- /rule -->", ""))


def runbook(alert: Alert, text: str) -> str:
    """``text`` of the page with its generated part as it should be. Raises ValueError where it has none."""
    if not _TABLE.search(text):
        raise ValueError(f"the runbook of {alert.name} has no part between <!-- rule --> and <!-- /rule -->")
    return _TABLE.sub(lambda _: head(alert), text, count=1)


def files(runbooks: str = RUNBOOKS, dashboards: str = DASHBOARDS) -> dict[Path, str]:
    """All generated files, by their path in this folder. Raises FileNotFoundError for a missing runbook."""
    found = {Path(RULES): rules_text(), Path("alertmanager.example.yaml"): alertmanager.text()}
    for name, (evaluation, cases) in FILES.items():
        found[Path("tests") / f"{name}.yaml"] = tests_text(cases, evaluation)
    found = {path: based(text, runbooks, dashboards) for path, text in found.items()}
    for alert in ALERTS.values():
        page = Path("runbooks") / f"{alert.name}.md"
        found[page] = runbook(alert, (HERE / page).read_text())
    return found


def write(runbooks: str = RUNBOOKS, dashboards: str = DASHBOARDS) -> list[Path]:
    """Write what is not yet as it should be; what was written."""
    written = []
    for name, text in files(runbooks, dashboards).items():
        path = HERE / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            written.append(path)
    return written
