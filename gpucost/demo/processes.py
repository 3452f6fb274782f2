"""Programs of the demo: found, started, waited for, and always ended again."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from gpucost.domain.errors import GpuCostError, InputError

# Debian's package of each program.
_PACKAGES = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
}
PROGRAMS = tuple(_PACKAGES)
_READY_S, _END_S, _PAUSE_S = 60.0, 20.0, 0.05
_TAIL = 2_000


class NotStarted(GpuCostError):
    """A program that ended at once, or did not get ready; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Program:
    """``ready`` is the URL that answers 200 once it is."""

    name: str
    arguments: Sequence[str]
    ready: str
    log: Path


def found(name: str) -> str:
    """The path of a program. Raises InputError, naming Debian's package, where there is none."""
    path = shutil.which(name)
    if path is None:
        package = _PACKAGES.get(name, name)
        raise InputError("program", name, f"an installed one (Debian: apt-get install {package})")
    return path


@contextmanager
def running(program: Program) -> Iterator[None]:
    """Start a program, wait until it is ready, and end it. Raises InputError and NotStarted.

    A group of its own: Ctrl-C comes to us, and we end it in order.
    """
    command = [found(program.name), *program.arguments]
    with (
        program.log.open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True) as process,
    ):
        try:
            _wait(program, process)
            yield
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(program: Program, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NotStarted(f"{program.name} ended at once: {_tail(program.log)}")
        try:
            with urlopen(program.ready, timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(_PAUSE_S)
    raise NotStarted(f"{program.name} was not ready after {_READY_S:.0f} s: {_tail(program.log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-_TAIL:].strip() or "its log is empty"


def create_blocks(text: Iterator[str], data: Path) -> None:
    """Blocks of one OpenMetrics text in Prometheus' folder ``data``. Raises InputError and NotStarted."""
    data.mkdir(parents=True, exist_ok=True)
    source = data.parent / f"{data.name}.openmetrics"
    with source.open("w", encoding="utf-8") as file:
        file.writelines(text)
    arguments = ["tsdb", "create-blocks-from", "openmetrics", "--quiet", str(source), str(data)]
    done = subprocess.run([found("promtool"), *arguments], capture_output=True, text=True, check=False)
    source.unlink()
    if done.returncode:
        raise NotStarted(f"promtool refused the samples: {(done.stderr or done.stdout)[-_TAIL:]}")
