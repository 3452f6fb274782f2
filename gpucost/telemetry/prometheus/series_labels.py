"""Label sets of series by number: read, grouped and compared once, however many series have them.

The series of one exporter differ by the name of the metric alone, and the answers of one day after the other
are of the same pods: to read and to group the labels of each series of each answer costs more than to read
its samples. So a ``LabelCatalog`` numbers the sets, by the text in which a server sent them; a ``LabelTable``
is the labels of some series, as numbers of sets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Codes: TypeAlias = npt.NDArray[np.int64]
LabelNames: TypeAlias = tuple[str, ...]
LabelKey: TypeAlias = tuple[LabelNames, tuple[str, ...]]
"""Names and values of a series' labels, in the order of the names; none is empty."""

NAME = "__name__"


class LabelCatalog:
    """Label sets by number, in the order in which they came. May be shared by threads."""

    def __init__(self, read: Callable[[bytes], LabelKey] | None = None) -> None:
        """``read`` makes labels of the text in which a server sends them."""
        self.keys: list[LabelKey] = []
        self.texts = _NumbersOfTexts(self, read)
        self._numbers: dict[LabelKey, int] = {}
        self._groups: dict[Hashable, _LabelGroups] = {}
        self._others: dict[int, tuple[LabelCatalog, Codes]] = {}
        self._lock = threading.RLock()

    @classmethod
    def of(cls, keys: Iterable[LabelKey]) -> LabelCatalog:
        """One that holds these, numbered as they come."""
        found = cls()
        found.keys = [*keys]
        return found

    def number(self, key: LabelKey) -> int:
        """The number of a set, which is new where it is not known."""
        known = self._numbers.get(key)
        if known is None:
            with self._lock:  # another thread may have been first
                known = self._numbers.setdefault(key, len(self.keys))
                if known == len(self.keys):
                    self.keys.append(key)
        return known

    def numbers_of(self, keys: Iterable[LabelKey]) -> list[int]:
        """As ``number``, of many at once."""
        found: list[int] = []
        with self._lock:
            numbers, all_keys = self._numbers, self.keys
            for key in keys:
                known = numbers.get(key)
                if known is None:
                    known = numbers[key] = len(all_keys)
                    all_keys.append(key)
                found.append(known)
        return found

    def numbers(self, table: LabelTable) -> Codes:
        """The number that the labels of each row have here."""
        catalog, codes = table.in_catalog()
        if catalog is self:
            return codes
        with self._lock:
            _, known = self._others.get(id(catalog), (catalog, np.empty(0, dtype=np.int64)))
            known = _as_long(known, len(catalog.keys))
            new = codes[known[codes] < 0]
            known[new] = self.numbers_of([*map(catalog.keys.__getitem__, new.tolist())])
            self._others[id(catalog)] = catalog, known
            return known[codes]

    def grouped(
        self, codes: Codes, labels: frozenset[str], *, is_without: bool
    ) -> tuple[LabelCatalog, Codes]:
        """What is left of these sets, and the number that the rest of each has there."""
        with self._lock:
            asked = labels, is_without
            if asked not in self._groups:
                self._groups[asked] = _LabelGroups(labels, is_without=is_without)
            groups = self._groups[asked]
            return groups.catalog, groups.numbers(self.keys, codes)


class _NumbersOfTexts(dict[bytes, int]):
    def __init__(self, catalog: LabelCatalog, read: Callable[[bytes], LabelKey] | None) -> None:
        super().__init__()
        self._catalog, self._read = catalog, read

    def __missing__(self, text: bytes) -> int:
        assert self._read is not None
        found = self[text] = self._catalog.number(self._read(text))
        return found


class _LabelGroups:
    """The groups of the sets of one catalog by some labels, as far as they were asked for."""

    def __init__(self, labels: frozenset[str], *, is_without: bool) -> None:
        self.catalog = LabelCatalog()
        self._labels, self._is_without = labels, is_without
        # Most series have labels of the same names, of which the same are kept.
        self._kept: dict[LabelNames, tuple[LabelNames, Callable[[LabelNames], LabelNames]]] = {}
        self._known = np.empty(0, dtype=np.int64)

    def numbers(self, keys: Sequence[LabelKey], codes: Codes) -> Codes:
        self._known = _as_long(self._known, len(keys))
        new = codes[self._known[codes] < 0]
        kept = self._kept
        found: list[LabelKey] = []
        for names, values in map(keys.__getitem__, new.tolist()):
            if names not in kept:
                kept[names] = _kept(names, lambda name: (name in self._labels) is not self._is_without)
            left, taken = kept[names]
            found.append((left, taken(values)))
        self._known[new] = self.catalog.numbers_of(found)
        return self._known[codes]


def _as_long(codes: Codes, number: int) -> Codes:
    """With -1 for what is not known yet."""
    return np.concatenate((codes, np.full(number - len(codes), -1))) if number > len(codes) else codes


