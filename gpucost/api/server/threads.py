"""How threads share the interpreter: one thread runs at a time, and the thread that answers a probe waits for
it tens of times. ``benchmarks/api_load.py`` measures what each of these settings brings."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from anyio import CapacityLimiter
from anyio.to_thread import current_default_thread_limiter, run_sync

SHARED = 8
"""Threads for everything that is small: authentication, a finding, a cached response. More threads are no
quicker, and each of them has its turn before a probe has."""
TURN_S = 0.001
"""After which a working thread lets others have the interpreter; the usual 5 ms are as long as an answer
takes. Beside one thread that reads YAML or advises, all others would wait so long each time."""

T = TypeVar("T")
Given = TypeVarTuple("Given")


def take_short_turns() -> None:
    """For the whole process, which is about to listen. Existing objects stay, and are excluded from garbage
    collection: going through them takes a third of a second, in which no other thread runs, and 20,000 values
    in one request are enough to start it.
    """
    sys.setswitchinterval(min(TURN_S, sys.getswitchinterval()))
    gc.collect()
    gc.freeze()


def share() -> None:
    """Bound the threads that all requests of the running event loop share."""
    current_default_thread_limiter().total_tokens = SHARED


async def in_own_thread(work: Callable[[*Given], T], *given: *Given) -> T:
    """Run ``work`` in a thread that is not shared: it takes long, or waits for another machine, and the
    caller bounds how many do so."""
    return await run_sync(work, *given, limiter=CapacityLimiter(1))
