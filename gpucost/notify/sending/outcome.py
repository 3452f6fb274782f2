"""Why a message did not arrive. No word of these holds a path of a URL, a token or what a service wrote
freely: they go into the log, the ledger and to people."""

from __future__ import annotations

import re

from gpucost.domain.errors import GpuCostError

# Words with _ or . between them, as Slack and Mattermost write theirs. Tokens and the ids of webhooks, which
# an answer may repeat, have digits, capitals or longer words.
_CODE = re.compile(r"(?=.{1,80}\Z)[a-z]{1,20}([_.][a-z]{1,20})*")


class Undelivered(GpuCostError):
    """It did not arrive."""


class Retry(Undelivered):
    """It may arrive later. ``after_s``: the service asked to wait so long; None if it did not say."""

    def __init__(self, why: str, after_s: float | None = None) -> None:
        self.after_s = after_s
        super().__init__(why)


class Refused(Undelivered):
    """It never will as things are: a person must change something first."""


def code(text: object) -> str:
    """``text`` if it looks like a code of an error (``channel_is_archived``), else that it does not."""
    return text if isinstance(text, str) and _CODE.fullmatch(text) else "an error without a code"
