"""Work on batches in whose middle the process is killed. Here, where a process of a pool can import it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from gpucost.domain.time import DAY_MS
from gpucost.service.ingest.batch_reader import BatchResult, WindowBatch
from gpucost.service.ingest.status import WindowFailure
from tests.support.frames import START


def killed_at_first(marks: Path, batch: WindowBatch) -> BatchResult:
    """The first two batches are read by a process that dies of it, the first time."""
    day = batch.span.start_ms
    mark = marks / str(day)
    if day < START + 2 * DAY_MS and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return BatchResult((WindowFailure(batch.cluster, batch.span, "seen", ""),))


def killed_always(_: WindowBatch) -> BatchResult:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
