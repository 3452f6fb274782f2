"""Usage lines for tests: only what a test is about is written out."""

from __future__ import annotations

import random
from typing import Any

import pandas as pd

from gpucost.attribution.attribute import attribute
from gpucost.attribution.usage_lines import Attribution
from gpucost.contract.frames import LINE_MEASURES, PROGRESS, USAGE_LINES, ColumnType
from gpucost.domain.buckets import HOLDER_OF_BUCKET, Bucket
from gpucost.domain.money import NANO
from gpucost.domain.rates import Rate
from gpucost.domain.time import HOUR_MS, Month, Window
from gpucost.ledger.db.records import IngestResult
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.usage.prepared_batch import prepare_batch
from tests.support.frames import FlatRates, NamespaceTeams, build, node, pod, signal, units

CLUSTER = "alpha"
MONTH = Month(2026, 10)
NOW_MS = Month(2026, 12).window.start_ms
PRICE = 2_500_000_000


_TYPES: dict[ColumnType, Any] = {
    kind: "Int64" if kind is ColumnType.INTEGER else kind.value for kind in ColumnType
}


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
    return pd.DataFrame(
        {
            column.name: pd.array([row.get(column.name) for row in rows], dtype=_TYPES[column.type])
            for column in USAGE_LINES.columns
        },
        copy=False,
    )


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


BATCH_CLUSTER = "c"


def attribution(first: int, last: int, *, pods: int = 4, moved_ms: int = 0) -> Attribution:
    """Attribution of the hours from ``first`` to ``last`` of MONTH, with every kind of line.

    Two nodes, one of a price that changes within an hour and one without a price; pods that start on the
    half-hour, one shared, one more than there is room for; an hour that was not observed. ``moved_ms`` ends
    the pods that much earlier. Lines of an hour do not depend on ``first`` and ``last``.
    """
    length = 2.5 - moved_ms / HOUR_MS
    names = [(f"p{n}", n * 0.5) for n in range(pods)]
    frames = build(
        pods=[pod(name, (at, at + length), namespace=f"team-{at % 3}", user=name) for name, at in names]
        + [pod("crowd", (1, 9), count=7, namespace="crowd"), pod("free", (0, 40), node="n2")],
        nodes=[node(), node("n2", product="NVIDIA-L4")],
        capacity=[units(), units(name="n2", schedulable=0)],
        observed=[(0, 2), (3, 40)],
        signals=[signal("p1", (0, 2), observed=1, busy=0.5)],
    )
    prices = FlatRates(("2.50", 0), ("3.333333333", 1.3))
    return attribute(
        frames,
        [hour(number) for number in range(first, last)],
        rates=lambda facts, window: () if facts.node == "n2" else prices(facts, window),
        teams=NamespaceTeams(),
    )


def ingest_batch(ledger: Ledger, found: Attribution, **options: Any) -> tuple[IngestResult, ...]:
    """Ingest as settled, fully observed windows, unless ``options`` say otherwise."""
    settings: dict[str, Any] = {
        "observed_ms": {window: window.length_ms for window in found.windows},
        "source": "test",
        "code_version": "1",
        "settled": found.windows,
    } | options
    content = {name: settings.pop(name) for name in ("observed_ms", "progress") if name in settings}
    return ledger.write_batch(prepare_batch(BATCH_CLUSTER, found, **content), **settings)


def ingest_flat(ledger: Ledger, found: Attribution, **options: Any) -> tuple[IngestResult, ...]:
    """The same, window by window, as frames of USAGE_LINES; ``progress`` by window."""
    frame, rates = found.flat(), {rate.rate_id: rate for rate in found.rates}
    progress_of = options.pop("progress", {})
    return tuple(
        ledger.ingest(
            BATCH_CLUSTER,
            window,
            frame[frame["window_start_ms"] == window.start_ms],
            observed_ms=window.length_ms,
            rates=rates,
            source="test",
            code_version="1",
            settle=True,
            problems=problems,
            progress=progress_of.get(window),
            **options,
        )
        for window, problems in zip(found.windows, found.problems_by_window(), strict=True)
    )


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
        if choose.random() < 0.5:
            row |= {"sm_observed_ms": board_ms, "tensor_active_ms": board_ms // 3}
            row |= {"tensor_observed_ms": board_ms // 2} if choose.random() < 0.5 else {}
        if choose.random() < 0.3:
            row |= {"memory_observed_ms": board_ms, "memory_used_mib_s": board_ms * 40, "busy_over_ms": 7}
            row |= {"memory_total_mib_s": board_ms * 80, "memory_peak_mib": choose.randrange(81_920)}
            row |= {"energy_observed_ms": board_ms, "energy_mj": board_ms * choose.randrange(700)}
        rows.append(line(window, **row))
    return rows


def contents(ledger: Ledger, window: Window) -> list[tuple[str, str, int]]:
    """What the ledger has of every window, in one comparable value."""
    return [(info.cluster, info.digest, info.version) for info in ledger.windows(window)]