class LabelTable:
    """The labels of series, by row: numbers of ``catalog``, and the name of each one's metric where that is
    not among the labels there. What groups them is worked out once."""

    def __init__(self, catalog: LabelCatalog, codes: Codes, names: Sequence[str] | None = None) -> None:
        self.catalog, self.codes, self._names = catalog, codes, names
        self._groups: dict[Hashable, tuple[LabelTable, Codes]] = {}

    @classmethod
    def of_keys(cls, keys: Sequence[LabelKey]) -> LabelTable:
        return cls(LabelCatalog.of(keys), np.arange(len(keys)))

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, str]]) -> LabelTable:
        """Of labels as they come in answers."""
        ordered = OrderedLabels()
        return cls.of_keys([*map(ordered.key, rows)])

    def __len__(self) -> int:
        return len(self.codes)

    def in_catalog(self) -> tuple[LabelCatalog, Codes]:
        """A catalog of all labels, the name of the metric too, and the number of each row."""
        if self._names is None:
            return self.catalog, self.codes
        return LabelCatalog.of(self.keys), np.arange(len(self.codes))

    @cached_property
    def keys(self) -> list[LabelKey]:
        found = [*map(self.catalog.keys.__getitem__, self.codes.tolist())]
        if self._names is None:
            return found
        order: dict[LabelNames, tuple[int, LabelNames]] = {}
        for row, ((names, values), name) in enumerate(zip(found, self._names, strict=True)):
            if not name:
                continue
            if names not in order:
                at = sum(each < NAME for each in names)
                order[names] = at, (*names[:at], NAME, *names[at:])
            at, own = order[names]
            found[row] = own, (*values[:at], name, *values[at:])
        return found

    @cached_property
    def rows(self) -> list[dict[str, str]]:
        return [dict(zip(*key, strict=True)) for key in self.keys]

    def columns(self, labels: Iterable[str]) -> list[list[str]]:
        """The values of these labels by row; empty where a row has none."""
        layouts = {names for names, _ in self.keys}
        found: list[list[str]] = []
        for label in labels:
            place = {names: names.index(label) if label in names else -1 for names in layouts}
            found.append([values[at] if (at := place[names]) >= 0 else "" for names, values in self.keys])
        return found

    def grouped(self, labels: Sequence[str], *, is_without: bool) -> tuple[LabelTable, Codes]:
        """What is left of the labels, each set once, and for each row which of them is its own."""
        asked = frozenset(labels), is_without
        if asked not in self._groups:
            chosen = asked[0] | {NAME} if is_without else asked[0]
            catalog, codes = self.catalog, self.codes
            if not is_without and NAME in chosen:
                catalog, codes = self.in_catalog()
            into, numbers = catalog.grouped(codes, chosen, is_without=is_without)
            _, first, of = np.unique(numbers, return_index=True, return_inverse=True)
            # In the order in which they come.
            order = np.argsort(first)
            place = np.empty(len(order), dtype=np.int64)
            place[order] = np.arange(len(order))
            self._groups[asked] = LabelTable(into, numbers[first[order]]), place[of]
        return self._groups[asked]

    def unnamed(self) -> LabelTable | None:
        """Without names of metrics; None where labels of several rows are equal then."""
        if self._names is None:
            table, codes = self.grouped((), is_without=True)
            return table if len(table) == len(codes) else None
        return LabelTable(self.catalog, self.codes) if len(np.unique(self.codes)) == len(self) else None

    def taken(self, label: str, source: str) -> LabelTable:
        """With ``label`` set to the value of ``source``, where that is there."""
        rows = ({**row, label: row[source]} if source in row else row for row in self.rows)
        return LabelTable.of(rows)

    def of_rows(self, rows: Codes) -> LabelTable:
        """Of these rows only."""
        names = None if self._names is None else [self._names[row] for row in rows.tolist()]
        return LabelTable(self.catalog, self.codes[rows], names)

    def given(self, label: str, value: str) -> LabelTable:
        """With ``label`` set to ``value`` in all rows."""
        return LabelTable.of({**row, label: value} for row in self.rows)

    def places_in(self, other: LabelTable) -> Codes:
        """For each row, the row of ``other`` that has the same labels; -1 for none."""
        if self.catalog is other.catalog and self._names is None is other._names:
            place = np.full(len(self.catalog.keys), -1)
            place[other.codes] = np.arange(len(other))
            return place[self.codes]
        rows = {key: row for row, key in enumerate(other.keys)}
        return np.array([rows.get(key, -1) for key in self.keys], dtype=np.int64)


class OrderedLabels:
    """Labels as they come in answers to keys: nearly always sorted, and none of them empty."""

    def __init__(self) -> None:
        self._order: dict[LabelNames, LabelNames] = {}

    def key(self, row: Mapping[str, str]) -> LabelKey:
        names, values = (*row,), (*row.values(),)
        if names not in self._order:
            self._order[names] = (*sorted(names),)
        own = self._order[names]
        if own != names or not all(values):
            own = (*(name for name in own if row[name]),)
            own, values = self._order.setdefault(own, own), (*map(row.__getitem__, own),)
        return own, values


def _kept(
    names: LabelNames, is_kept: Callable[[str], bool]
) -> tuple[LabelNames, Callable[[LabelNames], LabelNames]]:
    """The names that are kept, and what takes their values out of those of all."""
    at = [place for place, name in enumerate(names) if is_kept(name)]
    left = (*(names[place] for place in at),)
    if len(at) > 1:
        return left, itemgetter(*at)
    if at:
        (one,) = at
        return left, lambda values: (values[one],)
    return left, lambda _: ()
