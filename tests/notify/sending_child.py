"""A process of its own that sends what is due and says so: something to kill."""

from __future__ import annotations

import sys
import time

from gpucost.ledger.ledger import Ledger
from gpucost.notify.channels import ChannelService
from gpucost.notify.sending.sender import NoticeSender
from tests.notify.sending_worlds import NOW_MS, channel


def main(url: str, chat: str) -> None:
    """Until it is killed. Its clock begins at NOW_MS."""
    began = time.monotonic()

    def now() -> int:
        return NOW_MS + round((time.monotonic() - began) * 1000)

    with Ledger.open(url, now=now) as ledger:
        sender = NoticeSender(
            ledger, [channel(ChannelService.SLACK, chat)], now=now, sleep=lambda _: time.sleep(0.01)
        )
        print("ready", flush=True)
        while True:
            sender.turn()
            time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
