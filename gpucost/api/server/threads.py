"""Who has the interpreter, and for how long: one thread at a time, and whoever answers a probe waits for it
tens of times. ``benchmarks/api_load.py`` measures what each of these brings.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from anyio import CapacityLimiter
from anyio.to_thread import current_default_thread_limiter, run_sync

SHARED = 8
"""Threads for everything that is small: who asks, a finding, an answer that is kept. More that work are no
quicker, and each of them has its turn before a probe has."""
TURN_S = 0.001
"""After which a thread that works lets others have the interpreter; the usual 5 ms are as long as to answer.
Beside one thread that reads YAML or advises, everybody else would wait so long each time."""

T = TypeVar("T")
Given = TypeVarTuple("Given")


def take_short_turns() -> None:
    """Of the whole process, which is about to listen. What is there by now stays, and is not looked through
    again for garbage: that takes a third of a second, in which nobody has the interpreter, and 20,000 values
    that somebody sends are enough to begin it."""
    sys.setswitchinterval(min(TURN_S, sys.getswitchinterval()))
    gc.collect()
    gc.freeze()


def share() -> None:
    """Bound the threads that all requests of the running event loop share."""
    current_default_thread_limiter().total_tokens = SHARED


async def in_own_thread(work: Callable[[*Given], T], *given: *Given) -> T:
    """``work``, in none of the shared ones: it takes long, or waits for another machine, and how many do so
    is bounded by whoever calls this."""
    return await run_sync(work, *given, limiter=CapacityLimiter(1))
