"""Usage lines for tests: only what a test is about is written out."""

from __future__ import annotations

import random
from typing import Any

import pandas as pd

from gpucost.contract.frames import LINE_MEASURES, PROGRESS, USAGE_LINES, ColumnType
from gpucost.domain.holders import HOLDER_OF_BUCKET, Bucket
from gpucost.domain.money import NANO
from gpucost.domain.rates import Rate
from gpucost.domain.time import HOUR_MS, Month, Window
from gpucost.ledger import IngestResult, Ledger

CLUSTER = "alpha"
MONTH = Month(2026, 10)
NOW_MS = Month(2026, 12).window.start_ms
PRICE = 2_500_000_000


def rate(rate_id: str, nano: int = PRICE, currency: str = "USD") -> Rate:
    return Rate(rate_id, nano, currency, nano, "model", "list", "2026-09-01")


RATES = {name: rate(name, price * NANO) for name, price in (("h100@1", 3), ("a100@1", 2), ("h100@2", 4))}


def hour(number: int, month: Month = MONTH) -> Window:
    start = month.window.start_ms + number * HOUR_MS
    return Window(start, start + HOUR_MS)


def line(window: Window, **values: Any) -> dict[str, Any]:
    """One line: a whole H100 held for the window by a pod of team red, unless ``values`` say otherwise."""
    bucket = values.get("bucket", "held")
    held = bucket in (Bucket.HELD, Bucket.OVERCOMMITTED)
    row: dict[str, Any] = {
        column.name: "" for column in USAGE_LINES.columns if column.type is ColumnType.TEXT
    }
    row |= dict.fromkeys(LINE_MEASURES)
    row |= {
        "window_start_ms": window.start_ms,
        "window_end_ms": window.end_ms,
        "cluster": CLUSTER,
        "node": "node-1",
        "resource": "nvidia.com/gpu",
        "model": "H100",
        "share_num": 1,
        "share_den": 1,
        "basis": "compute",
        "bucket": "held",
        "board_ms": window.length_ms,
        "nano": PRICE,
        "rate_id": "h100@1",
        "first_ms": window.start_ms,
        "last_ms": window.end_ms,
    }
    if held:
        row |= {"namespace": "ml", "pod": "train-0", "pod_uid": "pod-1", "job_kind": "Job", "job": "train"}
        row |= {"job_uid": "job-1", "team": "red"}
    else:
        row["team"] = HOLDER_OF_BUCKET.get(bucket, "")
    return row | values


def lines(*rows: dict[str, Any]) -> pd.DataFrame:
    frame = pd.DataFrame(list(rows), columns=list(USAGE_LINES.column_names))
    types = {
        column.name: "Int64" if column.type is ColumnType.INTEGER else column.type.value
        for column in USAGE_LINES.columns
    }
    return frame.astype(types)


def progress(*rows: tuple[str, Window, str, float]) -> pd.DataFrame:
    values = [
        (CLUSTER, uid, window.start_ms, window.end_ms, name, amount) for uid, window, name, amount in rows
    ]
    return pd.DataFrame(values, columns=list(PROGRESS.column_names))


def ingest(ledger: Ledger, window: Window, *rows: dict[str, Any], **options: Any) -> IngestResult:
    """Ingest rows as a settled, fully observed window, unless ``options`` say otherwise."""
    settings: dict[str, Any] = {
        "observed_ms": window.length_ms,
        "rates": RATES,
        "source": "test",
        "code_version": "1",
        "settle": True,
    }
    cluster = options.pop("cluster", CLUSTER)
    return ledger.ingest(cluster, window, lines(*rows), **(settings | options))


def random_rows(seed: int, window: Window, count: int = 40, cluster: str = CLUSTER) -> list[dict[str, Any]]:
    """Different lines of several nodes, teams, pods and buckets, with gaps in prices and signals."""
    choose = random.Random(f"{seed} {window}")
    rows = []
    for number in range(count):
        bucket = choose.choice([Bucket.HELD] * 6 + list(Bucket))
        board_ms = choose.randrange(HOUR_MS + 1)
        rate_id = choose.choice(["", *RATES])
        start_ms = window.start_ms + choose.randrange(window.length_ms)
        row: dict[str, Any] = {
            "cluster": cluster,
            "node": f"node-{number}",
            "model": choose.choice(["H100", "A100-80GB", "é-gpu"]),
            "bucket": str(bucket),
            "board_ms": board_ms,
            "rate_id": rate_id,
            "nano": board_ms * 7 if rate_id else None,
            "first_ms": start_ms,
            "last_ms": choose.randint(start_ms, window.end_ms),
        }
        if bucket in (Bucket.HELD, Bucket.OVERCOMMITTED):
            pod = choose.randrange(12)
            # Names that collations and code points sort differently.
            team = ("red", "Red", "blue", "éclair", "_ops", "zebra")[pod % 6]
            row |= {"team": team, "pod": f"pod-{pod}", "pod_uid": f"pod-{pod}", "job_uid": f"job-{pod // 2}"}
        if choose.random() < 0.5:
            row |= {"observed_ms": board_ms, "busy_ms": board_ms // 2}
        rows.append(line(window, **row))
    return rows


def contents(ledger: Ledger, window: Window) -> list[tuple[str, str, int]]:
    """What the ledger has of every window, in one comparable value."""
    return [(info.cluster, info.digest, info.version) for info in ledger.windows(window)]
