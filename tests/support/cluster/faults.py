"""Faults that a test arms, per collection or for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

WatchFault: TypeAlias = Literal[
    "cut", "410_event", "410_status", "silence", "truncated_line", "403", "500", "429"
]
ListFault: TypeAlias = Literal["expired_page", "403", "500", "429"]

STATUS = {"410_status": 410, "403": 403, "500": 500, "429": 429}
"""Faults that are an answer of their own, instead of a watch or list."""
NOW = frozenset({"cut", "410_event", "silence", "truncated_line"})
"""Faults that happen inside an open watch; the others end it, and refuse the next."""


@dataclass
class Armed:
    """A fault in wait. ``times`` is how often it still happens, None: until it is mended.

    ``collection`` is the full name of the one it is for.
    """

    how: str
    collection: str
    times: int | None = 1
    retry_after_s: int = 1
    felt: int = 0
    """How often it happened."""


class Faults:
    """What is armed, for watches or for lists."""

    def __init__(self, known: object) -> None:
        self._known = get_args(known)
        self._armed: list[Armed] = []

    def arm(self, fault: Armed) -> None:
        if fault.how not in self._known:
            raise ValueError(f"{fault.how} is none of {self._known}")
        self._armed.append(fault)

    def take(self, collection: str, *hows: str) -> Armed | None:
        """The first that fits a request or a watch of ``collection``, which thereby happens once."""
        for fault in self._armed:
            if fault.collection == collection and fault.how in hows:
                self._happened(fault)
                return fault
        return None

    def _happened(self, fault: Armed) -> None:
        fault.felt += 1
        if fault.times is not None:
            fault.times -= 1
            if not fault.times:
                self._armed.remove(fault)

    def stands(self, collection: str) -> bool:
        """Whether a fault without an end keeps ``collection`` from being read, and was met already."""
        return any(each.times is None and each.felt and each.collection == collection for each in self._armed)

    def mend(self, collection: str) -> None:
        """Disarm those of ``collection``."""
        self._armed = [each for each in self._armed if each.collection != collection]
