"""A ledger with every way in which a GPU is shared, a discount, contracts and corrections, for FOCUS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

from gpucost.charges.contract_terms import ContractBook
from gpucost.domain.buckets import HOLDER_OF_BUCKET
from gpucost.domain.rates import Rate
from gpucost.domain.time import HOUR_MS, Month, Window
from gpucost.ledger.ledger import Ledger
from tests.ledger.builders import CLUSTER, hour, ingest, line
from tests.support.ledgers import new_ledger

MONTH = Month(2026, 10)
FEBRUARY = Month(2024, 2)
BEFORE = Month(2026, 9)
NOW_MS = Month(2026, 12).window.start_ms
HOURS = 48
TEAMS = ("red", "blue", "green")
PRICES = {"h100": (3_000_000_000, 3_000_000_000), "a100": (2_336_999_999, 4_400_000_000)}


def rate(name: str) -> Rate:
    price, listed = PRICES[name]
    discount = "negotiated" if price < listed else ""
    return Rate(name, price, "USD", listed, "model", "price list", "2026-09-01", discount=discount)


RATES = {name: rate(name) for name in PRICES}
CONTRACTS = """
version: 1
currency: USD
contracts:
  - {id: ri-h100, kind: reservation, scope: {models: [H100]}, start: "2026-10-01T00:00:00Z",
     end: "2026-10-08T00:00:00Z", gpus: 6, upfront: 1512, order: 1}
  - {id: sp-a100, kind: savings_plan, scope: {models: [A100-80GB]}, start: "2026-10-01T00:00:00Z",
     end: "2026-11-01T00:00:00Z", spend: 9, price: 2, order: 2, recurring: [{amount: 6696, every: month}]}
"""


def contracts() -> ContractBook:
    return ContractBook.parse(CONTRACTS, "contracts.yaml", TEAMS)


def held(window: Window, node: str, share: Fraction, team: str, job: str, **more: Any) -> dict[str, Any]:
    """A part of one GPU of a node (or several GPUs) that a team's job held for the window."""
    return _line(window, node, share, more, team=team, job=job, job_uid=f"uid-{job}", namespace=f"ns-{team}")


def free(
    window: Window, node: str, share: Fraction, bucket: str = "unallocated", **more: Any
) -> dict[str, Any]:
    return _line(window, node, share, more, bucket=bucket, team=HOLDER_OF_BUCKET[bucket])


def _line(window: Window, node: str, share: Fraction, more: dict[str, Any], **names: Any) -> dict[str, Any]:
    name = more.get("rate_id", "h100")
    board_ms = int(share * window.length_ms)
    # As attribution does: rounded at the edges of parts, so that sums stay exact.
    nano = board_ms * PRICES[name][0] // HOUR_MS if name else None
    row = {"node": node, "board_ms": board_ms, "nano": nano, "rate_id": name}
    uid = f"pod-{node}-{names.get('job', '')}-{names.get('team', '')}"
    pod = {"pod_uid": uid, "pod": uid} if "job" in names else {}
    return line(window, **(row | names | pod | more))


def hour_lines(window: Window) -> list[dict[str, Any]]:
    """One hour: whole GPUs, a MIG board of three teams, replicas, DRA, a node of both, another model."""
    seventh = Fraction(1, 7)
    mig = {"profile": "1g.10gb", "resource": "nvidia.com/mig-1g.10gb", "share_den": 7}
    three = {"profile": "3g.40gb", "resource": "nvidia.com/mig-3g.40gb", "share_num": 3, "share_den": 7}
    replica = {"resource": "nvidia.com/gpu.shared", "share_den": 4}
    dra = {"resource": "gpu.nvidia.com.dra-capacity", "share_den": 100_800}
    memory = {**mig, "basis": "memory", "share_den": 8}
    a100 = {
        "model": "A100-80GB",
        "rate_id": "a100",
        "pool": 'batch, "cheap"',
        "region": "eu-1",
        "zone": "eu-1a",
    }
    busy = {"observed_ms": 3_000_000, "busy_ms": 1_000_000}
    return [
        held(window, "whole", Fraction(4), "red", "train", queue="lq", cluster_queue="cq", **busy),
        held(window, "whole", Fraction(2), "blue", "tune"),
        free(window, "whole", Fraction(2)),
        held(window, "mig", 3 * seventh, "red", "serve", **three),
        held(window, "mig", seventh, "blue", "note", **mig),
        held(window, "mig", seventh, "green", "note", **mig),
        free(window, "mig", seventh, **mig),
        free(window, "mig", seventh, resource="__remainder__"),
        held(window, "mig-memory", Fraction(1, 8), "green", "note", **memory),
        free(window, "mig-memory", Fraction(7, 8), **memory),
        held(window, "shared", Fraction(1, 4), "red", "dev", **replica),
        held(window, "shared", Fraction(1, 4), "blue", "dev", **replica),
        free(window, "shared", Fraction(1, 2), "unknown", **replica),
        held(window, "dra", Fraction(1, 3), "green", "infer", **dra),
        free(window, "dra", Fraction(2, 3), "unavailable", **dra),
        held(window, "both", Fraction(1), "red", "train"),
        held(window, "both", 3 * seventh, "green", "serve", **three),
        free(window, "both", 4 * seventh, resource="__remainder__"),
        # One job that two teams share.
        held(window, "a100", Fraction(3), "red", "joint", **a100),
        held(window, "a100", Fraction(1), "blue", "joint", namespace="ns-red", **a100),
        free(window, "a100", Fraction(4), **a100),
    ]


@contextmanager
def focus_ledger(folder: Path, *, corrected: bool = True) -> Iterator[Ledger]:
    """October 2026, two days of it; with ``corrected`` September too, closed and adjusted since."""
    with Ledger.open(new_ledger(folder / "focus.db"), now=lambda: NOW_MS) as ledger:
        fill(ledger, corrected=corrected)
        yield ledger


@contextmanager
def february_ledger(folder: Path) -> Iterator[Ledger]:
    """The end of the first day of a leap year's February, the beginning of the next, and the month's end."""
    last = FEBRUARY.window.length_ms // HOUR_MS
    with Ledger.open(new_ledger(folder / "february.db"), now=lambda: NOW_MS) as ledger:
        for window in (hour(number, FEBRUARY) for number in (*range(22, 26), *range(last - 3, last))):
            ingest(ledger, window, *hour_lines(window), rates=RATES)
        yield ledger


def fill(ledger: Ledger, *, corrected: bool = True) -> None:
    for number in range(HOURS):
        ingest(ledger, hour(number), *hour_lines(hour(number)), rates=RATES)
    if corrected:
        window = hour(0, BEFORE)
        red = held(window, "whole", Fraction(4), "red", "train")
        ingest(ledger, window, red, free(window, "whole", Fraction(4)), rates=RATES)
        ledger.close_month(BEFORE, author="ada", min_coverage=Fraction(0), reason="a test")
        adjust = {"reason": "half of it was blue's", "author": "ada", "reference": "FIN-1"}
        ledger.adjust(BEFORE, "red", -6_000_000_000, -2 * HOUR_MS, **adjust)
        ledger.adjust(BEFORE, "blue", 6_000_000_000, 2 * HOUR_MS, **adjust)
        ledger.adjust(BEFORE, "red", 1_000_000, 0, "rounding", "ada", "FIN-2")


__all__ = ["CLUSTER", "MONTH", "RATES", "TEAMS", "contracts", "fill", "focus_ledger", "held", "hour_lines"]
