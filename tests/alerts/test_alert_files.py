"""Generated files are as their source; every alert has its pair, its runbook, and known names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from alerts import build
from alerts.cases import FILES
from alerts.rules import ALERTS, GROUPS, thresholds
from alerts.rules.findings import PATTERN_ALERT_TEXTS
from alerts.rules.model import AlertRule
from gpucost.contract.metrics import METRICS
from gpucost.detectors.findings import WastePattern
from gpucost.service.metrics import SERVICE_METRICS

HERE = Path(build.__file__).parent
SECTIONS = ("Meaning", "Impact", "Diagnosis", "Mitigation", "False positives, and how to silence")
ALL = sorted(ALERTS.values(), key=lambda alert: alert.name)


def test_files_are_as_their_source_says() -> None:
    stale = [str(name) for name, text in build.files().items() if (HERE / name).read_text() != text]
    assert not stale, "run: python -m alerts"
    assert {path.name for path in (HERE / "tests").iterdir()} == {f"{name}.yaml" for name in FILES}


@pytest.mark.fault(65)
@pytest.mark.parametrize("alert", ALL, ids=lambda alert: alert.name)
def test_every_alert_has_its_boundary_pair_and_its_runbook(alert: AlertRule) -> None:
    cases = [case for _, found in FILES.values() for case in found if case.alert == alert.name]
    if alert.expr == "vector(1)":
        assert any(case.firing for case in cases)
    else:
        pairs = [case for case in cases if case.silent and case.firing]
        assert pairs, f"{alert.name} has no case that is silent just below and fires"
        gaps = {at - before for case in pairs for at in case.firing for before in case.silent if at > before}
        assert min(gaps) <= pairs[0].interval, "silent one sample before it fires, not long before"
        assert any(case.resolved for case in pairs), f"{alert.name} has no case in which it resolves"
    text = (HERE / "runbooks" / f"{alert.name}.md").read_text()
    assert text.startswith(f"# {alert.name}\n")
    assert build.head(alert) in text
    assert all(each.shown in text for each in alert.thresholds)
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert tuple(headings) == SECTIONS
    for heading in SECTIONS:
        body = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        assert len(body.split()) >= 3, f"{alert.name}: nothing under {heading}"


@pytest.mark.fault(65)
def test_no_runbook_and_no_case_is_of_an_alert_that_is_gone() -> None:
    assert {path.stem for path in (HERE / "runbooks").glob("*.md")} == set(ALERTS)
    assert {case.alert for _, cases in FILES.values() for case in cases} == set(ALERTS)


def test_every_pattern_has_an_alert() -> None:
    assert [said.pattern for said in PATTERN_ALERT_TEXTS] == list(WastePattern)
    assert {"GpuCostIdleAllocation", "GpuCostCpuOnlyPods"} <= {said.name for said in PATTERN_ALERT_TEXTS}


def test_names_exist() -> None:
    known = {metric.name for metric in (*METRICS, *SERVICE_METRICS)}
    known |= {name.removesuffix("_usd") for name in known if name.endswith("_usd")}
    recorded: set[str] = set()
    for group in GROUPS:
        for rule in group.rules:
            used = set(re.findall(r"[a-z_]+:gpucost_\w+:\w+", rule.expr))
            rest = re.sub(r"[a-z_]+:gpucost_\w+:\w+", "", rule.expr)
            assert set(re.findall(r"gpucost_\w+", rest)) <= known
            if not isinstance(rule, AlertRule):
                recorded.add(rule.record)
                assert re.fullmatch(r"[a-z_]+:gpucost_\w+:\w+", rule.record)
            assert used <= recorded


@pytest.mark.parametrize("alert", ALL, ids=lambda alert: alert.name)
def test_what_an_alert_says(alert: AlertRule) -> None:
    rule = yaml.safe_load(yaml.safe_dump(alert.rule()))
    assert re.fullmatch(r"GpuCost[A-Z]\w+", alert.name)
    assert alert.severity in ("critical", "warning", "info") or "$labels.severity" in alert.severity
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url", "dashboard_url"}
    assert "{{" not in notes["summary"]
    assert notes["summary"].endswith(".")
    assert notes["runbook_url"] == f"RUNBOOKS/{alert.name}.md"
    assert re.match(
        r"DASHBOARDS/({{.*?}})?d/gpucost-(fleet|team|job|queues|nodes|self)", notes["dashboard_url"]
    )
    assert "keep_firing_for" not in rule


def test_addresses_take_the_place_of_placeholders() -> None:
    found = build.files("https://git.example.com/runbooks/", "https://grafana.example.com")
    text = found[Path(build.RULES)]
    assert "RUNBOOKS/" not in text
    assert "DASHBOARDS/" not in text
    assert "https://git.example.com/runbooks/GpuCostLedgerLag.md" in text
    assert "https://grafana.example.com/d/gpucost-self" in text


def test_thresholds_have_a_unit_and_a_reason_and_are_used() -> None:
    every = {n: each for n, each in vars(thresholds).items() if isinstance(each, thresholds.AlertThreshold)}
    assert all(each.unit and each.meaning and each.why for each in every.values())
    used = [each for alert in ALL for each in (*alert.thresholds, alert.lasts) if each is not None]
    assert [name for name, each in every.items() if each not in used] == []


@pytest.mark.parametrize(("seconds", "text"), [(5_400, "1h30m"), (86_400, "1d"), (0, "0s"), (59, "59s")])
def test_durations(seconds: int, text: str) -> None:
    assert thresholds.AlertThreshold(seconds, "s", "", "").duration == text


def test_a_runbook_without_its_part_is_refused() -> None:
    with pytest.raises(ValueError, match="GpuCostLedgerLag"):
        build.runbook(ALERTS["GpuCostLedgerLag"], "# GpuCostLedgerLag\n")
