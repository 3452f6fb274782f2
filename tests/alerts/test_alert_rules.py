"""promtool: rules are sound, and every case comes true."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from alerts import build
from alerts.cases import FILES
from tests.support.prometheus import PROMTOOL, needs_prometheus

HERE = Path(build.__file__).parent
pytestmark = [needs_prometheus, pytest.mark.prometheus]


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROMTOOL or "promtool", *arguments], capture_output=True, text=True, check=False, timeout=120
    )


def test_rules_are_sound() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", HERE / build.RULES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.fault(22, 65)
@pytest.mark.parametrize("name", FILES)
def test_alerts_fire_in_time_and_not_before(name: str) -> None:
    done = promtool("test", "rules", HERE / "tests" / f"{name}.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
