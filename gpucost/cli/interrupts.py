"""Ends that are asked for: as Ctrl-C, so that what was begun is tidied up."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ASKED = (signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 130
"""How a process ends on Ctrl-C, as shells have it."""


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """In this block SIGTERM and the end of the terminal raise KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what signals do
        return
    before = {each: signal.signal(each, _interrupt) for each in _ASKED}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """In this block Ctrl-C ends the process, and nothing is said or tidied up. For imports only: they leave
    nothing behind, and an exception in the middle of one may be printed, or taken for a missing module."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
