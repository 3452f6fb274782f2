"""Rows of a table, written only when what they say has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from gpucost.contract.spec import MetricSpec
from gpucost_queue_collector.page import Table

F = TypeVar("F")
"""What a row is made of: an immutable value, compared by equality; by identity first where it is a tuple."""


class Rows(Generic[F]):
    """``write`` makes of facts one text for each of ``specs``, in their order."""

    def __init__(self, specs: Sequence[MetricSpec], write: Callable[[F], Sequence[bytes]]) -> None:
        self.table = Table(specs)
        self._write = write
        self._facts: Mapping[str, F] = {}

    def update(self, facts: Mapping[str, F]) -> None:
        """Make the table say what ``facts`` say by key, and nothing else. ``facts`` is kept.

        Where ``write`` raises, nothing has changed.
        """
        before = self._facts
        texts = {
            key: self._write(found)
            for key, found in facts.items()
            if key not in before or before[key] != found
        }
        for key in before.keys() - facts.keys():
            self.table.drop(key)
        for key, text in texts.items():
            self.table.put(key, text)
        self._facts = facts
