"""The example for Alertmanager: amtool takes it, routes lead where they should, a real one inhibits."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from alerts import build
from alerts.rules import ALERTS
from tests.support.ports import free_port

EXAMPLE = Path(build.__file__).parent / "alertmanager.example.yaml"
AMTOOL = shutil.which("amtool")
ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
pytestmark = [
    pytest.mark.alertmanager,
    pytest.mark.skipif(
        AMTOOL is None or ALERTMANAGER is None,
        reason="prometheus-alertmanager is not installed (Debian: apt-get install prometheus-alertmanager)",
    ),
]


def amtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [AMTOOL or "amtool", *arguments], capture_output=True, text=True, check=False, timeout=30
    )


def test_amtool_takes_it() -> None:
    done = amtool("check-config", EXAMPLE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ({"alertname": "GpuCostWatchdog", "severity": "info"}, "dead-mans-switch"),
        ({"alertname": "GpuCostIdleAllocation", "team": "vision", "severity": "warning"}, "gpucost"),
        ({"alertname": "GpuCostIdleAllocation", "team": "vision", "severity": "info"}, "gpucost"),
        ({"alertname": "GpuCostIdleAllocation", "team": "language", "severity": "warning"}, "gpucost"),
        ({"alertname": "GpuCostIdleAllocation", "team": "else", "severity": "warning"}, "gpucost"),
        ({"alertname": "GpuCostGangStall", "team": "vision", "severity": "critical"}, "pager-vision,gpucost"),
        (
            {"alertname": "GpuCostGangStall", "team": "language", "severity": "critical"},
            "pager-language,gpucost",
        ),
        ({"alertname": "GpuCostGangStall", "team": "else", "severity": "critical"}, "gpucost"),
        ({"alertname": "GpuCostServiceDown", "severity": "critical"}, "gpucost"),
        ({"alertname": "GpuCostLedgerLag", "severity": "warning"}, "gpucost"),
        ({"alertname": "GpuCostFindingsCutOff", "severity": "info"}, "gpucost"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value.values()),
)
def test_routes(labels: dict[str, str], receiver: str) -> None:
    pairs = [f"{name}={value}" for name, value in labels.items()]
    done = amtool("config", "routes", "test", f"--config.file={EXAMPLE}", *pairs)
    assert done.stdout.strip() == receiver


def test_gpucost_is_told_with_a_key_of_a_file_and_of_ends_too() -> None:
    config = yaml.safe_load(EXAMPLE.read_text())
    assert config["route"]["group_by"] == ["alertname", "team"]
    hook = next(each for each in config["receivers"] if each["name"] == "gpucost")["webhook_configs"][0]
    assert hook["url"] == "http://gpucost:8080/v1/alerts/alertmanager"
    assert hook["send_resolved"] is True
    assert hook["max_alerts"] == build.MOST_ALERTS
    assert set(hook["http_config"]["authorization"]) == {"type", "credentials_file"}


def test_inhibition_names_alerts_that_exist() -> None:
    for rule in yaml.safe_load(EXAMPLE.read_text())["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            name, _, values = matcher.replace("=~", "=").partition("=")
            if name == "alertname":
                assert set(values.strip('"').split("|")) <= set(ALERTS)


@contextmanager
def running_alertmanager(folder: Path) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    log = (folder / "log").open("w")
    command = [
        *(ALERTMANAGER or "alertmanager", f"--config.file={EXAMPLE}", f"--storage.path={folder / 'data'}"),
        *(f"--web.listen-address={address}", "--cluster.listen-address="),
    ]
    with log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    urllib.request.urlopen(f"http://{address}/-/ready", timeout=1).close()
                    break
                except OSError:
                    assert process.poll() is None, (folder / "log").read_text()
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(timeout=60)


@pytest.mark.fault(65)
def test_a_real_alertmanager_inhibits_what_follows_and_nothing_else(tmp_path: Path) -> None:
    def alert(name: str, severity: str, **labels: str) -> dict[str, object]:
        return {"labels": {"alertname": name, "severity": severity, **labels}}

    idle = {"cluster": "prod", "team": "vision"}
    alerts = [
        alert("GpuCostIdleAllocation", "critical", finding="1", **idle),
        alert("GpuCostIdleAllocation", "warning", finding="1", **idle),
        alert("GpuCostIdleAllocation", "warning", finding="2", **idle),
        alert("GpuCostCollectorStale", "critical", cluster="prod"),
        alert("GpuCostQueueInactive", "warning", cluster="prod", cluster_queue="nlp"),
        alert("GpuCostQueueInactive", "warning", cluster="test", cluster_queue="nlp"),
        alert("GpuCostBudgetExceeded", "warning", team="vision", budget="vision", period="2026-10"),
        alert("GpuCostBudgetProjectedToExceed", "warning", team="vision", budget="vision", period="2026-10"),
        alert("GpuCostBudgetProjectedToExceed", "warning", team="vision", budget="year", period="2026"),
    ]
    with running_alertmanager(tmp_path) as url:

        def post(found: list[dict[str, object]]) -> None:
            body = json.dumps(found).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{url}/api/v2/alerts", body, headers)
            urllib.request.urlopen(request, timeout=30).close()

        def inhibited() -> set[tuple[str, ...]]:
            with urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=30) as answer:
                found = json.load(answer)
            return {
                tuple(each["labels"].get(name, "") for name in ("alertname", "cluster", "budget", "finding"))
                for each in found
                if each["status"]["inhibitedBy"]
            }

        def settled(expected: set[tuple[str, ...]]) -> None:
            # An alert is marked when its group is first worked on: after group_wait, unless it is old.
            deadline = time.monotonic() + 60
            while inhibited() != expected and time.monotonic() < deadline:
                time.sleep(0.1)
            assert inhibited() == expected

        old = {"startsAt": "2026-01-01T00:00:00Z"}
        post([{**each, **old} for each in alerts])
        settled(
            {
                ("GpuCostIdleAllocation", "prod", "", "1"),
                ("GpuCostQueueInactive", "prod", "", ""),
                ("GpuCostBudgetProjectedToExceed", "", "vision", ""),
            }
        )
