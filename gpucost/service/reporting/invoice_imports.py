"""A cloud's invoice read from a file, put beside the ledger, and its difference booked.

The ledger has which machine of the cloud a node is (``spec.providerID``), as clusters said it when they were
read. Where it does not, ``read_nodes`` reads it of what ``kubectl get nodes -o json`` prints, or of a table.
Without either a node is found by its name.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import InputError
from gpucost.domain.money import plain
from gpucost.domain.rates import NodeIdentity
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.ledger.db.records import Adjustment, MonthOpen
from gpucost.ledger.ledger import Ledger
from gpucost.reports.focus.exact_products import dealt
from gpucost.reports.focus.invoice_lines import InvoiceLine, RefusedLine, invoice_lines
from gpucost.reports.focus.invoice_reconciliation import (
    InvoiceCost,
    InvoiceReader,
    InvoiceReconciliation,
    LedgerNode,
    LedgerNodes,
    NodeDifference,
    NodeEvidence,
    NodeKey,
    NodeLedger,
    WatchedCluster,
    reconcile,
)

_CAPACITY = tuple(str(bucket) for bucket in Bucket if bucket.is_capacity)
_NODE_COLUMNS = ("cluster", "node", "provider_id")
_MOST_MONTHS, _LONGEST_LINE = 120, 1 << 20


def read_nodes(text: str, file: str, cluster: str = "") -> list[NodeIdentity]:
    """Of ``kubectl get nodes -o json``, or CSV with the columns cluster, node and provider_id. Raises
    InputError."""
    allowed = f"what kubectl get nodes -o json prints, or CSV with {', '.join(_NODE_COLUMNS)}"
    if text.lstrip().startswith("{"):
        try:
            items = json.loads(text)["items"]
            named = [(item["metadata"]["name"], item["spec"].get("providerID", "")) for item in items]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InputError("--nodes", file, allowed) from None
        return [NodeIdentity(cluster, str(name), str(provider)) for name, provider in named if provider]
    try:
        reader = csv.DictReader(io.StringIO(text))
        if not {*_NODE_COLUMNS} <= {*(reader.fieldnames or ())}:
            raise InputError("--nodes", file, allowed)
        return [
            NodeIdentity(row["cluster"] or cluster, row["node"], row["provider_id"])
            for row in reader
            if row["node"] and row["provider_id"]
        ]
    except csv.Error as error:
        raise InputError("--nodes", file, f"{allowed} ({error})") from None


def reconcile_file(
    known: Callable[[Month], LedgerNodes],
    file: Path,
    identities: Sequence[NodeIdentity],
    *,
    cost: InvoiceCost = InvoiceCost.EFFECTIVE,
    rates: Mapping[str, Fraction] | None = None,
    month: Month | None = None,
    count_repeated: bool = False,
) -> InvoiceReconciliation:
    """The invoice in ``file`` beside the ledger, of the months that it is about, or of ``month`` alone.
    ``known`` is asked for what the ledger has of each: ``ledger_nodes``, or a server. Rows that are the same
    in every column count once, unless ``count_repeated``.

    The file is read twice, a row at a time: for its months and what is in it several times, and for its
    lines. Raises InputError for a file that is no invoice, or has no line that can be read.
    """
    months, repeated = _survey(file, month)
    there = {each: known(each) for each in sorted(months)}
    currency = next((each.currency for each in there.values()), "")
    if currency is None:
        raise InputError("FILE", str(file), "nothing yet: the ledger has no price to compare with")
    names = _names(there.values(), identities)
    once = frozenset[int]() if count_repeated else repeated
    reader = InvoiceReader(names, currency, cost, rates or {}, once, month)
    with opened(file) as lines:
        reader.add(lines)
    return reconcile(reader, there, file.name, _digest(file))


def _names(there: Collection[LedgerNodes], given: Sequence[NodeIdentity]) -> NodeLedger:
    """Raises InputError for a cluster that the ledger does not have."""
    names = NodeLedger()
    for of_month in there:
        for node in of_month.nodes:
            names.add((node.cluster, node.node), node.node, NodeEvidence.NAME)
        for own in of_month.identities:
            names.add((own.cluster, own.node), own.provider_id, NodeEvidence.CLUSTER)
    clusters = sorted({cluster for of_month in there for cluster in of_month.clusters})
    for each in given:
        cluster = each.cluster or (clusters[0] if len(clusters) == 1 else "")
        if there and cluster not in clusters:
            raise InputError("--nodes", each.cluster or each.node, f"CLUSTER=FILE: {', '.join(clusters)}")
        names.add((cluster, each.node), each.provider_id, NodeEvidence.GIVEN)
    return names


def _survey(file: Path, month: Month | None) -> tuple[set[Month], frozenset[int]]:
    """The months of a file, or ``month`` alone, and the contents that it has more than once: eight bytes of
    memory a row. Raises InputError for one of too many months."""
    months, contents = set[Month](), array("q")
    with opened(file) as lines:
        for line in lines:
            if isinstance(line, InvoiceLine):
                months.update(of_month for of_month, _ in line.by_month())
                contents.append(line.content)
    if month is not None:
        months = {month}
    elif len(months) > _MOST_MONTHS:
        raise InputError("FILE", str(file), f"an invoice of at most {_MOST_MONTHS} months, or --month")
    found, counts = np.unique(np.frombuffer(contents, np.int64), return_counts=True)
    return months, frozenset(found[counts > 1].tolist())


@contextmanager
def opened(file: Path) -> Iterator[Iterator[InvoiceLine | RefusedLine]]:
    """The lines of a CSV file, with commas, semicolons or tabs, which may be compressed (``.gz``), or of a
    Parquet file. Raises InputError."""
    try:
        with file.open("rb") as source:
            head = source.read(4)
            source.seek(0)
            if head == b"PAR1":
                yield _of_parquet(source)
            else:
                with gzip.open(source) if head[:2] == b"\x1f\x8b" else _same(source) as content:
                    text = io.TextIOWrapper(content, "utf-8-sig", newline="")
                    yield _of_csv(text)
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text, or is damaged or cut off"
        raise InputError("FILE", str(file), f"an invoice that can be read ({reason})") from None
    except csv.Error as error:
        raise InputError("FILE", str(file), f"CSV, as RFC 4180 has it ({error})") from None


@contextmanager
def _same(source: IO[bytes]) -> Iterator[IO[bytes]]:
    yield source


def _of_csv(text: IO[str]) -> Iterator[InvoiceLine | RefusedLine]:
    lines = _text_lines(text)
    head = next(lines, "")
    reader = csv.reader(chain((head,), lines), strict=True, delimiter=_separator(head))
    yield from invoice_lines(next(reader, []), (cells for cells in reader if cells))


def _separator(head: str) -> str:
    """A semicolon or a tab where the head, whose names have neither, has more of them than commas."""
    return max(",;\t", key=head.count)


def _text_lines(text: IO[str]) -> Iterator[str]:
    """Lines of a length that fits into memory, whatever a compressed file grows to."""
    while line := text.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise csv.Error(f"a line of more than {_LONGEST_LINE:,} characters")
        yield line


def _of_parquet(source: IO[bytes]) -> Iterator[InvoiceLine | RefusedLine]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(source)
        names = file.schema_arrow.names
        rows = (
            [_cell_text(value) for value in row.values()]
            for batch in file.iter_batches(10_000)
            for row in batch.to_pylist()
        )
        yield from invoice_lines(names, rows)
    # What Arrow has no Python value for, as a time beyond the year 9999 or in a zone that nobody knows.
    except (pa.ArrowException, OverflowError, ValueError, KeyError) as error:
        raise InputError("FILE", "Parquet", f"a Parquet file that can be read ({error})") from None


def _cell_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        at = value if value.tzinfo is None else value.astimezone(UTC)
        return at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(value)


def _digest(file: Path) -> str:
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def ledger_nodes(ledger: Ledger, scope: Scope, month: Month) -> LedgerNodes:
    """What the ledger has of a month, as far as ``scope`` reaches: of each node its cost, and the time of
    which there are lines, hour by hour. A month of which it has nothing is empty."""
    watched: dict[str, list[Window]] = defaultdict(list)
    for info in ledger.windows(month.window, scope=scope):
        runs = watched[info.cluster]
        if not info.observed_ms:
            continue
        if runs and runs[-1].end_ms == info.window.start_ms:
            runs[-1] = Window(runs[-1].start_ms, info.window.end_ms)
        else:
            runs.append(info.window)
    return LedgerNodes(
        month=month,
        currency=ledger.currency,
        clusters=ledger.clusters(scope=scope),
        nodes=_nodes_of(ledger, scope, month) if watched else (),
        watched=tuple(WatchedCluster(cluster, tuple(runs)) for cluster, runs in sorted(watched.items())),
        identities=ledger.node_identities(scope=scope),
    )


def _nodes_of(ledger: Ledger, scope: Scope, month: Month) -> tuple[LedgerNode, ...]:
    filters, dims = {"bucket": _CAPACITY}, ("cluster", "node")
    try:
        lines = ledger.aggregate(scope, month.window, dims, filters=filters, step_ms=HOUR_MS)
    except InputError:
        # Hours of windows that are longer, or were added up by day, are not known.
        lines = ledger.aggregate(scope, month.window, dims, filters=filters, step_ms=DAY_MS)
    sums: dict[NodeKey, list[int]] = defaultdict(lambda: [0, 0, 0])
    names = ("cluster", "node", "nano", "first_ms", "last_ms", "unpriced_ms")
    for cluster, node, nano, first_ms, last_ms, unpriced_ms in zip(
        *(lines[name].tolist() for name in names), strict=True
    ):
        if node:
            found = sums[cluster, node]
            found[0] += 0 if pd.isna(nano) else int(nano)
            found[1] += last_ms - first_ms
            found[2] += unpriced_ms
    return tuple(LedgerNode(*key, *amounts) for key, amounts in sorted(sums.items()))


_REFERENCE = "invoice"


def book_differences(
    ledger: Ledger, found: Mapping[Month, Sequence[NodeDifference]], file: str, digest: str, author: str
) -> tuple[Adjustment, ...]:
    """Books what nodes cost more or less than the ledger says, as adjustments of their teams in proportion to
    their cost on the node; the part of idle capacity for the name that its lines have. ``file`` and
    ``digest`` are of the invoice: the audit trail names them.

    What was booked of a node before, by this file or an earlier one, counts: the same file again books
    nothing, a newer one the rest. Of a node with GPU time without a price nothing is booked. Raises MonthOpen
    before anything is booked.
    """
    for month in sorted(found):
        if ledger.month(month).closed_at_ms is None:
            raise MonthOpen(month)
    made: list[Adjustment] = []
    for month, nodes in sorted(found.items()):
        booked = [item for each in nodes for item in _book(ledger, month, each, digest, author)]
        if booked:
            total = plain(sum(item.nano for item in booked))
            detail = f"{len(booked)} adjustments, {total} {booked[0].currency}"
            ledger.note(author, "focus import", f"{month} {file} {digest[:12]}", detail)
        made += booked
    return tuple(made)


def _book(
    ledger: Ledger, month: Month, each: NodeDifference, digest: str, author: str
) -> Iterator[Adjustment]:
    filters = {"cluster": (each.cluster,), "node": (each.node,), "bucket": _CAPACITY}
    lines = ledger.aggregate(EVERYTHING, month.window, ("team",), filters=filters)
    # Without a price for all of it, one team would pay for what another held.
    if lines.empty or lines["unpriced_ms"].any():
        return
    teams, weights = lines["team"].tolist(), [int(nano) for nano in lines["nano"]]
    shares = dict(zip(teams, dealt(each.nano, weights), strict=True))
    prefix = f"{_REFERENCE} {each.cluster}/{each.node} "
    booked: dict[str, list[int]] = defaultdict(list)
    for item in ledger.adjustments(EVERYTHING, month):
        if item.reference.startswith(prefix):
            booked[item.team].append(item.nano)
    for team in sorted({*shares, *booked}):
        rest = shares.get(team, 0) - sum(booked[team])
        if rest:
            yield ledger.adjust(
                month,
                team,
                rest,
                0,
                f"invoice of node {each.node} ({each.resource}): {each.why}",
                author,
                f"{prefix}{digest[:12]} {len(booked[team]) + 1}",
            )
