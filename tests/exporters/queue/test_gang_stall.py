"""A gang that lost a member for good, through the real collector: since when it is partial, to the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpucost.contract.metrics import LINGER_MS
from gpucost_queue_collector.collector import SeriesRules
from tests.cluster.builders import MINUTE, SECOND, T0
from tests.exporters.queue import world
from tests.exporters.queue.test_collector import Watching
from tests.support.cluster.server import ClusterServer
from tests.support.objects import volcano

LOST_MS = T0 + 120 * MINUTE
_IN_GANG = {"scheduling.k8s.io/group-name": "gang"}


def member(index: int, bound_ms: int) -> world.Json:
    found = world.pod(f"m{index}", 8, annotations=_IN_GANG, scheduler="volcano")
    return world.bound(found, f"gpu-{index}", bound_ms)


@pytest.fixture
def server() -> Iterator[ClusterServer]:
    """Four of four members run."""
    with ClusterServer() as running:
        group = volcano.pod_group("gang", "team-a", min_member=4, queue="vq", phase="Running")
        nodes = [world.node(f"gpu-{index}") for index in range(4)]
        members = [member(index, T0 + index * SECOND) for index in range(4)]
        for found in (*nodes, group, *members):
            running.put(found)
        yield running


class Seen:
    """What a collector that begins at ``now_ms`` shows."""

    def __init__(self, server: ClusterServer, now_ms: int) -> None:
        self._server = server
        self._watching = Watching(server, SeriesRules())
        self._watching.now_ms = now_ms
        self._watching.collector.start()
        assert self._watching.collector.watch.wait(60)

    def lose(self, server: ClusterServer, now_ms: int) -> None:
        """A member goes, and that is seen at ``now_ms``."""
        self._server.settle()
        self._watching.now_ms = now_ms
        server.delete(member(3, T0))

    def since(self, now_ms: int) -> float | None:
        self._server.settle()
        self._watching.now_ms = now_ms
        self._watching.collector.refresh()
        found = self._watching.value("gang_partial_since_timestamp_seconds", gang="gang")
        return None if found is None else found * 1000

    def close(self) -> None:
        self._watching.close()
        self._server.forget_clients()


@pytest.mark.fault(12)
def test_the_time_of_a_stall_outlasts_what_told_of_it(server: ClusterServer) -> None:
    seen = Seen(server, LOST_MS - SECOND)
    try:
        assert seen.since(LOST_MS - SECOND) is None
        seen.lose(server, LOST_MS)
        later = (LOST_MS, LOST_MS + LINGER_MS - 1, LOST_MS + LINGER_MS + 1, LOST_MS + 600 * MINUTE)
        assert [seen.since(LOST_MS)] + [seen.since(at_ms) for at_ms in later[1:]] == [LOST_MS] * 4
        # Whole again, and lost again.
        server.put(member(3, LOST_MS + 601 * MINUTE))
        assert seen.since(LOST_MS + 601 * MINUTE) is None
        seen.lose(server, LOST_MS + 700 * MINUTE)
        assert seen.since(LOST_MS + 700 * MINUTE) == LOST_MS + 700 * MINUTE
    finally:
        seen.close()


def test_one_that_nothing_tells_of_is_partial_since_it_was_first_seen_so(server: ClusterServer) -> None:
    server.delete(member(3, T0))
    seen = Seen(server, LOST_MS)
    try:
        assert [seen.since(LOST_MS + each * MINUTE) for each in (0, 1, 60)] == [LOST_MS] * 3
    finally:
        seen.close()
