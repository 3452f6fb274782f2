"""The loop of the driver process: a request in, one read of all GPUs, a reply out; ends when stdin does.

XID events go out between the replies, as they happen.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from typing import IO, Any

from gpucost_gpu_exporter.driver.calls import NvmlFailure
from gpucost_gpu_exporter.driver.node import NvmlNode
from gpucost_gpu_exporter.model.readings import XidEvent

_PR_SET_PDEATHSIG = 1


def serve(requests: Iterable[bytes], replies: IO[str]) -> int:
    """Answer requests until they end (0), or until the driver cannot be used (1): then start anew.

    A request is ``{"now_ns": …, "processes": …}``; the first may carry ``"resume"``, as in the reply before.
    """
    lines = WholeLines(replies)
    node: NvmlNode | None = None
    for line in requests:
        request = json.loads(line)
        try:
            node = node or NvmlNode(request.get("resume", {}), lines.tell)
            reading = node.look(request["now_ns"], request["processes"])
        except NvmlFailure as failure:
            lines.send({"error": {"code": failure.code, "text": str(failure.__cause__ or failure)}})
            return 1
        lines.send({"reading": reading.to_json(), "resume": node.resume()})
    return 0


def main() -> None:
    """Serve stdin and stdout. Output of the library goes to stderr: stdout holds replies only."""
    _die_with_parent()
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    code = serve(sys.stdin.buffer, replies)
    # Ending the interpreter in the usual way would wait for a thread that may be inside the driver.
    os._exit(code)


def _die_with_parent() -> None:
    """Have the kernel kill this process with its parent: inside the driver it would not see its stdin end.

    The kernel watches the thread that started this process, see prctl(2): the link is used by one thread that
    lives as long as the exporter.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class WholeLines:
    """Messages of several threads, each a line that no other tears."""

    def __init__(self, replies: IO[str]) -> None:
        self._replies = replies
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":")) + "\n"
        with self._lock:
            self._replies.write(line)
            self._replies.flush()

    def tell(self, event: XidEvent) -> None:
        self.send(event.to_json())


if __name__ == "__main__":
    main()
