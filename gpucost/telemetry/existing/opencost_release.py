"""Which OpenCost wrote a cluster's series, and how it reads them; from its own series."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpucost.contract.opencost import (
    BUILD_INFO,
    CLUSTER_INFO,
    CUSTOM_PROVIDER,
    NODE_GPU,
    NODE_TOTAL,
    SHIPPED_GPU_PRICES,
    DefaultPrice,
    OpenCostRelease,
)
from gpucost.domain.time import MINUTE_MS, Window
from gpucost.telemetry.promql import PromQL, always, by, other_than, over_instants, over_time
from gpucost.telemetry.reader import ClusterReader, numbers

_VERSION = re.compile(r"v?(\d+)\.(\d+)")
# The first release after opencost/opencost pull 3094, which looks at the start of a window on Prometheus 3.
_SEES_START = (1, 115)


def read_release(
    reader: ClusterReader, window: Window, default_price: float | None = None
) -> OpenCostRelease:
    """The OpenCost of ``window``. ``default_price`` is what somebody says a GPU of a node without a price
    series costs there; else it is worked out. Raises SourceError."""
    versions = tuple(filter(None, _labels(reader, window, BUILD_INFO, "version")))
    uids = reader.select_of_all(NODE_TOTAL, other_than("uid", ""))
    by_uid = bool(reader.vector(by("count", (), _last(uids, window)), window.end_ms))
    numbered = [(int(found[1]), int(found[2])) for each in versions if (found := _VERSION.match(each))]
    is_late = min(numbered) >= _SEES_START if numbered else by_uid
    return OpenCostRelease(
        versions,
        by_uid,
        is_late or not _is_left_open(reader, window.end_ms),
        _default(reader, window) if default_price is None else DefaultPrice(default_price, "as you say"),
    )


def _default(reader: ClusterReader, window: Window) -> DefaultPrice:
    """``getCustomNodePricing`` of allocation_helpers.go: the configured price, which no series has. Where all
    prices are configured ones, every other node's is the same."""
    found = {value for value in _prices(reader, window) if value > 0}
    providers = _labels(reader, window, CLUSTER_INFO, "provider")
    if CUSTOM_PROVIDER in providers and len(found) == 1:
        return DefaultPrice(found.pop(), "the configured price that all other nodes have")
    provider = next(iter(providers), "").lower()
    name = provider if provider in SHIPPED_GPU_PRICES else "its default"
    price = SHIPPED_GPU_PRICES.get(provider, SHIPPED_GPU_PRICES["aws"])
    return DefaultPrice(price, f"what OpenCost is shipped with for {name}, unless yours is set otherwise")


def _prices(reader: ClusterReader, window: Window) -> Sequence[float]:
    mean = over_time("avg_over_time", reader.select_of_all(NODE_GPU), window.length_ms)
    return numbers(reader.vector(mean, window.end_ms))


def _labels(reader: ClusterReader, window: Window, metric: str, label: str) -> list[str]:
    asked = by("group", (label,), _last(reader.select_of_all(metric), window))
    return sorted(each["metric"].get(label, "") for each in reader.vector(asked, window.end_ms))


def _last(selector: PromQL, window: Window) -> PromQL:
    return over_time("last_over_time", selector, window.length_ms)


def _is_left_open(reader: ClusterReader, at_ms: int) -> bool:
    """Whether the server leaves out what is exactly at the start of a range, as Prometheus 3 does."""
    on_the_minute = at_ms // MINUTE_MS * MINUTE_MS
    probe = over_instants("count_over_time", always(), MINUTE_MS + 1, MINUTE_MS)
    return numbers(reader.vector(probe, on_the_minute)) == [1.0]
