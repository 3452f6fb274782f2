"""A reflector on a scripted server, with a clock and pauses of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gpucost.kube.connect.http_transport import HttpTransport
from gpucost.kube.watch.object_store import ObjectChange
from gpucost.kube.watch.reflector import Reflector, ReflectorSettings
from tests.support.kube import Answer, KubeServer, kube_server

SECOND = 1_000_000_000
START = 1_767_600_000 * SECOND  # 2026-01-05 08:00 UTC


@dataclass
class Clock:
    """Goes on by a millisecond whenever it is read, and further by hand."""

    now_ns: int = START

    def __call__(self) -> int:
        self.now_ns += SECOND // 1000
        return self.now_ns

    def seconds(self) -> float:
        return self() / SECOND


@dataclass
class World:
    """What a test holds on to. ``jitter`` is the next random number."""

    server: KubeServer
    clock: Clock = field(default_factory=Clock)
    changes: list[ObjectChange[Any]] = field(default_factory=list)
    jitter: float = 0.5

    def reflector(self, path: str = "/api/v1/pods", **more: Any) -> Reflector[Any]:
        settings = more.pop("settings", ReflectorSettings(inactivity_s=5.0))
        return Reflector(
            HttpTransport(self.server.url),
            path,
            trim=more.pop("trim", dict),
            settings=settings,
            on_change=self.changes.append,
            clock=self.clock,
            monotonic=self.clock.seconds,
            jitter=lambda: self.jitter,
            **more,
        )

    @property
    def history(self) -> list[tuple[str, str]]:
        """(kind of change, uid), in order."""
        return [(change.kind.value, change.object["metadata"]["uid"]) for change in self.changes]

    def run(self, reflector: Reflector[Any]) -> list[float]:
        """Steps until the script is used up; the pauses asked for."""
        pauses = []
        while self.server.script:
            pauses.append(reflector.step())
            self.clock.now_ns += round(pauses[-1] * SECOND)
        return pauses


@contextmanager
def world(*script: Answer) -> Iterator[World]:
    """A server with its script, running."""
    with kube_server(*script) as server:
        yield World(server)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Until another thread has brought something about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)
