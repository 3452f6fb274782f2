"""The two threads of notifications: one decides what is due, and one sends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpucost.ledger.ledger import Ledger
from gpucost.notify.routes import RoutingRules
from gpucost.notify.sending.sender import NoticeSender
from gpucost.service.notifications.loop import (
    EVERY_S,
    NoticeSource,
    NotificationLoop,
    NotificationStatus,
)

_SEND_EVERY_S = 1.0
_GRACE_S = 10.0
"""For what is being sent at the end; together with the other waits of a shutdown, below Kubernetes' 30 s."""


@dataclass(frozen=True)
class NotificationService:
    """``telling`` decides, ``sender`` delivers from the outbox, and ``status`` counts both."""

    telling: NotificationLoop
    sender: NoticeSender
    status: NotificationStatus
    stop: threading.Event

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        rules: RoutingRules,
        sources: Mapping[str, NoticeSource],
        *,
        now: Callable[[], int],
        stop: threading.Event,
        every_s: float = EVERY_S,
    ) -> NotificationService:
        """Nothing is sent before the threads run."""
        sender = NoticeSender(ledger, tuple(rules.channels.values()), now=now)
        status = NotificationStatus(rules.channels, sender.status)
        telling = NotificationLoop(
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
        """Runs until a stop is requested."""
        while not self.stop.is_set():
            self.sender.turn()
            self.stop.wait(_SEND_EVERY_S)

    def close(self) -> None:
        """What is being sent is finished; the rest stays in the outbox."""
        self.sender.stop(_GRACE_S)
