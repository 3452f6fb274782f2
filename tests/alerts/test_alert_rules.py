"""promtool: rules are sound, and every case comes true."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from alerts import build
from alerts.cases import FILES
from alerts.rules import GROUPS
from tests.support.prometheus import PROMTOOL, needs_prometheus

HERE = Path(build.__file__).parent
pytestmark = [needs_prometheus, pytest.mark.prometheus, pytest.mark.slow]


# promtool makes a database for every test, and is collecting garbage for a sixth of its time otherwise.
ENVIRONMENT = {**os.environ, "GOGC": "800"}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [PROMTOOL or "promtool", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=ENVIRONMENT)


def hourly(case: dict[str, object]) -> dict[str, object]:
    """A file of one case. promtool takes groups in no order of its own, and a rule of one group needs
    what another recorded at the same instant."""
    return {
        "rule_files": [str(HERE / build.RULES)],
        "evaluation_interval": "1h",
        "group_eval_order": [group.name for group in GROUPS],
        "tests": [case],
    }


def test_rules_are_sound() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", HERE / build.RULES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.fault(22, 65)
@pytest.mark.parametrize("name", FILES)
def test_alerts_fire_in_time_and_not_before(name: str) -> None:
    done = promtool("test", "rules", HERE / "tests" / f"{name}.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_waste_of_a_day_is_counted_once_whatever_the_service_does(tmp_path: Path) -> None:
    """10 GPUs idle; a restart, with another ``instance``, and a window that was assessed again meanwhile."""
    old, new = (f'{{gpu_cluster="c", bucket="idle", owner_team="v", instance="{name}"}}' for name in "ab")
    record = "cluster_team_bucket:gpucost_waste_gpu_seconds:increase1d"
    hours = (18, 24, 29)
    case = {
        "interval": "1h",
        "input_series": [
            {"series": f"gpucost_waste_gpu_seconds_total{old}", "values": "9000000+36000x18 stale"},
            {"series": f"gpucost_waste_gpu_seconds_total{new}", "values": "_x18 9640000+36000x20"},
        ],
        "promql_expr_test": [
            {
                "expr": f"round(max({record}) / 3600)",
                "eval_time": f"{hour}h",
                "exp_samples": [{"labels": "{}", "value": value}],
            }
            for hour, value in zip(hours, (185, 238, 238), strict=True)
        ],
    }
    file = tmp_path / "waste.yaml"
    file.write_text(yaml.safe_dump(hourly(case)))
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
