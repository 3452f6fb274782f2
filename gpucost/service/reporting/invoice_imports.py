"""A cloud's invoice read from a file, put beside the ledger, and its difference booked.

Kubernetes says which machine of the cloud a node is (``spec.providerID``), the ledger does not:
``read_nodes`` reads it of what ``kubectl get nodes -o json`` prints, or of a table. Without it a node is
found by its name.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import pandas as pd

from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import InputError
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.ledger import Adjustment, Ledger, MonthOpen
from gpucost.reports.focus.exact_products import dealt
from gpucost.reports.focus.invoice_lines import InvoiceLine, RefusedLine, invoice_lines
from gpucost.reports.focus.invoice_reconciliation import (
    InvoiceCost,
    InvoiceReader,
    InvoiceReconciliation,
    LedgerNode,
    NodeKey,
    NodeLedger,
    ReconciledNode,
    reconcile,
)

_CAPACITY = tuple(str(bucket) for bucket in Bucket if bucket.is_capacity)
_NODE_COLUMNS = ("cluster", "node", "provider_id")
_MOST_MONTHS = 120


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Which machine of a cloud a node is. ``cluster`` is empty where the file does not say it."""

    cluster: str
    node: str
    provider_id: str


def read_nodes(text: str, file: str, cluster: str = "") -> list[NodeIdentity]:
    """Of ``kubectl get nodes -o json``, or CSV with the columns cluster, node and provider_id. Raises
    InputError."""
    allowed = f"what kubectl get nodes -o json prints, or CSV with {', '.join(_NODE_COLUMNS)}"
    if text.lstrip().startswith("{"):
        try:
            items = json.loads(text)["items"]
            named = [(item["metadata"]["name"], item["spec"].get("providerID", "")) for item in items]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError("--nodes", file, allowed) from None
        return [NodeIdentity(cluster, str(name), str(provider)) for name, provider in named if provider]
    reader = csv.DictReader(io.StringIO(text))
    if not {*_NODE_COLUMNS} <= {*(reader.fieldnames or ())}:
        raise InputError("--nodes", file, allowed)
    return [
        NodeIdentity(row["cluster"] or cluster, row["node"], row["provider_id"])
        for row in reader
        if row["node"] and row["provider_id"]
    ]


def reconcile_file(
    ledger: Ledger,
    file: Path,
    identities: Sequence[NodeIdentity],
    *,
    cost: InvoiceCost = InvoiceCost.EFFECTIVE,
    rates: Mapping[str, Fraction] | None = None,
    month: Month | None = None,
) -> InvoiceReconciliation:
    """The invoice in ``file`` beside the ledger, of the months that it is about, or of ``month`` alone.

    The file is read twice, a row at a time: for its months, and for its lines. Raises InputError for a file
    that is no invoice, or has no line that can be read.
    """
    currency = ledger.currency
    if currency is None:
        raise InputError("FILE", str(file), "nothing yet: the ledger has no price to compare with")
    extent = ledger.extent()
    months = _months(file) if month is None else {month}
    known = {
        each: _ledger_nodes(ledger, each)
        for each in sorted(months)
        if extent is not None and each.window.intersect(extent) is not None
    }
    names = NodeLedger()
    there = {(node.cluster, node.node) for nodes in known.values() for node in nodes}
    for key in there:
        names.add(key, key[1])
    clusters = ledger.clusters()
    for each in identities:
        cluster = each.cluster or (clusters[0] if len(clusters) == 1 else "")
        if cluster not in clusters:
            raise InputError("--nodes", each.cluster or each.node, f"CLUSTER=FILE: {', '.join(clusters)}")
        names.add((cluster, each.node), each.provider_id)
    reader = InvoiceReader(names, currency, cost, rates or {})
    with opened(file) as lines:
        reader.add(line for line in lines if _is_of(line, month))
    return reconcile(reader, known, file.name, _digest(file))


def _is_of(line: InvoiceLine | RefusedLine, month: Month | None) -> bool:
    return month is None or isinstance(line, RefusedLine) or Month.of(line.period.start_ms) == month


def _months(file: Path) -> set[Month]:
    with opened(file) as lines:
        found = {Month.of(line.period.start_ms) for line in lines if isinstance(line, InvoiceLine)}
    if len(found) > _MOST_MONTHS:
        raise InputError("FILE", str(file), f"an invoice of at most {_MOST_MONTHS} months, or --month")
    return found


