"""Ports that no other process is given meanwhile."""

from __future__ import annotations

import itertools
import os
import socket

# Below what the kernel takes for connections (ip_local_port_range): one from there may be a client's by the
# time that a server wants it. Runs begin at different places, and each worker of one has a part of its own.
_FIRST, _LAST = 20_000, 32_000


def _begin() -> int:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if not worker.isdecimal():
        return os.getpid() * 1009
    share = (_LAST - _FIRST) // max(1, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    return os.getppid() * 1009 + int(worker) * share


_offsets = itertools.count(_begin())


def free_port() -> int:
    """A loopback port on which no process listens."""
    for offset in itertools.islice(_offsets, _LAST - _FIRST):
        port = _FIRST + offset % (_LAST - _FIRST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")
