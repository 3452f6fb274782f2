"""Killed at any moment, the same command goes on; the ledger is the one of a run that was never killed."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from gpucost.ledger.ledger import Ledger
from gpucost.telemetry.recorded_source import record
from tests.service.worlds import DAY, NOW_MS, frames

ROOT = Path(__file__).parents[2]
WINDOWS = 24 * 12


def ingest(folder: Path, name: str) -> subprocess.Popen[bytes]:
    settings = folder / f"{name}.yaml"
    text = f'ledger: {{url: "sqlite:///{folder / name}.db"}}\ningest: {{window: 5m, batch: 1h}}\n'
    settings.write_text(text, encoding="utf-8")
    words = ["--config", str(settings), "ingest", "--source", f"recorded:{folder / 'recording'}"]
    words += ["--from", "2026-10-01", "--to", "2026-10-02"]
    program = "from gpucost.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", program, *words], cwd=ROOT, stdout=subprocess.DEVNULL)


def written(folder: Path, name: str) -> int:
    """How many windows the ledger has, as another process sees it."""
    try:
        with closing(sqlite3.connect(f"file:{folder / name}.db?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM ledger_window").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


@pytest.mark.slow
@pytest.mark.fault(39)
def test_sigkill_at_random_moments_loses_and_doubles_nothing(tmp_path: Path) -> None:
    record(tmp_path / "recording", frames())
    assert ingest(tmp_path, "whole").wait(200) == 0
    kills = sorted(random.Random(7).sample(range(10, WINDOWS // 2), 4))
    for target in kills:
        process = ingest(tmp_path, "killed")
        while written(tmp_path, "killed") < target and process.poll() is None:
            time.sleep(0.005)
        process.kill()
        process.wait()
    assert target <= written(tmp_path, "killed") < WINDOWS, "the last kill came in the middle"
    assert ingest(tmp_path, "killed").wait(200) == 0
    found = []
    for name in ("whole", "killed"):
        with Ledger.open(f"sqlite:///{tmp_path / name}.db", now=lambda: NOW_MS) as ledger:
            assert ledger.verify() == ()
            found.append(
                [(info.window, info.state, info.version, info.digest) for info in ledger.windows(DAY)]
            )
    assert len(found[0]) == WINDOWS
    assert found[0] == found[1]
