"""What a comparison is made from: what OpenCost bills by day, and our lines of the same days."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from gpucost.contract.opencost import BilledNode, BilledPod, OpenCostRelease
from gpucost.domain.holders import Bucket
from gpucost.domain.money import round_half_even
from gpucost.domain.rates import Rate
from gpucost.domain.time import HOUR_MS

# To be asked of the ledger, in steps of a day.
COMPARED_DIMS = (
    *("cluster", "node", "resource", "share_num", "share_den"),
    *("bucket", "namespace", "pod", "pod_uid", "team", "rate_id"),
)


@dataclass(frozen=True, slots=True)
class OpenCostDay:
    """What OpenCost bills in one cluster on one UTC day, from its own series, and which OpenCost that is."""

    cluster: str
    day_ms: int
    nodes: Sequence[BilledNode]
    pods: Sequence[BilledPod]
    release: OpenCostRelease = field(default_factory=OpenCostRelease)


@dataclass(frozen=True, slots=True)
class OurLine:
    """One of our lines of one day. ``unit_ms`` is time in units as Kubernetes counts them; ``list_nano`` is
    before discounts. Both costs are those of the priced part."""

    cluster: str
    day_ms: int
    node: str
    resource: str
    bucket: Bucket
    namespace: str
    pod: str
    team: str
    unit_ms: int
    board_ms: int
    list_nano: int
    nano: int
    unpriced_ms: int
    first_ms: int
    last_ms: int
    busy_ms: int = 0
    observed_ms: int = 0
    uid: str = ""


def lines_of(frame: pd.DataFrame, rates: Mapping[str, Rate]) -> list[OurLine]:
    """``frame`` is an aggregate by COMPARED_DIMS in steps of a day, ``rates`` those that it names."""
    return [_line(row, rates) for row in frame.to_dict("records")]


def _line(row: Mapping[object, object], rates: Mapping[str, Rate]) -> OurLine:
    def number(name: str) -> int:
        value = row[name]
        return 0 if value is pd.NA or value is None else int(str(value))

    def text(name: str) -> str:
        return str(row[name])

    nano, board_ms, unpriced = number("nano"), number("board_ms"), number("unpriced_ms")
    rate = rates.get(text("rate_id"))
    bucket = Bucket(text("bucket"))
    off = 0
    if rate is not None and bucket is not Bucket.OVERCOMMITTED:
        off = rate.list_nano_per_board_hour - rate.nano_per_board_hour
    return OurLine(
        cluster=text("cluster"),
        day_ms=number("step_start_ms"),
        node=text("node"),
        resource=text("resource"),
        bucket=bucket,
        namespace=text("namespace"),
        pod=text("pod"),
        team=text("team"),
        unit_ms=round_half_even(board_ms * number("share_den"), number("share_num")),
        board_ms=board_ms,
        list_nano=nano + round_half_even((board_ms - unpriced) * off, HOUR_MS),
        nano=nano,
        unpriced_ms=unpriced,
        first_ms=number("first_ms"),
        last_ms=number("last_ms"),
        busy_ms=number("busy_ms"),
        observed_ms=number("observed_ms"),
        uid=text("pod_uid"),
    )
