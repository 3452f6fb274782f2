"""Rows of a table of series: written only when their facts have changed, as lines, limited by namespace.

A sample's line is the same in the classic text format, in text 1.0.0 and in OpenMetrics; only headers differ
(``page``), so series too many to render twice are written once. Label values are made safe as everywhere in
gpucost's exporters (``exposition.clean``), and differ where the values they were made of differ, so that no
two rows of a page become one series. An object mostly gives several lines with the same labels: write
``labels`` once, then ``sample`` for each line.

Users who may create objects in a namespace decide how many series there are. So objects of one kind beyond
the limit of their namespace share one row (``NamespaceLimit``), with sums that stay what they are.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpucost.contract.metric_spec import MetricSpec, escape
from gpucost.domain.errors import InputError
from gpucost_exporter_base.exposition import LABEL_VALUE_LIMIT, clean
from gpucost_queue_collector.page import SeriesTable

F = TypeVar("F")
"""What a row is made of: an immutable value, compared by equality; by identity first where it is a tuple."""


class SeriesRows(Generic[F]):
    """``write`` makes of facts one text for each of ``specs``, in their order."""

    def __init__(self, specs: Sequence[MetricSpec], write: Callable[[F], Sequence[bytes]]) -> None:
        self.table = SeriesTable(specs)
        self._write = write
        self._facts: Mapping[str, F] = {}

    def update(self, facts: Mapping[str, F]) -> None:
        """Make the table hold ``facts`` by key, and nothing else. ``facts`` is kept.

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


_CHANGED = "\ufffd"
_WITHOUT_END = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


def line(spec: MetricSpec, values: Sequence[str], number: float) -> bytes:
    """``name{label="value",…} number`` and a newline; ``values`` in the order of ``spec.labels``.

    Raises InputError for too few or too many values.
    """
    return sample(spec, labels(spec.labels, values), number)


def sample(spec: MetricSpec, written: str, number: float) -> bytes:
    """The line of ``spec`` with labels that were ``written`` before."""
    text = repr(float(number))  # the shortest that reads back as the same number, in Go too
    if text[-1] in "fn":
        text = _WITHOUT_END[text]
    return f"{spec.name}{written} {text}\n".encode()


def labels(names: Sequence[str], values: Sequence[str]) -> str:
    """``{name="value",…}``, empty values kept; nothing where there are no names.

    ``names`` are those of a metric, each once. Raises InputError for too few or too many values.
    """
    if len(names) != len(values):
        raise InputError("labels", tuple(values), ", ".join(names) or "none")
    if not names:
        return ""
    if not _is_plain("".join(values)):
        values = [escape(_distinct(value)) for value in values]
    return "{" + ",".join([f'{name}="{value}"' for name, value in zip(names, values, strict=True)]) + "}"


def open_labels(spec: MetricSpec, values: Sequence[str], further: Mapping[str, str]) -> str:
    """``labels`` of a metric with a ``label_prefix``, with the ``further`` ones that begin with it.

    Raises InputError for a further label that the metric does not allow or has already: Prometheus would
    refuse the whole scrape.
    """
    for name in further:
        if name in spec.labels:
            raise InputError(f"{spec.name}.{name}", name, "each label once")
    spec.check_labels({**dict.fromkeys(spec.labels, ""), **further})
    return labels((*spec.labels, *further), (*values, *further.values()))


def _is_plain(text: str) -> bool:
    """Whether values that make up ``text`` can stay as they are; nearly all do, so one look is enough."""
    plain = text.isascii() and text.isprintable() and len(text) <= LABEL_VALUE_LIMIT
    return plain and '"' not in text and "\\" not in text


def _distinct(value: str) -> str:
    """``clean``, one to one: what it changes ends with U+FFFD and a digest of what it was.

    So does a value that holds that mark already: no unchanged value looks like a changed one.
    """
    cleaned = clean(value)
    if cleaned == value and _CHANGED not in value:
        return value
    digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{cleaned[: LABEL_VALUE_LIMIT - len(digest) - 1]}{_CHANGED}{digest}"


OTHERS = "__others__"
"""The name of a row that stands for several objects; no object of Kubernetes may have it."""


def others_uid(*where: str) -> str:
    """The uid of a row that stands for several objects of a namespace, different for each namespace."""
    return ":".join((OTHERS, *where))


@dataclass(frozen=True)
class NamespaceLimit(Generic[F]):
    """``namespace`` of an object; ``order`` in which objects of one have rows, the first come first: all
    replicas must choose the same ones, and rows must not come and go. ``fold`` makes the rows, by key, of
    those of one namespace that have none of their own, at least one."""

    namespace: Callable[[F], str]
    order: Callable[[F], tuple[int, str]]
    fold: Callable[[Sequence[F]], Mapping[str, Any]]

    def rows(self, facts: Mapping[str, F], most: int) -> tuple[Mapping[str, Any], int]:
        """(facts of rows by key, how many objects have no row of their own)."""
        if len(facts) <= most:
            return facts, 0
        counts = Counter(map(self.namespace, facts.values()))
        full = {name for name, count in counts.items() if count > most}
        if not full:
            return facts, 0
        kept: dict[str, Any] = {}
        crowded: dict[str, list[tuple[str, F]]] = {}
        for key, found in facts.items():
            name = self.namespace(found)
            if name in full:
                crowded.setdefault(name, []).append((key, found))
            else:
                kept[key] = found
        beyond = 0
        for mine in crowded.values():
            ordered = sorted(mine, key=lambda each: self.order(each[1]))
            kept |= dict(ordered[:most])
            kept |= self.fold([found for _, found in ordered[most:]])
            beyond += len(ordered) - most
        return kept, beyond