@contextmanager
def opened(file: Path) -> Iterator[Iterator[InvoiceLine | RefusedLine]]:
    """The lines of a CSV file, which may be compressed (``.gz``), or of a Parquet file. Raises InputError."""
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
    except (OSError, UnicodeDecodeError, EOFError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text, or was cut off"
        raise InputError("FILE", str(file), f"an invoice that can be read ({reason})") from None
    except csv.Error as error:
        raise InputError("FILE", str(file), f"CSV, as RFC 4180 has it ({error})") from None


@contextmanager
def _same(source: IO[bytes]) -> Iterator[IO[bytes]]:
    yield source


def _of_csv(text: IO[str]) -> Iterator[InvoiceLine | RefusedLine]:
    reader = csv.DictReader(text, strict=True)
    yield from invoice_lines(reader.fieldnames or (), reader)


def _of_parquet(source: IO[bytes]) -> Iterator[InvoiceLine | RefusedLine]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(source)
        names = file.schema_arrow.names
        rows = (_texts(row) for batch in file.iter_batches(10_000) for row in batch.to_pylist())
        yield from invoice_lines(names, rows)
    except pa.ArrowException as error:
        raise InputError("FILE", "Parquet", f"a Parquet file that can be read ({error})") from None


def _texts(row: Mapping[str, Any]) -> dict[str, str | None]:
    return {
        name: None
        if value is None
        else value.strftime("%Y-%m-%dT%H:%M:%SZ")
        if hasattr(value, "strftime")
        else str(value)
        for name, value in row.items()
    }


def _digest(file: Path) -> str:
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _ledger_nodes(ledger: Ledger, month: Month) -> list[LedgerNode]:
    """The nodes of a month: cost, and the time of which there are lines, hour by hour."""
    filters = {"bucket": _CAPACITY}
    try:
        lines = ledger.aggregate(
            EVERYTHING, month.window, ("cluster", "node"), filters=filters, step_ms=HOUR_MS
        )
    except InputError:
        # Hours of windows that are longer, or were added up by day, are not known.
        lines = ledger.aggregate(
            EVERYTHING, month.window, ("cluster", "node"), filters=filters, step_ms=DAY_MS
        )
    watched: dict[str, list[Window]] = defaultdict(list)
    for info in ledger.windows(month.window):
        runs = watched[info.cluster]
        if not info.observed_ms:
            continue
        if runs and runs[-1].end_ms == info.window.start_ms:
            runs[-1] = Window(runs[-1].start_ms, info.window.end_ms)
        else:
            runs.append(info.window)
    sums: dict[NodeKey, list[int]] = defaultdict(lambda: [0, 0])
    names = ("cluster", "node", "nano", "first_ms", "last_ms")
    for cluster, node, nano, first_ms, last_ms in zip(*(lines[name].tolist() for name in names), strict=True):
        if node:
            found = sums[cluster, node]
            found[0] += 0 if pd.isna(nano) else int(nano)
            found[1] += last_ms - first_ms
    return [
        LedgerNode(*key, nano, present_ms, tuple(watched[key[0]]))
        for key, (nano, present_ms) in sorted(sums.items())
    ]


_REFERENCE = "invoice"


def book_differences(ledger: Ledger, found: InvoiceReconciliation, author: str) -> tuple[Adjustment, ...]:
    """Books what each node of ``found`` cost more or less than the ledger says, as adjustments of its teams
    in proportion to their cost on the node; the part of idle capacity for the name that its lines have.

    What was booked of a node before, by this file or an earlier one, counts: the same file again books
    nothing, a newer one the rest. Raises MonthOpen before anything is booked.
    """
    wanted = [each for each in found.nodes if each.resource and each.difference_nano]
    for month in sorted({each.month for each in wanted}):
        if ledger.month(month).closed_at_ms is None:
            raise MonthOpen(month)
    made: list[Adjustment] = []
    for each in wanted:
        made += _book(ledger, each, found, author)
    return tuple(made)


def _book(
    ledger: Ledger, each: ReconciledNode, found: InvoiceReconciliation, author: str
) -> Iterator[Adjustment]:
    filters = {"cluster": (each.cluster,), "node": (each.node,), "bucket": _CAPACITY}
    lines = ledger.aggregate(EVERYTHING, each.month.window, ("team",), filters=filters)
    priced = lines.dropna(subset=["nano"])
    teams, weights = priced["team"].tolist(), [int(nano) for nano in priced["nano"]]
    shares = dict(zip(teams, dealt(each.difference_nano, weights), strict=True)) if teams else {}
    if not shares:
        return
    prefix = f"{_REFERENCE} {each.cluster}/{each.node} "
    booked: dict[str, list[int]] = defaultdict(list)
    for item in ledger.adjustments(EVERYTHING, each.month):
        if item.reference.startswith(prefix):
            booked[item.team].append(item.nano)
    causes = ", ".join(part.cause.value for part in each.causes)
    for team in sorted({*shares, *booked}):
        rest = shares.get(team, 0) - sum(booked[team])
        if rest:
            yield ledger.adjust(
                each.month,
                team,
                rest,
                0,
                f"invoice of node {each.node} ({each.resource}): {causes}",
                author,
                f"{prefix}{found.digest[:12]} {len(booked[team]) + 1}",
            )
