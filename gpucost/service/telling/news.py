"""The two threads that tell people: one that finds out what is due, and one that sends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpucost.ledger import Ledger
from gpucost.notify.routes import Rules
from gpucost.notify.sending.sender import Sender
from gpucost.service.telling.loop import EVERY_S, Source, Telling
from gpucost.service.telling.status import TellingStatus

_SEND_EVERY_S = 1.0
_GRACE_S = 10.0
"""For what is being sent at the end; with what else the service waits for, below Kubernetes' 30 s."""


@dataclass(frozen=True)
class News:
    """``telling`` decides, ``sender`` delivers what it left in the outbox, and ``status`` counts both."""

    telling: Telling
    sender: Sender
    status: TellingStatus
    stop: threading.Event

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        rules: Rules,
        sources: Mapping[str, Source],
        *,
        now: Callable[[], int],
        stop: threading.Event,
        every_s: float = EVERY_S,
    ) -> News:
        """Nothing is told before the threads run."""
        sender = Sender(ledger, tuple(rules.channels.values()), now=now)
        status = TellingStatus(rules.channels, sender.status)
        telling = Telling(
            ledger,
            rules,
            sources,
            status,
            now=now,
            sleep=stop.wait,
            stopped=stop.is_set,
            every_s=every_s,
        )
        return cls(telling, sender, status, stop)

    def send(self) -> None:
        """Until a stop is asked for."""
        while not self.stop.is_set():
            self.sender.turn()
            self.stop.wait(_SEND_EVERY_S)

    def close(self) -> None:
        """What is being sent is finished; what waits stays in the outbox."""
        self.sender.stop(_GRACE_S)
