"""A Dask scheduler and workers of their own, as processes that are killed at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def dask_scheduler(folder: Path) -> Iterator[str]:
    """The address of a scheduler, which says it in a file in ``folder``."""
    file = folder / "scheduler.json"
    file.unlink(missing_ok=True)
    with _dask("scheduler", "--port", "0", "--scheduler-file", str(file)) as process:
        address = ""
        while not address:
            assert process.poll() is None
            time.sleep(0.05)
            with suppress(OSError, ValueError):
                address = json.loads(file.read_text(encoding="utf-8"))["address"]
        yield address


def dask_worker(address: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """One thread, and no nanny that would begin another when it is killed."""
    return _dask("worker", address, "--nthreads", "1", "--no-nanny")


@contextmanager
def _dask(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "dask", *words, "--no-dashboard", "--host", "127.0.0.1"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'exporters'}"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()
