"""What is known of series by the number of their labels: put together, sorted and worked out once.

A device's series of one field have the labels of its series of another, so facts of labels (which device,
whose) are worked out for numbers, and series are columns of numbers (``prometheus.series_labels``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from gpucost.telemetry.prometheus.series_labels import Codes, LabelCatalog, LabelTable
from gpucost.telemetry.upstream.device_subjects import SeriesLabels, SeriesPlace

_Fact = TypeVar("_Fact", bound=Hashable)
NOTHING: Codes = np.empty(0, dtype=np.int64)
_UNKNOWN = -2


class LabelsByNumber:
    """The labels of series, each set of them put together once: most metrics have the same. May be shared by
    threads."""

    def __init__(self) -> None:
        self._catalog = LabelCatalog()
        self.places: list[SeriesPlace] = []
        self.labels: list[SeriesLabels] = []
        self._rank = NOTHING
        self._lock = threading.Lock()

    def numbers(self, table: LabelTable) -> Codes:
        with self._lock:
            found = self._catalog.numbers(table)
            for key in self._catalog.keys[len(self.places) :]:
                self.places.append((*zip(*key, strict=True),))
                self.labels.append(dict(self.places[-1]))
            return found

    def in_order(self, numbers: Codes) -> Codes:
        """Sorted by their labels."""
        with self._lock:
            if len(self._rank) < len(self.places):
                order = sorted(range(len(self.places)), key=self.places.__getitem__)
                self._rank = np.empty(len(order), dtype=np.int64)
                self._rank[order] = np.arange(len(order))
            found: Codes = numbers[np.argsort(self._rank[numbers])]
            return found


class NumberedFacts(Generic[_Fact]):
    """What is worked out once of each number. Equal ones have one code, None has -1."""

    def __init__(self, work: Callable[[int], _Fact | None]) -> None:
        self._work = work
        self.values: list[_Fact] = []
        self._code_of: dict[_Fact, int] = {}
        self._codes = NOTHING

    def codes(self, numbers: Codes) -> Codes:
        most = int(numbers.max(initial=-1)) + 1
        if most > len(self._codes):
            more = np.full(most - len(self._codes), _UNKNOWN)
            self._codes = np.concatenate((self._codes, more))
        for number in numbers[self._codes[numbers] == _UNKNOWN].tolist():
            fact = self._work(number)
            self._codes[number] = -1 if fact is None else self._code_of.setdefault(fact, len(self.values))
            if self._codes[number] == len(self.values) and fact is not None:
                self.values.append(fact)
        return self._codes[numbers]

    def of(self, number: int) -> _Fact:
        """Of a number that has one."""
        return self.values[int(self.codes(np.array([number]))[0])]


@dataclass(frozen=True, slots=True)
class NumbersInOrder:
    """Numbers in the order in which they come first, and of each list the place of each there."""

    values: Codes
    places: Sequence[Codes]

    @classmethod
    def of(cls, lists: Sequence[Codes]) -> NumbersInOrder:
        every = np.concatenate([NOTHING, *lists])
        values, first, of = np.unique(every, return_index=True, return_inverse=True)
        order = np.argsort(first)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        ends = np.cumsum([len(each) for each in lists], dtype=np.int64)
        return cls(values[order], np.split(place[of], ends)[: len(lists)])
