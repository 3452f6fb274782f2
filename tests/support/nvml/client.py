"""A process that has the stand-in library open through the real nvidia-ml-py, for questions one by one.

The library is found by the environment of a process at its start, so a test cannot load it itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.support.nvml.driver import FakeDriver

# Reads a line of Python, answers a line of JSON: what it gave, or the number of the NVML error.
CHILD = """
import json, sys, threading
from pynvml import *

def plain(value):
    if hasattr(value, "_fields_"):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    if hasattr(value, "_length_") or isinstance(value, list):
        return [plain(item) for item in value]
    return vars(value) if isinstance(value, nvmlFriendlyObject) else value

def gpm(first, second, *metrics):
    get = c_nvmlGpmMetricsGet_t(version=1, numMetrics=len(metrics), sample1=first, sample2=second)
    for place, metric in enumerate(metrics):
        get.metrics[place].metricId = metric
    nvmlGpmMetricsGet(get)
    return [[get.metrics[n].nvmlReturn, get.metrics[n].value] for n in range(len(metrics))]

for line in sys.stdin:
    try:
        try:
            answer = {"value": plain(eval(line))}
        except SyntaxError:
            exec(line)
            answer = {"value": None}
    except NVMLError as error:
        answer = {"error": error.value}
    print(json.dumps(answer, default=str), flush=True)
"""


class NvmlFailure(Exception):
    """The library answered an error: ``args[0]`` is its number."""


class Client:
    """A process that has the library open; call it with one line of Python."""

    def __init__(self, driver: FakeDriver, library: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            env=driver.environment(library),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, line: str) -> None:
        """Start a call that may take its time; ``receive`` waits for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        """The value of the expression that was sent, as JSON has it; None of a statement."""
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise NvmlFailure(answer["error"])
        return answer["value"]

    def __call__(self, line: str) -> Any:
        self.send(line)
        return self.receive()

    def error(self, line: str) -> int:
        """The number of the error that the line gives."""
        try:
            given = self(line)
        except NvmlFailure as failure:
            return int(failure.args[0])
        raise AssertionError(f"{line} gave {given}, no error")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
