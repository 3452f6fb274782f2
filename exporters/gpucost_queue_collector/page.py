"""Rows of lines that change one by one -> the page that Prometheus scrapes, served as bytes.

What an unchanged row gave is neither written, joined nor compressed again. Rows live in blocks of some
hundred; a piece is the text of one metric in one block, joined and compressed when a scrape first needs it
and kept until a row of it changes. A compressed page is the gzip members of its pieces one after the other,
which is a gzip stream itself (RFC 1952, 2.2). Answers share their pieces, and no whole page is ever put
together: however many clients read slowly, they hold what changed while they read, once for all of them.

No series may come twice in a scrape: Prometheus drops the second. That is not searched for, which would cost
an entry in memory for each of half a million series, but follows: a metric belongs to one table, the keys of
a table are unique, and a row's lines carry the labels that its key is made of, one to one (``SeriesRows``).

Rows of a table of series (``SeriesRows``) are written only when their facts have changed, as lines, limited
by namespace.

A sample's line is the same in the classic text format, in text 1.0.0 and in OpenMetrics; only headers differ,
so series too many to render twice are written once. Label values are made safe as everywhere in
gpucost's exporters (``exposition.clean``), and differ where the values they were made of differ, so that no
two rows of a page become one series. An object mostly gives several lines with the same labels: write
``labels`` once, then ``sample`` for each line.

Users who may create objects in a namespace decide how many series there are. So objects of one kind beyond
the limit of their namespace share one row (``NamespaceLimit``), with sums that stay what they are.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpucost.contract.metric_spec import MetricSpec, escape
from gpucost.contract.metrics import METRICS
from gpucost.domain.errors import InputError
from gpucost_exporter_base.endpoint import EndpointRequest, EndpointResponse, compress
from gpucost_exporter_base.exposition import LABEL_VALUE_LIMIT, MetricFamily, clean, render

ROWS_PER_BLOCK = 64
"""Fewer would cost more compression for each row; with more, each changed row makes more be done again."""
F = TypeVar("F")
"""What a row is made of: an immutable value, compared by equality; by identity first where it is a tuple."""


class SeriesTable:
    """Rows of one kind of object by key: for each of ``specs`` the lines it gives, if any.

    For one thread at a time. What it holds comes into the page at the end of ``MetricsPage.update``.
    """

    def __init__(self, specs: Sequence[MetricSpec], rows_per_block: int = ROWS_PER_BLOCK) -> None:
        self.specs = tuple(specs)
        self._rows_per_block = rows_per_block
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._blocks: list[list[list[bytes]]] = []  # by block, metric, row
        self._pieces: list[list[_Piece]] = [[] for _ in self.specs]  # by metric, block
        self._dirty: set[tuple[int, int]] = set()
        self._nothing = (b"",) * len(self.specs)

    def put(self, key: str, texts: Sequence[bytes]) -> None:
        """Set the row ``key``: for each metric its lines, each ended by a newline, or nothing.

        Raises InputError for too few or too many texts.
        """
        if len(texts) != len(self.specs):
            raise InputError("texts", len(texts), f"one for each of {len(self.specs)} metrics")
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = self._take()
        self._write(slot, texts)

    def drop(self, key: str) -> None:
        """Remove the row ``key``, if there is one. Its place goes to the next new row."""
        slot = self._slots.pop(key, None)
        if slot is not None:
            self._write(slot, self._nothing)
            self._free.append(slot)

    def keys(self) -> KeysView[str]:
        return self._slots.keys()

    def __len__(self) -> int:
        return len(self._slots)

    def publish(self) -> tuple[Sequence[_Piece], ...] | None:
        """The pieces of each metric as the rows are now; None where nothing changed since the last call."""
        if not self._dirty:
            return None
        for number, column in self._dirty:
            self._pieces[column][number] = _Piece(tuple(self._blocks[number][column]))
        self._dirty.clear()
        return tuple(map(tuple, self._pieces))

    def _take(self) -> int:
        if not self._free:
            start = len(self._blocks) * self._rows_per_block
            self._free = list(range(start + self._rows_per_block - 1, start - 1, -1))
            self._blocks.append([[b""] * self._rows_per_block for _ in self.specs])
            for pieces in self._pieces:
                pieces.append(_Piece(()))
        return self._free.pop()

    def _write(self, slot: int, texts: Sequence[bytes]) -> None:
        number, row = divmod(slot, self._rows_per_block)
        block = self._blocks[number]
        for column, text in enumerate(texts):
            rows = block[column]
            if rows[row] != text:
                rows[row] = text
                self._dirty.add((number, column))


class MetricsPage:
    """The metrics of ``tables`` in the order of the contract, as a scrape gets them.

    A scrape sees all of an update or nothing; neither waits for the other. Raises InputError for a metric
    that two tables have, or that is not of the contract.
    """

    def __init__(self, tables: Sequence[SeriesTable]) -> None:
        self._tables = tuple(tables)
        self._places = _places(self._tables)
        self._columns: list[tuple[Sequence[_Piece], ...]] = [((),) * len(table.specs) for table in tables]
        self._headers: dict[str, _Headers] = {}
        self._writing = threading.Lock()
        self._building = threading.Lock()
        self._version = self._assembled()

    @contextmanager
    def update(self) -> Iterator[None]:
        """Puts and drops within this context appear on the page together, at its end; one update at a time.

        Where it raises, they appear with the next update that does not.
        """
        with self._writing:
            yield
            self._publish()

    def answer(self, request: EndpointRequest) -> EndpointResponse:
        """The route of /metrics. As long as nothing changes, it answers with the very same chunks."""
        end, content_type = render((), request.headers.get("accept", ""))
        version = self._version
        with self._building:
            text = version.texts.get(content_type)
            if text is None:
                text = version.texts[content_type] = self._text(version, content_type, end)
        return EndpointResponse(200, text.chunks, content_type, text.zipped)

    def _publish(self) -> None:
        changed = False
        for number, table in enumerate(self._tables):
            columns = table.publish()
            if columns is not None:
                self._columns[number] = columns
                changed = True
        if changed:
            self._version = self._assembled()

    def _assembled(self) -> _Version:
        return _Version([self._columns[table][column] for _, table, column in self._places])

    def _text(self, version: _Version, content_type: str, end: bytes) -> _PageText:
        headers = self._headers.get(content_type)
        if headers is None:
            specs = [spec for spec, _, _ in self._places]
            headers = self._headers[content_type] = _headers(specs, content_type, end)
        parts: list[_Piece] = []
        for header, pieces in zip(headers, version.families, strict=True):
            parts.append(header)
            parts.extend(pieces)
        parts.append(_Piece((end,)))
        return _PageText(parts, self._building)


class _Piece:
    """Lines that are served together. For one thread at a time."""

    __slots__ = ("_lines", "_rows", "_zipped")

    def __init__(self, rows: tuple[bytes, ...]) -> None:
        self._rows = rows
        self._lines: bytes | None = None
        self._zipped: bytes | None = None

    def lines(self) -> bytes:
        if self._lines is None:
            self._lines = b"".join(self._rows)
            self._rows = ()
        return self._lines

    def zipped(self) -> bytes:
        if self._zipped is None:
            lines = self.lines()
            self._zipped = compress(lines) if lines else b""
        return self._zipped


class _PageText:
    """The page at one time in one format."""

    def __init__(self, parts: Sequence[_Piece], lock: threading.Lock) -> None:
        self.chunks = tuple([lines for part in parts if (lines := part.lines())])
        self._parts = parts
        self._zipped: tuple[bytes, ...] | None = None
        self._lock = lock

    def zipped(self) -> tuple[bytes, ...]:
        with self._lock:  # of all texts, since they share pieces
            if self._zipped is None:
                self._zipped = tuple([piece for part in self._parts if (piece := part.zipped())])
            return self._zipped


class _Version:
    """What was published at one time: the pieces of each metric; and its texts by content type, as asked for.

    They go with it: a new version needs none of them.
    """

    def __init__(self, families: Sequence[Sequence[_Piece]]) -> None:
        self.families = families
        self.texts: dict[str, _PageText] = {}


_Headers = list[_Piece]


def _places(tables: Sequence[SeriesTable]) -> list[tuple[MetricSpec, int, int]]:
    """Each metric with its table and its place there, in the order of the contract."""
    order = {spec.name: number for number, spec in enumerate(METRICS)}
    places: dict[str, tuple[MetricSpec, int, int]] = {}
    for number, table in enumerate(tables):
        for column, spec in enumerate(table.specs):
            if spec.name not in order:
                raise InputError("metric", spec.name, "a metric of the contract")
            if spec.name in places:
                raise InputError("metric", spec.name, "a metric of one table only")
            places[spec.name] = spec, number, column
    return [places[name] for name in sorted(places, key=order.__getitem__)]


def _headers(specs: Sequence[MetricSpec], content_type: str, end: bytes) -> _Headers:
    """What comes before each metric's lines, as prometheus_client writes it."""
    return [_Piece((render([MetricFamily(spec, ())], content_type)[0].removesuffix(end),)) for spec in specs]


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
