"""Real programs that may be killed and started again where they were."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self


@dataclass
class Program:
    """``command`` with its output in ``log``; ``is_ready`` says whether it answers. Stopped when left."""

    name: str
    command: Sequence[str]
    log: Path
    is_ready: Callable[[], bool]
    folder: Path
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, seconds: float = 240) -> None:
        """Until it answers. One that ends is started again: what a killed PostgreSQL left must end first."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(self.command, stdout=log, stderr=log, cwd=self.folder)
            while self.process.poll() is None and time.monotonic() < deadline:
                if self.is_ready():
                    return
                time.sleep(0.02)
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"{self.name} does not answer:\n{self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL where that is not enough."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()


def answers(url: str) -> bool:
    """Whether a GET of ``url`` is answered with 200 now."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
