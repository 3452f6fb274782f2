"""``gpucost serve`` and other commands as processes of their own, on a clock that shows what is wanted."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.programs import Program, answers

ROOT = Path(__file__).parents[2]
# gpucost reads the clock in one place. It is set before gpucost is imported, so that whatever it keeps
# is ours.
PROGRAM = """
import sys, time
ahead_ns, real = int(sys.argv.pop(1)), time.time_ns
time.time_ns = lambda: real() + ahead_ns
from gpucost.cli import main
main()
"""


def service(folder: Path, settings: Mapping[str, Any], port: int, now_ms: int | None = None) -> Program:
    """Not started yet. It answers on ``port``, and its clock shows ``now_ms`` now (the real time, without)
    and goes on, also while no process runs."""
    config, log = folder / "service.yaml", folder / "service.log"
    api = {"host": "127.0.0.1", "port": port, **settings.get("api", {})}
    config.write_text(json.dumps({**settings, "api": api}), encoding="utf-8")  # JSON is YAML too
    ahead_ns = 0 if now_ms is None else now_ms * 1_000_000 - time.time_ns()
    command = [sys.executable, "-c", PROGRAM, str(ahead_ns), "--config", str(config), "serve"]
    return Program("gpucost serve", command, log, lambda: answers(f"http://127.0.0.1:{port}/healthz"), ROOT)


def ahead(program: Program, by_ms: int) -> None:
    """From its next start on, the clock of a ``service`` shows so much more."""
    command = [*program.command]
    command[3] = str(int(command[3]) + by_ms * 1_000_000)
    program.command = command


def said(program: Program, *words: str) -> subprocess.CompletedProcess[str]:
    """What ``gpucost`` says to ``words``, with the settings and the clock of a ``service``."""
    command = [*program.command[:-1], *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
